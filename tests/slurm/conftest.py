"""What the tests on real Slurm share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack

import pytest

from ftrun.slurm.sandbox.handle import Sandbox
from tests.slurm import apart, post
from tests.slurm.example import PYTHON, Stage, has, stages
from tests.slurm.post import Post


@pytest.fixture(scope="module")
def played_apart(request: pytest.FixtureRequest) -> Iterator[dict[str, Future[None]]]:
    """What came of the laws of a module that need sandboxes of their own."""
    yield from apart.played(request)


@pytest.fixture
def make_post() -> Iterator[Callable[..., Post]]:
    """A maker of posts on any sandbox, each with its settings; all are cleared away."""
    with ExitStack() as makers:

        def make(box: Sandbox, settings: str = "") -> Post:
            return makers.enter_context(post.posts(box))(settings)

        yield make


@pytest.fixture
def stage(make_sandbox: Callable[..., Sandbox]) -> Iterator[Stage]:
    """A maker of examples, all on one sandbox."""
    with stages(make_sandbox) as make:
        yield make


@pytest.fixture
def torch() -> None:
    """Skip without torch."""
    if not has("torch"):
        pytest.skip(f"{PYTHON} has no torch: `make proofs` makes an environment that has")
