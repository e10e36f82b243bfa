"""`ulimit`: a job on this node may lock memory, open files and start processes as it needs. (I/O)

How it thinks. Slurm hands on the limits of whoever submits or of slurmd, so a node whose slurmd was started with small ones differs
from its peers; that is what counts, and why a value below the marks is only `degraded` unless the site says so. Unlimited is
always enough.

Thresholds: in the units of `ulimit`, all of which must be exceeded: `memlock_kib` (16,000) where InfiniBand is, because RDMA pins
memory, `open_files` (1,000,000), `stack_kib` (8,000), `processes` (1,000,000); `enforce` (false): what is too small is bad.

Checked against: the limits of a process of the test, and limits in a table.
"""

from __future__ import annotations

import resource
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ftrun.hooks.findings import BAD, DEGRADED, OK, Check, Finding
from ftrun.hooks.machine import Machine

__all__ = ["CHECK", "Limits", "judge"]

NAME = "ulimit"
_KINDS = {
    "memlock_kib": (resource.RLIMIT_MEMLOCK, 1024),
    "open_files": (resource.RLIMIT_NOFILE, 1),
    "stack_kib": (resource.RLIMIT_STACK, 1024),
    "processes": (resource.RLIMIT_NPROC, 1),
}


class Limits(NamedTuple):
    """Soft limits in their units (-1 = unlimited), and whether the node has InfiniBand."""

    soft: Mapping[str, int]
    has_rdma: bool


def probe(machine: Machine, _thresholds: Mapping[str, Any]) -> Limits:
    """The limits that this process was given."""
    soft = {}
    for kind, (number, unit) in _KINDS.items():
        value = resource.getrlimit(number)[0]
        soft[kind] = -1 if value == resource.RLIM_INFINITY else value // unit
    return Limits(soft, bool(machine.names("/sys/class/infiniband")))


def judge(limits: Limits, thresholds: Mapping[str, Any]) -> Sequence[Finding]:
    """Each limit that is not above its mark; memlock counts with InfiniBand only."""
    marks = {kind: thresholds[kind] for kind in limits.soft if kind != "memlock_kib" or limits.has_rdma}
    low = {kind: limits.soft[kind] for kind, mark in marks.items() if -1 < limits.soft[kind] <= mark}
    if not low:
        told = ", ".join(f"{kind} {_word(value)}" for kind, value in limits.soft.items())
        return [Finding(NAME, OK, told)]
    severity = BAD if thresholds["enforce"] else DEGRADED
    return [
        Finding(NAME, severity, f"{kind} is {value}, not above {marks[kind]}", "config", kind, value=value)
        for kind, value in low.items()
    ]


def _word(value: int) -> str:
    return "unlimited" if value < 0 else str(value)


CHECK = Check(
    name=NAME,
    title="Limits of memory, files, stack and processes are those a job needs",
    tier="fast",
    fault="config",
    needs=(),
    limit_s=2.0,
    thresholds={
        "memlock_kib": 16_000,
        "open_files": 1_000_000,
        "stack_kib": 8_000,
        "processes": 1_000_000,
        "enforce": False,
    },
    probe=probe,
    judge=judge,
)
