"""Laws of a job that waits in the queue or is gone from it: who cancelled it, what it did last, what is to be done."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from ftrun.slurm.client.cluster import JobRow, JobState, NodeRow
from ftrun.supervisor.context import cluster_view
from ftrun.supervisor.controller import reconcile
from ftrun.supervisor.model.states import State
from ftrun.supervisor.store import submission_context
from ftrun.supervisor.store.crash_points import PlannedCrash
from tests.fake_slurm import faults
from tests.unit.lives import TIMED_OUT, TIMING, Life

FORGOTTEN_S = TIMING.min_job_age_s + 60
XID = "NVRM: Xid (PCI:0000:3b:00): 79, pid=811, GPU has fallen off the bus."


def _requeued(life: Life, *, hold: bool = False) -> None:
    """The job runs, makes some steps, and is put back into the queue; the supervisor does not look."""
    life.until("running")
    life.train(1, 5)
    life.say("slurmstepd: error: *** JOB 1 ON n0 CANCELLED AT 2026-01-01T00:00:00 DUE TO JOB REQUEUE ***")
    faults.requeue(life.engine, 1, hold=hold)
    life.engine.advance(5)


def _away(life: Life, seconds: float) -> None:
    """No supervisor lives for so long; then another one begins."""
    life.engine.advance(seconds)
    life.begin_anew()


def _dies_at(place: str) -> Callable[[str], None]:
    """A supervisor that ends at this point of its work."""

    def dies(point: str) -> None:
        if point == place:
            raise PlannedCrash(point)

    return dies


# ---------------------------------------------------------------------- a person's cancel


def test_a_cancel_in_the_queue_is_obeyed_after_slurm_forgot_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P5: a cancel that was seen is a person's word, even where we die before we act on it and Slurm forgets the job."""
    life = Life(tmp_path)
    _requeued(life, hold=True)
    life.engine.end(life.engine.jobs[1], JobState.CANCELLED)

    monkeypatch.setattr(life.supervisor.services, "crash", _dies_at("record:after:job.requeued"))
    with pytest.raises(PlannedCrash):
        life.live(30)
    assert life.attempt.launch.end.state == "CANCELLED"
    _away(life, FORGOTTEN_S)
    life.live(300, step_s=5.0)

    assert (life.run.state.value, life.run.final_class, len(life.engine.final)) == ("stopped", "cancelled", 1)
    assert "cancelled by a person" in life.run.final_reason


@pytest.mark.parametrize("when", ["first", "kept", "unseen"])
def test_a_job_that_left_the_queue_while_nobody_watched_is_not_submitted_again(
    tmp_path: Path, when: str
) -> None:
    """P5: a job cancelled in the queue while no supervisor lived is not brought back, though Slurm has forgotten why it went."""
    life = Life(tmp_path, nodes=2)
    if when == "first":
        life.cluster.hold("1")
        life.live(5)
    else:
        _requeued(life, hold=True)
    if when == "kept":
        life.until("queued")
    assert life.run.state.value == ("running" if when == "unseen" else "queued")
    life.engine.end(life.engine.jobs[1], JobState.CANCELLED)
    _away(life, FORGOTTEN_S)

    life.live(200, step_s=5.0)

    assert (life.run.state.value, life.run.final_class, life.attempt.number) == ("stopped", "cancelled", 1)
    assert "ftrun resume" in life.run.incidents[-1].diagnosis["advice"]


@pytest.mark.parametrize("resumed", [False, True])
def test_a_cancel_in_the_queue_that_came_after_the_decision_is_obeyed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, resumed: bool
) -> None:
    """P5: whoever stands still or dies before the requeued job is taken out of the queue does not bring back what a person
    cancelled there meanwhile; a person's resume does.
    """
    life = Life(tmp_path)
    _requeued(life, hold=True)
    monkeypatch.setattr(life.supervisor.services, "crash", _dies_at("record:after:diagnosed"))
    life.say(XID)
    with pytest.raises(PlannedCrash):
        life.live(30)
    life.engine.end(life.engine.jobs[1], JobState.CANCELLED)
    _away(life, FORGOTTEN_S)
    life.live(200, step_s=5.0)

    assert (life.run.state.value, life.run.final_class, life.attempt.number) == ("stopped", "cancelled", 1)
    assert "left the queue" in life.run.final_reason or "gone from the queue" in life.run.final_reason

    if resumed:
        life.ask("resume", "1")
        life.live(200, step_s=5.0)
        assert (life.run.state.value, life.attempt.number) == ("running", 2)


def test_a_cancel_of_a_job_on_its_way_into_the_queue_is_a_persons(tmp_path: Path) -> None:
    """P5: what Slurm requeues is PENDING; where it says CANCELLED instead, a person came in between, whatever the log says."""
    life = Life(tmp_path)
    life.until("running")
    life.train(1, 5)
    life.say("slurmstepd: error: *** JOB 1 ON n0 CANCELLED AT 2026-01-01T00:00:00 DUE TO JOB REQUEUE ***")
    faults.requeue(life.engine, 1)
    assert life.engine.jobs[1].state is JobState.COMPLETING
    life.engine.end(life.engine.jobs[1], JobState.CANCELLED)
    life.live(100)

    assert (life.run.state.value, life.run.final_class, life.attempt.number) == ("stopped", "cancelled", 1)


def test_a_job_that_the_controller_lost_from_the_queue_is_submitted_again(tmp_path: Path) -> None:
    """Law 4: a queued job that was there at the last look and is gone was not cancelled: Slurm would still know it."""
    life = Life(tmp_path)
    life.cluster.hold("1")
    life.live(20)
    faults.crash_controller(life.engine, lose_last=1)
    life.engine.set_controller("up")

    life.live(100)

    assert (life.attempt.number, life.run.state.value) == (2, "running")


# ---------------------------------------------------------------------- a submission that nobody heard of


def _dies_around_the_second_sbatch(life: Life, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    """The first attempt fails, and the supervisor ends at this point of the submission of the second."""
    life.until("running")
    life.train(1, 5)
    life.say(XID)
    life.exit(1)
    monkeypatch.setattr(life.supervisor.services, "crash", _dies_at(place))
    with pytest.raises(PlannedCrash):
        life.live(200)
    monkeypatch.undo()
    assert life.attempt.number == 2


@pytest.mark.parametrize("resumed", [False, True])
def test_a_submission_that_could_be_cancelled_and_forgotten_before_anyone_looked_is_a_persons_to_decide(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, resumed: bool
) -> None:
    """P5: where Slurm had the time to forget the job before the first look for it, nothing is submitted until a person says so."""
    life = Life(tmp_path, backoff=0.0)
    _dies_around_the_second_sbatch(life, monkeypatch, "submit:after")
    life.engine.end(life.engine.jobs[2], JobState.CANCELLED)
    _away(life, FORGOTTEN_S)

    life.live(300, step_s=5.0)

    assert (life.run.state.value, life.attempt.number, len(life.engine.final)) == ("stopped", 2, 2)
    assert "submit.lost" not in life.kinds()
    stopped = next(r["data"] for r in life.records() if r["kind"] == "run.stopped")
    assert f"ftrun resume {life.run.id}" in stopped["advice"]
    if resumed:
        life.ask("resume", "1")
        life.live(200, step_s=5.0)
        assert (life.run.state.value, life.attempt.number) == ("running", 3)


def test_a_submission_that_claimed_its_start_is_followed_however_late_anyone_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P4: the claim of the job tells that it started, and its own record how it ended, though Slurm has forgotten both."""
    life = Life(tmp_path, backoff=0.0)
    _dies_around_the_second_sbatch(life, monkeypatch, "submit:after")
    life.engine.advance(30)
    (Path(life.run_dir) / "attempts" / "2" / "exit.0").write_text("code=0\nsignal=\n")
    life.exit(0)
    _away(life, FORGOTTEN_S)

    life.live(200, step_s=5.0)

    assert (life.run.state.value, life.attempt.number) == ("finished", 2)


@pytest.mark.parametrize(
    ("place", "away_s"), [("submit:before", TIMING.min_job_age_s - 60), ("open:after", FORGOTTEN_S)]
)
def test_a_submission_that_did_not_come_about_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, away_s: float
) -> None:
    """Law 4: Slurm would still know the job, or sbatch was not announced at all: then nobody cancelled anything."""
    life = Life(tmp_path, backoff=0.0)
    life.until("running")
    life.train(1, 5)
    life.say(XID)
    life.exit(1)
    monkeypatch.setattr(life.supervisor.services, "crash", _dies_at(place))
    with pytest.raises(PlannedCrash):
        life.live(200)
    monkeypatch.undo()
    _away(life, away_s)

    life.live(200, step_s=5.0)

    assert (life.run.state.value, len(life.engine.final)) == ("running", 1)


# ---------------------------------------------------------------------- what the job did last


def test_a_launch_that_nobody_saw_is_the_one_that_ended(tmp_path: Path) -> None:
    """P1: a job that started again and finished while nobody watched has finished, whatever its earlier launch died of."""
    life = Life(tmp_path)
    _requeued(life)
    life.engine.advance(30)
    assert life.engine.jobs[1].restarts == 1
    folder = Path(life.run_dir) / "attempts" / "1"
    (folder / "exit.1").write_text("code=0\nsignal=\n")
    life.exit(0)
    _away(life, FORGOTTEN_S)

    life.live(100)

    assert (life.run.state.value, life.attempt.launch.number, life.attempt.number) == ("finished", 1, 1)


def test_a_launch_that_nobody_saw_before_the_next_step_is_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P5: the requeued job that is to be replaced may have finished by itself before Slurm forgot it: that is the end."""
    life = Life(tmp_path)
    life.until("running")
    life.train(1, 5)
    life.say("NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, GPU has fallen off the bus.")
    faults.requeue(life.engine, 1)

    def dies(point: str) -> None:
        if point == "record:after:decided":
            raise PlannedCrash(point)

    monkeypatch.setattr(life.supervisor.services, "crash", dies)
    with pytest.raises(PlannedCrash):
        life.live(30)
    life.engine.advance(30)
    assert life.engine.jobs[1].restarts == 1
    (Path(life.run_dir) / "attempts" / "1" / "exit.1").write_text("code=0\nsignal=\n")
    life.exit(0)
    _away(life, FORGOTTEN_S)

    life.live(300)

    assert (life.run.state.value, life.attempt.launch.number, life.attempt.number) == ("finished", 1, 1)


def test_each_launch_tells_of_itself(tmp_path: Path) -> None:
    """P1: what an earlier launch resumed from says nothing of the next one, and its record is awaited anew."""
    life = Life(tmp_path)
    _requeued(life)
    life.live(8)
    launched = Path(life.run_dir) / "attempts" / "1" / "launch.1"
    while not launched.exists():
        life.engine.advance(0.25)
    launched.write_text(launched.read_text().replace("resume_from=", "resume_from=/ckpt/step-5.pt"))
    life.exit(1)
    life.until("settling")
    life.live(1)

    records = [r for r in life.records() if r["kind"] == "launch.seen"]
    assert [(r["launch"], r["data"]["resume_from"]) for r in records] == [(0, ""), (1, "/ckpt/step-5.pt")]
    assert life.attempt.launch.start.resume_from == "/ckpt/step-5.pt"


# ---------------------------------------------------------------------- a person's cancel beside an end of ours


def _standing_still(life: Life) -> None:
    """A fatal line, no progress: the next look or glance will announce the end of the attempt."""
    life.until("running")
    life.train(1, 20)
    life.stand_still(TIMED_OUT)
    life.until("suspect")


def test_a_cancel_before_ours_is_a_persons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """P5: between the announcement of an end and our own cancel a person may cancel: the run does not come back."""
    life = Life(tmp_path)
    _standing_still(life)
    # Announced by a glance: carried out at the next look.
    monkeypatch.setitem(reconcile.HANDLERS, State.ENDING, lambda ctx: None)
    life.until("ending")
    life.engine.end(life.engine.jobs[1], JobState.CANCELLED)
    monkeypatch.undo()

    life.live(60)

    assert (life.run.state.value, life.run.final_class, life.attempt.number) == ("stopped", "cancelled", 1)


def test_an_end_that_was_announced_for_one_launch_is_not_carried_out_on_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P7: who dies before the cancel goes out leaves an intent for that launch; Slurm's own next start shows no fault."""
    life = Life(tmp_path, fault_grace=10.0)
    life.until("running")
    life.train(1, 5)
    life.stand_still(TIMED_OUT)
    monkeypatch.setattr(life.supervisor.services, "crash", _dies_at("record:after:cancel.intended"))
    with pytest.raises(PlannedCrash):
        life.live(300)
    faults.requeue(life.engine, 1)
    while len(life.launches) < 2:
        life.engine.advance(1)
    life.begin_anew()
    life.live(30)

    assert (life.run.state.value, life.attempt.number, life.attempt.launch.number) == ("running", 1, 1)
    assert "end.done" not in life.kinds()


def test_our_own_cancel_is_no_persons(tmp_path: Path) -> None:
    """P5: what ends by our cancel is ours, and goes on."""
    life = Life(tmp_path)
    _standing_still(life)
    life.until("ending")
    life.live(60)

    assert (life.run.state.value, life.attempt.number) == ("running", 2)


def test_an_end_that_comes_by_itself_is_judged_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P7: a script that ends between the announcement and our cancel has given its own verdict."""
    life = Life(tmp_path)
    _standing_still(life)
    looked = life.cluster.jobs

    def just_then(job_ids: Collection[str]) -> Mapping[str, JobRow]:
        if life.run.state.value == "ending" and not life.engine.jobs[1].state.ended:
            life.exit(0)
            life.engine.advance(2)
        return looked(job_ids)

    monkeypatch.setattr(life.cluster, "jobs", just_then)
    life.live(120)

    assert (life.run.state.value, life.attempt.number) == ("finished", 1)
    assert "cancel.intended" not in life.kinds()


def test_a_persons_cancel_stands_above_a_lost_node_with_broken_hardware(tmp_path: Path) -> None:
    """P5: who cancels a job that has lost a node, be it for its hardware, does not get another one."""
    life = Life(tmp_path)
    life.until("running")
    life.train(1, 5)
    lost = life.launches[0].nodes[1]
    life.say(
        f"[Sat Nov 21 10:00:00 2026] {lost} kernel: NVRM: Xid (PCI:0000:3b:00): 79, pid=811, GPU has fallen off the bus."
    )
    life.engine.fail_node(lost, "freeze")
    life.live(3)
    life.engine.end(life.engine.jobs[1], JobState.CANCELLED)
    life.live(200)

    assert (life.run.state.value, life.run.final_class, life.attempt.number) == ("stopped", "cancelled", 1)


# ---------------------------------------------------------------------- a person's resume


def _stopped_alive(life: Life, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run is stopped, but Slurm did not hear the cancel of its requeued job, which runs again."""
    life.until("running")
    life.train(1, 5)
    life.say(
        "Traceback (most recent call last):",
        '  File "train.py", line 3',
        "NameError: name 'x' is not defined",
    )
    monkeypatch.setattr(life.cluster, "cancel", lambda job_id, **_: None)
    faults.requeue(life.engine, 1)
    life.until("stopped")
    while life.engine.jobs[1].state is not JobState.RUNNING:
        life.live(1)


@pytest.mark.parametrize("code", [0, 1])
def test_a_resumed_run_goes_on_with_the_job_that_still_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """Rule 2: who resumes a run whose job was never ended gets that job, watched as any other, and no second one beside it."""
    life = Life(tmp_path)
    _stopped_alive(life, monkeypatch)
    life.ask("resume", "1-resume")
    life.until("running", within_s=60)
    assert (life.attempt.number, life.attempt.launch.number) == (1, 1)
    life.train(6, 9)
    life.exit(code)
    life.live(60)

    assert (life.run.state.value, life.attempt.number) == (("finished", 1) if not code else ("running", 2))


def test_a_resumed_run_whose_job_came_to_its_end_has_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The script's own verdict wins: a job that exits 0 while the run is being resumed needs no other attempt."""
    life = Life(tmp_path)
    _stopped_alive(life, monkeypatch)
    life.ask("resume", "1-resume")
    life.live(2)
    life.exit(0)
    life.live(60)

    assert (life.run.state.value, life.attempt.number) == ("finished", 1)


# ---------------------------------------------------------------------- nodes and partitions of a job that is gone


def test_another_jobs_end_on_our_node_holds_nothing_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P6: a node may be COMPLETING for another job for long; a job that Slurm has forgotten was done with it before."""
    life = Life(tmp_path)
    life.until("running")
    life.train(1, 5)
    faults.crash_controller(life.engine, lose_last=1)
    life.engine.set_controller("up")
    nodes = life.cluster.nodes

    def completing(names: Collection[str] | None = None) -> Mapping[str, NodeRow]:
        return {name: replace(row, flags=row.flags | {"completing"}) for name, row in nodes(names).items()}

    monkeypatch.setattr(life.cluster, "nodes", completing)
    life.live(200)

    assert life.attempt.number == 2


@pytest.mark.parametrize("anew", [False, True], ids=["same", "anew"])
def test_a_job_that_is_gone_belongs_where_it_ran(tmp_path: Path, anew: bool) -> None:
    """P11: caps are shares of the partition that the run is in, not of the default one, whoever remembers it."""
    life = Life(tmp_path, beside=30)
    life.until("running")
    life.live(2)
    faults.crash_controller(life.engine, lose_last=1)
    life.engine.set_controller("up")
    if anew:
        life.begin_anew()
    life.live(3)
    world = life.supervisor._snapshot
    assert world is not None

    view = cluster_view.cluster_view(life.supervisor.reconcilers[life.run_dir].ctx, world)

    assert view.partition == tuple(life.engine.partitions["main"])


# ---------------------------------------------------------------------- a request before there is a job


@pytest.mark.parametrize("records", [1, 2, 3], ids=["created", "opened", "intended"])
def test_a_request_waits_for_the_records_of_ftrun_sbatch(tmp_path: Path, records: int) -> None:
    """P8: who cancels a run while `ftrun sbatch` stands still between two records ends the job that it submits after all."""
    life = Life(tmp_path)
    (written,) = (Path(life.run_dir) / "journal").iterdir()
    whole = written.read_bytes()
    written.write_bytes(b"".join(line + b"\n" for line in whole.splitlines()[:records]))
    before = life.run.state
    life.ask("cancel", "1-cancel")
    life.live(20)
    assert (life.run.state, life.run.wish) == (before, "")
    written.write_bytes(whole)
    life.live(60)

    assert (life.run.state.value, life.run.final_class, life.living()) == ("stopped", "cancelled", [])


# ---------------------------------------------------------------------- an end that nobody watched


def _ended_unwatched(life: Life, why: str, code: int = 143) -> None:
    """The script is told to leave and leaves its record; Slurm forgets the job before anybody looks."""
    life.until("running")
    life.train(1, 5)
    life.supervisor.forget()
    life.say(f"slurmstepd: error: *** JOB 1 ON n0 CANCELLED AT 2026-01-01T00:00:00{why} ***")
    record = f"code={code}\nsignal={15 if code else ''}\n"
    (Path(life.run_dir) / "attempts" / "1" / "exit.0").write_text(record)
    life.engine.end(life.engine.jobs[1], JobState.CANCELLED)
    life.launches[-1].exit(0)
    _away(life, FORGOTTEN_S)
    life.live(200, step_s=5.0)


@pytest.mark.parametrize("code", [0, 143])
def test_a_cancel_that_only_the_log_tells_of_is_obeyed(tmp_path: Path, code: int) -> None:
    """P5: what slurmstepd wrote when nobody watched is all that is left of a person's cancel; a fault before it changes nothing."""
    life = Life(tmp_path)
    life.until("running")
    life.say(XID)
    _ended_unwatched(life, "", code)

    assert (life.run.state.value, life.run.final_class, life.attempt.number) == ("stopped", "cancelled", 1)
    assert "ftrun resume" in life.run.incidents[-1].diagnosis["advice"]


@pytest.mark.parametrize(
    ("why", "argv", "default", "resubmitted"),
    [
        ("NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS", (), True, False),
        ("NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS", (), False, True),
        ("NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS", ("--no-requeue",), True, True),
        ("NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS", ("--requeue",), False, False),
        ("JOB REQUEUE", ("--no-requeue",), False, False),
        ("PREEMPTION", (), True, True),
        ("TIME LIMIT", (), True, True),
    ],
)
@pytest.mark.parametrize("code", [0, 143])
def test_what_a_lost_node_put_into_the_queue_and_left_it_was_cancelled(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    why: str,
    argv: tuple[str, ...],
    default: bool,
    resubmitted: bool,
    code: int,
) -> None:
    """P5: Slurm requeues what a lost node ends, unless it was told not to; gone from there without another start is a person's doing.
    What was preempted or ran out of time may have ended by that; and who exits 0 when told to leave has not finished.
    """
    life = Life(tmp_path)
    life.engine.requeue_default = default
    kept = submission_context.load(life.run_dir)
    kept["argv"] = [*argv, *kept["argv"]]
    monkeypatch.setattr(submission_context, "load", lambda run_dir: kept)
    _ended_unwatched(life, f" DUE TO {why}", code)

    assert (life.run.state.value, life.attempt.number) == (("running", 2) if resubmitted else ("stopped", 1))


@pytest.mark.parametrize("point", ["record:after:cancel.intended", "record:after:end.intended"])
def test_an_intent_for_one_launch_explains_no_cancel_of_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    """P5: a cancel of ours that never went out, or was for the launch before, is no excuse: who cancels the next launch ends the run."""
    life = Life(tmp_path, fault_grace=10.0)
    life.until("running")
    life.train(1, 5)
    life.stand_still(TIMED_OUT)
    monkeypatch.setattr(life.supervisor.services, "crash", _dies_at(point))
    with pytest.raises(PlannedCrash):
        life.live(300)
    faults.requeue(life.engine, 1)
    while len(life.launches) < 2:
        life.engine.advance(1)
    life.begin_anew()
    life.live(30)
    assert (life.run.state.value, life.attempt.launch.number) == ("running", 1)
    life.engine.end(life.engine.jobs[1], JobState.CANCELLED)
    life.live(60)

    assert (life.run.state.value, life.run.final_class, life.attempt.number) == ("stopped", "cancelled", 1)


def test_our_own_cancel_of_an_unseen_launch_is_no_persons(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P5: the run was stopped and its job cancelled by us; who resumes it after Slurm forgot the job gets the next attempt."""
    life = Life(tmp_path)
    life.until("running")
    life.train(1, 5)
    faults.requeue(life.engine, 1)
    life.ask("cancel", "1-cancel")
    monkeypatch.setattr(life.supervisor.services, "crash", _dies_at("cancel:before"))
    with pytest.raises(PlannedCrash):
        life.live(60)
    while len(life.launches) < 2:
        life.engine.advance(1)
    life.begin_anew()
    life.until("stopped")
    life.say("slurmstepd: error: *** JOB 1 ON n0 CANCELLED AT 2026-01-01T00:00:00 ***")
    life.engine.advance(FORGOTTEN_S)
    life.ask("resume", "2-resume")
    life.live(300, step_s=5.0)

    assert (life.run.state.value, life.attempt.number) == ("running", 2)
