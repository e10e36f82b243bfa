"""The supervisor as a Slurm job, on real Slurm: it outlives its node and its time, and there is one of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ftrun.slurm.sandbox.handle import Sandbox
from tests.slurm.apart import side_by_side
from tests.slurm.post import OFF_THE_BUS, Post

pytestmark = [pytest.mark.slurm, pytest.mark.drills]

BODY = f"""
echo "step $FTRUN_ATTEMPT loss 2.5"
while [ ! -e go.$FTRUN_ATTEMPT ]; do sleep 0.2; done
[ "$FTRUN_ATTEMPT" = 1 ] && {{ echo "{OFF_THE_BUS}"; exit 1; }}
exit 0
"""


def _as_job(post: Post, *options: str) -> str:
    """Its job."""
    words = post.ftrun(
        "supervise", "--as-job", *(("--sbatch-options", " ".join(options)) if options else ())
    ).split()
    assert words[:2] == ["supervisor", "job"], words
    return words[2]


def _node(post: Post, job: str) -> str:
    return post.call("squeue", "-h", "-t", "R", "-j", job, "-o", "%N", code=None).strip()


@side_by_side
def test_the_supervisors_job_is_started_again_where_its_node_dies(
    make_sandbox: Callable[..., Sandbox], make_post: Callable[..., Post]
) -> None:
    """Its node crashes and Slurm starts it on another one; it takes the lease over, and recovers the run that failed meanwhile. Asked for twice, it is one job; when
    nothing is left to look after it ends.
    """
    box = make_sandbox(nodes=4)
    post = make_post(box, "lease = 5\nidle-exit = 3\n")
    run_job = post.sbatch(BODY, "-N1", "--ft-agent=never")
    job = _as_job(post, f"--exclude={_await_node(post, run_job)}")
    again = post.ftrun("supervise", "--as-job")
    assert again.split()[:3] == ["supervisor", "job", job], again
    assert "already" in again
    first = _await_node(post, job)
    post.until(lambda: post.holder().writer.startswith(f"{first}."), "the job leads")
    post.until(lambda: "launch.seen" in post.kinds(), "the run is looked after")

    box.crash(first)
    (post.work / "go.1").touch()
    post.until(lambda: _node(post, job) not in ("", first), "Slurm starts it elsewhere")
    post.until(lambda: len(post.run(run_job).attempts) == 2, "the run is recovered")
    (post.work / "go.2").touch()
    post.until_state("finished", job=run_job)
    post.until(lambda: not _node(post, job), "it ends")

    assert post.holder().epoch == 2
    assert post.holder().counter == "released"
    assert post.ledger()[-1].startswith("start 2 ")


@side_by_side
def test_the_supervisors_job_goes_back_into_the_queue_before_its_time_is_up(
    make_sandbox: Callable[..., Sandbox], make_post: Callable[..., Post]
) -> None:
    """The signal that Slurm sends ahead of the time limit: it gives the lease back, and the same job leads again; a scancel ends it for good."""
    box = make_sandbox(nodes=2)
    post = make_post(box, "lease = 60\n")
    post.sbatch("sleep 300\n", "-N1", "--ft-agent=never")
    job = _as_job(post)
    post.until(lambda: post.holder().epoch == 1 and post.holder().counter != "released", "it leads")
    post.call("scancel", "--batch", "--signal=USR1", job)
    post.until(lambda: post.holder().epoch == 2, "the same job leads again, and waited for no lease", 50.0)
    assert _node(post, job)
    post.call("scancel", job)
    post.until(lambda: post.holder().counter == "released", "it has left")

    assert not post.call("squeue", "-h", "-t", "PD,R", "-j", job, code=None).startswith(job)


def _await_node(post: Post, job: str) -> str:
    found: str = post.until(lambda: _node(post, job), f"job {job} runs")
    return found
