"""`ib-flaps`: the RDMA links stay up. (I/O)

How it thinks. A link that goes down and comes back costs a job its connections, and is up again whenever somebody looks. Its counter
remembers. A link that fell since the last look flaps now; one that has fallen often since boot, by day of uptime, flaps as a habit.
The falls of a boot and of work on the switch are few.

Thresholds: `before`, an earlier reading, or {} for two readings `window_s` (1) apart; `a_day` (5) and `least` (5): falls by day of
uptime and falls in all from which a link is degraded (five a day is the limit of Azure's node health checks); `ports` ([]: all).

Checked against: the kernel's ABI page for `link_downed`; it counts since the driver was loaded or the counters were cleared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ftrun.hooks import growth, infiniband
from ftrun.hooks.findings import DEGRADED, OK, SKIPPED, Check, Finding
from ftrun.hooks.growth import Growth
from ftrun.hooks.machine import Machine

__all__ = ["CHECK", "Facts", "judge"]

NAME = "ib-flaps"
FAULT = "network"
COUNTER = "link_downed"
DAY_S = 86_400


class Facts(NamedTuple):
    """Two readings, and how long the node has been up (seconds)."""

    growth: Growth
    uptime_s: float


def probe(machine: Machine, thresholds: Mapping[str, Any]) -> Facts:
    """Two readings of one counter."""
    words = (machine.read("/proc/uptime") or "0").split()
    return Facts(
        growth.over_time(lambda: infiniband.counters(machine, [COUNTER]), thresholds), float(words[0])
    )


def judge(facts: Facts, thresholds: Mapping[str, Any]) -> Sequence[Finding]:
    """Degraded when a link fell since the last reading, or falls often."""
    only = list(thresholds["ports"])
    after = facts.growth.after
    ports = [name for name in sorted(after) if not only or name in only or name.partition("/")[0] in only]
    if not ports:
        return [Finding(NAME, SKIPPED, "no RDMA port that counts its falls")]
    found = [one for port in ports for one in _looked(port, facts, thresholds)]
    return found or [Finding(NAME, OK, f"{len(ports)} link(s) stay up")]


def _looked(port: str, facts: Facts, thresholds: Mapping[str, Any]) -> list[Finding]:
    total = facts.growth.after[port].get(COUNTER, 0)
    fresh = growth.grown(facts.growth, port).get(COUNTER, 0)
    line = (f"{COUNTER} {total}",)
    if fresh:
        message = f"its link fell {fresh} time(s) since the last reading"
        return [Finding(NAME, DEGRADED, message, FAULT, port, line, float(fresh), "falls")]
    days = max(1.0, facts.uptime_s / DAY_S)
    if total > thresholds["least"] and total / days > thresholds["a_day"]:
        message = f"its link fell {total} times in {days:.1f} day(s)"
        return [Finding(NAME, DEGRADED, message, FAULT, port, line, float(total), "falls")]
    return []


CHECK = Check(
    name=NAME,
    title="The RDMA links stay up",
    tier="fast",
    fault=FAULT,
    needs=(infiniband.FOLDER,),
    limit_s=9.0,
    thresholds={"before": {}, "window_s": 1.0, "a_day": 5, "least": 5, "ports": ()},
    probe=probe,
    judge=judge,
)
