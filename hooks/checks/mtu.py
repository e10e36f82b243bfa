"""`mtu`: the interfaces have the packet size that the site expects, or that their equals have. (I/O)

How it thinks. One end with small packets and one with large ones connect, shake hands, and hang at the first full packet: the worst kind
of network fault, because ping works. On one node it shows as a card that differs from its equals; between nodes by comparing.

Thresholds: `expected`: interface -> MTU in bytes, {} for as its equals.

Checked against: the kernel's ABI page for sysfs-class-net; /sys of Linux 6.1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ftrun.hooks.findings import BAD, DEGRADED, OK, SKIPPED, Check, Finding
from ftrun.hooks.interfaces import FOLDER, Interface, interfaces
from ftrun.hooks.machine import Machine

__all__ = ["CHECK", "judge"]

NAME = "mtu"
FAULT = "network"


def probe(machine: Machine, _thresholds: Mapping[str, Any]) -> list[Interface]:
    """All interfaces."""
    return interfaces(machine)


def judge(found: Sequence[Interface], thresholds: Mapping[str, Any]) -> Sequence[Finding]:
    """Bad where the site expects another size; degraded where a card differs from most of its equals."""
    expected: Mapping[str, int] = thresholds["expected"]
    up = [
        one
        for one in found
        if one.mtu and one.state in ("up", "unknown") and (one.is_physical or one.name in expected)
    ]
    told = [
        Finding(
            NAME,
            BAD,
            f"{one.mtu} bytes instead of {expected[one.name]}",
            FAULT,
            one.name,
            (),
            float(one.mtu or 0),
            "bytes",
        )
        for one in up
        if one.name in expected and one.mtu != expected[one.name]
    ]
    told += [finding for one in up if one.name not in expected for finding in _odd(one, up)]
    if not told and not up:
        return [Finding(NAME, SKIPPED, "no network card is up")]
    return told or [
        Finding(NAME, OK, f"{one.mtu} bytes", "", one.name, (), float(one.mtu or 0), "bytes") for one in up
    ]


def _odd(one: Interface, up: Sequence[Interface]) -> list[Finding]:
    """What is said of a card that differs from more than half of those of its kind and speed; at least two must agree."""
    equals = [
        other.mtu
        for other in up
        if (other.kind, other.speed_mbps) == (one.kind, one.speed_mbps) and other.speed_mbps
    ]
    usual = max(sorted({mtu or 0 for mtu in equals}), key=equals.count, default=0)
    if not usual or equals.count(usual) < 2 or equals.count(usual) * 2 <= len(equals) or one.mtu == usual:
        return []
    message = f"{one.mtu} bytes, its equals have {usual}"
    return [Finding(NAME, DEGRADED, message, FAULT, one.name, (), float(one.mtu or 0), "bytes")]


CHECK = Check(
    name=NAME,
    title="The interfaces have the packet size that is expected, or that their equals have",
    tier="fast",
    fault=FAULT,
    needs=(FOLDER,),
    limit_s=5.0,
    thresholds={"expected": {}},
    probe=probe,
    judge=judge,
)
