"""`escalate` on a real Slurm: what a job ran out of is asked for again, and more of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ftrun.slurm.sandbox.handle import Sandbox
from tests.slurm.post import Post

pytestmark = [pytest.mark.slurm, pytest.mark.drills]

KILLED = """echo "asked for $SLURM_MEM_PER_NODE"
if [ "$FTRUN_ATTEMPT" -lt 3 ]; then
    echo "slurmstepd: error: Detected 1 oom_kill event in StepId=$SLURM_JOB_ID.batch. Some of the step tasks have been OOM Killed."
    exit 137
fi
"""
SLOW = '[ "$FTRUN_ATTEMPT" = 1 ] && sleep 300\necho enough\n'


def test_a_job_that_ran_out_of_memory_gets_more_up_to_the_partitions_limit(
    make_sandbox: Callable[..., Sandbox], make_post: Callable[..., Post]
) -> None:
    """Slurm itself shows the new job's memory; the second step is cut to what the partition allows, and the reason says so."""
    post = make_post(make_sandbox(nodes=1), 'agent = "never"\n')
    post.box.run(["scontrol", "update", "PartitionName=main", "MaxMemPerNode=200"], check=True)
    job = post.sbatch(KILLED, "--mem=100M", "--ft-escalate=mem=1.5x", "--ft-backoff=1s")
    post.supervise()
    post.until_state("finished", job=job, within_s=120)

    run = post.run(job)
    assert ["mem=150M", "mem=200M"] == [f"mem={one.decision['more']['mem']}" for one in run.incidents], (
        post.story()
    )
    assert "(2 of 2, the most that the partition allows)" in run.incidents[1].decision["reason"]
    log = post.job_log()
    assert ["asked for 100", "asked for 150", "asked for 200"] == [
        x for x in log.splitlines() if x.startswith("asked")
    ]


def test_a_job_that_ran_out_of_time_gets_more(
    make_sandbox: Callable[..., Sandbox], make_post: Callable[..., Post]
) -> None:
    """A minute was too short and left no checkpoint: two are asked for at once, not the same minute again."""
    post = make_post(make_sandbox(nodes=1), 'agent = "never"\n')
    job = post.sbatch(SLOW, "--time=1", "--ft-escalate=time=2x", "--ft-backoff=1s")
    post.supervise()
    post.until_state("finished", job=job, within_s=240)

    run = post.run(job)
    assert ({"time": "2"}, 120.0) == (run.incidents[0].decision["more"], run.attempts[1].launch.limit_s), (
        post.story()
    )
