"""Checkpoints of torch, DCP, Megatron and DeepSpeed as torch 2.13, megatron-core 0.16 and DeepSpeed 0.19 wrote them. (I/O)"""

from __future__ import annotations

import os
import random
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ftrun.hooks.checkpoints.find import find
from ftrun.hooks.checkpoints.inspection import inspect
from ftrun.hooks.checkpoints.model import COMPLETE, DEEP, QUICK, TORN, WRITING
from tests.unit import written

PAGE = 4096

WRITTEN = {
    "saves/step_10.pt": ("torch", 10, None), "saves/step_20.pt": ("torch", 20, None),
    "saves/step_30.pt": ("torch", 30, None), "dcp/step_100": ("dcp", 100, None),
    "dcp/step_200": ("dcp", 200, None), "dcp/step_300": ("dcp", 300, None),
    "dcp/step_400": ("dcp", 400, None), "megatron/iter_0000100": ("megatron", 100, 2),
    "megatron/iter_0000200": ("megatron", 200, 2), "zero1/global_step100": ("deepspeed", 100, 2),
    "zero3/global_step100": ("deepspeed", 100, 2), "pipeline/global_step100": ("deepspeed", 100, 4),
    "universal/global_step100_universal": ("deepspeed", 100, 2),
}  # fmt: skip
NO_SUMS = {"saves/step_10.pt", "saves/step_20.pt"}
# Nothing in DeepSpeed's universal form tells of these.
UNIVERSAL = ("exp_avg.pt", "exp_avg_sq.pt", "step.pt", "optimizer_state.pt", "mp_rank_00_model_states.pt")


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("parallel")
    with tarfile.open(written.ARCHIVE.with_name("parallel.tar.xz")) as packed:
        packed.extractall(folder, filter="data")
    return folder


def files_of(checkpoint: Path) -> list[Path]:
    """Its files, in their order."""
    return [checkpoint / name for name in written.files(checkpoint)] if checkpoint.is_dir() else [checkpoint]


@pytest.mark.parametrize("level", [QUICK, DEEP])
@pytest.mark.parametrize("name", WRITTEN)
def test_what_the_libraries_wrote_is_complete(kept: Path, name: str, level: str) -> None:
    """Its layout, step and world are known, and nothing speaks against it on either level."""
    judged = written.seen(kept / name, level=level)

    assert (COMPLETE, *WRITTEN[name], level) == (
        judged.state, judged.found.layout, judged.found.step, judged.world, judged.level,
    ), judged.why  # fmt: skip


@pytest.mark.parametrize("name", ["dcp", "megatron", "zero1", "saves"])
def test_a_folder_of_them_is_opened_whether_its_name_or_its_content_is_asked_for(
    kept: Path, name: str
) -> None:
    """`ckpts` and `ckpts/*` find the same; tracker files are no checkpoints."""
    by_name = find([name], cwd=str(kept))
    by_content = find([f"{name}/*"], cwd=str(kept))

    assert by_name == by_content
    assert sorted(str(kept / path) for path in WRITTEN if path.startswith(f"{name}/")) == [
        f.path for f in by_name
    ]


@pytest.mark.parametrize(("name", "has"), [("megatron", True), ("zero1", True), ("dcp", False)])
def test_the_folder_with_the_tracker_file_is_the_root(kept: Path, name: str, has: bool) -> None:
    """Megatron and DeepSpeed load from the folder above."""
    roots = {found.root for found in find([name], cwd=str(kept))}

    assert {str(kept / name) if has else ""} == roots


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(sorted(WRITTEN)), st.randoms(use_true_random=False), st.floats(0, 1, exclude_max=True))
def test_no_checkpoint_is_complete_whose_file_was_cut(
    kept: Path, tmp_path: Path, name: str, chance: random.Random, part: float
) -> None:
    """Any file, anywhere, to nothing as well, on the quick level."""
    copy = written.copied(kept / name, Path(tempfile.mkdtemp(dir=tmp_path), Path(name).name))
    file = chance.choice(files_of(copy))
    written.cut(file, int(file.stat().st_size * part))

    judged = written.seen(copy)

    assert COMPLETE != judged.state, (file.name, part, judged.why)
    assert file.name in judged.why


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(sorted(set(WRITTEN) - NO_SUMS)), st.randoms(use_true_random=False), st.integers(0, 40))
def test_no_checkpoint_is_complete_of_which_a_page_is_zeros(
    kept: Path, tmp_path: Path, name: str, chance: random.Random, page: int
) -> None:
    """Any page of any file that was not zeros before, on the deep level."""
    copy = written.copied(kept / name, Path(tempfile.mkdtemp(dir=tmp_path), Path(name).name))
    file = chance.choice(files_of(copy))
    content = bytearray(file.read_bytes())
    at = page % (len(content) // PAGE + 1) * PAGE
    if not content[at : at + PAGE].strip(b"\0"):
        return
    content[at : at + PAGE] = bytes(len(content[at : at + PAGE]))
    file.write_bytes(content)

    judged = written.seen(copy, level=DEEP)

    assert COMPLETE != judged.state, (file.name, at, judged.why)


@pytest.mark.parametrize("name", [name for name in WRITTEN if not name.startswith("saves/")])
def test_no_checkpoint_is_complete_without_one_of_its_shards(kept: Path, tmp_path: Path, name: str) -> None:
    """The missing file is named. Nothing in DeepSpeed's universal form tells which moments there were."""
    for number, file in enumerate(files_of(kept / name)):
        if file.name in (UNIVERSAL if "universal" in name else ()):
            continue
        copy = written.copied(kept / name, tmp_path / str(number) / Path(name).name)
        (copy / file.relative_to(kept / name)).unlink()

        judged = written.seen(copy)

        assert TORN == judged.state, (file.name, judged.why)
        assert file.name in judged.why or ".metadata" in judged.why


def test_a_checkpoint_that_was_touched_just_now_is_being_written(kept: Path, tmp_path: Path) -> None:
    """The same damage, a minute later, is torn."""
    copy = written.copied(kept / "dcp/step_100", tmp_path / "step_100")
    written.cut(copy / "__1_0.distcp", 100)
    now_s = (copy / "__1_0.distcp").stat().st_mtime

    assert [WRITING, TORN] == [written.seen(copy, now_s=now_s + age_s).state for age_s in (5, 70)]


def test_a_long_list_of_shards_is_not_walked_by_the_quick_level(
    kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names are picked out of it, and a shard that was cut shows at its own end."""
    monkeypatch.setattr("ftrun.hooks.checkpoints.layout_torch.WALKED_BYTES_MAX", 100)
    copy = written.copied(kept / "dcp/step_300", tmp_path / "step_300")

    whole = written.seen(copy)
    written.cut(copy / "__1_1.distcp", 700)
    is_cut = written.seen(copy)
    (copy / "__1_1.distcp").unlink()
    is_missing = written.seen(copy)

    assert (COMPLETE, "9 shards in .metadata; zip directory") == (whole.state, whole.why)
    assert [TORN, TORN] == [is_cut.state, is_missing.state]
    assert "__1_1.distcp" in is_missing.why


CALLS = ("open", "pread", "stat", "lseek", "scandir")


def test_the_quick_level_asks_a_file_system_five_times_for_a_shard(
    kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So a thousand shards take half a second where each answer takes two milliseconds, thirty side by side."""
    folder = written.copied(kept / "dcp/step_300", tmp_path / "step_300")
    found = find([str(folder)], cwd="/")[0]
    asked: list[str] = []

    def counted(name: str) -> Callable[..., Any]:
        real = getattr(os, name)

        def call(*told: Any, **named: Any) -> Any:
            asked.append(name)
            return real(*told, **named)

        return call

    for name in CALLS:
        monkeypatch.setattr(os, name, counted(name))
    judged = inspect(found, now_s=written.LATER_S)

    assert (COMPLETE, 10) == (judged.state, judged.shards)
    assert len(asked) <= 5 * judged.shards + 20, asked
