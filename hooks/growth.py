"""Counters that only grow: what came in between two readings. (I/O)

How it thinks. A counter tells what happened since the driver was loaded, which may be a year; only its growth says how things are now.
Whoever has an older reading (the watcher, the prolog) gives it as `before`; without one, two readings a moment apart are compared.
A counter that has fallen was reset or has gone round, and says nothing.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Callable, NamedTuple

__all__ = ["Counts", "Growth", "grown", "over_time"]

Counts = Mapping[str, Mapping[str, int]]


class Growth(NamedTuple):
    """Two readings of device -> counter -> count, and the seconds between them (0: not known)."""

    before: Counts
    after: Counts
    seconds: float


def over_time(read: Callable[[], Counts], thresholds: Mapping[str, Any]) -> Growth:
    """Read now, and compare with `before`, or with a reading `window_s` ago."""
    before: Counts = thresholds["before"]
    if before:
        return Growth(before, read(), 0.0)
    first, began = read(), time.monotonic()
    if not first:
        return Growth({}, {}, 0.0)
    time.sleep(thresholds["window_s"])
    return Growth(first, read(), time.monotonic() - began)


def grown(growth: Growth, device: str) -> dict[str, int]:
    """By how much each counter of a device has grown, where it has."""
    before, after = growth.before.get(device, {}), growth.after.get(device, {})
    return {name: count - before[name] for name, count in after.items() if count > before.get(name, count)}
