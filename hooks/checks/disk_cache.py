"""`disk-size cache`: the cache folder that the site names is large enough and has room. (I/O)

How it thinks. Compile caches, images and data shards go to a local disk whose place only the site knows (`folder`); where none is named,
there is nothing to check.

Thresholds: `folder` ("" for none), `size_gb` (32): it must be larger, `free_percent` (5) of its room and inodes that must be free.

Checked against: file systems of this kernel, and sizes in a table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ftrun.hooks.findings import SKIPPED, Check, Finding
from ftrun.hooks.machine import Machine
from ftrun.hooks.room import Room, judged, room_of

__all__ = ["CHECK", "judge"]

NAME = "disk-size cache"


def probe(machine: Machine, thresholds: Mapping[str, Any]) -> Room | None:
    """The file system of the cache folder."""
    return room_of(machine, thresholds["folder"]) if thresholds["folder"] else None


def judge(room: Room | None, thresholds: Mapping[str, Any]) -> Sequence[Finding]:
    """Its size and what is left of it."""
    folder = thresholds["folder"]
    if not folder:
        return [Finding(NAME, SKIPPED, "no cache folder is named (`folder`)")]
    return judged(NAME, folder, room, thresholds)


CHECK = Check(
    name=NAME,
    title="The cache folder is large enough and has room",
    tier="fast",
    fault="storage",
    needs=(),
    limit_s=6.0,
    thresholds={"folder": "", "size_gb": 32, "free_percent": 5},
    probe=probe,
    judge=judge,
)
