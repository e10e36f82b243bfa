"""Checkpoints under Megatron-LM's older names and NeMo's, and Megatron's zarr arrays. (I/O)"""

from __future__ import annotations

import hashlib
import json
import tarfile
from pathlib import Path

import pytest

from ftrun.hooks.checkpoints.find import find
from ftrun.hooks.checkpoints.model import COMPLETE, DEEP, EMPTY, QUICK, TORN
from tests.unit import written

NAME = "gpt--val_loss=2.31-step=400-consumed_samples=3200.0"
OLDER = "older/iter_0000300"
RANKS = f"nemo/ranks/mp_rank_00/{NAME}.ckpt"
TWO = f"nemo/two/{NAME}"


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    with tarfile.open(written.ARCHIVE.with_name("parallel.tar.xz")) as packed:
        packed.extractall(tmp_path, filter="data")
    return tmp_path


@pytest.mark.parametrize("level", [QUICK, DEEP])
@pytest.mark.parametrize(
    ("name", "layout", "step", "world"),
    [(OLDER, "megatron", 300, 8), (RANKS, "nemo", 400, None), (TWO, "nemo", 400, 2), ("nemo/gpt.nemo", "nemo", None, None)],
)  # fmt: skip
def test_what_was_written_whole_is_complete(
    kept: Path, name: str, layout: str, step: int, world: int | None, level: str
) -> None:
    """Each form is known, with its step and what its metadata says of its world."""
    judged = written.seen(kept / name, level=level)

    assert (COMPLETE, layout, step, world, level) == (
        judged.state, judged.found.layout, judged.found.step, judged.world, judged.level,
    ), judged.why  # fmt: skip


@pytest.mark.parametrize("rank", ["00_000", "01_001"])
@pytest.mark.parametrize("file", ["model_optim_rng.pt", "distrib_optim.pt"])
def test_a_rank_of_megatrons_older_form_is_missed(kept: Path, rank: str, file: str) -> None:
    """The arguments in any of the shards say how many there must be, and each whether it had an optimizer."""
    (kept / OLDER / f"mp_rank_{rank}" / file).unlink()

    judged = written.seen(kept / OLDER)

    assert (TORN, True) == (judged.state, f"mp_rank_{rank}/{file} is missing" in judged.why)


def test_a_shard_whose_arguments_cannot_be_read_does_not_hide_that_another_is_missing(kept: Path) -> None:
    """Ranks are numbered without gaps."""
    for rank in ("00_000", "00_001", "01_000"):
        (kept / OLDER / f"mp_rank_{rank}" / "model_optim_rng.pt").write_bytes(b"")

    assert EMPTY == written.seen(kept / OLDER).state


def test_an_iteration_that_died_in_its_first_file_is_torn(kept: Path) -> None:
    """common.pt is written first, metadata.json last; an empty folder is a checkpoint that never began."""
    for name in (".metadata", "metadata.json", "__0_0.distcp", "__1_0.distcp"):
        (kept / "megatron/iter_0000200" / name).unlink()
    (kept / "megatron/iter_0000300").mkdir()

    states = {one.step: written.seen(one.path).state for one in find([str(kept / "megatron")], cwd="/")}

    assert {100: COMPLETE, 200: TORN, 300: EMPTY} == states


def test_a_checkpoint_that_nemo_had_not_finished_is_torn(kept: Path) -> None:
    """Its mark lies beside a folder, and above the folders of ranks."""
    (kept / f"nemo/ranks/{NAME}-unfinished").touch()
    (kept / f"nemo/two/{NAME}-unfinished").touch()

    assert [TORN, TORN] == [written.seen(kept / name).state for name in (RANKS, TWO)]


def test_every_rank_must_have_its_shard(kept: Path) -> None:
    """The folder of a rank without this checkpoint's shard is a shard that is missing."""
    (kept / f"nemo/ranks/mp_rank_01/{NAME}.ckpt").unlink()

    judged = written.seen(kept / RANKS)

    assert (TORN, True) == (judged.state, f"mp_rank_01/{NAME}.ckpt is missing" in judged.why)


def test_weights_in_a_folder_of_nemo_are_judged_as_megatrons(kept: Path) -> None:
    """A shard that is missing below weights/ is named with its folder."""
    (kept / TWO / "weights/__1_0.distcp").unlink()

    judged = written.seen(kept / TWO)

    assert (TORN, True) == (judged.state, "weights/__1_0.distcp is missing" in judged.why)


def zarr(folder: Path, fill: float | None) -> Path:
    """A distributed checkpoint with one array of 4 x 6 numbers in chunks of 2 x 3, as zarr 2 keeps it."""
    told = {
        "zarr_format": 2, "shape": [4, 6], "chunks": [2, 3], "dtype": "<f4", "compressor": None, "fill_value": fill,
        "order": "C", "filters": None,
    }  # fmt: skip
    (folder / "weight").mkdir(parents=True)
    (folder / "metadata.json").write_text('{"sharded_backend": "zarr", "sharded_backend_version": 1}')
    (folder / "common.pt").write_bytes(b"\x80\x02}q\x00.")
    (folder / "weight" / ".zarray").write_text(json.dumps(told))
    for chunk in ("0.0", "0.1", "1.0", "1.1"):
        (folder / "weight" / chunk).write_bytes(bytes(range(1, 25)))
    return folder


def test_arrays_of_zarr_have_all_their_chunks_in_full_size(tmp_path: Path) -> None:
    """Where nothing fills what is missing; where something does, a chunk of it may be missing."""
    whole, is_missing, is_cut, filled = (
        zarr(tmp_path / f"iter_{n:07d}", fill) for n, fill in enumerate([None, None, None, 0.0])
    )
    (is_missing / "weight/1.0").unlink()
    written.cut(is_cut / "weight/0.1", 20)
    (filled / "weight/1.0").unlink()

    judged = [written.seen(path) for path in (whole, is_missing, is_cut, filled)]

    assert [COMPLETE, TORN, TORN, COMPLETE] == [one.state for one in judged]
    assert "weight/1.0 is missing" in judged[1].why
    assert "weight/0.1 has 20 bytes, not 24" in judged[2].why


def test_the_checksums_that_megatron_notes_are_compared_by_the_deep_level(kept: Path) -> None:
    """Every file in the folder has one there; a changed byte that no zip covers is found, too."""
    folder = kept / "megatron/iter_0000100"
    sums = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}
    (folder / "integrity.json").write_text(json.dumps({"algorithm": "sha256", "files": sums}))
    whole = written.seen(folder, level=DEEP)
    (folder / "metadata.json").write_text((folder / "metadata.json").read_text() + " ")

    judged = [written.seen(folder, level=level) for level in (QUICK, DEEP)]

    assert (COMPLETE, True) == (whole.state, "SHA-256" in whole.why)
    assert [COMPLETE, TORN] == [one.state for one in judged]
