"""`nic-link`: the network interfaces are up, at their full speed. (I/O)

How it thinks. An interface that somebody has set up and that has no carrier has lost its cable or its switch; whether the job needs it
only the site can say, so it is bad where it is expected, and degraded elsewhere. Links of a bond are the bond's affair. A fast card
at 100 Mb/s or with half duplex has a bad cable.

Thresholds: `expected`: interface -> speed in Mb/s (0: any), {} for none in particular.

Checked against: the kernel's ABI page for sysfs-class-net; /sys of Linux 6.1 (a virtual card: speed -1).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ftrun.hooks.findings import BAD, DEGRADED, OK, SKIPPED, Check, Finding
from ftrun.hooks.interfaces import FOLDER, Interface, interfaces
from ftrun.hooks.machine import Machine

__all__ = ["CHECK", "judge"]

NAME = "nic-link"
FAULT = "network"
SLOW_MBPS = 100


def probe(machine: Machine, _thresholds: Mapping[str, Any]) -> list[Interface]:
    """All interfaces."""
    return interfaces(machine)


def judge(found: Sequence[Interface], thresholds: Mapping[str, Any]) -> Sequence[Finding]:
    """Bad when an expected interface is missing, down or slower; degraded when another that is set up has no carrier."""
    expected: Mapping[str, int] = thresholds["expected"]
    by_name = {one.name: one for one in found}
    told = [
        finding for name, speed in expected.items() for finding in _expected(name, speed, by_name.get(name))
    ]
    others = [one for one in found if one.is_physical and one.name not in expected]
    told += [finding for one in others for finding in _other(one)]
    if not told and not expected and not others:
        return [Finding(NAME, SKIPPED, "no network card here, and none is expected")]
    up = [one for one in found if one.is_physical and one.state != "down"]
    return told or [_well(one) for one in up] or [Finding(NAME, OK, "nothing is set up")]


def _expected(name: str, speed: int, one: Interface | None) -> list[Finding]:
    if one is None:
        return [Finding(NAME, BAD, "this interface is expected, and is not here", FAULT, name)]
    if one.state not in ("up", "unknown"):
        line = (f"operstate {one.state}",)
        return [Finding(NAME, BAD, f"this interface is expected, and is {one.state}", FAULT, name, line)]
    if speed and one.speed_mbps is not None and one.speed_mbps < speed:
        message = f"{one.speed_mbps} Mb/s instead of {speed}"
        return [Finding(NAME, BAD, message, FAULT, name, (), float(one.speed_mbps), "Mb/s")]
    return []


def _other(one: Interface) -> list[Finding]:
    if not one.is_wanted or one.is_slave:
        return []
    if one.state in ("down", "lowerlayerdown"):
        message = "it is set up and has no carrier"
        return [Finding(NAME, DEGRADED, message, FAULT, one.name, (f"operstate {one.state}",))]
    if one.duplex == "half" or (
        one.speed_mbps is not None and one.speed_mbps <= SLOW_MBPS and one.kind == "Ethernet"
    ):
        speed = None if one.speed_mbps is None else float(one.speed_mbps)
        message = (
            f"{one.speed_mbps} Mb/s, {one.duplex or 'duplex not told'}: slower than any card of a cluster"
        )
        return [Finding(NAME, DEGRADED, message, FAULT, one.name, (), speed, "Mb/s")]
    return []


def _well(one: Interface) -> Finding:
    """An interface that is well, with its speed, to be compared across nodes."""
    speed = None if one.speed_mbps is None else float(one.speed_mbps)
    told = one.state if speed is None else f"{one.speed_mbps} Mb/s {one.state}"
    return Finding(NAME, OK, told, "", one.name, (), speed, "" if speed is None else "Mb/s")


CHECK = Check(
    name=NAME,
    title="The network interfaces are up, at their full speed",
    tier="fast",
    fault=FAULT,
    needs=(FOLDER,),
    limit_s=5.0,
    thresholds={"expected": {}},
    probe=probe,
    judge=judge,
)
