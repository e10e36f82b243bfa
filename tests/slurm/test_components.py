"""The recipe of docs/components.md on real Slurm: what is started again, and what stays."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.slurm.post import Post, boxes, posts

pytestmark = [pytest.mark.slurm, pytest.mark.drills]

EXAMPLE = Path(__file__).parents[2] / "examples" / "components"


@pytest.fixture
def post() -> Iterator[Post]:
    """A home with a supervisor, on a sandbox of its own, and the example in its folder of work."""
    with boxes() as make, posts(make(nodes=3)) as post_of:
        made = post_of()
        for path in EXAMPLE.iterdir():
            shutil.copy(path, made.work)
        made.supervise()
        yield made


def _begin(post: Post) -> None:
    post.ftrun("sbatch", f"--output={post.work}/job.sh.log", "job.sh", STEPS="60")
    _until_step(post, 5)


def _until_step(post: Post, step: int) -> None:
    post.until(lambda: f"step {step}/" in post.job_log(), f"step {step}")


def _pids(post: Post, what: str) -> list[str]:
    return list(dict.fromkeys(re.findall(rf"{what}.* pid (\d+)", post.job_log())))


def test_a_component_without_a_state_is_started_again_and_the_others_stay(post: Post) -> None:
    """One attempt, one learner, two samplers, and the run finishes."""
    _begin(post)
    (post.work / "sampler-fails").touch()
    post.until(lambda: len(_pids(post, "sampler begins")) == 2, "it was started again")
    run = post.until_state("finished")

    assert len(run.attempts) == 1
    assert len(_pids(post, "step")) == 1
    assert "sampler ended with 1 and is started again (2 more)" in post.job_log()


def test_where_the_component_with_the_state_fails_all_go_on_from_its_checkpoint(post: Post) -> None:
    """The job fails, and the next attempt has the same components."""
    _begin(post)
    (post.work / "learner-fails").touch()
    post.until(lambda: len(_pids(post, "step")) == 2, "the next attempt learns")
    run = post.until_state("finished")

    assert len(run.attempts) == 2
    steps = [int(step) for step in re.findall(r"step (\d+)/", post.job_log())]
    assert max(steps.count(step) for step in steps) <= 2
    assert steps.count(3) == 1
