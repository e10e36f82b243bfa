"""A run that waits in the queue of a real Slurm: what is given back to it, and what Slurm's own expectation is good for."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from ftrun.slurm.commands.cluster import CommandCluster
from ftrun.slurm.sandbox.handle import Sandbox
from ftrun.supervisor.model.run import Attempt
from tests.slurm.apart import side_by_side
from tests.slurm.post import OFF_THE_BUS, Post

pytestmark = pytest.mark.slurm

STRANGERS = ("-N1", "--exclusive", "--output=/dev/null")
TWICE = f"""
[ "$FTRUN_ATTEMPT" = 1 ] && {{ echo "step 1 loss 2.5"; sleep 300; }}
[ "$FTRUN_ATTEMPT" = 2 ] && {{ echo "$(date '+%b %d %H:%M:%S') $SLURMD_NODENAME kernel: {OFF_THE_BUS}"; sleep 1; exit 1; }}
echo "on $SLURM_JOB_NODELIST"
"""


def present(at: Post, job: str) -> Attempt:
    """The present attempt of a job's run."""
    attempt = at.run(job).attempt
    assert attempt is not None
    return attempt


@pytest.mark.drills
@side_by_side
def test_nodes_that_starve_a_job_are_given_back_softest_first(
    make_sandbox: Callable[..., Sandbox], make_post: Callable[[Sandbox], Post]
) -> None:
    """Slurm says that the job fits nowhere: first it gets the node that only a log blames, then the one that Slurm saw dead, and it runs on both."""
    box = make_sandbox(nodes=4)
    at = make_post(box)
    job = at.sbatch(TWICE, "-N2", "--no-requeue", "--ft-fence-wait=1", "--ft-exclude-cap=50%")
    at.supervise()
    at.until_state("running", job=job)
    at.until(lambda: "step 1" in at.job_log(), "the script has begun")
    dead = present(at, job).nodes[-1]
    box.crash(dead)
    at.call("scontrol", "update", f"NodeName={dead}", "State=DOWN", "Reason=lost")
    at.until(lambda: present(at, job).number == 2 and present(at, job).nodes, "the second attempt")
    others = sorted({f"n{i}" for i in range(4)} - {dead, *present(at, job).nodes})
    strangers = at.plain("-N1", f"-w{others[0]}", "--exclusive", "--wrap=sleep 300")
    at.until(lambda: present(at, job).number == 3 and present(at, job).job, "the third one waits")
    (blamed,) = set(present(at, job).excluded) - {dead}
    box.mend(dead)
    at.call("scontrol", "update", "PartitionName=main", f"Nodes={dead},{blamed}")
    at.call("scancel", strangers)
    at.until_state("finished", job=job)

    told = [message for message in at.run(job).warnings if "no longer kept off" in message]
    assert [blamed in told[0], dead in told[1]] == [True, True], told
    assert ("suspicion" in told[0], "nothing else is left" in told[1]) == (True, True)
    assert set(present(at, job).nodes) == {dead, blamed}
    assert present(at, job).number == 3


@pytest.mark.drills
@side_by_side
def test_a_start_that_slurm_expects_far_away_is_not_waited_for(
    make_sandbox: Callable[..., Sandbox], make_post: Callable[[Sandbox], Post]
) -> None:
    """The strangers have their nodes for hours: a quarter of `resize-after` is enough. What a waiting row shows is what `squeue --start` says."""
    box = make_sandbox(nodes=3)
    at = make_post(box)
    words = (
        "-N2",
        "--no-requeue",
        "--ft-nodes=1-2",
        "--ft-resize-after=160",
        "--ft-fence-wait=1",
        "--ft-recover=resubmit",
    )
    body = 'echo "step 1 loss 2.5"\n[ "$FTRUN_ATTEMPT" = 1 ] && sleep 300\ntrue\n'
    job = at.sbatch(body, *words)
    at.supervise()
    at.until_state("running", job=job)
    at.until(lambda: "step 1" in at.job_log(), "the script has begun")
    at.call("sbatch", *STRANGERS, "--time=180", "--wrap=sleep 300")
    lost = present(at, job).nodes[-1]
    box.crash(lost)
    at.call("scontrol", "update", f"NodeName={lost}", "State=DOWN", "Reason=lost")
    at.until(lambda: present(at, job).number == 2 and present(at, job).job, "it waits")
    waiting, began_s = present(at, job).job, time.monotonic()

    def expected() -> float | None:
        row = CommandCluster(box.env()).jobs([waiting]).get(waiting)
        return row.start_time_s if row is not None and row.state.pending else None

    told = at.until(expected, "Slurm expects a start")
    said = at.call("squeue", "--start", "-h", "-j", waiting, "-o", "%S").strip()
    if said:
        assert abs(time.mktime(time.strptime(said, "%Y-%m-%dT%H:%M:%S")) - told) <= 60
    at.until(lambda: "resize.done" in at.kinds(job), "it is made smaller")
    assert 39 <= time.monotonic() - began_s < 159  # a quarter of it, and not the whole
    (made,) = (record["data"] for record in at.records(job) if record["kind"] == "resize.done")
    assert "Slurm expects to start it in" in made["reason"]
    at.until_state("finished", job=job)
