"""Laws of ends that come in bad company: a lost node, a lost row, a second job, a second start, a person who changes their mind."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from ftrun.slurm.client.cluster import JobRow, JobState
from ftrun.supervisor.context import cluster_view
from ftrun.supervisor.model.events import apply
from ftrun.supervisor.model.run import Run
from ftrun.supervisor.model.states import State
from ftrun.supervisor.store import run_dir
from tests.fake_slurm import faults
from tests.fake_slurm.cluster import Faults
from tests.unit.lives import TIMING, Life

BROKEN = "RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory"


def _blind(life: Life, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm's answers lack the job from now on."""

    def none(job_ids: Collection[str]) -> Mapping[str, JobRow]:
        return {}

    monkeypatch.setattr(life.cluster, "jobs", none)


def test_a_node_that_was_lost_long_after_the_end_is_not_blamed_for_it(tmp_path: Path) -> None:
    """Rule 3: what Slurm gave up minutes after the job's end still lived when the job failed, however late anybody looked."""
    life = Life(tmp_path)
    life.until("running")
    life.train(1, 5)
    life.say(
        "Traceback (most recent call last):", '  File "t.py", line 3', "NameError: name 'x' is not defined"
    )
    node = life.launches[-1].nodes[1]
    life.exit(1)
    life.engine.advance(100)
    life.engine.fail_node(node, "crash")
    life.engine.advance(TIMING.slurmd_timeout_s + 30)
    life.live(60)

    assert (life.run.state.value, life.run.final_class) == ("stopped", "user-code")
    assert life.run.excluded == ()


def test_a_node_that_was_lost_with_the_job_is_still_blamed(tmp_path: Path) -> None:
    """Slurm notices a dead node after the script did: the end comes first, and the node is the cause."""
    life = Life(tmp_path)
    life.until("running")
    life.train(1, 5)
    node = life.launches[-1].nodes[1]
    life.engine.fail_node(node, "crash")
    life.engine.advance(5)
    life.exit(1)
    life.engine.advance(TIMING.slurmd_timeout_s + 60)
    life.live(60)

    assert {e.node for e in life.run.excluded} == {node}


def test_a_broken_checkpoint_is_set_aside_though_a_person_ends_the_run(tmp_path: Path) -> None:
    """Who cancels while the fault is judged and resumes later does not get the same torn checkpoint again."""
    folder = tmp_path / "work" / "ckpt"
    life = Life(tmp_path, checkpoint="ckpt/step-*.pt")
    folder.mkdir()
    torn = folder / "step-000005.pt"
    torn.write_text("torn")
    life.engine.advance(3)
    place = Path(life.run_dir) / "attempts" / "1" / "launch.0"
    place.write_text(place.read_text().replace("resume_from=", f"resume_from={torn}"))
    life.until("running")
    life.say(BROKEN)
    life.exit(1)
    life.until("settling")
    life.ask("cancel", "1-cancel")
    life.until("stopped")
    assert life.run.final_class == "cancelled"

    life.ask("resume", "2-resume")
    life.until("running")

    assert [path for path, _ in life.run.set_aside] == [str(torn)]


def test_a_resume_takes_a_cancel_in_the_queue_back(tmp_path: Path) -> None:
    """P5: the run was stopped since a person cancelled its requeued job; the same person's resume is the last word."""
    life = Life(tmp_path)
    life.until("running")
    life.train(1, 5)
    faults.requeue(life.engine, 1, hold=True)
    life.engine.advance(5)
    life.engine.end(life.engine.jobs[1], JobState.CANCELLED)
    life.until("stopped")
    life.ask("resume", "1-resume")
    life.live(60)

    assert (life.run.state.value, life.attempt.number) == ("running", 2)


def test_the_second_job_of_one_token_is_the_attempt_where_slurm_lost_the_first(tmp_path: Path) -> None:
    """P4: sbatch made two jobs, and the one whose id it told is gone: the other, which nobody knew of, is looked after."""
    life = Life(tmp_path, nodes=2)
    life.cluster.hold("1")
    life.live(5)
    job = life.engine.jobs.pop(1)
    job.number = 7
    life.engine.jobs[7] = job
    life.live(90)
    assert life.attempt.job == "7"
    life.cluster.release("7")
    life.until("running")
    life.exit(0)
    life.live(30)

    assert (life.run.state.value, life.attempt.number) == ("finished", 1)


def test_a_requeued_job_that_no_answer_shows_is_not_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P7: no budget is left for the requeue; an answer that lacks the job hides that Slurm has started it again by then."""
    life = Life(tmp_path, retries=1)
    life.until("running")
    for step in (1, 6):
        life.train(step, step + 4)
        life.say("slurmstepd: error: *** JOB 1 ON n0 CANCELLED AT 2026-01-01T00:00:00 DUE TO JOB REQUEUE ***")
        faults.requeue(life.engine, 1)
        if step == 1:
            life.until("queued")
            life.until("running")
    life.until("settling")
    launches = len(life.launches)
    jobs = life.cluster.jobs
    _blind(life, monkeypatch)
    while len(life.launches) == launches:
        life.live(1)
    life.live(10)
    assert life.run.state.value == "settling"
    monkeypatch.setattr(life.cluster, "jobs", jobs)
    life.live(30)

    assert (life.run.state.value, life.attempt.launch.number, life.living()) == ("running", 2, ["1"])


def test_after_a_second_start_every_node_must_have_been_heard_anew(tmp_path: Path) -> None:
    """P6: the end of a refused second start proves nothing of the first; a node that froze meanwhile counts as heard for a while."""
    life = Life(tmp_path, backoff=0.0)
    life.until("running")
    life.train(1, 5)
    faults.crash_controller(life.engine, lose_last=0, rewind=[1])
    life.engine.set_controller("up")
    (Path(life.run_dir) / "attempts" / "1" / "lost.0").write_text("job=1\n")
    while len(life.launches) < 2:
        life.engine.advance(0.5)
    frozen = life.launches[0].nodes[1]
    life.exit(1)
    while not life.engine.jobs[1].state.ended:
        life.engine.advance(0.25)
    life.engine.fail_node(frozen, "freeze")
    life.live(10 + TIMING.slurmd_timeout_s)

    assert life.attempt.number == 1
    life.live(200)
    assert life.attempt.number == 2
    assert frozen in life.attempt.excluded


def test_an_exclusion_that_is_over_for_who_decides_is_over_for_all(tmp_path: Path) -> None:
    """P8: two hosts' clocks are not compared: what one of them let go does not come back by the other's, and the cap holds."""
    decided = {"spent": {}, "retries": 1, "reason": "x", "exclude_until_s": 200.0, "exclude": ["n0"]}
    later = decided | {"exclude": ["n1"], "exclude_until_s": 400.0}
    run = apply(Run("r-0001", State.SETTLING), {"kind": "decided", "at": 100.0, "data": decided})
    run = apply(replace(run, state=State.SETTLING), {"kind": "decided", "at": 300.0, "data": later})

    assert run.excluded_at(150.0) == ("n1",)


def test_an_attempt_that_never_came_to_be_needs_as_many_nodes_as_the_one_before(tmp_path: Path) -> None:
    """No more nodes are left out than the job can do without, be it that the last submission was lost."""
    life = Life(tmp_path, nodes=3, wanted=3, backoff=0.0)
    life.until("running")
    node = life.launches[-1].nodes[1]
    life.say(f"{node} kernel: NVRM: Xid (PCI:0000:3b:00): 79, pid=811, GPU has fallen off the bus.")
    life.cluster.faults.submit_lost = 1.0
    life.exit(1)
    life.until("submitting")
    world = life.supervisor._snapshot
    assert world is not None
    assert life.attempt.nodes == ()

    view = cluster_view.cluster_view(life.supervisor.reconcilers[life.run_dir].ctx, world)

    assert view.nodes_needed == 3


def _sbatch_unanswered(tmp_path: Path) -> Life:
    """The controller hangs just when attempt 2 is submitted, and never hears of it."""
    life = Life(tmp_path, backoff=0.0)
    life.cluster.faults = Faults(hung_takes=0.0)
    life.until("running")

    def hang(point: str) -> None:
        if point == "submit:before":
            life.engine.set_controller("hung")

    life.supervisor.services.crash = hang
    life.exit(1)
    life.until("submitting")
    return life


def test_while_slurm_answers_nobody_no_person_can_have_cancelled(tmp_path: Path) -> None:
    """P5: a controller that was away for longer than it remembers jobs, just when the next attempt was submitted: the run goes on."""
    life = _sbatch_unanswered(tmp_path)
    life.live(TIMING.min_job_age_s + 60)
    life.supervisor.services.crash = lambda point: None
    life.engine.set_controller("up")
    life.until("running")

    assert life.attempt.number == 3
    assert life.living() == ["2"]


@pytest.mark.parametrize("asleep", [True, False], ids=["the supervisor sleeps", "another takes over"])
def test_who_cannot_know_whether_slurm_answered_leaves_it_to_a_person(tmp_path: Path, asleep: bool) -> None:
    """P5: nobody looked for so long that a job could be made, cancelled and forgotten."""
    life = _sbatch_unanswered(tmp_path)
    life.supervisor.services.crash = lambda point: None
    life.engine.set_controller("up")
    life.engine.advance(TIMING.min_job_age_s + 60)
    if not asleep:
        life.begin_anew()
    life.live(60)

    assert (life.run.state.value, life.run.final_class) == ("stopped", "cancelled")


@pytest.mark.parametrize("saved", [False, True])
def test_a_save_of_the_launch_that_runs_again_counts_nothing_for_the_one_before(
    tmp_path: Path, saved: bool
) -> None:
    """A launch judged after Slurm runs the job again has saved what the later launch began from: one save gives back retries once."""
    life = Life(tmp_path, checkpoint="ckpt/step-*.pt")
    life.until("running")
    life.train(1, 5)
    before, after = life.cwd / "ckpt/step-000010.pt", life.cwd / "ckpt/step-000020.pt"
    before.parent.mkdir()
    if saved:
        before.write_bytes(b"saved")
    life.say("slurmstepd: error: *** JOB 1 ON n0 CANCELLED AT 2026-01-01T00:00:00 DUE TO JOB REQUEUE ***")
    faults.requeue(life.engine, 1)
    while len(life.launches) < 2:
        life.engine.advance(1)
    if saved:
        record = Path(run_dir.attempt_dir(life.run_dir, 1), "launch.1")
        record.write_text(record.read_text().replace("resume_from=\n", f"resume_from={before}\n"))
    after.write_bytes(b"saved")
    life.live(60)
    life.until("running")

    decided = [record["data"]["checkpoint"] for record in life.records() if record["kind"] == "decided"]
    assert decided == [str(before) if saved else ""]
