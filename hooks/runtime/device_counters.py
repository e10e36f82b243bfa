"""Counters of devices, and how far they grew. (I/O)

They only grow, and may have counted since the driver was loaded a year ago; only the growth describes the present. The node monitor
and the prolog pass an older reading as `before`; otherwise two readings a moment apart are compared. A counter that decreased was
reset or wrapped around, and says nothing.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Callable, NamedTuple

from ftrun.hooks.runtime.host import Machine

Counts = Mapping[str, Mapping[str, int]]


class Growth(NamedTuple):
    """Two readings of device -> counter -> count, and the seconds between them (0: unknown)."""

    before: Counts
    after: Counts
    seconds: float


def read_counts(machine: Machine, paths: Mapping[str, tuple[str, str]]) -> dict[str, dict[str, int]]:
    """Device -> counter -> count, of `paths`: file -> (device, counter); what is no number is left out."""
    found: dict[str, dict[str, int]] = {}
    for path, text in machine.read_all(list(paths)).items():
        if text.isdigit():
            device, counter = paths[path]
            found.setdefault(device, {})[counter] = int(text)
    return found


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


def growth_of(growth: Growth, device: str) -> dict[str, int]:
    """The increase of each counter of a device that has grown."""
    before, after = growth.before.get(device, {}), growth.after.get(device, {})
    return {name: count - before[name] for name, count in after.items() if count > before.get(name, count)}
