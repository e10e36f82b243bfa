"""Preemption with a time of grace on real Slurm: who is told nothing by Slurm is asked by ftrun, and who leaves upon Slurm's word goes on.

Both laws are played side by side in one sandbox, whose urgent job takes both nodes.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ftrun.supervisor.events import Run
from tests.slurm.post import Post, boxes, posts

pytestmark = pytest.mark.slurm

PREEMPTING = {
    "PreemptType": "preempt/partition_prio",
    "PreemptMode": "CANCEL",
    "PartitionName": "urgent Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=10\n"
    "patient Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=1 GraceTime=12 PreemptMode=CANCEL",
}
# Both save when they are told and else never; the second job of each is soon through.
WITHOUT_STEPS = """
trap 'echo "saved $i" >>ledger; echo weights >ckpt-$i.tmp; mv ckpt-$i.tmp ckpt-$i.pt' USR1
echo "from $1" >>ledger
for i in $(seq $([ "$FTRUN_ATTEMPT" = 1 ] && echo 1 || echo 590) 600); do echo "step $i/600 loss 2"; sleep 0.2; done
"""
IN_A_STEP = """
echo "from $1" >>ledger
srun bash -c 'trap "echo weights >ckpt-\\$i.pt; exit 0" TERM
for i in $(seq $([ $FTRUN_ATTEMPT = 1 ] && echo 1 || echo 590) 600); do echo "step $i/600 loss 2"; sleep 0.2; done'
"""


@pytest.fixture(scope="module")
def runs() -> Iterator[tuple[Post, Post]]:
    """A run whose script has no steps, and one that exits 0 as soon as Slurm says TERM: both were preempted, and are over."""
    with boxes() as box, posts(box(nodes=2, conf=PREEMPTING)) as make:
        silent, leaving = make(), make()
        for post, body, more in (
            (silent, WITHOUT_STEPS, ["--ft-save-signal=B:USR1"]),
            (leaving, IN_A_STEP, []),
        ):
            post.supervise()
            words = [
                "-p",
                "patient",
                "-N1",
                "-n1",
                "--exclusive",
                "--no-requeue",
                "--ft-resume-arg={checkpoint}",
            ]
            post.sbatch(body, *words, f"--ft-checkpoint={post.work}/ckpt-*.pt", *more)
        for post in (silent, leaving):
            post.until(lambda post=post: "launch.progress" in post.kinds(), "it trains")  # type: ignore[misc]
        silent.plain("-p", "urgent", "-N2", "--exclusive", "--wrap=sleep 1")
        yield silent, leaving


def _over(post: Post) -> Run:
    run = post.until_state("finished")
    assert [one.fault for one in run.incidents] == ["preempted"], post.story()
    assert dict(run.spent) == {}
    return run


def test_a_script_to_which_slurm_says_nothing_is_asked_to_save(runs: tuple[Post, Post]) -> None:
    """One signal and one checkpoint within the time of grace, from which the next job goes on; Slurm calls the end PREEMPTED."""
    post = runs[0]
    run = _over(post)
    (saved,) = [line.split()[1] for line in post.ledger() if line.startswith("saved ")]

    assert run.attempts[0].end_state == "PREEMPTED"
    assert [line for line in post.ledger() if line.startswith("from ")][1].endswith(f"ckpt-{saved}.pt")
    assert "leave.saved" in post.kinds(), post.story()


def test_a_script_that_exits_0_upon_slurms_word_is_not_finished(runs: tuple[Post, Post]) -> None:
    """Slurm calls it COMPLETED, and slurmstepd its step cancelled: it had not made its last step."""
    run = _over(runs[1])

    assert (run.attempts[0].end_state, len(run.attempts)) == ("COMPLETED", 2)
