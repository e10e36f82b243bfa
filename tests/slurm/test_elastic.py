"""Elastic runs on real Slurm: a node dies with no replacement, and the run goes on smaller; what cannot be elastic is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ftrun.slurm.sandbox.handle import Sandbox
from tests.slurm.apart import side_by_side
from tests.slurm.post import FTRUN, Post

pytestmark = pytest.mark.slurm

TOLD = 'echo "told $FTRUN_NNODES $FTRUN_WORLD_SIZE $FTRUN_DP_SCALE $FTRUN_GRAD_ACCUM of $SLURM_NNODES"\n'
RANKS = "srun sh -c 'echo rank $SLURM_PROCID of $SLURM_NTASKS on $SLURMD_NODENAME'\n"
WAITS_ONCE = 'echo "step 1 loss 2.5"\n[ "$FTRUN_ATTEMPT" = 1 ] && sleep 300\n'
IN_PLACE = 'echo "step 1 loss 2.5"\n[ "$FTRUN_START" = 1 ] && { srun sleep 300; exit 1; }\n'
QUICK = (("-n4",), "--gpus=4")  # the shape of which most has to be worked out anew
BATCH = ("--ft-global-batch=8", "--ft-micro-batch=2", "--ntasks-per-node=1")


@pytest.mark.parametrize(
    ("gpus", "sizes"),
    [
        pytest.param("--gres=gpu:2", [0, 1], id="in-place", marks=pytest.mark.drills),
        pytest.param("--gpus=4", [0, 2, 1], id="anew", marks=pytest.mark.drills),
    ],
)
@side_by_side
def test_a_node_dies_strangers_have_the_others_and_the_run_goes_on_smaller(
    make_sandbox: Callable[..., Sandbox], make_post: Callable[[Sandbox], Post], gpus: str, sizes: list[int]
) -> None:
    """After `resize-after`, with one job at a time: the waiting one is made smaller and keeps its place, or gives way to another where GPUs were counted
    for the whole job; the script is told its size, a plain srun makes the tasks of this size, and the batch stays the same.
    """
    box = make_sandbox(nodes=3, gpus=2)
    at = make_post(box)
    words = (
        "-N2",
        "--no-requeue",
        "--ft-recover=resubmit",
        "--ft-nodes=1-2",
        "--ft-resize-after=5",
        "--ft-fence-wait=1",
        gpus,
        *BATCH,
    )
    job = at.sbatch(WAITS_ONCE + TOLD + RANKS, *words)
    at.supervise()
    at.until_state("running", job=job)
    at.until(lambda: "step 1" in at.job_log(), "the script has begun")
    at.call("sbatch", "-N1", "--exclusive", "--output=/dev/null", "--wrap=sleep 300")
    lost = at.run(job).attempts[-1].nodes[-1]
    box.crash(lost)
    at.call("scontrol", "update", f"NodeName={lost}", "State=DOWN", "Reason=lost")
    at.until_state("finished", job=job)

    run = at.run(job)
    assert [attempt.size for attempt in run.attempts] == sizes, at.story()
    log = at.job_log()
    assert "told 1 1 2 2 of 1" in log
    assert log.count("rank 0 of 1 on") == 1
    assert "double" not in "".join(at.ledger())
    assert run.retries == 1


@pytest.mark.parametrize(
    ("tasks", "gpus"),
    [
        pytest.param(
            tasks, gpus, id=f"{tasks[0]}, {gpus}", marks=() if (tasks, gpus) == QUICK else pytest.mark.drills
        )
        for tasks in (("--ntasks-per-node=1",), ("-n4",))
        for gpus in ("--gres=gpu:2", "--gpus=4", "--gpus-per-node=2")
    ],
)
@side_by_side
def test_a_node_dies_and_the_others_go_on_in_the_same_job(
    make_sandbox: Callable[..., Sandbox],
    make_post: Callable[[Sandbox], Post],
    gpus: str,
    tasks: tuple[str, ...],
) -> None:
    """With no spare and no idle node: the script is told its size, a plain srun makes the tasks of this size and finds the GPUs of its nodes, and the
    batch stays the same.
    """
    box = make_sandbox(nodes=2, gpus=2)
    at = make_post(box)
    words = ("-N2", "--no-requeue", "--ft-nodes=1-2", gpus, *BATCH[:2], *tasks)
    job = at.sbatch(IN_PLACE + TOLD + RANKS, *words)
    at.supervise()
    at.until_state("running", job=job)
    at.until(lambda: "step 1" in at.job_log(), "the script has begun")
    box.crash(at.run(job).attempts[-1].nodes[-1])
    at.until_state("finished", job=job)

    run = at.run(job)
    assert len(run.attempts) == 1, at.story()
    assert [one.decision["rung"] for one in run.incidents] == ["shrink"]
    assert [len(start.nodes) for start in run.attempts[0].begun] == [2, 1]
    each = 1 if "-n4" not in tasks else 2
    log = at.job_log()
    assert f"told 1 {each} 2 2 of 1" in log
    assert log.count(f"rank 0 of {each} on") == 1
    assert "error" not in log.partition("told")[2], log
    assert run.retries == 1


def test_what_cannot_be_elastic_is_refused_before_slurm_is_asked(
    slurm_sandbox: Sandbox, make_post: Callable[[Sandbox], Post]
) -> None:
    """One line that says what works, exit 2, no job and no run."""
    at = make_post(slurm_sandbox)
    path = str(at.script("true\n"))
    for words in (
        ("-N4", "--ft-nodes=1-2"),
        ("-N1-2", "--ft-nodes=1-2"),
        ("-N2", "-n3", "--ft-nodes=1-2"),
        ("-N2", "-a0-1", "--ft-nodes=1-2"),
        ("-N2", "--ft-nodes=1-2:2"),
        ("-N2", "-wn[0-1]", "--ft-nodes=1-2"),
        ("-N2", "--ft-on-queue-timeout=shrink"),
        ("-N3", "--ft-nodes=2-3", "--ft-global-batch=16", *BATCH[1:]),
    ):
        done = at.run_command(*FTRUN, "sbatch", *words, path)
        assert (done.returncode, done.stdout) == (2, ""), words
        assert done.stderr.startswith("ftrun: "), done.stderr
        assert done.stderr.count("\n") == 1
    assert not (at.home / "runs").exists()
