"""A torn or missing shard, and the identical one of another rank that stands in for it."""

from __future__ import annotations

import os
import time
import zipfile
from pathlib import Path

import pytest

from ftrun.hooks.checkpoints import cmd_pick, listing, manifest, shard_repair
from ftrun.hooks.checkpoints.selection import Request

OLD_S = 1_000_000


def shard(path: Path, content: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(zipfile.ZipInfo("archive/data.pkl"), content * 200)
    return path


def saved(folder: Path, step: int, **content: str) -> Path:
    """A checkpoint of one file for each rank: rank -> what is in it."""
    for rank, text in content.items():
        shard(folder / f"step_{step}" / f"{rank}_step_{step}.pt", f"{text} at {step} ")
    settle(folder / f"step_{step}")
    return folder / f"step_{step}"


def settle(path: Path) -> None:
    for file in path.iterdir():
        os.utime(file, (OLD_S, OLD_S))


def listed(path: Path) -> None:
    """As `ftrun checkpoints --manifest` leaves it."""
    tree = listing.list_tree(str(path), time.monotonic() + 60)
    manifest.write(str(path), manifest.of_tree(tree, None, sums=True))
    manifest.write_marker(str(path))


def answer(tmp_path: Path, *, seconds: float = 60.0) -> dict[str, str]:
    question = Request(patterns=["c/*"], cwd=str(tmp_path), before_s=time.monotonic() + seconds)
    lines = cmd_pick.answer(question, str(tmp_path / "view")).splitlines()
    return dict(line.split("=", 1) for line in reversed(lines))


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-40])
    os.utime(path, (OLD_S, OLD_S))


PAIRS = {"rank_0": "a", "rank_1": "b", "rank_2": "a", "rank_3": "b"}


def test_a_shard_that_another_rank_has_too_is_read_from_there(tmp_path: Path) -> None:
    """The checkpoint before says which ranks save the same: their file stands in, in a view, and the user's files stay as they are."""
    saved(tmp_path / "c", 10, **PAIRS)
    newest = saved(tmp_path / "c", 20, **PAIRS)
    cut(newest / "rank_3_step_20.pt")
    before = {file.name: file.read_bytes() for file in newest.iterdir()}
    told = answer(tmp_path)

    view = tmp_path / "view" / "mended" / "step_20"
    assert ("c/step_20", str(view), "20") == (told["from"], told["use"], told["step"])
    assert "rank_1_step_20.pt stands in for rank_3_step_20.pt" in told["why"]
    assert "passed" not in told
    assert sorted(before) == sorted(os.listdir(view))
    assert (view / "rank_3_step_20.pt").resolve() == newest / "rank_1_step_20.pt"
    assert (view / "rank_0_step_20.pt").resolve() == newest / "rank_0_step_20.pt"
    assert before == {file.name: file.read_bytes() for file in newest.iterdir()}


def test_a_manifest_proves_it_alone(tmp_path: Path) -> None:
    """The checksums of this very checkpoint: also for a shard that is gone, and with no other checkpoint there."""
    newest = saved(tmp_path / "c", 20, **PAIRS)
    listed(newest)
    (newest / "rank_2_step_20.pt").unlink()
    told = answer(tmp_path)

    assert (
        "rank_0_step_20.pt stands in for rank_2_step_20.pt, proven by the manifest's checksum" in told["why"]
    )
    assert (Path(told["use"]) / "rank_2_step_20.pt").resolve() == newest / "rank_0_step_20.pt"


@pytest.mark.parametrize(
    ("before", "now", "lost"),
    [
        ({"rank_0": "a", "rank_1": "b"}, {"rank_0": "a", "rank_1": "b"}, "rank_1"),
        ({"rank_0": "a", "rank_1": "a"}, {"rank_0": "a", "rank_2": "a"}, "rank_2"),
        ({"rank_0": "a", "rank_1": "a", "rank_2": "a"}, {"rank_0": "a", "rank_1": "b", "rank_2": "a"}, "rank_2"),
        ({"left": "a", "right": "a"}, {"left": "a", "right": "a"}, "right"),
    ],
    ids=["not the same then", "not there then", "not all the same now", "no ranks"],
)  # fmt: skip
def test_what_is_not_proven_is_not_mended(
    tmp_path: Path, before: dict[str, str], now: dict[str, str], lost: str
) -> None:
    """A shard that is nearly right is worse than the checkpoint before."""
    saved(tmp_path / "c", 10, **before)
    cut(saved(tmp_path / "c", 20, **now) / f"{lost}_step_20.pt")
    told = answer(tmp_path)

    assert ("c/step_10", "c/step_10") == (told["from"], told["use"])
    assert told["passed"].startswith("c/step_20: torn: ")
    assert not (tmp_path / "view" / "mended").exists()


def test_without_time_nothing_is_mended(tmp_path: Path) -> None:
    """A start waits for seconds, and reading shards for their checksums may take minutes: the older checkpoint is loaded then."""
    saved(tmp_path / "c", 10, **PAIRS)
    cut(saved(tmp_path / "c", 20, **PAIRS) / "rank_3_step_20.pt")

    assert "c/step_10" == answer(tmp_path, seconds=0.9)["from"]


def test_a_plan_is_for_all_or_none() -> None:
    """One shard without a twin, and the checkpoint cannot be loaded."""
    here = {"rank_0.pt": "x"}
    both = shard_repair.plan_repair(["rank_1.pt", "odd.pt"], here=here, listed={"rank_1.pt": "x"}, earlier={})

    assert ({}, "nothing proves that another file is the same as odd.pt") == (both.instead, both.why_not)
    assert {"rank_1.pt": "rank_0.pt"} == shard_repair.plan_repair(
        ["rank_1.pt"], here=here, listed={"rank_1.pt": "x"}, earlier={}
    ).instead
