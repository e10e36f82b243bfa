"""`ib-speed`: every active RDMA port has its full width and speed. (I/O)

How it thinks. A bad cable or transceiver makes a link come up with fewer lanes or in an older speed, and every collective of the job then
runs at its pace. What full means is told by the site, or by the other ports of the same kind on the node; the rate of each port is told, to be
compared across nodes.

Thresholds: `gbps` of every port (0: as its equals), `lanes` (0: as its equals), `ports` that count ([]: all).

Checked against: the kernel's ABI page for `rate` and rates of a public H100 node ("400 Gb/sec (4X NDR)").
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ftrun.hooks import infiniband
from ftrun.hooks.findings import BAD, DEGRADED, OK, SKIPPED, Check, Finding
from ftrun.hooks.infiniband import Port
from ftrun.hooks.machine import Machine

__all__ = ["CHECK", "judge"]

NAME = "ib-speed"
FAULT = "network"


def probe(machine: Machine, _thresholds: Mapping[str, Any]) -> list[Port]:
    """All ports."""
    return infiniband.ports(machine)


def judge(found: Sequence[Port], thresholds: Mapping[str, Any]) -> Sequence[Finding]:
    """Bad below the site's speed, degraded below that of equal ports."""
    active = [port for port in infiniband.wanted(found, thresholds) if port.is_active and port.rate_gbps]
    if not active:
        return [Finding(NAME, SKIPPED, "no active RDMA port here")]
    return [one for port in active for one in _looked(port, active, thresholds)]


def _looked(port: Port, active: Sequence[Port], thresholds: Mapping[str, Any]) -> list[Finding]:
    rate, lanes = port.rate_gbps or 0.0, port.lanes or 0
    line = (f"rate {rate:g} Gb/s, {lanes}X",)
    if rate < thresholds["gbps"] or lanes < thresholds["lanes"]:
        message = f"{rate:g} Gb/s on {lanes} lane(s), the site wants {thresholds['gbps'] or 'any'} Gb/s"
        return [Finding(NAME, BAD, message, FAULT, port.name, line, rate, "Gb/s")]
    equals = [other for other in active if other.family == port.family]
    most = max(other.rate_gbps or 0 for other in equals)
    if rate < most and not thresholds["gbps"]:
        message = f"{rate:g} Gb/s on {lanes} lane(s), its equals have {most:g} Gb/s"
        return [Finding(NAME, DEGRADED, message, FAULT, port.name, line, rate, "Gb/s")]
    return [Finding(NAME, OK, f"{rate:g} Gb/s", "", port.name, (), rate, "Gb/s")]


CHECK = Check(
    name=NAME,
    title="Every active RDMA port has its full width and speed",
    tier="fast",
    fault=FAULT,
    needs=(infiniband.FOLDER,),
    limit_s=6.0,
    thresholds={"gbps": 0, "lanes": 0, "ports": ()},
    probe=probe,
    judge=judge,
)
