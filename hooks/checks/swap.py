"""`swap`: the node does not live from its swap space. (I/O)

How it thinks. Training that swaps stands nearly still, and all its peers wait for it. Pages that were once put out and never fetched again
cost nothing, so it is the share in use that counts, and only as degraded; a node that must have none is told by `allowed`.

Thresholds: `used_percent` 25; `used_gb` 1 (less is never told); `allowed` whether there may be swap space at all.

Checked against: /proc/meminfo of Linux 6.1 and 6.18.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Optional

from ftrun.hooks.findings import DEGRADED, OK, UNKNOWN, Check, Finding
from ftrun.hooks.machine import Machine

__all__ = ["CHECK", "judge"]

NAME = "swap"
GIB_IN_KIB = 1024**2


def probe(machine: Machine, _thresholds: Mapping[str, Any]) -> Optional[str]:
    """/proc/meminfo."""
    return machine.peek("/proc/meminfo")


def judge(meminfo: Optional[str], thresholds: Mapping[str, Any]) -> Sequence[Finding]:
    """Degraded for much swap in use, or any swap space where there must be none."""
    sizes = dict(re.findall(r"^(Swap\w+):\s+(\d+) kB", meminfo or "", re.MULTILINE))
    if not {"SwapTotal", "SwapFree"} <= sizes.keys():
        return [Finding(NAME, UNKNOWN, "/proc/meminfo does not tell of swap")]
    total = int(sizes["SwapTotal"]) / GIB_IN_KIB
    used = total - int(sizes["SwapFree"]) / GIB_IN_KIB
    told = f"{used:.1f} of {total:.1f} GiB of swap in use" if total else "no swap space"
    if total and not thresholds["allowed"]:
        message = f"{total:.1f} GiB of swap space where there must be none"
        return [Finding(NAME, DEGRADED, message, "config", "swap", value=round(total, 2), unit="GiB")]
    if used > thresholds["used_gb"] and used > total * thresholds["used_percent"] / 100:
        return [Finding(NAME, DEGRADED, told, "node", "swap", value=round(used, 2), unit="GiB")]
    return [Finding(NAME, OK, told, value=round(used, 2), unit="GiB")]


CHECK = Check(
    name=NAME,
    title="The node does not live from its swap space",
    tier="fast",
    fault="node",
    needs=("/proc/meminfo",),
    limit_s=2.0,
    thresholds={"used_percent": 25, "used_gb": 1.0, "allowed": True},
    probe=probe,
    judge=judge,
)
