"""Laws of what a training that had diverged writes after its end was judged. (I/O)"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ftrun.hooks.checkpoints import diverged_folder
from ftrun.hooks.checkpoints.diverged import Divergence
from ftrun.hooks.checkpoints.selection import Request, Selection, select
from tests.unit.checkpoints.test_pick_sh import OLD_S, saved

NOTED = Divergence("1.0.1", 20, None, OLD_S + 100)


def run_of(folder: Path, *seen: str) -> Path:
    """A run whose first start diverged; `seen` were there when that was noted."""
    run_dir = folder / "run"
    (run_dir / "attempts" / "1").mkdir(parents=True)
    record(run_dir, "1/launch.0", OLD_S)
    diverged_folder.note_seen(str(run_dir), NOTED.name, [str(folder / "c" / name) for name in seen])
    return run_dir


def record(run_dir: Path, name: str, at_s: float) -> None:
    path = run_dir / "attempts" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("job=7\n")
    os.utime(path, (at_s, at_s))


def chosen(folder: Path, *, run_dir: str = "") -> Selection:
    return select(Request(["c/*"], str(folder), poisons=(NOTED,), run_dir=run_dir or str(folder / "run")))


def step_of(picked: Selection) -> int | None:
    return picked.chosen.found.step if picked.chosen is not None else None


def test_what_a_rank_saves_that_wakes_after_the_judgement_is_not_loaded(tmp_path: Path) -> None:
    """It is later than all that was known, and its weights are no better."""
    saved(tmp_path / "c/step_10.pt")
    run_of(tmp_path, "step_10.pt")
    saved(tmp_path / "c/step_30.pt", at_s=OLD_S + 130)

    picked = chosen(tmp_path)

    assert step_of(picked) == 10
    assert "after its end was judged" in picked.passed[0][1]


@pytest.mark.parametrize("name", ["2/launch.0", "1/launch.1", "1/begun.0.2"])
def test_what_a_later_start_saves_is_good(tmp_path: Path, name: str) -> None:
    """A new attempt, one that Slurm started again, and a start in place: each leaves a record when it begins."""
    run_dir = run_of(tmp_path)
    record(run_dir, name, OLD_S + 120)
    saved(tmp_path / "c/step_30.pt", at_s=OLD_S + 130)
    saved(tmp_path / "c/step_40.pt", at_s=OLD_S + 110)

    assert step_of(chosen(tmp_path)) == 30


def test_what_was_there_is_trusted_by_whoever_touches_it(tmp_path: Path) -> None:
    """As it always was; and a quarter of an hour later whatever is new."""
    run_of(tmp_path, "step_30.pt")
    saved(tmp_path / "c/step_30.pt", at_s=OLD_S + 50)
    assert step_of(chosen(tmp_path)) is None
    saved(tmp_path / "c/step_30.pt", at_s=OLD_S + 200)
    assert step_of(chosen(tmp_path)) == 30
    saved(tmp_path / "c/step_40.pt", at_s=OLD_S + 101 + diverged_folder.LATE_S)
    assert step_of(chosen(tmp_path)) == 40


def test_where_nothing_was_kept_time_alone_decides(tmp_path: Path) -> None:
    """A run of an older ftrun, one whose folder cannot be read, tasks of an array: nothing is refused that was not refused before."""
    run_dir = run_of(tmp_path)
    saved(tmp_path / "c/step_30.pt", at_s=OLD_S + 130)
    assert step_of(chosen(tmp_path)) is None
    (run_dir / "attempts/1/tasks").mkdir()
    assert step_of(chosen(tmp_path)) == 30
    (run_dir / "attempts/1/tasks").rmdir()
    (run_dir / "diverged/1.0.1.seen").unlink()
    assert step_of(chosen(tmp_path)) == 30
    assert step_of(chosen(tmp_path, run_dir="/nowhere")) == 30


def test_what_was_seen_first_stays(tmp_path: Path) -> None:
    """Once the divergence stands in the run's folder, a later look does not add what came since."""
    run_dir = run_of(tmp_path)
    (run_dir / "diverged" / NOTED.name).write_text("")
    saved(tmp_path / "c/step_30.pt", at_s=OLD_S + 130)
    diverged_folder.note_seen(str(run_dir), NOTED.name, [str(tmp_path / "c/step_30.pt")])

    assert step_of(chosen(tmp_path)) is None
