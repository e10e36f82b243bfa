"""Identity under fire, on real Slurm: ids that are given out again, and other people who requeue, hold and release a run's job."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from ftrun.slurm.sandbox.handle import Sandbox
from tests.slurm.apart import side_by_side
from tests.slurm.post import Post

pytestmark = [pytest.mark.slurm, pytest.mark.drills]

MakeSandbox = Callable[..., Sandbox]
MakePost = Callable[..., Post]
PATIENCE_S = 300.0
TWICE = "echo 'step 1 loss 2.5'\n[ \"$FTRUN_ATTEMPT\" = 1 ] && sleep 600\necho done >>ledger\n"


def _without_memory(box: Sandbox) -> None:
    """kill -9 of slurmctld, and its state is gone: it comes back, knows no job, and counts from the first id again."""
    box.kill_controller()
    state = _state_folder(box)
    shutil.rmtree(state)
    state.mkdir()
    box.start_controller()


def _state_folder(box: Sandbox) -> Path:
    lines = box.conf.read_text().splitlines()
    return Path(next(line for line in lines if line.startswith("StateSaveLocation=")).partition("=")[2])


def _show(post: Post, job: str, field: str) -> str:
    told = post.call("scontrol", "-o", "show", "job", job)
    return told.partition(f" {field}=")[2].split()[0]


@side_by_side
def test_runs_whose_ids_belong_to_other_jobs_go_on_and_leave_those_alone(
    make_sandbox: MakeSandbox, make_post: MakePost
) -> None:
    """A controller that lost its state gives the ids of a running and of a waiting job to others, of the same user and the same name: neither they nor
    what waits for them is cancelled, held or changed, and both runs finish by another attempt.
    """
    box = make_sandbox(nodes=4)
    running, waiting = make_post(box), make_post(box)
    jobs = [running.sbatch(TWICE, "-N1"), waiting.sbatch(TWICE, "-N1", "--hold")]
    supervisors = [running.supervise(), waiting.supervise()]
    running.until_state("running")
    waiting.until_state("queued")

    elsewhere = f"--exclude={running.run().attempts[0].nodes[0]}"  # what is left of a lost job keeps its node for a while
    _without_memory(box)
    theirs = [
        running.plain("-N1", elsewhere, "-J", "job.sh", "--wrap=sleep 500"),
        running.plain("-N1", elsewhere, "--comment=ftrun:else-0001:ab:1", "--wrap=sleep 500"),
    ]
    waits = running.plain("-N1", f"--dependency=afterok:{theirs[0]}", "--wrap=true")
    asked_for = _show(running, waits, "Dependency")

    for post in (running, waiting):
        post.until_state("finished", within_s=PATIENCE_S)
        assert [a.launch.end.state for a in post.run().attempts] == ["GONE", "COMPLETED"], post.story()
        assert post.ledger()[-1] == "done"
    assert theirs == jobs, "the ids were given out again"
    assert [_show(running, job, "JobState") for job in (*theirs, waits)] == ["RUNNING", "RUNNING", "PENDING"]
    assert _show(running, waits, "Dependency") == asked_for
    assert all(process.poll() is None for process in supervisors)


@side_by_side
def test_a_cancel_of_a_run_spares_the_job_that_has_its_id(
    make_sandbox: MakeSandbox, make_post: MakePost
) -> None:
    """The run is cancelled by its id while another job bears the number of its lost one: that job runs on."""
    box = make_sandbox(nodes=2)
    post = make_post(box)
    job = post.sbatch(TWICE, "-N1")
    post.supervise()
    post.until_state("running")

    elsewhere = f"--exclude={post.run().attempts[0].nodes[0]}"
    _without_memory(box)
    theirs = post.plain("-N1", elsewhere, "-J", "job.sh", "--wrap=sleep 500")
    post.ftrun("cancel", "--no-wait", post.run().id)
    post.until_state("stopped", within_s=PATIENCE_S)

    assert theirs == job
    assert _show(post, theirs, "JobState") == "RUNNING"


@side_by_side
def test_two_runs_that_had_one_id_are_two(make_sandbox: MakeSandbox, make_post: MakePost) -> None:
    """MaxJobId is reached and Slurm counts from the first again: the older run stays finished, the id leads to the newer one."""
    box = make_sandbox(nodes=2, conf={"FirstJobId": "1", "MaxJobId": "3", "MinJobAge": "2"})
    post = make_post(box)
    post.supervise()
    first = post.sbatch("echo first >>ledger\n", "-N1")
    older = post.until_state("finished", job=first)
    assert post.plain("-N1", "--wrap=true") == "2"  # the last id
    post.until(
        lambda: not post.call("squeue", "-h", "-t", "all", "-o", "%i").strip(),
        "Slurm forgets all",
        PATIENCE_S,
    )

    second = post.sbatch("echo second >>ledger\n", "-N1", name="other.sh")
    newer = post.until_state("finished", job=second)

    assert second == first
    assert newer.id != older.id
    assert post.run(older.id) == older
    assert [line for line in post.ledger() if not line.startswith("start")] == ["first", "second"]


def _runs(post: Post, launch: int) -> bool:
    return post.run().state.value == "running" and post.run().attempts[-1].launch.number == launch


@side_by_side
def test_others_may_requeue_hold_and_release_a_runs_job(
    make_sandbox: MakeSandbox, make_post: MakePost
) -> None:
    """requeuehold by an operator, twice: the run waits as long as the job is held, makes no second one, and goes on in the launch that comes of the release."""
    box = make_sandbox(nodes=2)
    post = make_post(box)
    body = (
        "echo 'step 1 loss 2.5'\n[ \"${SLURM_RESTART_COUNT:-0}\" -lt 2 ] && sleep 600\necho done >>ledger\n"
    )
    job = post.sbatch(body, "-N1", "--requeue", "--open-mode=append")
    post.supervise()
    for launch in (0, 1):
        post.until(partial(_runs, post, launch), f"launch {launch} runs", PATIENCE_S)
        post.call("scontrol", "requeuehold", job)
        post.until_state("queued", within_s=PATIENCE_S)
        post.until(lambda: _show(post, job, "JobState") == "PENDING", "it is held", PATIENCE_S)
        assert _show(post, job, "Reason") in (
            "JobHeldAdmin",
            "JobHeldUser",
            "job_requeued_in_held_state",
            "job",
        ), post.story()
        post.call("scontrol", "release", job)
    run = post.until_state("finished", within_s=PATIENCE_S)

    assert ([a.job for a in run.attempts], run.attempts[0].launch.number) == ([job], 2), post.story()


@side_by_side
def test_a_job_that_slurm_forgot_is_told_by_the_runs_own_folder(
    make_sandbox: MakeSandbox, make_post: MakePost
) -> None:
    """Without accounting: two jobs end and are forgotten while nobody looks. What the jobs wrote themselves decides: one run has finished, the other goes on."""
    box = make_sandbox(nodes=2, conf={"MinJobAge": "2"})
    good, bad = make_post(box), make_post(box)
    jobs = [
        good.sbatch("exit 0\n", "-N1"),
        bad.sbatch('[ "$FTRUN_ATTEMPT" = 1 ] && exit 7\nexit 0\n', "-N1", "--ft-agent=never"),
    ]
    good.until(
        lambda: not good.call("squeue", "-h", "-t", "all", "-o", "%i").strip(),
        f"Slurm forgets {jobs}",
        PATIENCE_S,
    )
    for post in (good, bad):
        post.supervise()
    ended = [post.until_state("finished", within_s=PATIENCE_S) for post in (good, bad)]

    assert [[(a.launch.end.state, a.launch.end.exit_code) for a in run.attempts] for run in ended] == [
        [("COMPLETED", 0)],
        [("GONE", 7), ("COMPLETED", 0)],
    ]
