"""Which staged parts leave the memory of a node, and which stay. (pure)

How it thinks. What is published is worth a fast resume and no more: of it as many stay as were asked for, and fewer where room is short. What is not
published yet goes only where room is short and only the oldest first, since a newer one replaces it. The newest of all stays, whatever happens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["Held", "to_drop"]


class Held(NamedTuple):
    """A sealed part: its start and name, what it takes, and whether its set is published."""

    token: str
    name: str
    size_bytes: int
    is_published: bool


def to_drop(held: Sequence[Held], *, keep: int, over_bytes: int, wanted_bytes: int = 0) -> list[Held]:
    """The parts to drop, of `held` which is in order of age, oldest first.

    `over_bytes`: by how much the node holds too much (<= 0: it does not). `wanted_bytes`: how much must go so that one more fits; for that
    only what is published goes.
    """
    published = [one for one in held if one.is_published]
    gone = published[: max(0, len(published) - keep)]
    newest = held[-1:]
    for is_published, aim in ((True, max(over_bytes, wanted_bytes)), (False, over_bytes)):
        for one in held:
            if one.is_published != is_published or one in gone or one in newest:
                continue
            if sum(other.size_bytes for other in gone) < aim:
                gone.append(one)
    return gone
