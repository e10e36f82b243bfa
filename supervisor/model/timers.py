"""Stopwatches and intervals of the loop, and slots for what a feature remembers. (pure)

All times are those of the loop's monotonic clock, which the caller passes in.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, TypeVar, cast

T = TypeVar("T")


@dataclass(slots=True)
class Stopwatch:
    """Since when a condition has held without a break."""

    since_s: float | None = None  # None = it does not hold

    def held_s(self, mono_s: float) -> float:
        """Seconds since the condition was first noted (now, at the first call)."""
        if self.since_s is None:
            self.since_s = mono_s
        return mono_s - self.since_s

    def restart(self, mono_s: float) -> None:
        """It holds from now on."""
        self.since_s = mono_s

    def stop(self) -> None:
        """It holds no more."""
        self.since_s = None

    @property
    def runs(self) -> bool:
        """It holds."""
        return self.since_s is not None


@dataclass(slots=True)
class Interval:
    """When something was done last."""

    last_s: float | None = None

    def due(self, mono_s: float, every_s: float) -> bool:
        """True at the first call and then once in `every_s` seconds."""
        if self.last_s is not None and mono_s - self.last_s < every_s:
            return False
        self.last_s = mono_s
        return True

    def first(self) -> bool:
        """True at the first call only."""
        return self.due(0.0, float("inf"))


class Stopwatches(defaultdict[Hashable, Stopwatch]):
    """One stopwatch for each key."""

    def __init__(self) -> None:
        super().__init__(Stopwatch)

    def stop(self, key: Hashable) -> None:
        """The condition does not hold for this key."""
        self.pop(key, None)


class Intervals(defaultdict[Hashable, Interval]):
    """One interval for each key."""

    def __init__(self) -> None:
        super().__init__(Interval)


class Slots(dict[type, Any]):
    """One object of each class, made when it is first asked for.

    A feature declares the class. No other feature names it, so none can touch what is in it, and the holder
    of the slots knows no feature.
    """

    def of(self, kind: type[T], make: Callable[[], T] | None = None) -> T:
        """The object of this class; made by `make` where the class asks for arguments."""
        if kind not in self:
            self[kind] = kind() if make is None else make()
        return cast("T", self[kind])
