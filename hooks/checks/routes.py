"""`routes`: there is a way to every host of the job. (I/O)

How it thinks. The kernel's own table is read, so that a missing route is told as such and not as one more time-out. Compute nodes without a
default route are common, so its absence is bad only where the site wants one.

Thresholds: `default` (false): a default route must exist; `hosts` ("" for those of the job around us); `limit_s` (3) for names.

Checked against: /proc/net/route of Linux 6.1 (addresses in hexadecimal, in the byte order of the machine). IPv4 only: a host with
IPv6 addresses alone is left out.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ftrun.hooks import hosts
from ftrun.hooks.findings import BAD, OK, SKIPPED, UNKNOWN, Check, Finding
from ftrun.hooks.machine import Machine, NoAnswer

__all__ = ["CHECK", "Facts", "Route", "judge", "parsed"]

NAME = "routes"
FAULT = "network"
TABLE = "/proc/net/route"
UP, REJECT = 0x1, 0x200


class Route(NamedTuple):
    """A network as numbers, and the interface that leads there."""

    network: int
    mask: int
    interface: str
    is_rejected: bool


class Facts(NamedTuple):
    """The text of the kernel's table, and the IPv4 addresses of each host."""

    table: str
    addresses: Mapping[str, tuple[str, ...]]


def probe(machine: Machine, thresholds: Mapping[str, Any]) -> Facts:
    """Read the table and resolve the hosts; what does not resolve is the matter of another check."""
    try:
        told = hosts.asked(machine, hosts.all_of(machine, thresholds), hosts.resolve, thresholds["limit_s"])
    except NoAnswer:
        told = {}
    resolved = {
        host: tuple(one for one in text.split() if one.count(".") == 3)
        for host, text in told.items()
        if text[:1] != "!"
    }
    return Facts(machine.read(TABLE) or "", resolved)


def parsed(text: str) -> list[Route] | None:
    """The routes that are in force; None where this is no table of routes."""
    lines = text.splitlines()
    if not lines or not lines[0].startswith("Iface"):
        return None
    rows = [line.split() for line in lines[1:]]
    return [
        Route(_number(row[1]), _number(row[7]), row[0], bool(int(row[3], 16) & REJECT))
        for row in rows
        if len(row) >= 8 and int(row[3], 16) & UP
    ]


def judge(facts: Facts, thresholds: Mapping[str, Any]) -> Sequence[Finding]:
    """Bad when a host of the job has no route, or a default route is wanted and missing."""
    routes = parsed(facts.table)
    if routes is None:
        return [Finding(NAME, UNKNOWN, "the kernel's table of routes cannot be read")]
    told = []
    default = next((route for route in routes if not route.mask and not route.is_rejected), None)
    if default is None and thresholds["default"]:
        told.append(Finding(NAME, BAD, "there is no default route", FAULT))
    lost = [
        host
        for host, found in facts.addresses.items()
        if found and not any(_leads(routes, one) for one in found)
    ]
    if lost:
        lines = tuple(f"{host} {', '.join(facts.addresses[host])}" for host in lost[:8])
        told.append(
            Finding(NAME, BAD, f"no route to {len(lost)} host(s): {', '.join(lost[:8])}", FAULT, "", lines)
        )
    if told:
        return told
    if not facts.addresses and default is None:
        return [Finding(NAME, SKIPPED, "no hosts are named, and no default route is wanted")]
    way = f"default by {default.interface}" if default else "no default route"
    return [Finding(NAME, OK, f"{way}, {len(facts.addresses)} host(s) have a route")]


def _leads(routes: Sequence[Route], address: str) -> bool:
    """Whether the longest matching route leads anywhere; the loopback needs none in this table."""
    import socket  # where hosts are named

    try:
        number = struct.unpack("!I", socket.inet_aton(address))[0]
    except OSError:
        return True  # not an address that could be judged
    if number >> 24 == 127:
        return True
    fitting = [route for route in routes if number & route.mask == route.network]
    return bool(fitting) and not max(fitting, key=lambda route: route.mask).is_rejected


def _number(text: str) -> int:
    """A hexadecimal address in the machine's byte order."""
    return int.from_bytes(int(text, 16).to_bytes(4, sys.byteorder), "big")


CHECK = Check(
    name=NAME,
    title="There is a way to every host of the job",
    tier="fast",
    fault=FAULT,
    needs=(TABLE,),
    limit_s=9.0,
    thresholds={"default": False, "hosts": "", "limit_s": 3.0},
    probe=probe,
    judge=judge,
)
