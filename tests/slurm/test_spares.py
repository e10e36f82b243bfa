"""Spares on real Slurm: what is accepted, what the job gets, what its script sees, and how many a later attempt has."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ftrun.slurm.sandbox.handle import Sandbox
from ftrun.supervisor.store import journal
from tests.slurm.post import FTRUN, Post

pytestmark = pytest.mark.slurm

SEES = 'echo "sees $SLURM_NNODES $SLURM_JOB_NODELIST tasks=${SLURM_NTASKS-} gpus=${SLURM_GPUS-} per=${SLURM_NTASKS_PER_NODE-}${SLURM_GPUS_PER_NODE-}"\n'
RANKS = "srun sh -c 'echo rank $SLURM_PROCID on $SLURMD_NODENAME'\n"
FAILS_ONCE = '[ "$FTRUN_ATTEMPT" = 1 ] && { echo "NVRM: Xid (PCI:0000:3b:00): 79, pid=8123, name=python, GPU has fallen off the bus"; exit 1; }\n'


@pytest.mark.parametrize(
    ("words", "job", "sees", "ranks"),
    [
        (("-N2",), ("NumNodes=4",), "sees 2 n[0-1] tasks= gpus= per=", ["n0", "n1"]),
        (("-N2", "-n4"), ("NumNodes=4", "NumTasks=8"), "sees 2 n[0-1] tasks=4 gpus= per=", ["n0", "n0", "n1", "n1"]),
        (("-N2", "--gpus=2"), ("NumNodes=4", "TresPerJob=gres", "gpu:4"), "sees 2 n[0-1] tasks= gpus=2 per=", ["n0", "n1"]),
    ],
)  # fmt: skip
def test_the_job_is_wider_and_its_script_is_not(
    slurm_sandbox: Sandbox,
    make_post: Callable[[Sandbox], Post],
    words: tuple[str, ...],
    job: tuple[str, ...],
    sees: str,
    ranks: list[str],
) -> None:
    """Slurm gives n + K nodes in equal shares; the script and its steps have n."""
    at = make_post(slurm_sandbox)
    number = at.sbatch(SEES + RANKS, "--ft-spares=2", *words)
    at.until(lambda: at.job_log().count("rank") == len(ranks), "all ranks were there")
    shown = at.call("scontrol", "show", "job", number)
    assert all(part in shown for part in job)
    log = at.job_log()
    assert sees in log
    assert sorted(line.split()[-1] for line in log.splitlines() if "rank" in line) == ranks


def test_what_cannot_have_spares_is_refused_before_slurm_is_asked(
    slurm_sandbox: Sandbox, make_post: Callable[[Sandbox], Post]
) -> None:
    """One line, exit 2, no job and no run."""
    at = make_post(slurm_sandbox)
    path = str(at.script("true\n"))
    for words in (("-N2", "-n3"), ("-N1-2",), (), ("-N1", "-a0-1"), ("-N4",), ("-N3", "--ft-spares=2")):
        done = at.run_command(*FTRUN, "sbatch", "--ft-spares=1", *words, path)
        assert (done.returncode, done.stdout) == (2, ""), words
        assert done.stderr.startswith("ftrun: spares"), done.stderr
        assert done.stderr.count("\n") == 1
    assert not (at.home / "runs").exists()


@pytest.mark.drills
def test_a_later_attempt_keeps_as_many_spares_as_the_partition_has_room_for(
    make_sandbox: Callable[..., Sandbox], make_post: Callable[[Sandbox], Post]
) -> None:
    """A blamed node is left out, so one spare fewer is left; the run is told so and goes on."""
    at = make_post(make_sandbox(nodes=4))
    job = at.sbatch(
        FAILS_ONCE + SEES,
        "--ft-spares=2",
        "--ft-agent=auto",
        "--ft-recover=swap,resubmit",
        "--ft-budget-swap=0",
        "-N2",
    )
    at.supervise()
    at.until_state("finished", job=job)
    run_dir = at.run_dir(job)
    opened = [r["data"] for r in journal.read_run(run_dir) if r["kind"] == "attempt.opened"]
    last = at.run(job).attempts[-1]
    assert len(last.nodes) == 2 + opened[-1]["spares"]
    assert opened[-1]["spares"] == 2 - len(opened[-1]["excluded"])
    assert "sees 2 " in at.job_log()
    if opened[-1]["excluded"]:
        assert any("of 2 spares" in text for text in at.run(job).warnings), opened
