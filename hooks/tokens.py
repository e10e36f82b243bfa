"""The tokens of starts: which one comes after which. (pure)

How it thinks. A token is `<launch>.<start>`; both count up. Who reads which start is the present one may be shown, by a network file system that
keeps what it saw, the one *before* his own for a minute. So only a later token, or the word that the attempt is closed, says that a start is over.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional

__all__ = ["CLOSED", "is_over", "token_of"]

CLOSED = "closed"
"""Stands in `current` of an attempt of which nothing may run any more."""


def token_of(text: str) -> Optional[tuple[int, int]]:
    """`<launch>.<start>` as numbers, None for anything else."""
    launch, dot, start = text.strip().partition(".")
    return (int(launch), int(start)) if dot and _is_number(launch) and _is_number(start) else None


def is_over(token: str, current: str) -> bool:
    """Whether the start of `token` is over, by what the attempt calls its present one. What makes no sense says nothing."""
    own, now = token_of(token), token_of(current)
    if own is None:
        return False
    return current == CLOSED or (now is not None and now > own)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()
