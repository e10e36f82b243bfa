"""How large a file system is and how much of it is left: shared by the checks of disk sizes. (I/O)"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ftrun.hooks.findings import BAD, DEGRADED, OK, UNKNOWN, Finding
from ftrun.hooks.machine import Machine

__all__ = ["Room", "judged", "room_of"]

GB = 1000**3


class Room(NamedTuple):
    """Size and free space in bytes, inodes in all and free; inodes are 0 where the file system does not count them."""

    size_bytes: int
    free_bytes: int
    inodes: int
    free_inodes: int


def room_of(machine: Machine, mount: str) -> Room | None:
    """The file system of a path; None where it is not there. Raises NoAnswer where it hangs."""

    def numbers() -> bytes:
        fact = os.statvfs(machine.path(mount))
        size, free = fact.f_blocks * fact.f_frsize, fact.f_bavail * fact.f_frsize
        return f"{size} {free} {fact.f_files} {fact.f_favail}".encode()

    answer = machine.ask(numbers, 5.0, mount)
    return None if answer is None else Room(*(int(number) for number in answer.split()))


def judged(name: str, mount: str, room: Room | None, thresholds: Mapping[str, Any]) -> Sequence[Finding]:
    """Bad when it is not larger than `size_gb`; degraded when less than `free_percent` of room or inodes is left."""
    if room is None:
        return [Finding(name, UNKNOWN, f"{mount} cannot be asked", device=mount)]
    told = f"{room.size_bytes / GB:.1f} GB, {room.free_bytes / GB:.1f} GB free"
    size_gb = room.size_bytes / GB
    if room.size_bytes <= thresholds["size_gb"] * GB:
        message = f"{told}: it must be larger than {thresholds['size_gb']} GB"
        return [Finding(name, BAD, message, "storage", mount, value=size_gb, unit="GB")]
    short = room.free_bytes < room.size_bytes * thresholds["free_percent"] / 100
    few = room.inodes > 0 and room.free_inodes < room.inodes * thresholds["free_percent"] / 100
    if short or few:
        message = f"{told}: little {'room' if short else 'of its inodes'} is left"
        return [Finding(name, DEGRADED, message, "storage", mount, value=size_gb, unit="GB")]
    return [Finding(name, OK, told, device=mount, value=size_gb, unit="GB")]
