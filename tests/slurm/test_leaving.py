"""Leaving in good order on real Slurm: who is asked saves, and is ended when that is complete; who does not is ended all the same.

The laws are played side by side, each in a home of its own.
"""

from __future__ import annotations

import getpass
import json
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from ftrun.slurm.sandbox.handle import Sandbox
from tests.slurm.post import PATIENCE_S, Post, posts

pytestmark = pytest.mark.slurm

LANES = 4
ME = getpass.getuser()
Make = Callable[..., Post]
Law = Callable[[Make], None]
LAWS: dict[str, Law] = {}

# Saves when it gets USR1, when the run's folder says so, or never; `ledger` tells what it did.
TRAINER = """
import os, pathlib, signal, sys, time
how, begin, end = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "", int(os.environ.get("END", "100000"))
run_dir, heard, done = os.environ["FTRUN_RUN_DIR"], [], ""
if how == "signal":
    signal.signal(signal.SIGUSR1, lambda *_: heard.append(1))
first = int(begin.rpartition("-")[2].partition(".")[0]) if begin else 0
with open("ledger", "a") as ledger:
    print("from", first, file=ledger)
for step in range(first + 1, end + 1):
    if os.path.exists("enough"):
        break
    while how == "file" and step == 20 and not os.path.exists("go"):
        time.sleep(0.1)
    print(f"step {step}/{end} loss 2.5", flush=True)
    wish = pathlib.Path(run_dir, "save-now")
    if how == "file" and wish.exists() and wish.read_text() != done:
        done = wish.read_text()
        heard.append(1)
    if heard:
        heard.clear()
        pathlib.Path(f"ckpt-{step}.tmp").write_text("weights")
        os.rename(f"ckpt-{step}.tmp", f"ckpt-{step}.pt")
        with open("ledger", "a") as ledger:
            print("saved", step, file=ledger)
    time.sleep(0.2)
"""


def side_by_side(law: Law) -> Callable[[dict[str, Future[None]]], None]:
    """A test whose body is played together with all the others."""
    name = law.__name__
    LAWS[name] = law

    def test(played: dict[str, Future[None]]) -> None:
        played[name].result()

    test.__name__, test.__doc__ = name, law.__doc__
    return test


@pytest.fixture(scope="module")
def played(request: pytest.FixtureRequest, slurm_sandbox: Sandbox) -> Iterator[dict[str, Future[None]]]:
    wanted = [item.name for item in request.session.items if item.module is request.module]  # type: ignore[attr-defined]
    with posts(slurm_sandbox) as make, ThreadPoolExecutor(LANES) as pool:
        yield {name: pool.submit(law, make) for name, law in LAWS.items() if name in wanted}


def _train(post: Post, how: str, *words: str, end: int = 100_000) -> str:
    """A trainer in a step of its own job, at work; the job id."""
    (post.work / "trainer.py").write_text(TRAINER)
    more = [f"--ft-checkpoint={post.work}/ckpt-*.pt", "--ft-resume-arg={checkpoint}", "-n1", "--mem=100"]
    return post.sbatch(f'export END={end}\nsrun python3 trainer.py {how} "$@"\n', *more, *words)


def _at_work(post: Post, job: str) -> None:
    post.until(lambda: "launch.progress" in post.kinds(job), "it trains")


def _told(post: Post, word: str) -> list[int]:
    return [int(line.split()[1]) for line in post.ledger() if line.startswith(word + " ")]


@side_by_side
def test_a_script_that_listens_to_a_signal_saves_and_is_ended_at_once(make: Make) -> None:
    """`ftrun stop`: one signal, one checkpoint, the end seconds later, nothing submitted again; Slurm takes the added --signal."""
    post = make()
    post.supervise()
    job = _train(post, "signal", "--ft-save-signal=USR1", "-t60")
    _at_work(post, job)

    assert "ends after its next checkpoint" in post.ftrun("stop", job)
    run = post.until_state("stopped")

    assert (run.final_reason, run.paused, len(run.attempts)) == (f"stopped by {ME}", False, 1), post.story()
    assert len(_told(post, "saved")) == 1
    assert "a new checkpoint is complete" in run.attempts[0].end_intended
    assert not Path(post.run_dir(), "save-now").exists()
    assert "--signal=USR1@" in post.ftrun(
        "sbatch", "--ft-dry-run", "--ft-save-signal=USR1", "-t60", str(post.work / "job.sh")
    )


@side_by_side
def test_a_script_without_steps_is_asked_itself(make: Make) -> None:
    """`B:USR1` goes to the batch script, once; several runs are paused by the node that they use."""
    post = make()
    post.supervise()
    body = """
    trap 'echo "saved $i" >>ledger; echo weights >ckpt-$i.tmp; mv ckpt-$i.tmp ckpt-$i.pt' USR1
    for i in $(seq 1 6000); do echo "step $i/6000 loss 2"; sleep 0.2; done
    """
    job = post.sbatch(
        body, "-n1", "--mem=100", f"--ft-checkpoint={post.work}/ckpt-*.pt", "--ft-save-signal=B:USR1"
    )
    _at_work(post, job)
    (node,) = post.run().attempts[0].nodes
    assert "pauses after its next checkpoint" in post.ftrun("pause", "--node", node)
    run = post.until_state("stopped")

    assert run.paused, post.story()
    assert len(_told(post, "saved")) == 1


@side_by_side
def test_a_run_is_paused_at_its_step_and_comes_back_from_its_checkpoint(make: Make) -> None:
    """It looks at `save-now` alone; nodes are released, status says paused, resume goes on from there with the budgets as they were."""
    post = make("save-wait = 30\n")
    post.supervise()
    job = _train(post, "file")
    _at_work(post, job)
    assert "pauses at step 30" in post.ftrun("pause", job, "--at-step", "30")
    assert "(pause asked)" in post.ftrun("status")
    (post.work / "go").touch()
    run = post.until_state("stopped")
    (saved,) = _told(post, "saved")

    assert run.paused, post.story()
    assert saved >= 30
    assert [state for _, state, _ in post.jobs()] == ["CANCELLED"]
    assert "paused" in post.ftrun("status")
    assert json.loads(post.ftrun("status", "--json"))["runs"][0]["paused"] is True
    retries = run.retries
    post.ftrun("resume", job)
    post.until(lambda: len(_told(post, "from")) == 2, "it trains again")
    (post.work / "enough").touch()
    run = post.until_state("finished")
    assert _told(post, "from") == [0, saved]
    assert (run.retries, dict(run.halt)) == (retries, {})
    assert not Path(post.run_dir(), "halt.json").exists()


@side_by_side
def test_who_does_not_save_is_ended_all_the_same(make: Make) -> None:
    """`--now`: the deadline passes, the run ends with a warning and without a checkpoint."""
    post = make("save-wait = 4\n")
    post.supervise()
    job = _train(post, "never")
    _at_work(post, job)
    post.ftrun("stop", job, "--now")
    run = post.until_state("stopped")

    assert not _told(post, "saved")
    assert any("no new complete checkpoint within 4 s" in text for text in run.warnings), post.story()


@side_by_side
def test_what_was_asked_is_taken_back(make: Make) -> None:
    """`--clear`: the run goes on, and a checkpoint that comes later ends nothing."""
    post = make()
    post.supervise()
    job = _train(post, "never")
    _at_work(post, job)
    post.ftrun("stop", job)
    post.until(lambda: Path(post.run_dir(), "save-now").exists(), "it is asked")
    assert "goes on" in post.ftrun("stop", job, "--clear")
    post.until(lambda: not Path(post.run_dir(), "save-now").exists(), "nobody asks any more")
    (post.work / "ckpt-7.pt").write_text("weights")
    time.sleep(3.0)  # some looks of the supervisor
    assert post.run().state.value == "running", post.story()
    (post.work / "enough").touch()
    run = post.until_state("finished")

    assert not run.wish


@pytest.mark.drills
@side_by_side
def test_before_its_time_limit_a_script_saves_and_the_next_attempt_goes_on_from_there(make: Make) -> None:
    """The signal comes in time, Slurm's limit ends the job, no retry for its class is used up, and status told the end before."""
    post = make("save-wait = 10\nwatch-period = 1\n")
    post.supervise()
    job = _train(post, "signal", "--ft-save-signal=USR1", "-t1", end=450)
    _at_work(post, job)
    post.until(lambda: post.run().leaving, "the limit is near")
    assert post.run().leaving["occasion"] == "timelimit"
    run = post.until_state("finished")
    saved = _told(post, "saved")

    assert run.attempts[0].launch.end.state == "TIMEOUT", post.story()
    assert _told(post, "from")[:2] == [0, saved[0]]
    assert (run.incidents[0].fault, dict(run.spent)) == ("timelimit", {})


def _killed(post: Post, at: str) -> None:
    """The supervisor dies at a point of the leaving; the next one brings it to its end, and the script saved before that."""
    first = post.supervise(FTRUN_CRASH_AT=at)
    job = _train(post, "signal", "--ft-save-signal=USR1")
    _at_work(post, job)
    post.ftrun("pause", job, code=None)
    assert first.wait(PATIENCE_S) == -signal.SIGKILL, post.story()
    post.supervise()
    run = post.until_state("stopped")

    assert run.paused, post.story()
    assert _told(post, "saved")
    assert post.kinds().count("leave.intended") == 1
    assert len(run.attempts) == 1
    assert not Path(post.run_dir(), "save-now").exists()


@pytest.mark.drills
@side_by_side
def test_a_supervisor_killed_before_the_signal_leaves_it_to_the_next(make: Make) -> None:
    """Intended and not done: it is done then."""
    _killed(make(), "signal:before")


@pytest.mark.drills
@side_by_side
def test_a_supervisor_killed_after_the_signal_costs_one_checkpoint_more_at_most(make: Make) -> None:
    """Done and not noted: it is done again, and the wait goes on."""
    _killed(make(), "signal:after")


@pytest.mark.drills
@side_by_side
def test_a_supervisor_killed_between_checkpoint_and_end_is_followed_by_the_end(make: Make) -> None:
    """Saved and not ended: the next one ends it."""
    _killed(make(), "record:after:leave.saved")
