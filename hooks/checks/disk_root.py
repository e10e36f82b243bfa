"""`disk-size root`: the root file system is large enough and has room. (I/O)

How it thinks. A small root disk fills with logs and core files and then takes every job with it, so its size is a requirement of
the site and its free space a state of the node.

Thresholds: `size_gb` (32): it must be larger, `free_percent` (2) of its room and inodes that must be free.

Checked against: file systems of this kernel, and sizes in a table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ftrun.hooks.findings import Check, Finding
from ftrun.hooks.machine import Machine
from ftrun.hooks.room import Room, judged, room_of

__all__ = ["CHECK", "judge"]

NAME = "disk-size root"


def probe(machine: Machine, _thresholds: Mapping[str, Any]) -> Room | None:
    """The root file system."""
    return room_of(machine, "/")


def judge(room: Room | None, thresholds: Mapping[str, Any]) -> Sequence[Finding]:
    """Its size and what is left of it."""
    return judged(NAME, "/", room, thresholds)


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
