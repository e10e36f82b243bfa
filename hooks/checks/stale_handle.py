"""`stale-handle`: no path of the job is a stale handle on this node. (I/O)

How it thinks. When a server is exported anew, or a folder is replaced behind a client, that one node keeps a handle of what is no more
(ESTALE) while all others are well. Size and cached attributes still answer, so each path is opened and its first entry read. The cure is
a remount on this node, so it is bad here.

Thresholds: `paths` of the job (the runner's), else every network file system that is mounted; `deadline_s` 5. What hangs is told by `mounts`.

Checked against: answers of every error number in a table; a folder that hangs is a pipe in the tests of the machine.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping, Sequence
from typing import Any

from ftrun.hooks.findings import BAD, OK, SKIPPED, UNKNOWN, Check, Finding
from ftrun.hooks.machine import Machine
from ftrun.hooks.mounts import Touch, asked, watched

__all__ = ["CHECK", "judge"]

NAME = "stale-handle"


def probe(machine: Machine, thresholds: Mapping[str, Any]) -> dict[str, Touch]:
    """What came of opening each path."""

    def question(path: str) -> str:
        whole = machine.path(path)
        if not os.path.isdir(whole):
            os.stat(whole)
            return ""
        with os.scandir(whole) as entries:
            next(entries, None)
        return ""

    return asked(machine, watched(machine, thresholds), question, thresholds["deadline_s"])


def judge(touches: Mapping[str, Touch], _thresholds: Mapping[str, Any]) -> Sequence[Finding]:
    """Bad for each stale path."""
    if not touches:
        return [Finding(NAME, SKIPPED, "no network file system is mounted")]
    stale = [path for path, touch in touches.items() if touch.errno == errno.ESTALE]
    if stale:
        word = touches[stale[0]].word
        return [
            Finding(NAME, BAD, f"{path} is a stale handle on this node", "storage", path, (word,))
            for path in stale
        ]
    hung = [path for path, touch in touches.items() if touch.hung]
    if len(hung) == len(touches):
        return [Finding(NAME, UNKNOWN, f"{hung[0]} did not answer", device=hung[0])]
    return [Finding(NAME, OK, f"none of {len(touches)} path(s) is stale")]


CHECK = Check(
    name=NAME,
    title="No path of the job is a stale handle on this node",
    tier="fast",
    fault="storage",
    needs=(),
    limit_s=7.0,
    thresholds={"paths": (), "deadline_s": 5.0},
    probe=probe,
    judge=judge,
)
