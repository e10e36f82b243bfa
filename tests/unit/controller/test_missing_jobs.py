"""Laws of a job that Slurm's answers lack: what they showed of its end still counts. (I/O)"""

from __future__ import annotations

from pathlib import Path

import pytest

from ftrun.slurm.client.errors import Unreachable
from ftrun.supervisor.submission import plan
from tests.fake_slurm import faults
from tests.fake_slurm.cluster import Faults
from tests.unit.lives import TIMING, Life


def _unreachable(_job: str) -> None:
    raise Unreachable("Unable to contact slurm controller (connect failure)")


@pytest.mark.parametrize("leads_anew", [False, True])
def test_a_users_cancel_that_slurm_showed_once_is_not_undone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, leads_anew: bool
) -> None:
    """The exit could not be asked for until Slurm had forgotten the job; the supervisor may have lost its lease meanwhile."""
    life = Life(tmp_path)
    life.until("running")
    life.train(1, 5)
    monkeypatch.setattr(life.cluster, "details", _unreachable)
    life.cluster.cancel(life.attempt.job)
    life.live(TIMING.min_job_age_s + 5)
    if leads_anew:
        life.supervisor.forget()
    life.live(5)
    monkeypatch.undo()
    life.until("stopped")

    assert ("CANCELLED", 1) == (life.attempt.launch.end.state, len(life.launches))


def test_a_users_cancel_that_slurm_shows_late_is_not_undone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slurm's answers lacked the job for a while, so the run was to be submitted again."""
    life = Life(tmp_path)
    life.until("running")
    life.train(1, 5)
    monkeypatch.setattr(life.cluster, "jobs", lambda *_: ())
    monkeypatch.setattr(life.cluster, "find", lambda *_: ())
    life.cluster.cancel(life.attempt.job)
    life.until("recovering")
    monkeypatch.undo()
    life.until("stopped")

    assert ("cancelled", 1) == (life.run.final_class, len(life.launches))


def test_a_kept_job_that_is_lost_in_the_queue_is_not_the_launch_before_it_once_more(tmp_path: Path) -> None:
    """That one was judged: its incident, and what the ledger has of it, stay as they are."""
    life = Life(tmp_path)
    life.until("running")
    life.train(1, 5)
    job = life.attempt.job
    life.say(
        f"slurmstepd: error: *** JOB {job} ON n0 CANCELLED AT 2023-11-14T22:13:20 DUE TO JOB REQUEUE ***"
    )
    faults.requeue(life.engine, job)
    while "launch.kept" not in life.kinds():
        life.live()
    faults.crash_controller(life.engine)
    life.engine.set_controller("up")
    while "job.ended" not in life.kinds():
        life.live()
    life.live(5)

    assert [1] == [record["launch"] for record in life.records() if record["kind"] == "job.ended"]
    assert ["1.0", "1.1"] == [one.id for one in life.run.incidents]


@pytest.mark.parametrize("over", [False, True])
def test_a_launch_that_is_judged_late_has_no_part_in_what_a_later_one_saved(
    tmp_path: Path, *, over: bool
) -> None:
    """Slurm ran the job again before anybody looked, and that launch may be over, too: each counts what it left to the next one."""
    life = Life(tmp_path, checkpoint="ckpt/step-*.pt")
    life.until("running")
    life.train(1, 5)
    (life.cwd / "ckpt").mkdir()
    (life.cwd / "ckpt" / "step-000005.pt").write_text("x")
    faults.requeue(life.engine, life.attempt.job)
    life.engine.advance(30)
    record = Path(life.run_dir, "attempts/1/launch.1")
    record.write_text(record.read_text().replace("resume_from=", "resume_from=ckpt/step-000005.pt"))
    (life.cwd / "ckpt" / "step-000009.pt").write_text("x")
    if over:
        life.exit(1)
        life.engine.advance(10)
    while sum(kind in ("decided", "run.stopped") for kind in life.kinds()) < 1 + over:
        life.live()
    saved = [one["data"]["checkpoint"] for one in life.records() if one["kind"] == "decided"]

    assert [path.rpartition("/")[2] for path in saved] == ["step-000005.pt", "step-000009.pt"][: 1 + over]


def test_a_resume_stands_against_a_cancel_that_came_before_it(tmp_path: Path) -> None:
    """The cancel met a launch that nobody followed: what the log tells of it when it is looked at is older than the person's last word."""
    life = Life(tmp_path)
    life.until("running")
    life.train(1, 5)
    job = life.attempt.job
    faults.requeue(life.engine, job)
    life.engine.advance(30)
    life.cluster.cancel(job)
    life.say(f"slurmstepd: error: *** JOB {job} ON n0 CANCELLED AT 2023-11-14T22:13:20 ***")
    Path(life.run_dir, "attempts/1/exit.1").write_text("code=143\nsignal=15\nended_s=1700000040\n")
    life.engine.advance(10)
    life.until("stopped")
    assert (life.run.final_class, life.attempt.launch.number) == ("cancelled", 0)

    life.live(TIMING.min_job_age_s + 10)
    life.ask("resume", "1")
    while len(life.run.attempts) == 1:
        life.live()
        assert life.run.state.value != "stopped"
    assert life.run.attempts[0].launch.number == 1, "it was looked at: it might have finished"


def test_a_second_job_of_a_token_is_followed_where_the_first_one_is_forgotten(tmp_path: Path) -> None:
    """P4: sbatch was executed twice, the first job left the queue, the second one claims after the run was cancelled: a resumed run takes it up instead of waiting for its end."""
    life = Life(tmp_path, nodes=2)
    life.engine.nodes["n0"].drained = True
    life.live(5)
    life.ask("cancel", "1")
    life.until("stopped")
    life.live(TIMING.min_job_age_s + 10)
    life.engine.nodes["n0"].drained = False
    second = life.cluster.submit(plan.request_for(life.run_dir, plan.AttemptSpec(1)))
    life.live(5)
    assert len(life.launches) == 1

    life.ask("resume", "2")
    life.until("running")
    assert (life.attempt.number, life.attempt.job) == (1, second.job_id)
    life.exit(0)
    life.until("finished")
    assert len(life.launches) == 1


def test_an_array_whose_tasks_have_begun_is_found_by_what_they_wrote(tmp_path: Path) -> None:
    """P4: sbatch gave no answer and a filter took the token out of the comment; the tasks claim in folders of their own."""
    life = Life(tmp_path)
    life.until("running")
    life.train(1, 5)
    life.cluster.faults = Faults(submit_late=1.0, late_s=1200.0)
    life.exit(0, 9)
    while "submit.unknown" not in life.kinds():
        life.live()
    task = Path(life.run_dir, "attempts/2/tasks/3")
    task.mkdir(parents=True)
    (task / "launch.0").write_text("job=9\narray_job=8\n")
    life.live(60)

    assert (2, "8") == (life.attempt.number, life.attempt.job)


def test_a_late_job_of_an_earlier_attempt_does_not_wait_behind_a_finished_run(tmp_path: Path) -> None:
    """Its submission never got an answer, and a later attempt finished before Slurm made it (P4)."""
    life = Life(tmp_path)
    life.until("running")
    life.train(1, 5)
    life.cluster.faults = Faults(submit_late=1.0, late_s=120.0)
    life.exit(0, 9)
    while "submit.unknown" not in life.kinds():
        life.live()
    life.cluster.faults = Faults()
    life.until("running")
    life.train(6, 10)
    life.exit(0)
    life.until("finished")
    for node in life.engine.nodes.values():
        node.drained = True
    life.live(120)

    assert (3, []) == (life.attempt.number, life.living())
    assert any(job.comment.endswith(":2") for job in life.engine.jobs.values())
