"""`ftrun diagnose JOBID` on real Slurm: what belongs to a job is found by itself."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from ftrun.slurm.sandbox.handle import Sandbox
from tests.slurm import post
from tests.slurm.post import Post

pytestmark = pytest.mark.slurm

BUG = "echo step 1\necho 'ZeroDivisionError: division by zero' >&2\nexit 1\n"


@pytest.fixture
def at(slurm_sandbox: Sandbox) -> Iterator[Post]:
    with post.posts(slurm_sandbox) as make:
        yield make()


def _ended(at: Post, job: str) -> None:
    def over() -> bool:
        shown = at.call("scontrol", "-o", "show", "job", job)
        return any(f"JobState={state}" in shown for state in post.OVER)

    at.until(over, f"job {job} is over")


def test_a_plain_job_is_diagnosed_by_its_id(at: Post) -> None:
    """No ftrun had a hand in it: Slurm tells the log and the end; 11, with the line that proves it."""
    path = at.script(BUG)
    out = at.call("sbatch", "--parsable", f"--output={at.work}/plain.log", str(path))
    job = out.strip()
    _ended(at, job)
    found = json.loads(at.ftrun("diagnose", "--json", job, code=11))

    assert (f"job {job}", "user-code") == (found["file"], found["class"])
    assert f"{at.work}/plain.log" == found["because"][0]["file"]


def test_a_job_of_a_run_is_read_from_where_its_launch_began(at: Post) -> None:
    """What an earlier job left in the same file is not its own."""
    (at.work / "job.sh.log").write_text("torch.OutOfMemoryError: CUDA out of memory.\n")
    job = at.sbatch(BUG, "--open-mode=append", f"--output={at.work}/job.sh.log")
    _ended(at, job)
    found = json.loads(at.ftrun("diagnose", "--json", job, code=11))

    assert "user-code" == found["class"]


def test_a_cancelled_job_is_told_from_a_failed_one(at: Post) -> None:
    """The record counts: no line says who ended it, Slurm does."""
    job = at.plain("--wrap", "sleep 100")
    at.call("scancel", job)
    _ended(at, job)

    assert "cancelled" == json.loads(at.ftrun("diagnose", "--json", job, code=11))["class"]


def test_a_job_that_nobody_knows_is_one_line(at: Post) -> None:
    """Wrong usage, and what to do instead."""
    told = at.ftrun("diagnose", "999999", code=2)

    assert 1 == len(told.splitlines())
    assert "name its log file instead" in told
