"""`uptime`: the node has not been booted while the job ran. (I/O)

How it thinks. A node that came back looks healthy, and its job is gone: only the time of its boot tells that it went down under the job, whether somebody
reset it or it crashed. The time since boot is told in any case, to be compared across nodes and to be laid beside counters. The clock may have been set since, so a
minute is allowed.

Thresholds: `since_s`, the start of the job (seconds of the epoch; 0: none); `recent_s` 600: a boot that lately is a note; `slack_s` 60.

Checked against: /proc/uptime of Linux 6.1 and 6.18 (proc(5)).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Optional

from ftrun.hooks.findings import BAD, NOTE, OK, UNKNOWN, Check, Finding
from ftrun.hooks.machine import Machine

__all__ = ["CHECK", "Facts", "judge"]

NAME = "uptime"
FAULT = "node"


class Facts(NamedTuple):
    """Seconds since boot (None: not told), and the time in seconds of the epoch."""

    up_s: Optional[float]
    now_s: float


def probe(machine: Machine, _thresholds: Mapping[str, Any]) -> Facts:
    """Read the uptime."""
    word = (machine.peek("/proc/uptime") or "").partition(" ")[0]
    try:
        return Facts(float(word), time.time())
    except ValueError:
        return Facts(None, time.time())


def judge(facts: Facts, thresholds: Mapping[str, Any]) -> Sequence[Finding]:
    """Bad when it was booted after the job began, a note when it was booted lately."""
    if facts.up_s is None:
        return [Finding(NAME, UNKNOWN, "/proc/uptime does not tell")]
    booted_s = facts.now_s - facts.up_s
    told = f"up since {time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime(booted_s))}"
    since_s = float(thresholds["since_s"])
    if since_s and booted_s > since_s + thresholds["slack_s"]:
        message = f"{told}: it was booted {booted_s - since_s:.0f} s after the job began"
        return [Finding(NAME, BAD, message, FAULT, "", (), round(facts.up_s), "s")]
    if facts.up_s < thresholds["recent_s"]:
        return [Finding(NAME, NOTE, f"{told}: it was booted lately", value=round(facts.up_s), unit="s")]
    return [Finding(NAME, OK, told, value=round(facts.up_s), unit="s")]


CHECK = Check(
    name=NAME,
    title="The node has not been booted while the job ran",
    tier="fast",
    fault=FAULT,
    needs=("/proc/uptime",),
    limit_s=2.0,
    thresholds={"since_s": 0, "recent_s": 600, "slack_s": 60},
    probe=probe,
    judge=judge,
)
