"""`disk-size root`: the root file system is large enough and has room. (I/O)

How it thinks. A small root disk fills with logs and core files and then takes every job with it, so its size is a requirement of
the site (more than 32 GB by default) and its free space a state of the node.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ftrun.hooks.findings import BAD, DEGRADED, OK, UNKNOWN, Check, Finding
from ftrun.hooks.machine import Machine

__all__ = ["CHECK", "Room", "judge"]

NAME = "disk-size root"
GB = 1000**3


class Room(NamedTuple):
    """Size and free space in bytes, inodes in all and free; inodes are 0 where the file system does not count them."""

    size_bytes: int
    free_bytes: int
    inodes: int
    free_inodes: int


def probe(machine: Machine, _thresholds: Mapping[str, Any]) -> Room | None:
    """The root file system; None where it cannot be asked."""

    def numbers() -> bytes:
        fact = os.statvfs(machine.path("/"))
        size, free = fact.f_blocks * fact.f_frsize, fact.f_bavail * fact.f_frsize
        return f"{size} {free} {fact.f_files} {fact.f_favail}".encode()

    answer = machine.ask(numbers, 5.0, "the root file system")
    return None if answer is None else Room(*(int(number) for number in answer.split()))


def judge(room: Room | None, thresholds: Mapping[str, Any]) -> Sequence[Finding]:
    """Bad when it is smaller than `size_gb`; degraded when less than `free_percent` of room or inodes is left."""
    if room is None:
        return [Finding(NAME, UNKNOWN, "the root file system cannot be asked")]
    told = f"{room.size_bytes / GB:.0f} GB, {room.free_bytes / GB:.0f} GB free"
    if room.size_bytes <= thresholds["size_gb"] * GB:
        message = f"{told}: smaller than {thresholds['size_gb']} GB"
        return [Finding(NAME, BAD, message, "storage", "/", value=room.size_bytes / GB, unit="GB")]
    short = room.free_bytes < room.size_bytes * thresholds["free_percent"] / 100
    few = room.inodes > 0 and room.free_inodes < room.inodes * thresholds["free_percent"] / 100
    if short or few:
        what = "room" if short else "inodes"
        return [Finding(NAME, DEGRADED, f"{told}: little {what} is left", "storage", "/")]
    return [Finding(NAME, OK, told, device="/", value=room.size_bytes / GB, unit="GB")]


CHECK = Check(
    name=NAME,
    title="The root file system is large enough and has room",
    tier="fast",
    fault="storage",
    needs=(),
    limit_s=6.0,
    thresholds={"size_gb": 32, "free_percent": 2},
    probe=probe,
    judge=judge,
)
