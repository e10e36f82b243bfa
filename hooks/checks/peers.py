"""`peers`: the other nodes of the job can be reached. (I/O)

How it thinks. A connection that is refused proves that the other node answers, so it is as good as one that is made. Of one peer that
cannot be reached nobody knows from here whose fault it is, so that is a note for whoever compares the nodes; a node that reaches none
of several is cut off itself.

Thresholds: `hosts` (a list, or Slurm's list of nodes; "" for those of the job around us), `port` (6818, slurmd's), `limit_s` (4).

Checked against: connections on the loopback and to a documentation address.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from ftrun.hooks import hosts
from ftrun.hooks.findings import BAD, DEGRADED, NOTE, OK, SKIPPED, UNKNOWN, Check, Finding
from ftrun.hooks.machine import Machine

__all__ = ["CHECK", "judge"]

NAME = "peers"
FAULT = "network"
NAMED_MAX = 8


def probe(machine: Machine, thresholds: Mapping[str, Any]) -> dict[str, str]:
    """What came of a connection to each host but this one."""
    here = os.uname().nodename.partition(".")[0]
    others = [host for host in hosts.all_of(machine, thresholds) if host.partition(".")[0] != here]
    port, limit_s = int(thresholds["port"]), thresholds["limit_s"]
    return hosts.asked(machine, others, lambda host: hosts.connect(host, port, limit_s), limit_s)


def judge(found: Mapping[str, str], _thresholds: Mapping[str, Any]) -> Sequence[Finding]:
    """Bad when none of several is reached, degraded when most are not, a note for each of few."""
    if not found:
        return [Finding(NAME, SKIPPED, "no other hosts are named, and no job is around")]
    lost = {host: told.lstrip("!") for host, told in found.items() if told not in ("ok", "refused")}
    if not lost:
        return [Finding(NAME, OK, f"{len(found)} host(s) answer")]
    lines = tuple(f"{host}: {told}" for host, told in list(lost.items())[:NAMED_MAX])
    if len(found) == 1:
        return [
            Finding(
                NAME, UNKNOWN, f"{lines[0]}; there is no other host to compare with", device=next(iter(lost))
            )
        ]
    if len(lost) == len(found):
        message = f"none of {len(found)} hosts answers: {lines[0]}"
        return [Finding(NAME, BAD, message, FAULT, "", lines, float(len(lost)), "hosts")]
    if len(lost) * 2 > len(found):
        message = f"{len(lost)} of {len(found)} hosts do not answer"
        return [Finding(NAME, DEGRADED, message, FAULT, "", lines, float(len(lost)), "hosts")]
    return [Finding(NAME, NOTE, f"it does not answer: {told}", "", host) for host, told in lost.items()]


CHECK = Check(
    name=NAME,
    title="The other nodes of the job can be reached",
    tier="fast",
    fault=FAULT,
    needs=(),
    limit_s=10.0,
    thresholds={"hosts": "", "port": 6818, "limit_s": 4.0},
    probe=probe,
    judge=judge,
)
