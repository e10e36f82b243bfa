"""Checkpoints of Lightning, as lightning 2.6 wrote them: files, and folders of its model-parallel strategy. (I/O)"""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest

from ftrun.hooks.checkpoints import layout_torch
from ftrun.hooks.checkpoints.find import find
from ftrun.hooks.checkpoints.model import COMPLETE, DEEP, EMPTY, QUICK, TORN
from tests.unit import written

FOLDER = "lightning/lightning_logs/version_0/checkpoints"
FILE = f"{FOLDER}/epoch=0-step=4.ckpt"
SHARDED = "sharded/epoch=0-step=4.ckpt"


@pytest.mark.parametrize("level", [QUICK, DEEP])
@pytest.mark.parametrize("name", [FILE, f"{FOLDER}/last.ckpt", SHARDED])
def test_what_the_library_wrote_is_complete_with_its_step(kept: Path, name: str, level: str) -> None:
    """`last.ckpt` has its step inside, and is not loaded to tell it."""
    judged = written.seen(kept / name, level=level)

    assert (COMPLETE, "lightning", 4) == (judged.state, judged.found.layout, judged.found.step), judged.why


@pytest.mark.parametrize("above", ["lightning", "lightning/lightning_logs", FOLDER])
def test_checkpoints_are_found_from_each_folder_above_them(kept: Path, above: str) -> None:
    """The folder of all runs, of their logs, of one version: `version_*/checkpoints/*.ckpt`."""
    found = written.inside(kept / above)

    assert [2, 4, 4] == [one.step for one in found]
    assert {"lightning"} == {one.layout for one in found}


@pytest.mark.parametrize("needed", ["meta.pt", ".metadata", "__0_0.distcp", "__1_0.distcp"])
def test_a_sharded_checkpoint_needs_each_of_its_files(kept: Path, tmp_path: Path, needed: str) -> None:
    """Its shards by DCP's metadata, and `meta.pt`, which rank 0 writes when they are there."""
    copy = written.copied(kept / SHARDED, tmp_path / "epoch=0-step=4.ckpt")
    (copy / needed).unlink()

    judged = written.seen(copy)

    assert (TORN, "lightning") == (judged.state, judged.found.layout)
    assert needed in judged.why


@pytest.mark.parametrize("name", [FILE, f"{SHARDED}/meta.pt", f"{SHARDED}/__1_0.distcp"])
def test_a_file_that_was_cut_anywhere_is_noticed(kept: Path, tmp_path: Path, name: str) -> None:
    """At a dozen places, and one byte before its end."""
    whole, _, part = name.partition(".ckpt/")
    unnoticed = []
    for number, size in enumerate(written.cuts(kept / name)):
        copy = written.copied(
            kept / f"{whole}.ckpt" if part else kept / name, tmp_path / f"{number}" / "step=4.ckpt"
        )
        written.cut(copy / part if part else copy, size)
        if written.seen(copy).state == COMPLETE:
            unnoticed.append(size)

    assert [] == unnoticed


def test_a_file_without_a_byte_is_empty_and_still_lightnings(kept: Path, tmp_path: Path) -> None:
    """By its name."""
    path = tmp_path / "epoch=3-step=400.ckpt"
    path.touch()

    judged = written.seen(path)

    assert (EMPTY, "lightning", 400) == (judged.state, judged.found.layout, judged.found.step)


def test_a_folder_of_shards_by_another_writer_needs_no_meta_file(kept: Path, tmp_path: Path) -> None:
    """DCP saved under a name that ends in .ckpt is a checkpoint of DCP's."""
    copy = written.copied(kept / SHARDED, tmp_path / "tune_100.ckpt")
    (copy / "meta.pt").unlink()

    judged = written.seen(copy)

    assert (COMPLETE, "dcp") == (judged.state, judged.found.layout)


def test_the_step_is_read_without_running_what_the_file_would_run(tmp_path: Path) -> None:
    """A pickle that would call something when loaded is walked, and calls nothing."""
    witness = tmp_path / "ran"

    class Trap:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.mkdir, (str(witness),)

    text = pickle.dumps({"trap": Trap(), "global_step": 70}, protocol=2)
    name = b"archive/data.pkl"
    head = b"PK\x03\x04" + bytes(22) + len(name).to_bytes(2, "little") + bytes(2) + name + text

    assert 70 == layout_torch.global_step(head)
    assert not witness.exists()


@pytest.mark.parametrize(
    "entries",
    [{"global_step": "many", "epoch": 3}, {"epoch": 3}, {"global_step": {"a": 5}}],
    ids=["text", "none", "nested"],
)
def test_a_step_that_is_no_number_is_not_guessed(entries: dict[str, object]) -> None:
    """Numbers behind it belong to somebody else."""
    head = b"PK\x03\x04" + bytes(26) + pickle.dumps(entries, protocol=2)

    assert layout_torch.global_step(head) is None


def test_a_metric_with_a_slash_makes_a_folder_which_is_none_of_the_checkpoint(
    kept: Path, tmp_path: Path
) -> None:
    """`{epoch}-{val/loss:.2f}` is a folder and a file; the folder of all and the pattern that matches it lead to the file, with the step that stands in it."""
    names = ["epoch=0-val/loss=0.43.ckpt", "epoch=1-val/loss=0.41.ckpt"]
    for name in names:
        written.copied(kept / FILE, tmp_path / "out" / name)

    found = written.inside(tmp_path / "out")
    by_glob = find([str(tmp_path / "out/*")], cwd="/")

    assert [str(tmp_path / "out" / name) for name in names] == [one.path for one in found]
    assert [("lightning", 4)] * 2 == [(one.layout, one.step) for one in found]
    assert found == by_glob


@pytest.mark.parametrize("name", ["best.ckpt", "best-v1.ckpt", "best/epoch=0-step=4.ckpt", "last.ckpt"])
def test_the_best_one_is_found_by_its_folder(kept: Path, tmp_path: Path, name: str) -> None:
    """Where a training keeps the best alone that is what its next start can load."""
    written.copied(kept / FILE, tmp_path / "out" / name)

    assert [(str(tmp_path / "out" / name), 4)] == [
        (one.path, one.step) for one in written.inside(tmp_path / "out")
    ]


def test_the_value_of_a_metric_in_the_name_is_no_step(kept: Path, tmp_path: Path) -> None:
    """`model-0.36.ckpt` is of step 4, and not newer than one whose name says step 8."""
    written.copied(kept / FILE, tmp_path / "out/model-0.36.ckpt")
    written.copied(kept / FILE, tmp_path / "out/model-step=8.ckpt")

    assert [4, 8] == [one.step for one in written.inside(tmp_path / "out")]
