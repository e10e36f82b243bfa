"""Laws of an array's attempts: what is repeated, what is given up, and when it is done."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ftrun.supervisor import arrays, events
from ftrun.supervisor.lifecycle import State
from ftrun.supervisor.parts import Attempt, GivenUp

LOT = GivenUp((2,), "user-code", "python.error", "a mistake in the script")


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A run of an array of six tasks."""
    (tmp_path / "submit").mkdir()
    (tmp_path / "submit" / "context.json").write_text(json.dumps({"v": 1, "array": "0-5%2"}))
    return tmp_path


def ended(run_dir: Path, task: int, code: int, *, attempt: int = 1, launch: int = 0) -> None:
    folder = run_dir / "attempts" / str(attempt) / "tasks" / str(task)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"launch.{launch}").write_text("job=7\n")
    (folder / f"exit.{launch}").write_text(f"code={code}\nsignal=0\n")


def attempt(**fields: Any) -> Attempt:
    return Attempt(1, 0.0, **({"submission": "done", "job": "7"} | fields))


def test_the_failed_tasks_are_repeated_and_the_given_up_are_not(run_dir: Path) -> None:
    """What failed for good in one attempt stays out of all that follow."""
    run = events.Run("r", given_up=(LOT,))

    assert (4,) == arrays.wanted(str(run_dir), run, attempt(failed_tasks=(2, 4)))


@pytest.mark.parametrize("submission", ["refused", "lost", "opened"])
def test_an_attempt_that_no_job_came_of_leaves_its_tasks_to_the_next(run_dir: Path, submission: str) -> None:
    """A refused second attempt must not make a third one of all tasks again."""
    refused = attempt(submission=submission, tasks=(1, 4))

    assert (1, 4) == arrays.wanted(str(run_dir), events.Run("r"), refused)
    assert tuple(range(6)) == arrays.wanted(str(run_dir), events.Run("r"), attempt(submission=submission))


def test_of_an_array_that_slurm_forgot_what_left_no_good_end_is_repeated(run_dir: Path) -> None:
    """The tasks' own records tell which are done; the last launch of each counts."""
    for task in (0, 1, 2, 3):
        ended(run_dir, task, 0)
    ended(run_dir, 4, 1)
    ended(run_dir, 3, 1, launch=1)
    gone = attempt(end_state="GONE", failed_tasks=(4,))

    assert (3, 4, 5) == arrays.wanted(str(run_dir), events.Run("r"), gone)
    assert not arrays.all_went_well(str(run_dir), gone)
    for task in (3, 4, 5):
        ended(run_dir, task, 0, launch=2)
    assert arrays.all_went_well(str(run_dir), gone)


def test_what_is_no_array_has_no_tasks(run_dir: Path) -> None:
    """A single job is submitted as it was typed, also where its context cannot be read."""
    (run_dir / "submit" / "context.json").write_text(json.dumps({"v": 1, "array": ""}))
    assert ((), False) == (
        arrays.wanted(str(run_dir), events.Run("r"), attempt()),
        arrays.all_went_well(str(run_dir), attempt()),
    )
    (run_dir / "submit" / "context.json").unlink()
    assert () == arrays.wanted(str(run_dir), events.Run("r"), attempt())


def test_a_run_with_tasks_given_up_does_not_end_well() -> None:
    """When all others are done, the run ends with the reason of those that are not."""
    assert arrays.given_up(events.Run("r")) is None
    end = arrays.given_up(events.Run("r", given_up=(LOT, GivenUp((5, 7), "config", "", "no such command"))))

    assert end is not None
    assert ("user-code", False) == (end.fault.value, end.retry)
    assert "a mistake in the script (task 2,5,7)" == end.title


def test_resuming_tries_the_given_up_tasks_again() -> None:
    """A person who mended the script wants them, too."""
    run = events.Run("r", state=State.STOPPED, attempts=(attempt(failed_tasks=(3,)),), given_up=(LOT,))
    resumed = run.after({"kind": "run.resumed", "at": 1.0, "data": {"decision": {}}})

    assert ((), (2, 3)) == (resumed.given_up, resumed.attempts[-1].failed_tasks)
