"""Checkpoints of MindSpore, as MindSpore 2.10 wrote them, and of MindFormers, laid out as its source says. (I/O)"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from ftrun.hooks.checkpoints import layout_mindspore
from ftrun.hooks.checkpoints.model import COMPLETE, DEEP, QUICK, TORN, UNFLUSHED, WRITING
from tests.unit import written

FILES = ("plain.ckpt", "crc.ckpt", "sliced.ckpt")
WEIGHTS = "mindspore/net.safetensors"


def ranks(kept: Path, base: Path, count: int, *, steps: tuple[int, ...] = (1, 2)) -> Path:
    """The folder of a run of MindFormers: every rank's file of some steps, with the rank in its name."""
    for rank in range(count):
        folder = base / f"rank_{rank}"
        folder.mkdir(parents=True)
        for step in steps:
            shutil.copy2(kept / "mindspore/plain.ckpt", folder / f"llama_rank_{rank}-1_{step}.ckpt")
        (folder / "meta.json").write_text('{"last_epoch": 1, "last_step": 2}')
    return base


def iteration(kept: Path, base: Path, *, metadata: bool) -> Path:
    """A checkpoint of two ranks in the newer form."""
    folder = base / "iteration_00000010"
    folder.mkdir(parents=True)
    names = [f"llama-{kind}-000000{rank}-0000002.safetensors" for kind in ("model", "opt") for rank in (0, 1)]
    for name in names:
        shutil.copy2(kept / WEIGHTS, folder / name)
    (folder / "common.json").write_text('{"step_num": 10}')
    if metadata:
        stored = {f"w{place}": [{"file_name": name, "storage_rank": 0}] for place, name in enumerate(names)}
        (folder / "metadata.json").write_text(json.dumps({"state_dict_metadata": {}, "storage_data": stored}))
    (base / "latest_checkpointed_iteration.txt").write_text("10")
    return folder


@pytest.mark.parametrize("level", [QUICK, DEEP])
@pytest.mark.parametrize("name", FILES)
def test_what_the_library_wrote_is_complete(kept: Path, name: str, level: str) -> None:
    """With a checksum and without, and tensors in slices."""
    judged = written.seen(kept / "mindspore" / name, level=level)

    assert (COMPLETE, "mindspore", level) == (judged.state, judged.found.layout, judged.level), judged.why


@pytest.mark.parametrize(("run", "steps"), [("run", [1, 2, 3, 4]), ("bare", [1, 2, 3, 4])])
def test_steps_count_through_the_epochs(kept: Path, run: str, steps: list[int]) -> None:
    """`net-2_1.ckpt` of epochs of two steps is step 3: by step_num in it, and without that by the files beside it."""
    found = written.inside(kept / "mindspore" / run)

    assert steps == sorted(one.step or 0 for one in found)
    assert [("net-2_2.ckpt", 4)] == [(Path(one.path).name, one.step) for one in found if "2_2" in one.path]


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_was_cut_anywhere_is_noticed(kept: Path, tmp_path: Path, name: str) -> None:
    """Inside a value; between values only where a slice or the checksum is missing, else nothing tells."""
    source = kept / "mindspore" / name
    text = source.read_bytes()
    ends = {
        value.end for value in layout_mindspore.read_values(lambda at, size: text[at : at + size], len(text))
    }
    copy = tmp_path / name
    unnoticed = []
    for size in range(16, len(text), 31):
        shutil.copy2(source, copy)
        written.cut(copy, size)
        if written.seen(copy).state == COMPLETE and size not in ends:
            unnoticed.append(size)

    assert [] == unnoticed


def test_a_missing_last_slice_is_noticed(kept: Path, tmp_path: Path) -> None:
    """A tensor has fewer bytes than its dimensions ask for, though the file ends with a value."""
    text = (kept / "mindspore/sliced.ckpt").read_bytes()
    values = list(layout_mindspore.read_values(lambda at, size: text[at : at + size], len(text)))
    tags = [value.tag for value in values]
    sliced = next(tag for tag in tags if tags.count(tag) > 1)
    copy = tmp_path / "sliced.ckpt"
    copy.write_bytes(text[: values[tags.index(sliced)].end])

    judged = written.seen(copy)

    assert TORN == judged.state
    assert sliced in judged.why


def test_one_wrong_bit_is_noticed_on_the_deep_level_where_there_is_a_checksum(
    kept: Path, tmp_path: Path
) -> None:
    """crc_check=True of save_checkpoint."""
    copy = tmp_path / "crc.ckpt"
    text = bytearray((kept / "mindspore/crc.ckpt").read_bytes())
    text[200] ^= 1
    copy.write_bytes(text)

    assert (COMPLETE, TORN) == (written.seen(copy).state, written.seen(copy, level=DEEP).state)


def test_zeros_behind_whole_values_were_never_flushed(kept: Path, tmp_path: Path) -> None:
    """The right length, and the last pages empty."""
    text = (kept / "mindspore/run/rank_0/net-2_2.ckpt").read_bytes()
    first = next(layout_mindspore.read_values(lambda at, size: text[at : at + size], len(text)))
    copy = tmp_path / "net-2_2.ckpt"
    copy.write_bytes(text[: first.end].ljust(len(text), b"\0"))

    assert UNFLUSHED == written.seen(copy).state


def test_an_encrypted_file_is_nothing_that_could_be_judged(tmp_path: Path) -> None:
    """It begins as no value does, and is taken as it stands."""
    path = tmp_path / "net-1_5.ckpt"
    path.write_bytes(bytes(range(7, 250)) * 40)

    assert COMPLETE == written.seen(path).state


def test_the_files_of_all_ranks_are_one_checkpoint(kept: Path, tmp_path: Path) -> None:
    """Named by rank 0's file."""
    base = ranks(kept, tmp_path / "checkpoint", 4)

    found = written.inside(base)
    judged = [written.seen(one.path) for one in found]

    assert ["llama_rank_0-1_1.ckpt", "llama_rank_0-1_2.ckpt"] == [Path(one.path).name for one in found]
    assert [(COMPLETE, 4, 4)] * 2 == [(one.state, one.world, one.shards) for one in judged]


def test_a_rank_whose_file_is_missing_or_torn_is_named(kept: Path, tmp_path: Path) -> None:
    """Of the newest step; the one before stays whole."""
    base = ranks(kept, tmp_path / "checkpoint", 4)
    third = base / "rank_3/llama_rank_3-1_2.ckpt"
    newest, before = base / "rank_0/llama_rank_0-1_2.ckpt", base / "rank_0/llama_rank_0-1_1.ckpt"
    written.cut(third, third.stat().st_size // 2)

    assert (TORN, True) == (written.seen(newest).state, "rank_3" in written.seen(newest).why)

    third.unlink()

    assert (TORN, True) == (written.seen(newest).state, "rank_3" in written.seen(newest).why)
    assert WRITING == written.seen(newest, now_s=newest.stat().st_mtime + 1).state
    assert COMPLETE == written.seen(before).state


def test_ranks_of_a_larger_run_before_are_not_waited_for(kept: Path, tmp_path: Path) -> None:
    """Their folders stay, and two newer steps did without them."""
    base = ranks(kept, tmp_path / "checkpoint", 4)
    for rank in (0, 1):
        for step in (3, 4):
            source = base / f"rank_{rank}/llama_rank_{rank}-1_1.ckpt"
            shutil.copy2(source, source.with_name(f"llama_rank_{rank}-1_{step}.ckpt"))

    newest = written.seen(base / "rank_0/llama_rank_0-1_4.ckpt")

    assert (COMPLETE, 2) == (newest.state, newest.world)
    assert (COMPLETE, 4) == (
        written.seen(base / "rank_0/llama_rank_0-1_2.ckpt").state,
        written.seen(base / "rank_0/llama_rank_0-1_2.ckpt").world,
    )


@pytest.mark.parametrize("metadata", [True, False])
def test_the_newer_form_is_complete_with_all_its_files(kept: Path, tmp_path: Path, metadata: bool) -> None:
    """By its metadata, and without it by the names; the tracker file says where the framework loads from."""
    folder = iteration(kept, tmp_path / "checkpoint", metadata=metadata)
    [found] = written.inside(tmp_path / "checkpoint")

    judged = written.seen(folder)

    assert ("mindspore", 10, str(folder.parent)) == (found.layout, found.step, found.root)
    assert (COMPLETE, 2) == (judged.state, judged.world), judged.why


@pytest.mark.parametrize("metadata", [True, False])
@pytest.mark.parametrize("gone", ["common.json", "llama-opt-0000001-0000002.safetensors"])
def test_a_file_of_the_newer_form_is_missed(kept: Path, tmp_path: Path, gone: str, metadata: bool) -> None:
    """Weights of a rank, and what is written behind all weights."""
    folder = iteration(kept, tmp_path / "checkpoint", metadata=metadata)
    (folder / gone).unlink()

    judged = written.seen(folder)

    assert (TORN, True) == (judged.state, gone in judged.why)


def test_replicas_that_metadata_names_are_needed_too(kept: Path, tmp_path: Path) -> None:
    """The loader refuses a checkpoint without one of the files, though its parameters lie in another as well."""
    folder = iteration(kept, tmp_path / "checkpoint", metadata=True)
    told = json.loads((folder / "metadata.json").read_text())
    names = [f"llama-opt-000000{rank}-0000002.safetensors" for rank in (0, 1)]
    told["storage_data"] = {"w": [{"file_name": name, "storage_rank": 0} for name in names]}
    (folder / "metadata.json").write_text(json.dumps(told))
    (folder / names[1]).unlink()

    assert (TORN, True) == (written.seen(folder).state, names[1] in written.seen(folder).why)


@pytest.mark.parametrize("text", ["{", "[]", '{"storage_data": 1}', '{"storage_data": {"w": [{}]}}'])
def test_metadata_that_cannot_be_read_is_torn(kept: Path, tmp_path: Path, text: str) -> None:
    """Whatever stands in it, the answer is a state."""
    folder = iteration(kept, tmp_path / "checkpoint", metadata=True)
    (folder / "metadata.json").write_text(text)

    assert TORN == written.seen(folder).state


def test_a_rank_whose_file_has_another_prefix_is_found_by_its_step(kept: Path, tmp_path: Path) -> None:
    """Begun anew beside older files, a rank may have another number in its prefix."""
    base = ranks(kept, tmp_path / "checkpoint", 2)
    second = base / "rank_1/llama_rank_1-1_2.ckpt"
    second.rename(second.with_name("llama_rank_1_1-1_2.ckpt"))

    judged = written.seen(base / "rank_0/llama_rank_0-1_2.ckpt")

    assert (COMPLETE, 2) == (judged.state, judged.shards)
