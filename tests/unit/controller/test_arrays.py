"""Laws of an array's attempts: what is repeated, what is given up, and when it is done."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ftrun.slurm.client.cluster import JobRow, JobState
from ftrun.supervisor.controller import arrays
from ftrun.supervisor.diagnosis.class_defaults import Ended
from ftrun.supervisor.diagnosis.facts import Facts
from ftrun.supervisor.diagnosis.rules import diagnose
from ftrun.supervisor.model import events, job_rows
from ftrun.supervisor.model import run as model_run
from ftrun.supervisor.model.run import Attempt, GivenUpTasks, Launch, LaunchEnd
from ftrun.supervisor.model.states import State
from ftrun.supervisor.model.types import FaultClass, Topology
from ftrun.supervisor.policy.policy_input import ClusterView, PolicyInput, PolicyLimits
from ftrun.supervisor.signatures import catalog
from tests.unit.cases import diagnosis

LOT = GivenUpTasks((2,), "user-code", "python.error", "a mistake in the script")


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


def context(run_dir: Path, present: Attempt, run: model_run.Run | None = None) -> Any:
    """What the loop passes to the feature."""
    path = run_dir / "submit" / "context.json"
    submission = json.loads(path.read_text()) if path.exists() else {}
    run = run or model_run.Run("r")
    return SimpleNamespace(run_dir=str(run_dir), run=run, attempt=present, submission=submission)


def test_the_failed_tasks_are_repeated_and_the_given_up_are_not(run_dir: Path) -> None:
    """What failed for good in one attempt stays out of all that follow."""
    run = model_run.Run("r", given_up=(LOT,))

    assert (4,) == arrays.tasks_to_repeat(context(run_dir, attempt(failed_tasks=(2, 4)), run))


@pytest.mark.parametrize("submission", ["refused", "lost", "opened"])
def test_an_attempt_that_no_job_came_of_leaves_its_tasks_to_the_next(run_dir: Path, submission: str) -> None:
    """A refused second attempt must not make a third one of all tasks again."""
    refused = attempt(submission=submission, tasks=(1, 4))

    assert (1, 4) == arrays.tasks_to_repeat(context(run_dir, refused))
    assert tuple(range(6)) == arrays.tasks_to_repeat(context(run_dir, attempt(submission=submission)))


def test_of_an_array_that_slurm_forgot_what_left_no_good_end_is_repeated(run_dir: Path) -> None:
    """The tasks' own records tell which are done; the last launch of each counts."""
    for task in (0, 1, 2, 3):
        ended(run_dir, task, 0)
    ended(run_dir, 4, 1)
    ended(run_dir, 3, 1, launch=1)
    gone = attempt(launch=Launch(end=LaunchEnd("GONE")), failed_tasks=(4,))

    assert (3, 4, 5) == arrays.tasks_to_repeat(context(run_dir, gone))
    assert not arrays.all_went_well(context(run_dir, gone))
    for task in (3, 4, 5):
        ended(run_dir, task, 0, launch=2)
    assert arrays.all_went_well(context(run_dir, gone))


def test_what_is_no_array_has_no_tasks(run_dir: Path) -> None:
    """A single job is submitted as it was typed, also where its context cannot be read."""
    (run_dir / "submit" / "context.json").write_text(json.dumps({"v": 1, "array": ""}))
    assert ((), False) == (
        arrays.tasks_to_repeat(context(run_dir, attempt())),
        arrays.all_went_well(context(run_dir, attempt())),
    )
    (run_dir / "submit" / "context.json").unlink()
    assert () == arrays.tasks_to_repeat(context(run_dir, attempt()))


def test_a_run_with_tasks_given_up_does_not_end_well() -> None:
    """When all others are done, the run ends with the reason of those that are not."""
    done = Facts((), Topology(), catalog.load([]), Ended("COMPLETED"))
    assert FaultClass.HEALTHY is diagnose(done).fault
    end = diagnose(replace(done, given_up=(LOT, GivenUpTasks((5, 7), "config", "", "no such command"))))

    assert ("user-code", False) == (end.fault.value, end.retry)
    assert "a mistake in the script (task 2,5,7)" == end.title


def test_resuming_tries_the_given_up_tasks_again() -> None:
    """A person who mended the script wants them, too."""
    run = model_run.Run("r", state=State.STOPPED, attempts=(attempt(failed_tasks=(3,)),), given_up=(LOT,))
    resumed = events.apply(run, {"kind": "run.resumed", "at": 1.0, "data": {"decision": {}}})

    assert ((), (2, 3)) == (resumed.given_up, resumed.attempts[-1].failed_tasks)


def test_a_task_that_ftrun_ended_failed_and_one_that_a_person_cancelled_did_not() -> None:
    """Slurm calls both CANCELLED; who did it is in the journal."""
    told = [
        ("7_1", JobState.CANCELLED),
        ("7_2", JobState.CANCELLED),
        ("7_3", JobState.COMPLETED),
        ("7_4", JobState.FAILED),
    ]
    shown = [JobRow(name, state, "", (), 1, "", "", "", "", None, None, None) for name, state in told]

    assert job_rows.failed_tasks(shown) == {4: "FAILED"}
    assert job_rows.failed_tasks(shown, (1,)) == {1: "CANCELLED", 4: "FAILED"}
    assert job_rows.cancelled_by_others(shown, (1,))
    assert not job_rows.cancelled_by_others(shown, (1, 2))


def test_a_task_is_about_to_be_ended_before_it_is() -> None:
    """Whoever takes over in between knows that the cancel was ours, and why."""
    told = {
        "task": 3,
        "task_launch": 0,
        "quiet_s": 70.0,
        "threshold_s": 60.0,
        "behind": [],
        "reason": "no step for 70 s",
    }
    run = model_run.Run("r", state=State.RUNNING, attempts=(attempt(),))
    for kind, data in (("hang.decided", told), ("tasks.end.intended", {"task": 3})):
        run = events.apply(
            run, {"kind": kind, "at": 1.0, "attempt": 1, "launch": 0, "start": 1, "data": data}
        )
    found = run.attempts[-1]

    assert (found.hung, found.ended_tasks) == (None, (3,))
    assert (found.hung_tasks[3].launch, found.hung_tasks[3].verdict.quiet_s) == (0, 70.0)


@pytest.mark.parametrize("log", ["of its own", "of all"])
@pytest.mark.parametrize("ran", [False, True])
def test_a_task_that_may_load_nothing_is_given_up_and_the_others_are_judged_by_themselves(
    run_dir: Path, log: str, ran: bool
) -> None:
    """As a job: its class is checkpoint, and to begin from nothing is the user's to say. Where a later launch of it ran, that one counts."""
    for task in (1, 2):
        folder = run_dir / "attempts/1/tasks" / str(task)
        folder.mkdir(parents=True)
        name = "log" if log == "of all" else f"log.{task}"
        (folder / "launch.0").write_text(f"job=7\nstdout={run_dir}/{name}\nstderr={run_dir}/{name}\n")
    (run_dir / "attempts/1/tasks/1/pick.0.1").write_text(
        "passed=a: torn\nstuck=none of 1 may be loaded\nend=1\n"
    )
    ended(run_dir, 2, 1)
    if ran:
        ended(run_dir, 1, 1)
    told: list[dict[str, Any]] = []
    run = model_run.Run("r", attempts=(attempt(failed_tasks=(1, 2)),))
    ctx = SimpleNamespace(
        run_dir=str(run_dir),
        run=run,
        attempt=run.attempts[0],
        observations=SimpleNamespace(evidence=()),
        services=SimpleNamespace(catalog=lambda: catalog.load([])),
        record=lambda kind, **facts: told.append({"kind": kind, **facts}),
    )
    case = PolicyInput(
        run, run.attempts[0], diagnosis(FaultClass.NODE), ClusterView(), PolicyLimits(), 0.0, None, ""
    )

    facts = Facts((), Topology(), catalog.load([]), Ended("FAILED"))
    judged = arrays.with_task_diagnoses(ctx, case, facts)  # type: ignore[arg-type]

    assert [] == told if ran else [([1], "checkpoint")] == [(row["tasks"], row["class"]) for row in told]
    assert judged.diagnosis.fault is not FaultClass.CHECKPOINT
