"""Laws of reading an end: what Slurm calls the end of a job may be that of a start that never ran the script."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from ftrun.slurm.client.cluster import JobState
from ftrun.supervisor.model import types
from ftrun.supervisor.store import run_dir
from tests.fake_slurm import faults
from tests.unit.lives import Life


def place(life: Life) -> Path:
    return Path(run_dir.attempt_dir(life.run_dir, 1))


@pytest.fixture
def life(tmp_path: Path) -> Life:
    """A run whose first attempt trains."""
    life = Life(tmp_path, backoff=1.0)
    life.until("running")
    life.live(2)
    return life


def second_start(life: Life) -> None:
    """What batch.sh does when it finds the launch started by another start."""
    (place(life) / "lost.0").write_text("job=1\n")
    life.exit(1)


@pytest.mark.parametrize("written", ["", "code=137\nsignal=9\n", "code=143\nsignal=0\n"])
def test_a_refused_second_start_is_nobodys_failure(life: Life, written: str) -> None:
    """The first start was lost with its node or removed by Slurm; the next attempt is submitted, and Slurm is told as the cause."""
    if written:
        (place(life) / "exit.0").write_text(written)
    second_start(life)
    life.live(60)
    (incident,) = life.run.incidents

    assert (2, "scheduler", ()) == (life.attempt.number, incident.fault, incident.nodes)
    assert types.STARTED_TWICE == life.run.attempts[0].launch.end.reason
    assert life.run.attempts[0].launch.over


@pytest.mark.parametrize("watched", [True, False])
def test_a_second_start_that_slurmd_refused_is_told_by_its_time(life: Life, watched: bool) -> None:
    """slurmctld removed the first start, slurmd refused the second for it: no script ran, no line of it says so, but one launch has two times of start."""
    life.say("slurm_script: line 6: 29897 Killed                  sleep 300")
    faults.crash_controller(life.engine, lose_last=0, rewind=[life.launches[-1].job.number])
    life.engine.set_controller("up")
    while len(life.launches) < 2:  # with and without a look at the queue in between
        (life.live if watched else life.engine.advance)(1.0)
    life.exit(1)
    life.live(60)
    (incident,) = life.run.incidents

    assert (2, "scheduler", ()) == (life.attempt.number, incident.fault, incident.nodes)
    assert types.STARTED_TWICE == life.run.attempts[0].launch.end.reason


def _say_cancelled(life: Life) -> None:
    at = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(life.clock.now_s()))
    life.say(f"slurmstepd: error: *** JOB {life.attempt.job} ON n0 CANCELLED AT {at} ***")


def _began(life: Life, at_s: float | None) -> None:
    """batch.sh's record tells when the launch began."""
    with (place(life) / "launch.0").open("a") as record:
        record.write(f"started_s={at_s:.0f}\n")


def _cancelled(life: Life) -> None:
    """Slurm shows the job as cancelled, and no ftrun did it."""
    life.engine.end(next(iter(life.engine.jobs.values())), JobState.CANCELLED)


@pytest.mark.parametrize(("refused", "told"), [(True, False), (False, False), (False, True)])
def test_a_second_start_that_looks_cancelled_is_nobodys_cancel(life: Life, refused: bool, told: bool) -> None:
    """The controller cancels the first start, which it does not know, and takes its end for that of the second: what slurmstepd wrote, if
    anything, is older than the second start. The run goes on.
    """
    if told:
        _say_cancelled(life)
        life.live(5)
    if refused:
        (place(life) / "lost.0").write_text("job=1\n")
    else:
        (job,) = life.engine.jobs.values()
        _began(life, job.start_s)
        faults.crash_controller(life.engine, lose_last=0, rewind=[life.launches[-1].job.number])
        life.engine.set_controller("up")
        while len(life.launches) < 2:
            life.live(1.0)
    _cancelled(life)
    life.live(60)
    (incident,) = life.run.incidents

    assert (2, "scheduler", ()) == (life.attempt.number, incident.fault, incident.nodes)
    assert types.STARTED_TWICE == life.run.attempts[0].launch.end.reason


def test_a_person_who_cancels_a_second_start_is_obeyed(life: Life) -> None:
    """slurmstepd says so in the log."""
    (place(life) / "lost.0").write_text("job=1\n")
    _say_cancelled(life)
    _cancelled(life)
    life.until("stopped", 60)

    assert "cancelled" == life.run.final_class


@pytest.mark.parametrize("began", [True, False])
def test_a_person_who_cancels_a_job_whose_nodes_were_powered_up_is_obeyed(
    tmp_path: Path, began: bool
) -> None:
    """Slurm moves the time of such a start, and no log tells of the cancel: the launch began at the later time, or never."""
    life = Life(tmp_path, backoff=1.0)
    life.until("running")
    (job,) = life.engine.jobs.values()
    assert job.start_s is not None
    job.start_s += 300
    if began:
        _began(life, job.start_s)
    else:
        (place(life) / "launch.0").unlink()
    life.live(5)
    life.cluster.cancel(life.attempt.job)
    life.until("stopped", 60)

    assert (1, "cancelled") == (life.attempt.number, life.run.final_class)


def test_a_launch_that_was_started_once_is_judged_by_its_end(life: Life) -> None:
    """Without another time of start a job that left no record of its end is not excused."""
    life.exit(1)
    life.live(60)

    assert "unknown" == life.run.incidents[0].fault


def test_a_second_start_does_not_undo_a_good_end(life: Life) -> None:
    """The script had come to its end when the controller forgot it."""
    (place(life) / "exit.0").write_text("code=0\nsignal=0\n")
    second_start(life)
    life.until("finished", 60)

    assert 1 == life.attempt.number


def test_a_second_start_does_not_excuse_the_script(life: Life) -> None:
    """What the first start died of is what the run died of."""
    life.say("Traceback (most recent call last):", "ModuleNotFoundError: No module named 'nope'")
    (place(life) / "exit.0").write_text("code=1\nsignal=0\n")
    second_start(life)
    life.until("stopped", 60)

    assert "config" == life.run.final_class


def test_a_closed_attempt_that_exits_0_has_not_finished(life: Life) -> None:
    """A job that found its attempt closed never ran the script, so its exit code is no verdict of the script's."""
    (place(life) / "claim.1").symlink_to("closed.9")
    life.exit(0)
    life.live(60)

    assert 2 == life.attempt.number
    assert types.CLOSED == life.run.attempts[0].launch.end.reason


@pytest.mark.parametrize("started", [True, False])
def test_a_job_that_another_cluster_took_is_not_made_again(tmp_path: Path, started: bool) -> None:
    """A sibling of a federation started it: a second one here would run beside it. The run stops, and says what happened."""
    life = Life(tmp_path, backoff=1.0)
    if started:
        life.until("running")
    (job,) = life.engine.jobs.values()
    life.engine.end(job, JobState.REVOKED)
    life.until("stopped", 120)

    assert (1, 1) == (life.attempt.number, len(life.engine.jobs))
    (incident,) = life.run.incidents
    assert ("cancelled", "slurm.revoked") == (incident.fault, incident.signature)
    assert "another cluster of its federation" in life.run.final_reason
