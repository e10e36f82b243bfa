"""When a node that has nothing of a set says so. (pure)

How it thinks. Nothing tells a node that saves nothing from one whose ranks are late. Once it says that it has nothing, a set whose format proves that it is whole can be published; of
one that nothing proves it first says that something may still come, and says more only when it has waited long enough since others had sealed theirs, or when they went on to a
set after it. A node that had nothing of an earlier set is believed soon; one that had something never that soon.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Optional

from ftrun.hooks import sealing

__all__ = ["AFTER_GRACE_S", "FIRST_GRACE_S", "USUAL_GRACE_S", "Silence"]

FIRST_GRACE_S = 10.0  # before a node that nothing is known of says that it may have nothing
USUAL_GRACE_S = 2.0  # ... that had nothing of the sets before
AFTER_GRACE_S = 1.0  # ... whose script is over

Key = tuple[str, str]  # of a set: its start and name


class Silence:
    """What one node has said of sets that it has nothing of. `wait_s`: how long ranks may be late."""

    def __init__(self, wait_s: float) -> None:
        self._wait_s = wait_s
        self._had: set[str] = set()  # starts
        self._had_not: set[str] = set()
        self._half: set[Key] = set()

    def had(self, token: str) -> None:
        """This node had something of a set of this start."""
        self._had.add(token)

    def said(self, key: Key, *, sure: bool) -> None:
        """It has said that it has nothing of a set."""
        if sure:
            self._had_not.add(key[0])
            self._half.discard(key)
        else:
            self._half.add(key)

    def is_half(self, key: Key) -> bool:
        """It has said that something may still come."""
        return key in self._half

    def word(
        self, key: Key, now_s: float, since_s: float, phase: str, seen: Mapping[Key, float]
    ) -> Optional[bool]:
        """What it says now: True, there is nothing; False, something may still come; None, nothing yet, or nothing more.

        `since_s`: when others were first seen to have something of it, or its start ended; `seen`: when any set was first seen.
        """
        token, waited_s = key[0], now_s - since_s
        if phase == sealing.LIVE:
            return self._live(key, waited_s, seen)
        if waited_s < AFTER_GRACE_S:
            return None
        # Where a start broke down its ranks here may have been about to save.
        sure = phase == sealing.ENDED or (token in self._had_not and token not in self._had)
        return sure if sure or key not in self._half else None

    def _live(self, key: Key, waited_s: float, seen: Mapping[Key, float]) -> Optional[bool]:
        token = key[0]
        if token not in self._had and token in self._had_not:
            return True if waited_s >= USUAL_GRACE_S else None
        if waited_s >= self._wait_s:
            return True
        if token in self._had or waited_s < FIRST_GRACE_S:
            return None
        if any(other[0] == token and at_s > seen[key] for other, at_s in seen.items()):
            return True
        return None if key in self._half else False
