"""Laws of identity: a controller that lost its memory gives ids out again, and whose job it is then is left alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ftrun.slurm.client.cluster import JobRow, JobState, SubmitRequest
from ftrun.supervisor.model import job_rows
from ftrun.supervisor.model.run import Attempt, Launch
from tests.fake_slurm.faults import crash_controller
from tests.unit.lives import Life

ROW = JobRow(
    job_id="7", raw_job_id="7", state=JobState.PENDING, reason="", nodes=(), node_count=1, comment="", name="train.sh", user="ann",
    partition="main", submit_time_s=1000.0, start_time_s=None, end_time_s=None, restarts=0,
)  # fmt: skip
MINE = Attempt(1, 990.0, token="ftrun:r-0001:ab:1", job="7", known_as=("ann", "train.sh"), submitted_s=1000.0)


def _is_ours(row: JobRow, attempt: Attempt = MINE, user: str = "ann") -> bool:
    return bool(job_rows.rows_of_attempt([row], attempt, user=user))


def _lost(life: Life, lose_last: int = 1) -> None:
    """The controller dies and comes back without its newest jobs; what is no job of the run does nothing."""
    started = life._started
    life.engine.script("", lambda launch: started(launch) if launch.request.token else None)
    crash_controller(life.engine, lose_last=lose_last)
    life.engine.set_controller("up")


def _stranger(life: Life, *words: str, comment: str = "") -> str:
    """A job of the same user and the same name, which was submitted without ftrun. Its id."""
    request = SubmitRequest(
        "", ("-N1", "-pmain", *words, str(life.cwd / "train.sh")), b"#!/bin/sh\n", {}, str(life.cwd)
    )
    job = life.cluster.submit(request).job_id
    life.engine.jobs[int(job)].comment = comment
    return job


def test_a_job_whose_comment_somebody_rewrote_is_still_ours() -> None:
    """The same user, name and time of submission."""
    assert _is_ours(replace(ROW, comment="mine"))
    assert _is_ours(replace(ROW, job_id="7_3", submit_time_s=2000.0)), "tasks are restarted one by one"


def test_a_job_of_the_same_user_and_name_that_was_submitted_later_is_another() -> None:
    """P1: the script was submitted once more, by plain sbatch, and got the id of ours."""
    assert not _is_ours(replace(ROW, submit_time_s=1300.0))
    assert not _is_ours(replace(ROW, submit_time_s=1300.0, restarts=1)), (
        "it was restarted, as ours might have been"
    )
    assert _is_ours(replace(ROW, submit_time_s=1300.0), replace(MINE, submitted_s=None)), "nobody saw ours"
    assert _is_ours(
        replace(ROW, submit_time_s=1300.0, start_time_s=5.0), replace(MINE, launch=Launch(started_at_s=5.0))
    )


def test_a_job_that_never_showed_its_token_is_at_least_of_its_user() -> None:
    """P1: where a site rewrites comments the user still stands; root submits for others."""
    unseen = replace(MINE, known_as=(), submitted_s=None)

    assert _is_ours(ROW, unseen)
    assert not _is_ours(replace(ROW, user="bob"), unseen)
    assert _is_ours(replace(ROW, user="bob"), unseen, user="root")
    assert not _is_ours(replace(ROW, comment="ftrun:r-0002:cd:1"), unseen)


@pytest.mark.parametrize("comment", ["", "ftrun:r-9999:cd:1"], ids=["plain", "another-run"])
def test_a_run_goes_on_beside_the_job_that_has_its_id_now(tmp_path: Path, comment: str) -> None:
    """P1: never believed, never acted upon: neither that job nor what waits for it is touched, and the run goes on."""
    life = Life(tmp_path)
    life.until("running")
    life.train(1, 5)
    _lost(life)
    theirs = _stranger(life, comment=comment)
    waits = _stranger(life, "--dependency=afterok:1")
    life.live(200, step_s=5.0)

    assert (theirs, life.attempt.number, life.run.state.value) == ("1", 2, "running")
    assert life.engine.jobs[1].state is JobState.RUNNING
    assert life.cluster.dependents("1") == {waits: "afterok:1"}


def test_a_cancel_of_a_run_spares_the_job_that_has_its_id_now(tmp_path: Path) -> None:
    """P1: the run is cancelled; the job that bears its number is somebody else's by now."""
    life = Life(tmp_path)
    life.until("running")
    life.live(2)
    _lost(life)
    _stranger(life)
    life.ask("cancel", "1")
    life.live(200, step_s=5.0)

    assert life.run.state.value == "stopped"
    assert life.living() == ["1"]


def test_an_end_that_was_announced_spares_the_job_that_has_its_id_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P1: between the announcement and the scancel the controller lost the job and gave its id away."""
    life = Life(tmp_path, fault_grace=0.0)
    life.until("running")
    life.train(1, 5)
    cancelled: list[str] = []
    dependents, cancel = life.cluster.dependents, life.cluster.cancel

    def lost(job: str) -> Mapping[str, str]:  # asked for just before the end is carried out
        if not cancelled:
            cancelled.append("-")
            _lost(life)
            _stranger(life)
        return dependents(job)

    def noted(job: str, **how: Any) -> None:
        cancelled.append(job)
        cancel(job, **how)

    monkeypatch.setattr(life.cluster, "dependents", lost)
    monkeypatch.setattr(life.cluster, "cancel", noted)
    life.stand_still("NVRM: Xid (PCI:0000:3b:00): 79, pid=811, GPU has fallen off the bus.")
    life.live(300)

    assert "-" in cancelled
    assert "1" not in cancelled
    assert life.engine.jobs[1].state is JobState.RUNNING
    assert life.attempt.number == 2


def test_what_waited_for_a_run_and_is_another_job_by_now_is_left_alone(tmp_path: Path) -> None:
    """P1: a job that we hold for the next attempt was lost with ours; who has its id keeps its hold and what it waits for."""
    life = Life(tmp_path)
    life.until("running")
    life.train(1, 5)
    waits = _waiting(life)
    life.stand_still("NVRM: Xid (PCI:0000:3b:00): 79, pid=811, GPU has fallen off the bus.")
    life.until("settling")
    assert waits in life.attempt.dependents_held
    life.engine.advance(1)
    _lost(life, 1)
    other = _stranger(life)
    life.cluster.hold(other)
    life.live(200)

    assert (other, life.attempt.number, life.run.state.value) == (waits, 2, "running")
    assert life.cluster.dependents(life.attempt.job) == {}
    assert "JobHeldUser" in life.engine.jobs[int(waits)].row().reason


def _waiting(life: Life) -> str:
    started = life._started
    life.engine.script("", lambda launch: started(launch) if launch.request.token else None)
    return _stranger(life, "--dependency=afterany:1")
