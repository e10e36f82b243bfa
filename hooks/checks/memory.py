"""`memory`: the node has the memory it should have. (I/O)

How it thinks. A module that has failed at boot is left out by the firmware, and the node goes on with less: jobs that fit elsewhere die here.
So what the kernel sees is held against what is expected, less what firmware and kernel keep for themselves. Without an expectation the size
is told as a value, to be compared across nodes.

Thresholds: `expected_gb` in GiB (the runner's, of Slurm's RealMemory, which Slurm counts in MiB; 0: unknown), `percent` 93 of it is enough (the kernel
keeps a few percent), `bad_percent` 80 (below, at least one module of the usual 8 is missing).

Checked against: /proc/meminfo of Linux 6.1 and 6.18.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Optional

from ftrun.hooks.findings import BAD, DEGRADED, OK, UNKNOWN, Check, Finding
from ftrun.hooks.machine import Machine

__all__ = ["CHECK", "judge"]

NAME = "memory"
FAULT = "hardware-other"
GIB_IN_KIB = 1024**2


def probe(machine: Machine, _thresholds: Mapping[str, Any]) -> Optional[str]:
    """/proc/meminfo."""
    return machine.peek("/proc/meminfo")


def judge(meminfo: Optional[str], thresholds: Mapping[str, Any]) -> Sequence[Finding]:
    """Bad for much too little memory, degraded for too little."""
    found = re.search(r"^MemTotal:\s+(\d+) kB", meminfo or "", re.MULTILINE)
    if found is None:
        return [Finding(NAME, UNKNOWN, "/proc/meminfo does not tell MemTotal")]
    total = int(found[1]) / GIB_IN_KIB
    expected = float(thresholds["expected_gb"])
    told = f"{total:.1f} GiB"
    if expected:
        told += f" of {expected:.1f} GiB expected"
        for severity, percent in ((BAD, thresholds["bad_percent"]), (DEGRADED, thresholds["percent"])):
            if total < expected * percent / 100:
                return [Finding(NAME, severity, told, FAULT, "memory", (found[0],), round(total, 2), "GiB")]
    return [Finding(NAME, OK, told, value=round(total, 2), unit="GiB")]


CHECK = Check(
    name=NAME,
    title="The node has the memory it should have",
    tier="fast",
    fault=FAULT,
    needs=("/proc/meminfo",),
    limit_s=2.0,
    thresholds={"expected_gb": 0, "percent": 93, "bad_percent": 80},
    probe=probe,
    judge=judge,
)
