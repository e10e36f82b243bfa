"""`port-free`: the port at which the job's processes meet is free on this node. (I/O)

How it thinks. The first rank listens at a port that was chosen beforehand; a job that was here before, or shares the node, may hold it, and
the run dies before its first step. The kernel's table shows who listens, without binding anything. A port in the range
from which outgoing connections take theirs is free now and may be gone in a second: a note.

Thresholds: `ports` ([]: MASTER_PORT of the environment). On nodes other than the first nothing listens, and nothing is wrong.

Checked against: /proc/net/tcp and tcp6 of Linux 6.1; state 0A is LISTEN.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ftrun.hooks.findings import DEGRADED, NOTE, OK, SKIPPED, UNKNOWN, Check, Finding
from ftrun.hooks.machine import Machine

__all__ = ["CHECK", "Facts", "judge", "listeners"]

NAME = "port-free"
FAULT = "port-conflict"
TABLES = ("/proc/net/tcp", "/proc/net/tcp6")
RANGE = "/proc/sys/net/ipv4/ip_local_port_range"
LISTEN = "0A"


class Facts(NamedTuple):
    """The ports that matter, the kernel's tables of sockets, and its range for outgoing connections (text)."""

    ports: tuple[int, ...]
    tables: tuple[str, ...]
    outgoing: str


def probe(machine: Machine, thresholds: Mapping[str, Any]) -> Facts:
    """Read the tables."""
    wanted = list(thresholds["ports"]) or [os.environ.get("MASTER_PORT", "")]
    ports = tuple(int(port) for port in wanted if str(port).isdigit())
    # Without a port there is nothing to be looked up in tables of thousands of sockets.
    texts = machine.read_all([*TABLES, RANGE]) if ports else {}
    return Facts(ports, tuple(texts[table] for table in TABLES if table in texts), texts.get(RANGE, ""))


def listeners(text: str) -> dict[int, int]:
    """Port -> uid of who listens there."""
    rows = [line.split() for line in text.splitlines()]
    return {
        int(row[1].rsplit(":", 1)[1], 16): int(row[7]) for row in rows if len(row) > 9 and row[3] == LISTEN
    }


def judge(facts: Facts, _thresholds: Mapping[str, Any]) -> Sequence[Finding]:
    """Degraded where somebody listens: this job cannot start here, the node is not to blame."""
    if not facts.ports:
        return [Finding(NAME, SKIPPED, "no port is named")]
    if not facts.tables:
        return [Finding(NAME, UNKNOWN, "the kernel's table of sockets cannot be read")]
    held = {port: uid for table in facts.tables for port, uid in listeners(table).items()}
    found = [
        Finding(
            NAME,
            DEGRADED,
            f"user {held[port]} listens at port {port}",
            FAULT,
            str(port),
            (f"port {port} uid {held[port]}",),
        )
        for port in facts.ports
        if port in held
    ]
    if found:
        return found
    ends = [int(word) for word in facts.outgoing.split() if word.isdigit()]
    risky = [port for port in facts.ports if len(ends) == 2 and ends[0] <= port <= ends[1]]
    if risky:
        message = f"free, and in the range of outgoing connections ({ends[0]} to {ends[1]}): it may be taken at any time"
        return [Finding(NAME, NOTE, message, "", str(port)) for port in risky]
    return [Finding(NAME, OK, f"free: {', '.join(map(str, facts.ports))}")]


CHECK = Check(
    name=NAME,
    title="The port at which the job's processes meet is free",
    tier="fast",
    fault=FAULT,
    needs=(),
    limit_s=5.0,
    thresholds={"ports": ()},
    probe=probe,
    judge=judge,
)
