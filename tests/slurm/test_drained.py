"""An administrator drains nodes of live jobs on real Slurm: one has a spare that takes the place, the others go on in a new job.

A node is also taken out of service by state=fail: to a running job that is a drain. The laws are played side by side in one sandbox.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.slurm.post import Post, boxes, posts

pytestmark = pytest.mark.slurm

# Saves when it gets USR1, and else never; a later start is soon through.
TRAINER = r"""
import os, signal, sys, time
heard, begin = [], int(sys.argv[1].rpartition("-")[2].partition(".")[0]) if len(sys.argv) > 1 else 0
signal.signal(signal.SIGUSR1, lambda *_: heard.append(1))
first, rank = begin + 1, os.environ["SLURM_PROCID"]
end = 100000 if not begin else begin + 20
if rank == "0":
    with open("ledger", "a") as ledger:
        print("from", begin, os.environ["SLURM_JOB_NODELIST"], file=ledger)
for step in range(first, end + 1):
    if rank == "0":
        print(f"step {step}/{end} loss 2.5", flush=True)
        if heard:
            heard.clear()
            for name in (f"ckpt-{step}.pt", f"ckpt-{step}.pt.done"):
                with open(name, "w") as stream:
                    stream.write("weights")
            with open("ledger", "a") as ledger:
                print("saved", step, file=ledger)
    time.sleep(0.1)
"""


DRAIN = ("state=drain", "reason=kernel update")
FAIL = ("state=fail", "reason=Action:Replace")  # how HyperPod is told to replace a node


@pytest.fixture(scope="module")
def runs() -> Iterator[tuple[Post, Post, Post]]:
    """A run with a spare and two without, after a node of each was drained, that of the last by state=fail."""
    with boxes() as box, posts(box(nodes=8)) as make:
        with_spare, alone, failing = make(), make(), make()
        shapes = (
            (with_spare, ["-N2", "-n2", "--ft-spares=1"]),
            (alone, ["-N1", "-n1"]),
            (failing, ["-N1", "-n1"]),
        )
        for post, words in shapes:
            post.supervise()
            (post.work / "trainer.py").write_text(TRAINER)
            more = ["--exclusive", "--ft-save-signal=USR1", "--ft-resume-arg={checkpoint}"]
            more += [f"--ft-checkpoint={post.work}/ckpt-*.pt", "--ft-checkpoint-marker=.done"]
            post.sbatch('srun python3 trainer.py "$@"\n', *words, *more)
        # Which nodes are its spares is known from the agent's first record on.
        with_spare.until(lambda: "start.begun" in with_spare.kinds(), "its agent is at work")
        for post, update in ((with_spare, DRAIN), (alone, DRAIN), (failing, FAIL)):
            post.until(lambda post=post: "launch.progress" in post.kinds(), "it trains")  # type: ignore[misc]
            attempt = post.run().attempts[0]
            node = attempt.used[-1]
            post.call("scontrol", "update", f"nodename={node}", *update)
        yield with_spare, alone, failing


def _told(post: Post, word: str) -> list[list[str]]:
    return [line.split()[1:] for line in post.ledger() if line.startswith(word + " ")]


@pytest.mark.drills
def test_a_spare_takes_the_place_of_a_node_that_is_drained(runs: tuple[Post, Post, Post]) -> None:
    """In the same job, from the step that was asked for; the node is not used again, and no budget is left spent on it."""
    post = runs[0]
    run = post.until_state("finished")
    (saved,) = _told(post, "saved")
    before, after = _told(post, "from")
    drained = run.leaving["nodes"][0]

    assert (len(run.attempts), after[0]) == (1, saved[0]), post.story()
    assert [one.decision["rung"] for one in run.incidents] == ["swap"]
    assert drained in run.attempts[0].launch.aside
    assert before[1] != after[1]
    assert not run.excluded


@pytest.mark.drills
@pytest.mark.parametrize(
    ("which", "reason"), [(1, "kernel update"), (2, "Action:Replace")], ids=["drain", "fail"]
)
def test_without_a_spare_a_new_job_goes_on_elsewhere(
    runs: tuple[Post, Post, Post], which: int, reason: str
) -> None:
    """Asked, saved, ended, begun on another node from that very step; the user reads why."""
    post = runs[which]
    run = post.until_state("finished")
    (saved,) = _told(post, "saved")

    assert [one.signature for one in run.incidents] == ["slurm.moved-off-drained"], post.story()
    assert (len(run.attempts), _told(post, "from")[1][0]) == (2, saved[0])
    assert not {*run.attempts[0].nodes} & {*run.attempts[1].nodes}
    assert dict(run.spent) == {}
    (told,) = [record["data"]["reason"] for record in post.records() if record["kind"] == "end.intended"]
    assert f"drained ({reason})" in told


@pytest.mark.drills
def test_without_a_supervisor_the_agent_sees_the_drain_itself() -> None:
    """Nobody but the agent asks Slurm, a question a minute: a spare takes the place, in the same job."""
    with boxes() as box, posts(box(nodes=3)) as make:
        post = make()
        (post.work / "trainer.py").write_text(TRAINER)
        more = ["--exclusive", "--ft-save-signal=USR1", "--ft-resume-arg={checkpoint}"]
        more += [f"--ft-checkpoint={post.work}/ckpt-*.pt", "--ft-checkpoint-marker=.done"]
        job = post.sbatch('srun python3 trainer.py "$@"\n', "-N2", "-n2", "--ft-spares=1", *more)
        post.until(lambda: _told(post, "from"), "it trains")
        drained = post.call("squeue", "-h", "-s", "-j", job, "-n", "python3", "-o", "%N").strip()
        node = drained.replace("[", "").replace("]", "")[:2]
        post.call("scontrol", "update", f"nodename={node}", "state=drain", "reason=kernel update")

        post.until(lambda: len(_told(post, "from")) == 2, "it begins again", 420.0)
        (saved,) = _told(post, "saved")
        before, after = _told(post, "from")
        assert saved[0] == after[0], post.story()
        assert before[1] != after[1]
        post.supervise()
        run = post.until_state("finished")
        assert 1 == len(run.attempts)
        assert ["swap"] == [one.decision["rung"] for one in run.incidents]
