"""`nic-errors`: the network cards receive and send without errors, and keep their carrier. (I/O)

How it thinks. Checksum and frame errors come from the cable, the transceiver or the card. Packets that were dropped or missed come from
a machine that is too busy, so they count only in great number. What does not grow is history.

Thresholds: `before`, an earlier reading, or {} for two readings `window_s` (1) apart; `growth`: counter -> growth from which it is degraded.

Checked against: the kernel's ABI page for the statistics of sysfs-class-net; /sys of Linux 6.1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ftrun.hooks import growth, interfaces
from ftrun.hooks.findings import DEGRADED, NOTE, OK, SKIPPED, Check, Finding
from ftrun.hooks.growth import Growth
from ftrun.hooks.machine import Machine

__all__ = ["CHECK", "judge"]

NAME = "nic-errors"
FAULT = "network"
LIMITS = {
    "rx_crc_errors": 1,
    "rx_frame_errors": 1,
    "rx_errors": 10,
    "tx_errors": 10,
    "tx_carrier_errors": 1,
    "rx_missed_errors": 10_000,
    "rx_fifo_errors": 10_000,
}


def probe(machine: Machine, thresholds: Mapping[str, Any]) -> Growth:
    """Two readings."""
    return growth.over_time(lambda: interfaces.counters(machine, list(LIMITS)), thresholds)


def judge(facts: Growth, thresholds: Mapping[str, Any]) -> Sequence[Finding]:
    """Degraded when a counter grows faster than its limit."""
    if not facts.after:
        return [Finding(NAME, SKIPPED, "no network card with counters here")]
    found = [one for name in sorted(facts.after) for one in _looked(name, facts, thresholds)]
    return found or [Finding(NAME, OK, f"no error counter of {len(facts.after)} card(s) grows")]


def _looked(name: str, facts: Growth, thresholds: Mapping[str, Any]) -> list[Finding]:
    limits = {**LIMITS, **thresholds["growth"]}
    more = growth.grown(facts, name)
    told = tuple(
        f"{counter} +{count}, {facts.after[name][counter]} in all" for counter, count in more.items()
    )
    over = [counter for counter, count in more.items() if count >= limits.get(counter, 1)]
    if over:
        count = more[over[0]]
        message = f"{', '.join(over)}: {count} more"
        return [Finding(NAME, DEGRADED, message, FAULT, name, told, float(count), "errors")]
    return [Finding(NAME, NOTE, f"{', '.join(more)} grow slowly", "", name, told)] if told else []


CHECK = Check(
    name=NAME,
    title="The network cards receive and send without errors",
    tier="fast",
    fault=FAULT,
    needs=(interfaces.FOLDER,),
    limit_s=6.0,
    thresholds={"before": {}, "window_s": 1.0, "growth": {}},
    probe=probe,
    judge=judge,
)
