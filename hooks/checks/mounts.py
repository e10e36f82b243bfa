"""`mounts`: every mount of the job answers in time. (I/O)

How it thinks. A file server that is gone does not fail, it holds whoever touches it, so each mount is asked for its size by a child or a thread of
its own, all side by side, and the time is measured. Hung is bad: no job that touches it gets on. Slow is degraded. An error says that the
mount is dead (a FUSE daemon that left, a client that was shut out); a stale handle is left to the check of that name, and what may
not be looked at answers all the same.

Thresholds: `paths` of the job (the runner's), else every network file system that is mounted; `deadline_s` 5 (a server under load answers
statfs in well under a second; clients time out by the minute); `slow_s` 2.

Checked against: a path that hangs (a pipe that nobody writes to), real folders, and answers of every kind in a table.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping, Sequence
from typing import Any

from ftrun.hooks.findings import BAD, DEGRADED, NOTE, OK, SKIPPED, Check, Finding
from ftrun.hooks.machine import Machine
from ftrun.hooks.mounts import Touch, asked, watched

__all__ = ["CHECK", "judge"]

NAME = "mounts"
DEAD = {
    errno.EIO, errno.ENOTCONN, errno.ESHUTDOWN, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ETIMEDOUT, errno.ENODEV,
    errno.ECONNABORTED, errno.ECONNREFUSED, errno.ECONNRESET, errno.ENXIO, errno.EREMOTEIO, errno.EUCLEAN,
}  # fmt: skip


def probe(machine: Machine, thresholds: Mapping[str, Any]) -> dict[str, Touch]:
    """What came of asking each mount for its size."""

    def question(path: str) -> str:
        os.statvfs(machine.path(path))
        return ""

    return asked(machine, watched(machine, thresholds), question, thresholds["deadline_s"])


def judge(touches: Mapping[str, Touch], thresholds: Mapping[str, Any]) -> Sequence[Finding]:
    """Bad for what hangs or is dead, degraded for what is slow, a note for a path that is not there."""
    if not touches:
        return [Finding(NAME, SKIPPED, "no network file system is mounted")]
    found = [one for path, touch in touches.items() for one in _looked(path, touch, thresholds)]
    if found:
        return found
    slowest = max(touches, key=lambda path: touches[path].took_s)
    took = touches[slowest].took_s
    told = f"{len(touches)} mount(s) answer, the slowest ({slowest}) in {took * 1000:.0f} ms"
    return [Finding(NAME, OK, told, value=round(took, 4), unit="s")]


def _looked(path: str, touch: Touch, thresholds: Mapping[str, Any]) -> list[Finding]:
    if touch.hung:
        message = f"{path} hangs: no answer within {touch.took_s:g} s"
        return [Finding(NAME, BAD, message, "storage", path, value=touch.took_s, unit="s")]
    if touch.errno in DEAD:
        return [Finding(NAME, BAD, f"{path} is dead: {touch.word}", "storage", path, (touch.word,))]
    if touch.errno == errno.ENOENT:
        return [Finding(NAME, NOTE, f"{path} is not there", device=path)]
    if touch.took_s > thresholds["slow_s"]:
        message = f"{path} is slow: it answered in {touch.took_s:.1f} s"
        return [Finding(NAME, DEGRADED, message, "storage", path, value=round(touch.took_s, 3), unit="s")]
    return []


CHECK = Check(
    name=NAME,
    title="Every mount of the job answers in time",
    tier="fast",
    fault="storage",
    needs=(),
    limit_s=7.0,
    thresholds={"paths": (), "deadline_s": 5.0, "slow_s": 2.0},
    probe=probe,
    judge=judge,
)
