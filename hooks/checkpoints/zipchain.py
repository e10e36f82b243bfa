"""Zips behind each other in one file, as torch.distributed.checkpoint writes one for each tensor of a shard. (I/O)

How it thinks. A zip tells from its end where it began, so a file of them is read from its end to its beginning without the list of what
is in it. What is no zip is not known and ends the reading: the list has the sizes, and a plugin may write what it likes.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from ftrun.hooks.checkpoints import zips
from ftrun.hooks.checkpoints.look import Late, begins_in_hole
from ftrun.hooks.checkpoints.model import DEEP, TORN, UNFLUSHED, Damaged

if TYPE_CHECKING:
    from ftrun.hooks.checkpoints.look import Fact

__all__ = ["check"]

PAGE_BYTES = 4096
TENSORS = b'{"__metadata__":{'
SEARCHED_BYTES = 16 << 20


def check(path: str, fact: Fact, level: str, before_s: float) -> str:
    """Prove the last zip, deep all of them; "" for a file that begins as something else. Raises Damaged, OSError, Late."""
    with zips.Source(path, fact.size_bytes) as source:
        head = source.read(0, min(PAGE_BYTES, fact.size_bytes))
        if zips.LOCAL_MARK.startswith(head):
            raise Damaged(TORN, f"is cut: {len(head)} bytes")
        if head[:4] != zips.LOCAL_MARK:
            _begins_otherwise(source, head, begins_in_hole(path))
            return ""
        end = fact.size_bytes
        said = ""
        while end > 0:
            if time.monotonic() > before_s:
                raise Late
            try:
                found = zips.directory(source, end)
            except Damaged:
                if TENSORS in source.read(0, SEARCHED_BYTES):
                    return ""
                raise
            said = zips.check_part(source, found, level, before_s)
            if level != DEEP:
                return said
            end = found.begin
        return said


def _begins_otherwise(source: zips.Source, head: bytes, is_hole: bool) -> None:
    """Raise Damaged where zeros stand in front of what are zips at the end: nothing that is written begins so."""
    if head.strip(b"\0"):
        return
    try:
        zips.directory(source, source.size_bytes)
    except Damaged as damaged:
        if not is_hole and damaged.state != UNFLUSHED:
            return
    raise Damaged(UNFLUSHED, "begins with zeros where its first tensor must be")
