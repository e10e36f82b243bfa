"""A JSON file of a checkpoint: it can be parsed to its end. (I/O)"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from ftrun.hooks.checkpoints.look import part
from ftrun.hooks.checkpoints.model import TORN, UNFLUSHED, Damaged

if TYPE_CHECKING:
    from ftrun.hooks.checkpoints.look import Fact

__all__ = ["check"]

READ_BYTES_MAX = (
    4 << 20
)  # an index of a large model is smaller, and a data set kept as JSON is not ours to parse


def check(path: str, fact: Fact, level: str, before_s: float) -> str:  # noqa: ARG001 - as every kind is asked
    """Parse it. Raises Damaged, whose words follow the file's name."""
    if fact.size_bytes > READ_BYTES_MAX:
        return ""
    text = part(path, 0, READ_BYTES_MAX)
    if not text.strip(b"\0"):
        raise Damaged(UNFLUSHED, "is all zeros")
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        state = UNFLUSHED if b"\0" in text else TORN
        raise Damaged(state, "is no whole JSON") from None
    return "JSON parsed"
