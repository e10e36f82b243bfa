"""Laws of folders of plain files: what the checkpoints beside one tell of it, and the tests of SCR as a table. Real files. (I/O)"""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from ftrun.hooks.checkpoints import manifest
from ftrun.hooks.checkpoints.find import found_at
from ftrun.hooks.checkpoints.inspection import tree_of
from ftrun.hooks.checkpoints.selection import Request, select

RANKS = 4
SIZE = 6000
AN_HOUR_S = 3600.0
Parts = Mapping[str, int | None]


def whole(size: int = SIZE, ranks: int = RANKS) -> dict[str, int | None]:
    return {f"rank_{rank}.bin": size for rank in range(ranks)}


def save(top: Path, step: int, parts: Parts, *, age_s: float = AN_HOUR_S) -> Path:
    """A folder of plain files with sums that only its program knows, written a while ago."""
    folder = top / f"step_{step}"
    folder.mkdir(parents=True)
    for name, size in parts.items():
        if size is None:
            continue
        data = random.Random(f"{step} {name}").randbytes(max(0, size - 32))
        (folder / name).write_bytes((hashlib.sha256(data).digest() + data)[:size])
        os.utime(folder / name, (time.time() - age_s,) * 2)
    return folder


def picked(top: Path, aside: tuple[str, ...] = ()) -> tuple[str, dict[str, str], str]:
    """(what a start loads, what is passed over and why, why it must not begin from nothing)."""
    found = select(Request(["step_*"], str(top), aside=aside, had=True))
    passed = {os.path.basename(path): why for path, why in found.passed}
    return os.path.basename(found.chosen.found.path) if found.chosen else "", passed, found.stuck


@pytest.mark.parametrize(
    ("newest", "words"),
    [
        (whole(), ""),
        ({**whole(), "rank_1.bin": None}, "rank_1.bin is missing, which has 6000 bytes in step_20"),
        ({**whole(), "rank_3.bin": None}, "rank_3.bin is missing"),
        ({**whole(), "rank_1.bin": None, "rank_2.bin": None}, "1 more of its parts are not whole"),
        ({**whole(), "rank_2.bin": 0}, "rank_2.bin is empty"),
        ({**whole(), "rank_2.bin": 3000}, "rank_2.bin has 3000 bytes, and 6000 bytes in step_20"),
        ({**whole(), "rank_2.bin": 5999}, "rank_2.bin has 5999 bytes"),
        ({**whole(), "rank_2.bin": 6001}, ""),
        (whole(9000), ""),
        ({**whole(), "notes.txt": None}, ""),
        ({**whole(), "eval.json": None}, ""),
    ],
    ids=str,
)
def test_a_folder_of_plain_files_has_what_the_two_before_it_have(
    tmp_path: Path, newest: Parts, words: str
) -> None:
    """A part that is missing, empty or cut is found before a start tries it; more, larger and small files beside the parts say nothing."""
    for step in (10, 20):
        save(tmp_path, step, {**whole(), "notes.txt": 500, "eval.json": 90})
    save(tmp_path, 30, newest)
    loads, passed, _ = picked(tmp_path)

    assert ("step_20" if words else "step_30") == loads
    assert words in passed.get("step_30", "")


@pytest.mark.parametrize(
    ("sets", "loads"),
    [
        ([whole(ranks=4), whole(ranks=4), whole(ranks=3), whole(ranks=3)], "step_40"),
        ([whole(ranks=3), whole(ranks=3), whole(ranks=4)], "step_30"),
        ([whole(), {**whole(), "rank_1.bin": None}], "step_10"),
        ([whole()], "step_10"),
        ([whole(), whole(5900)], "step_20"),
        ([whole(), whole(5000)], "step_10"),
        ([whole(100), whole(100), whole(99)], "step_30"),
        ([{"a.bin": 5000, "b.bin": 6000}, {"a.bin": 6000, "b.bin": 5000}, {"a.bin": 4900, "b.bin": 4900}], "step_30"),
        ([{**whole(), "extra.bin": 6000}, whole(), whole()], "step_30"),
    ],
    ids=["fewer ranks", "more ranks", "one neighbour", "alone", "a little less than the one", "much less", "text", "sizes that differ", "the first has more"],
)  # fmt: skip
def test_what_may_be_so_by_right_is_not_called_torn(tmp_path: Path, sets: list[Parts], loads: str) -> None:
    """Sets of another size, sizes that differ from save to save, and a file that only the first save wrote."""
    for number, parts in enumerate(sets, 1):
        save(tmp_path, 10 * number, parts)

    assert loads == picked(tmp_path)[0]


def test_names_may_bear_the_step(tmp_path: Path) -> None:
    """The part of step 30 is compared with that of step 20, whatever its number; a rank of the same number is a rank."""
    for step in (1, 2, 3):
        save(tmp_path, step, {f"m_{step:04d}_rank_{rank}.bin": SIZE for rank in range(4)})
    whole_one = picked(tmp_path)[0]
    (tmp_path / "step_3" / "m_0003_rank_2.bin").unlink()
    loads, passed, _ = picked(tmp_path)

    assert ("step_3", "step_2") == (whole_one, loads)
    assert "m_0003_rank_2.bin is missing" in passed["step_3"]


def test_a_checkpoint_with_a_list_is_judged_by_that(tmp_path: Path) -> None:
    """What its own list proves needs no comparison."""
    for step in (10, 20):
        save(tmp_path, step, whole())
    path = save(tmp_path, 30, whole(ranks=2))
    manifest.write(str(path), manifest.of_tree(tree_of(found_at(str(path))), 30, sums=True))
    manifest.write_marker(str(path))

    assert "step_30" == picked(tmp_path)[0]


# What the Scalable Checkpoint/Restart library tries with its test program: four ranks, a file each, three checkpoints. Its cache, its copy on the
# parallel file system and what it rebuilds are one folder here; what it cannot rebuild is what must be passed over.

Deed = Callable[[Path], object]


def gone(*places: str) -> Deed:
    def deed(top: Path) -> None:
        for place in places:
            (top / place).unlink()

    return deed


def removed(*names: str) -> Deed:
    def deed(top: Path) -> None:
        for name in names:
            shutil.rmtree(top / name)

    return deed


def flipped(*places: str) -> Deed:
    """Some bytes are others; size and time are as they were."""

    def deed(top: Path) -> None:
        for place in places:
            facts = (top / place).stat()
            content = bytearray((top / place).read_bytes())
            content[2000:2010] = b"?" * 10
            (top / place).write_bytes(content)
            os.utime(top / place, (facts.st_atime, facts.st_mtime))

    return deed


def cut(place: str, size: int) -> Deed:
    def deed(top: Path) -> None:
        os.truncate(top / place, size)

    return deed


def both(*deeds: Deed) -> Deed:
    def deed(top: Path) -> None:
        for one in deeds:
            one(top)

    return deed


def unfinished(top: Path) -> None:
    """The copy of a fourth was cut off: two ranks wrote theirs."""
    save(top, 24, whole(ranks=2), age_s=1.0)


SCR: Mapping[str, tuple[Deed, str, int]] = {
    "a first run begins from nothing": (removed("step_6", "step_12", "step_18"), "", 0),
    "a second run goes on where the last one left": (lambda top: None, "step_18", 0),
    "all files of one rank are gone from every checkpoint": (
        gone("step_6/rank_0.bin", "step_12/rank_0.bin", "step_18/rank_0.bin"), "lost", 3,
    ),
    "the newest is gone on two nodes": (gone("step_18/rank_0.bin", "step_18/rank_1.bin"), "step_12", 0),
    "the newest folder is gone": (removed("step_18"), "step_12", 0),
    "one file of the newest is gone": (gone("step_18/rank_2.bin"), "step_12", 0),
    "a file of the newest has other bytes": (flipped("step_18/rank_2.bin"), "step_12", 1),
    "a file of the newest was cut": (cut("step_18/rank_2.bin", 3000), "step_12", 0),
    "a file of the newest is empty": (cut("step_18/rank_2.bin", 0), "step_12", 0),
    "the two newest are bad, each in its way": (
        both(flipped("step_18/rank_2.bin"), gone("step_12/rank_1.bin")), "step_6", 1,
    ),
    "a copy was not finished": (unfinished, "step_18", 0),
    "every checkpoint is bad": (
        both(flipped("step_18/rank_2.bin", "step_6/rank_0.bin"), cut("step_12/rank_3.bin", 0)), "lost", 2,
    ),
}  # fmt: skip


def loaded(folder: Path) -> bool:
    """The program reads every rank's file and compares its sum."""
    try:
        contents = [(folder / f"rank_{rank}.bin").read_bytes() for rank in range(RANKS)]
    except FileNotFoundError:
        return False
    return all(hashlib.sha256(one[32:]).digest() == one[:32] for one in contents)


@pytest.mark.parametrize("name", SCR)
def test_a_run_goes_on_from_the_newest_that_can_be_loaded(tmp_path: Path, name: str) -> None:
    """SCR's cases: what comparison shows costs no start, what only the program sees costs one, and nothing is begun anew in silence."""
    deed, loads, starts = SCR[name]
    for step in (6, 12, 18):
        save(tmp_path, step, whole())
    deed(tmp_path)
    aside: tuple[str, ...] = ()
    while True:
        found, _, stuck = picked(tmp_path, aside)
        if not found or loaded(tmp_path / found):
            break
        aside = (*aside, str(tmp_path / found))

    assert (loads if loads != "lost" else "") == found
    assert starts == len(aside)
    assert (loads == "lost") == bool(stuck)
