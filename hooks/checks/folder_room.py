"""`folder-room`: the folders of the job have room and inodes left. (I/O)

How it thinks. A checkpoint that does not fit ends a run after hours. A shared folder that is full is full from every node, so what is
short is a fact about the folder: degraded, never bad. Quotas are asked by the check of that name.

Thresholds: `folders` (the runner's); `free_percent` 2 of room or inodes; `free_gb` 0, what must be free at least (say, the size of
a checkpoint); `deadline_s` 5. File systems that count no inodes (Btrfs, many network ones) tell 0 of them.

Checked against: a real folder, and answers in a table.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from ftrun.hooks.findings import DEGRADED, OK, SKIPPED, UNKNOWN, Check, Finding
from ftrun.hooks.machine import Machine
from ftrun.hooks.mounts import Touch, asked
from ftrun.hooks.room import GB, Room

__all__ = ["CHECK", "judge"]

NAME = "folder-room"


def probe(machine: Machine, thresholds: Mapping[str, Any]) -> dict[str, Touch]:
    """By folder, the four numbers of a Room as the answer's text."""

    def question(folder: str) -> str:
        fact = os.statvfs(machine.path(folder))
        size, free = fact.f_blocks * fact.f_frsize, fact.f_bavail * fact.f_frsize
        return f"{size} {free} {fact.f_files} {fact.f_favail}"

    return asked(machine, thresholds["folders"], question, thresholds["deadline_s"])


def judge(touches: Mapping[str, Touch], thresholds: Mapping[str, Any]) -> Sequence[Finding]:
    """Degraded for each folder that is short of room or inodes."""
    if not touches:
        return [Finding(NAME, SKIPPED, "no folder is named")]
    return [_looked(folder, touch, thresholds) for folder, touch in touches.items()]


def _looked(folder: str, touch: Touch, thresholds: Mapping[str, Any]) -> Finding:
    if touch.hung or touch.errno:
        return Finding(NAME, UNKNOWN, f"{folder}: {'no answer' if touch.hung else touch.word}", device=folder)
    room = Room(*(int(number) for number in touch.text.split()))
    free_gb = room.free_bytes / GB
    percent = thresholds["free_percent"] / 100
    if room.free_bytes < room.size_bytes * percent or free_gb < thresholds["free_gb"]:
        message = f"{folder} has {free_gb:.1f} GB free of {room.size_bytes / GB:.1f}"
        return Finding(NAME, DEGRADED, message, "storage", folder, value=round(free_gb, 3), unit="GB")
    if room.inodes > 0 and room.free_inodes < room.inodes * percent:
        message = f"{folder} has {room.free_inodes} inodes free of {room.inodes}"
        return Finding(NAME, DEGRADED, message, "storage", folder, value=room.free_inodes, unit="inodes")
    return Finding(
        NAME, OK, f"{folder} has {free_gb:.1f} GB free", device=folder, value=round(free_gb, 3), unit="GB"
    )


CHECK = Check(
    name=NAME,
    title="The folders of the job have room and inodes left",
    tier="fast",
    fault="storage",
    needs=(),
    limit_s=7.0,
    thresholds={"folders": (), "free_percent": 2, "free_gb": 0, "deadline_s": 5.0},
    probe=probe,
    judge=judge,
)
