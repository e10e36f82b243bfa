"""`ib-port`: the ports of the RDMA adapters are up. (I/O)

How it thinks. An adapter has ports without a cable, so a port that is down is a fault only where the site expects it, or where others of
its kind on this node are up. A link that is up but not active waits for its subnet manager: it carries nothing. A port that
somebody has disabled is told and no more.

Thresholds: `ports` that the site expects ("mlx5_0" or "mlx5_0/1"; [] for none in particular), `active`: how many must be up (0: any).

Checked against: the kernel's ABI page for sysfs-class-infiniband (states and physical states) and a tree of a public H100 node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ftrun.hooks import infiniband
from ftrun.hooks.findings import BAD, DEGRADED, NOTE, OK, SKIPPED, Check, Finding
from ftrun.hooks.infiniband import Port
from ftrun.hooks.machine import Machine

__all__ = ["CHECK", "judge"]

NAME = "ib-port"
FAULT = "network"


def probe(machine: Machine, _thresholds: Mapping[str, Any]) -> list[Port]:
    """All ports."""
    return infiniband.ports(machine)


def judge(found: Sequence[Port], thresholds: Mapping[str, Any]) -> Sequence[Finding]:
    """Bad when an expected port is not active, or a link waits for its subnet manager; degraded when its equals are up."""
    if not found and not thresholds["ports"]:
        return [Finding(NAME, SKIPPED, "no RDMA port here")]
    missing = [name for name in thresholds["ports"] if not any(_is(port, name) for port in found)]
    told = [
        Finding(NAME, BAD, "this port is expected, and there is no such port", FAULT, name)
        for name in missing
    ]
    told += [one for port in found for one in _looked(port, found, thresholds)]
    active = [port for port in found if port.is_active]
    if len(active) < thresholds["active"]:
        message = f"{len(active)} port(s) active, {thresholds['active']} expected"
        told.append(Finding(NAME, BAD, message, FAULT, "", (), float(len(active)), "ports"))
    return told or [Finding(NAME, OK, f"{len(active)} of {len(found)} port(s) active")]


def _looked(port: Port, found: Sequence[Port], thresholds: Mapping[str, Any]) -> list[Finding]:
    if port.is_active or not port.state:
        return []
    line = (f"state {port.state}, physical state {port.physical or 'not told'}",)
    if any(_is(port, name) for name in thresholds["ports"]):
        return [Finding(NAME, BAD, f"this port is expected, and is {port.state}", FAULT, port.name, line)]
    if port.physical == "Disabled":
        return [Finding(NAME, NOTE, "somebody has disabled this port", "", port.name, line)]
    if port.physical == "LinkUp" and port.layer == "InfiniBand" and port.state in ("INIT", "ARMED"):
        message = "its link is up, and no subnet manager has made it active"
        return [Finding(NAME, BAD, message, FAULT, port.name, line)]
    if thresholds["ports"] or thresholds["active"]:
        return []  # the site has said which count
    if any(other.is_active and other.family == port.family for other in found):
        message = f"it is {port.state}, while others of its kind are up"
        return [Finding(NAME, DEGRADED, message, FAULT, port.name, line)]
    return [Finding(NAME, NOTE, f"it is {port.state}, as are all of its kind", "", port.name, line)]


def _is(port: Port, name: str) -> bool:
    return name in (port.name, port.name.partition("/")[0])


CHECK = Check(
    name=NAME,
    title="The ports of the RDMA adapters are up",
    tier="fast",
    fault=FAULT,
    needs=(),
    limit_s=6.0,
    thresholds={"ports": (), "active": 0},
    probe=probe,
    judge=judge,
)
