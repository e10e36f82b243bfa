"""Preemption with a time of grace on real Slurm: who is told nothing by Slurm is asked by ftrun, and who leaves upon Slurm's word goes on.

Each law has a sandbox of one node, which an urgent job wants.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ftrun.slurm.sandbox.handle import Sandbox
from ftrun.supervisor.model.run import Run
from tests.slurm.apart import side_by_side
from tests.slurm.post import Post

pytestmark = pytest.mark.slurm

MakePost = Callable[[Sandbox], Post]

PREEMPTING = {
    "PreemptType": "preempt/partition_prio",
    "PreemptMode": "CANCEL",
    "PartitionName": "urgent Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=10\n"
    "patient Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=1 GraceTime=40 PreemptMode=CANCEL",
}
# Both save when they are told and else never; the second job of each is soon through.
WITHOUT_STEPS = """
trap 'echo "saved $i" >>ledger; echo weights >ckpt-$i.tmp; mv ckpt-$i.tmp ckpt-$i.pt' USR1
echo "from $1" >>ledger
for i in $(seq $([ "$FTRUN_ATTEMPT" = 1 ] && echo 1 || echo 5990) 6000); do echo "step $i/6000 loss 2"; sleep 0.2; done
"""
IN_A_STEP = """
echo "from $1" >>ledger
srun bash -c 'trap "echo weights >ckpt-\\$i.pt; exit 0" TERM
for i in $(seq $([ $FTRUN_ATTEMPT = 1 ] && echo 1 || echo 5990) 6000); do echo "step $i/6000 loss 2"; sleep 0.2; done'
"""


def _preempted(
    make_sandbox: Callable[..., Sandbox], make_post: MakePost, body: str, *words: str
) -> tuple[Post, Run]:
    """A run of such a script that an urgent job has turned out, at its good end in another job."""
    box = make_sandbox(nodes=1, conf=PREEMPTING)
    post = make_post(box)
    post.supervise()
    usual = ["-p", "patient", "-N1", "-n1", "--exclusive", "--no-requeue", "--ft-resume-arg={checkpoint}"]
    post.sbatch(body, *usual, f"--ft-checkpoint={post.work}/ckpt-*.pt", *words)
    post.until(lambda: "launch.progress" in post.kinds(), "it trains")
    post.plain("-p", "urgent", "-N1", "--exclusive", "--wrap=sleep 1")
    run = post.until_state("finished")
    assert [one.fault for one in run.incidents] == ["preempted"], post.story()
    assert dict(run.spent) == {}
    return post, run


@pytest.mark.drills  # Slurm ends it when the time of grace is over
@side_by_side
def test_a_script_to_which_slurm_says_nothing_is_asked_to_save(
    make_sandbox: Callable[..., Sandbox], make_post: MakePost
) -> None:
    """One signal and one checkpoint within the time of grace, from which the next job goes on; Slurm calls the end PREEMPTED."""
    post, run = _preempted(make_sandbox, make_post, WITHOUT_STEPS, "--ft-save-signal=B:USR1")
    (saved,) = [line.split()[1] for line in post.ledger() if line.startswith("saved ")]

    assert run.attempts[0].launch.end.state == "PREEMPTED"
    assert [line for line in post.ledger() if line.startswith("from ")][1].endswith(f"ckpt-{saved}.pt")
    assert "leave.saved" in post.kinds(), post.story()


@side_by_side
def test_a_script_that_exits_0_upon_slurms_word_is_not_finished(
    make_sandbox: Callable[..., Sandbox], make_post: MakePost
) -> None:
    """Slurm calls it COMPLETED, and slurmstepd its step cancelled: it had not made its last step."""
    _, run = _preempted(make_sandbox, make_post, IN_A_STEP)

    assert (run.attempts[0].launch.end.state, len(run.attempts)) == ("COMPLETED", 2)
