"""Laws that need sandboxes of their own, tried side by side: they wait for seconds until Slurm has noticed something. (I/O)

How it thinks. `side_by_side` makes a test out of a law, a function of `make_sandbox`, `make_post` (both or one) and of its parameters. The
first test of a module that asks for its outcome starts all of the module that were asked for, each with makers of its own.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest

from ftrun.slurm.sandbox.handle import Sandbox
from tests.slurm.post import Post, boxes, posts

__all__ = ["played", "side_by_side"]

LANES = 4
MAKERS = ("make_sandbox", "make_post")
Law = Callable[..., None]


def side_by_side(law: Law) -> Law:
    """A test whose body is played together with the others of its module; stands below the marks of the test."""

    def test(played_apart: dict[str, Future[None]], request: pytest.FixtureRequest, **_: Any) -> None:
        played_apart[request.node.nodeid].result()

    own = ["played_apart", "request", *(n for n in inspect.signature(law).parameters if n not in MAKERS)]
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    test.__name__, test.__doc__, test.__module__ = law.__name__, law.__doc__, law.__module__
    test.__signature__ = inspect.Signature([inspect.Parameter(name, kind) for name in own])  # type: ignore[attr-defined]
    test.law = law  # type: ignore[attr-defined]
    return test


def played(request: pytest.FixtureRequest) -> Iterator[dict[str, Future[None]]]:
    """The laws of a module that are wanted, begun in the order of their tests."""
    items = [item for item in request.session.items if isinstance(item, pytest.Function)]
    wanted = [item for item in items if item.module is request.module and hasattr(item.function, "law")]
    with ThreadPoolExecutor(LANES) as pool:
        yield {item.nodeid: pool.submit(_alone, item) for item in wanted}
        pool.shutdown(cancel_futures=True)


def _alone(item: pytest.Function) -> None:
    law: Law = item.function.law
    given: dict[str, Any] = dict(item.callspec.params) if hasattr(item, "callspec") else {}
    with boxes() as make_sandbox, ExitStack() as makers:

        def make_post(box: Sandbox, settings: str = "") -> Post:
            return makers.enter_context(posts(box))(settings)

        both = {"make_sandbox": make_sandbox, "make_post": make_post}
        law(**given, **{name: both[name] for name in MAKERS if name in inspect.signature(law).parameters})
