"""`disk-size shm`: /dev/shm is large enough for data loaders and collectives. (I/O)

How it thinks. Worker processes hand batches over through shared memory; where a container or a node gives them 64 MB, they die of a bus
error in the first step. It holds what jobs leave behind, so little room is worth a word.

Thresholds: `size_gb` (1): it must be larger, `free_percent` (20) of its room and inodes that must be free.

Checked against: file systems of this kernel, and sizes in a table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ftrun.hooks.findings import Check, Finding
from ftrun.hooks.machine import Machine
from ftrun.hooks.room import Room, judged, room_of

__all__ = ["CHECK", "judge"]

NAME = "disk-size shm"
MOUNT = "/dev/shm"  # noqa: S108


def probe(machine: Machine, _thresholds: Mapping[str, Any]) -> Room | None:
    """The file system of shared memory."""
    return room_of(machine, MOUNT)


def judge(room: Room | None, thresholds: Mapping[str, Any]) -> Sequence[Finding]:
    """Its size and what is left of it."""
    return judged(NAME, MOUNT, room, thresholds)


CHECK = Check(
    name=NAME,
    title="Shared memory is large enough and has room",
    tier="fast",
    fault="storage",
    needs=(MOUNT,),
    limit_s=6.0,
    thresholds={"size_gb": 1, "free_percent": 20},
    probe=probe,
    judge=judge,
)
