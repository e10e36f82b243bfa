"""The rules that outrank every feature, each as a history in which ftrun once broke it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, cast

import pytest

from ftrun.slurm.client.cluster import JobState, SubmitRequest
from ftrun.slurm.client.errors import RefusedForGood, Unreachable
from ftrun.supervisor.controller import finish
from ftrun.supervisor.model.states import IllegalEvent
from ftrun.supervisor.store import journal
from ftrun.supervisor.telemetry import hang_rules, liveness
from tests.fake_slurm import faults
from tests.unit.lives import Life, StackSteps

HANDLED = (  # what a script prints that catches the mistake and goes on
    "Traceback (most recent call last):",
    '  File "train.py", line 3, in <module>',
    "ModuleNotFoundError: No module named 'apex'",
)


@pytest.fixture
def folder(tmp_path: Path) -> str:
    """A run's folder with an empty journal."""
    (tmp_path / "journal").mkdir()
    return str(tmp_path)


def test_a_holder_that_comes_too_late_takes_no_record_back(folder: str) -> None:
    """P8: what a paused holder believed before it lost the lease cuts nothing that the next holder built upon."""
    first = journal.Journal.open_first(folder)
    first.append("run.created", token="t")
    believed_by_the_paused = journal.believed_lengths(folder)
    first.append("attempt.opened", attempt=1)
    first.append("submit.done", attempt=1, job="7")
    leader = journal.Journal.open_epoch(
        folder, epoch=6, writer="b", believed=journal.believed_lengths(folder)
    )
    leader.append("job.started", attempt=1, job="7", nodes=["n1"])
    before = [record["kind"] for record in journal.read_run(folder)]

    late = journal.Journal.open_epoch(folder, epoch=5, writer="a", believed=believed_by_the_paused)
    late.append("warned", message="late")

    assert [record["kind"] for record in journal.read_run(folder)] == before


def test_a_full_disk_costs_no_descriptor_and_no_file(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """P8: a journal that cannot be opened is tried again for as long as the disk is full, and nothing piles up."""

    def full(fd: int, record: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(journal, "append_record", full)
    open_files = len(os.listdir("/proc/self/fd"))

    for _ in range(3):
        with pytest.raises(OSError, match="No space"):
            journal.Journal.open_epoch(folder, epoch=2, writer="a", believed={})

    assert len(os.listdir("/proc/self/fd")) == open_files
    assert os.listdir(os.path.join(folder, "journal")) == []


# ---------------------------------------------------------------------- never harm a healthy run


def test_a_fatal_line_before_the_first_step_ends_nothing_while_the_log_grows(tmp_path: Path) -> None:
    """P7: before the first step nobody knows how long a set-up takes; output is a sign of life."""
    life = Life(tmp_path)
    life.until("running")
    life.say(*HANDLED)
    for shard in range(10):
        life.say(f"loading shard {shard}")
        life.live(120, step_s=5.0)

    assert not life.attempt.end_intended


def test_steps_that_come_in_bursts_make_the_wait_longer(tmp_path: Path) -> None:
    """P7: a log that is written in bursts stands still between them, in a healthy run as well."""
    life = Life(tmp_path)
    life.until("running")
    for burst in range(4):
        life.say(*(f"step {burst * 80 + i}/100000 loss 0.5" for i in range(80)))
        if burst == 3:
            life.live(5)
            life.say(*HANDLED)
        life.live(160)

    assert not life.attempt.end_intended


def test_a_script_that_restarts_itself_lives_while_it_repeats_steps(tmp_path: Path) -> None:
    """P7: steps below the highest one are steps; torchrun goes on from a checkpoint and needs time to catch up."""
    life = Life(tmp_path)
    life.until("running")
    life.train(1, 300)
    life.say(*HANDLED)
    life.live(10)
    life.train(100, 250)

    assert not life.attempt.end_intended


def test_a_suspended_job_makes_no_steps_and_lives(tmp_path: Path) -> None:
    """P7: while Slurm does not say RUNNING, the time without progress does not count."""
    life = Life(tmp_path)
    life.until("running")
    life.train(1, 20)
    life.say(*HANDLED)
    life.live(5)
    life.engine.jobs[1].state = JobState.SUSPENDED
    for _ in range(100):
        life.live(1)
        life.supervisor._glance()
    life.engine.jobs[1].state = JobState.RUNNING
    life.live(30)

    assert not life.attempt.end_intended


def test_a_fatal_line_after_which_all_ranks_wait_ends_the_attempt(tmp_path: Path) -> None:
    """P7: and patience has an end. What the line says is no verdict then: the run is tried again."""
    life = Life(tmp_path)
    life.until("running")
    life.train(1, 20)
    life.stand_still(*HANDLED)

    life.live(120)

    assert "end.intended" in life.kinds()
    assert (life.run.incidents[0].fault, life.attempt.number) == ("hang", 2)


@pytest.mark.parametrize("hang", ["auto", "never"])
def test_a_fatal_line_is_no_witness(tmp_path: Path, hang: str) -> None:
    """P7: a handled line and a silent log are still a silent log; nobody has seen that anything waits."""
    life = Life(tmp_path, hang=hang)
    life.until("running")
    life.train(1, 20)
    life.say(*HANDLED)

    life.live(4000, step_s=5.0)

    assert life.run.state.value == "suspect"
    assert not life.attempt.end_intended


def test_a_run_that_talks_and_works_outlives_a_fatal_line(tmp_path: Path) -> None:
    """P7: a handled mistake, then minutes of evaluation that print a line a second while stacks move."""
    life = Life(tmp_path)
    life.until("running")
    life.train(1, 20)
    life.stand_still(*HANDLED)
    cast("StackSteps", life.supervisor.services.steps).moves = True
    for batch in range(300):
        life.say(f"evaluated {batch} of 300")
        life.live(1)

    assert not life.attempt.end_intended
    life.train(21, 25)
    assert life.run.state.value == "running"


def test_the_same_line_at_the_same_step_again_stops_the_run(tmp_path: Path) -> None:
    """P7: what ftrun ended is no mistake of the program's, until the same exception comes again at the same step."""
    life = Life(tmp_path)
    life.until("running")
    for _ in range(2):
        life.train(1, 20)
        life.stand_still(*HANDLED)
        life.until("ending")
        while life.run.state.value not in {"running", "stopped"}:
            life.live()

    assert (life.run.state.value, life.attempt.number) == ("stopped", 2)
    assert "the same failure twice at step 20" in life.run.final_reason


def test_a_mistake_by_which_a_rank_ended_by_itself_is_the_programs(tmp_path: Path) -> None:
    """P7: a rank raised and ended, the others wait for it for ever: ftrun ends what is left, and the exception stands."""
    life = Life(tmp_path)
    life.until("running")
    life.train(1, 20)
    life.stand_still(*HANDLED, "srun: error: n1: task 1: Exited with exit code 1")
    life.until("stopped")

    assert (life.run.final_class, life.attempt.number) == ("config", 1)


@pytest.mark.parametrize(
    ("step_s", "moves", "at_once", "threshold_s"),
    [
        (None, 0, False, 600.0), (None, 0, True, 60.0), (1.0, 9, False, 60.0), (1.0, 9, True, 60.0),
        (40.0, 9, False, 200.0), (40.0, 9, True, 200.0), (40.0, 3, True, 200.0), (40.0, 3, False, 600.0),
    ],
)  # fmt: skip
def test_a_verdict_in_itself_is_given_the_law_s_own_time(
    step_s: float | None, moves: int, at_once: bool, threshold_s: float
) -> None:
    """P7: where all ranks wait, never less than fault-grace and five steps; more only before the pace is known, where the line may be survived."""
    limits = hang_rules.after_fatal_line(hang_rules.HangLimits(), "a line", 60.0, at_once=at_once)
    history = liveness.History(
        life="0.1",
        seen_s=700.0,
        counts=True,
        watched_s=700.0,
        moves=liveness.Moves(kind="steps", count=moves, steps=moves, at_s=0.0, step_s=step_s),
        witness=liveness.Witness(samples=9, sampled_s=700.0, frozen=20, steady=20, waiting="collective"),
    )
    assert threshold_s == hang_rules.hang_verdict(history, 700.0, limits).threshold_s


def _another_job(life: Life, *arguments: str) -> str:
    """The controller forgets the run's job, and gives its id to another job of the same user."""
    faults.crash_controller(life.engine, lose_last=1)
    life.engine.set_controller("up")
    life.engine.script("other", lambda launch: None)
    argv = ("--job-name=other", *arguments, "other.sh")
    return life.cluster.submit(SubmitRequest("", argv, None, {}, str(life.cwd))).job_id


@pytest.mark.parametrize("held", [True, False], ids=["pending", "running"])
def test_a_job_that_got_our_id_is_left_alone(tmp_path: Path, held: bool) -> None:
    """P1: ids are given out again; another job of the same user under our id is neither ended nor taken for a requeue."""
    life = Life(tmp_path)
    life.until("running")
    life.train(1, 20)
    other = _another_job(life, *(["--hold", "-N4"] if held else ["-N1"]))
    life.live(10)
    life.say(*HANDLED)
    life.live(120)

    assert other == "1"
    assert life.engine.jobs[1].state is (JobState.PENDING if held else JobState.RUNNING)


def test_a_site_that_rewrites_comments_costs_no_recovery(tmp_path: Path) -> None:
    """P2: where no token can be seen, the recorded id and the claim stand for it, after a restart of ours as well."""
    life = Life(tmp_path, comment=False)
    life.until("running")
    life.train(1, 5)
    life.begin_anew()
    life.say("NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, GPU has fallen off the bus.")
    life.exit(1)
    life.live(60)
    assert (life.attempt.number, len(life.living())) == (2, 1)

    life.exit(0)
    life.until("finished")


@pytest.mark.parametrize("kind", ["pipe", "link", "another"])
def test_the_last_line_goes_to_the_log_itself_or_nowhere(tmp_path: Path, kind: str) -> None:
    """What took the place of the job's log is not written to, and a pipe that nobody reads does not stop the supervisor."""
    life = Life(tmp_path)
    life.until("running")
    life.train(1, 5)
    life.say(*HANDLED)
    life.exit(1)
    life.live(1)
    other = tmp_path / "other"
    other.write_text("mine\n")
    life.log.rename(tmp_path / "moved")
    if kind == "pipe":
        os.mkfifo(life.log)
    elif kind == "link":
        life.log.symlink_to(other)
    else:
        other.rename(life.log)
        other = life.log

    life.until("stopped", 60)

    assert kind == "pipe" or other.read_text() == "mine\n"
    assert "final.line" not in life.kinds()


def test_a_log_that_is_begun_late_is_read(tmp_path: Path) -> None:
    """P7: steps that stand in a file of `--ft-log`, made after the start, are progress like any other."""
    life = Life(tmp_path, log=["train-*.txt"])
    (life.cwd / "train-0.txt").symlink_to("/nowhere/at/all")
    life.until("running")
    life.say(*HANDLED)
    life.live(20)
    steps = life.cwd / "train-1.txt"
    for step in range(1, 200):
        with steps.open("a") as stream:
            stream.write(f"step {step}/100000 loss 0.5\n")
        if step == 1:
            os.utime(steps, (life.engine.now(), life.engine.now()))
        life.live(5, step_s=5.0)

    assert not life.attempt.end_intended
    assert life.supervisor.reconcilers[life.run_dir].ctx.observations.step == 199


def test_a_row_that_is_missing_for_long_ends_no_job_that_bears_our_token(tmp_path: Path) -> None:
    """P6: a job that is found by its token lives, whatever is missing from other answers."""
    life = Life(tmp_path)
    life.until("running")
    life.cluster.faults.drop_row = 1.0
    life.live(200)
    life.cluster.faults.drop_row = 0.0
    life.live(5)

    assert (life.run.state.value, life.attempt.number, life.living()) == ("running", 1, ["1"])


def test_a_requeued_job_that_started_by_itself_is_followed(tmp_path: Path) -> None:
    """P7: the decision to leave a node out does not end a launch that Slurm began meanwhile and that shows no fault."""
    life = Life(tmp_path)
    life.until("running")
    life.train(1, 5)
    life.say("NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, GPU has fallen off the bus.")
    faults.requeue(life.engine, 1)
    life.until("settling")
    life.engine.jobs[1].begin_s = life.engine.now()
    life.engine.schedule_soon()
    life.engine.advance(3)
    assert life.engine.jobs[1].state is JobState.RUNNING

    life.live(30)

    assert (life.run.state.value, life.attempt.launch.number, life.living()) == ("running", 1, ["1"])


# ---------------------------------------------------------------------- never punish an innocent node


@pytest.mark.parametrize("wanted", [1, 2])
def test_a_node_that_is_silent_for_a_moment_is_not_blamed(tmp_path: Path, wanted: int) -> None:
    """Law 3: a controller that has just come back calls every node silent for some seconds."""
    life = Life(tmp_path, wanted=wanted)
    life.until("running")
    life.train(1, 5)
    life.exit(1)
    life.engine.advance(1)
    node = life.engine.nodes[life.launches[0].nodes[0]]
    node.not_responding = True
    life.live(4)
    node.not_responding = False
    life.live(60)

    assert life.run.incidents[0].fault != "node"
    assert (life.run.drained, life.run.excluded) == ((), ())


# ---------------------------------------------------------------------- never give up on what can succeed


def test_a_refusal_that_ftrun_itself_may_have_caused_is_tried_without_the_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law 4: where the request cannot be had without the nodes left out, none is left out."""
    life = Life(tmp_path)
    life.until("running")
    life.train(1, 5)
    submit = life.cluster.submit

    def picky(request: SubmitRequest) -> Any:
        if any(word.startswith("--exclude") for word in request.argv):
            raise RefusedForGood("Requested node configuration is not available", exit_code=1)
        return submit(request)

    monkeypatch.setattr(life.cluster, "submit", picky)
    life.say("NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, GPU has fallen off the bus.")
    life.exit(1)
    life.live(200)

    assert "submit.refused" in life.kinds()
    assert life.run.state.value == "running"


def test_a_script_that_came_to_its_end_has_finished_whatever_was_asked(tmp_path: Path) -> None:
    """The script's verdict wins: who asked for an end at the next checkpoint gets the end of the training."""
    life = Life(tmp_path)
    life.until("running")
    life.train(1, 5)
    life.ask("stop", "1-stop")
    life.live(3)
    life.exit(0)

    life.until("finished", 60)


# ---------------------------------------------------------------------- never lose a decision


@pytest.mark.parametrize(
    "garbage",
    ["[1]", '{"want": ["cancel"]}', '{"want": {"a": 1}}', "{", '{"want": 7, "by": []}', "[" * 5000],
    ids=["list", "wants-list", "wants-object", "cut", "number", "deep"],
)
def test_a_request_that_is_none_is_noted_and_holds_nothing_up(tmp_path: Path, garbage: str) -> None:
    """What is no request must neither poison the journal nor keep ftrun from its run."""
    life = Life(tmp_path)
    life.until("running")

    life.ask(garbage, "1-garbage")
    life.live(3)
    life.ask("cancel", "2-cancel")
    life.until("stopped")

    assert life.run.wish == "cancel"
    assert not os.listdir(os.path.join(life.run_dir, "requests"))


@pytest.mark.parametrize("kind", ["folder", "pipe", "dangling"])
def test_a_request_that_is_no_file_holds_nothing_up(tmp_path: Path, kind: str) -> None:
    """A folder, a pipe or a link in place of a request neither blocks the supervisor nor hides the next request."""
    life = Life(tmp_path)
    life.until("running")
    path = Path(life.run_dir, "requests", "1-odd.json")
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/nowhere")

    life.live(3)
    life.ask("cancel", "2-cancel")

    life.until("stopped")


def test_a_cancel_stays_a_cancel(tmp_path: Path) -> None:
    """Who asked for an end now and then for one after the next checkpoint gets no less than was asked first."""
    life = Life(tmp_path)
    life.until("running")
    life.train(1, 5)

    life.ask("cancel", "1-cancel")
    life.ask("stop", "2-stop")

    life.until("stopped", 60)


def test_a_request_of_the_last_moment_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that comes while the run's end is being written is not left lying behind the closed door."""
    life = Life(tmp_path)
    life.until("running")
    life.ask("cancel", "1-cancel")
    finish_run = finish.end_run

    def finish_and_ask(*args: Any) -> None:
        finish_run(*args)
        life.ask("resume", "2-resume")

    monkeypatch.setattr(finish, "end_run", finish_and_ask)
    while "run.stopped" not in life.kinds():
        life.live()
    monkeypatch.undo()
    life.live(30)

    assert "run.resumed" in life.kinds()
    assert life.attempt.number == 2


def test_what_cannot_follow_is_never_written(tmp_path: Path) -> None:
    """A mistake of ours costs a step; a record of it would cost the run its supervisor for good."""
    life = Life(tmp_path)
    life.until("running")
    ctx = life.supervisor.reconcilers[life.run_dir].ctx

    with pytest.raises(IllegalEvent):
        ctx.record("submit.done", job_id="99")

    assert life.run.state is ctx.run.state


def test_a_cancel_reaches_a_job_that_started_again(tmp_path: Path) -> None:
    """A cancel that comes while a requeue is being judged ends the launch that Slurm began meanwhile, too."""
    life = Life(tmp_path)
    life.until("running")
    life.train(1, 5)
    faults.requeue(life.engine, 1)
    while life.run.state.value != "settling":
        life.live(0.5, step_s=0.5)
    life.ask("cancel", "1-cancel")
    life.engine.jobs[1].begin_s = life.engine.now()
    life.engine.schedule_soon()
    life.engine.advance(3)
    assert life.engine.jobs[1].state is JobState.RUNNING

    life.live(60)

    assert (life.run.state.value, life.living()) == ("stopped", [])


def test_a_drain_that_slurm_did_not_hear_is_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P9: a controller that was away at that moment does not cost the decision."""
    life = Life(tmp_path)
    life.until("running")
    life.train(1, 5)
    node = life.launches[0].nodes[1]
    asked: list[str] = []

    def drain(name: str, reason: str) -> None:
        asked.append(name)
        if len(asked) == 1:
            raise Unreachable("Unable to contact slurm controller (connect failure)")

    monkeypatch.setattr(life.cluster, "drain", drain)
    life.engine.fail_node(node, "crash")
    life.live(90)

    assert asked == [node, node]
    assert life.run.drained == (node,)
    assert life.run.state.value == "running"
