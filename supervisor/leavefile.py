"""`leave.<launch>.json` in an attempt's folder: what the supervisor wants the agent to move off, at the next checkpoint. (I/O)

Written whole or not at all; it stands as long as the wish does. The agent reads it, since it alone acts inside its allocation.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Sequence

from ftrun.slurm.records import dataclass
from ftrun.supervisor import store

__all__ = ["Wish", "read", "remove", "write"]

SIZE_MAX_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Wish:
    """The nodes to be left, all nodes of the job that no start is to use any more, and why."""

    token: str
    nodes: tuple[str, ...]
    aside: tuple[str, ...]
    why: str


def write(place: str, launch: int, wish: Wish) -> None:
    """Let the wish stand in the attempt's folder `place`. Raises OSError."""
    told = {"token": wish.token, "nodes": list(wish.nodes), "aside": list(wish.aside), "why": wish.why}
    store.write_atomically(_path(place, launch), (json.dumps(told) + "\n").encode())


def read(place: str, launch: int) -> Wish | None:
    """The wish that stands there; None where there is none that can be read."""
    text = store.content(_path(place, launch), SIZE_MAX_BYTES)
    if not text:
        return None
    try:
        told = json.loads(text)
        return Wish(str(told["token"]), _names(told["nodes"]), _names(told["aside"]), str(told["why"]))
    except (ValueError, LookupError, TypeError, RecursionError):
        return None


def remove(place: str, launch: int) -> None:
    """No wish any more."""
    with contextlib.suppress(OSError):
        os.unlink(_path(place, launch))


def _path(place: str, launch: int) -> str:
    return os.path.join(place, f"leave.{launch}.json")


def _names(found: Sequence[object]) -> tuple[str, ...]:
    return tuple(str(name) for name in found)
