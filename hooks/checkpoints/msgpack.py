"""A MessagePack file: one map whose lengths lead to the file's last byte; nothing of it is made into objects. (I/O)

Source: the MessagePack specification (formats by their first byte).
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from ftrun.hooks.checkpoints.look import Late, part
from ftrun.hooks.checkpoints.model import TORN, UNFLUSHED, Damaged

if TYPE_CHECKING:
    from ftrun.hooks.checkpoints.look import Fact

__all__ = ["begins", "check"]

WINDOW_BYTES = 1 << 16
VALUES_MAX = 2_000_000  # some seconds of walking
# By the first byte: how many bytes of a length follow it, and how many bytes stand behind that length (a type) or in its place.
SIZED = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4}
EXTENDED = {0xC7: 1, 0xC8: 2, 0xC9: 4}
FIXED = {
    0xC0: 0, 0xC2: 0, 0xC3: 0, 0xCA: 4, 0xCB: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8,
    0xD4: 2, 0xD5: 3, 0xD6: 5, 0xD7: 9, 0xD8: 17,
}  # fmt: skip
ARRAYS = {0xDC: 2, 0xDD: 4}
MAPS = {0xDE: 2, 0xDF: 4}


class _Cursor:
    """Bytes of a file from wherever they are asked for, read a window at a time."""

    __slots__ = ("_at", "_path", "_window")

    def __init__(self, path: str) -> None:
        self._path, self._at, self._window = path, 0, b""

    def number(self, at: int, size_bytes: int) -> int:
        """An unsigned number, the highest byte first. Raises EOFError where the file ends in it."""
        if not self._at <= at <= self._at + len(self._window) - size_bytes:
            self._at, self._window = at, part(self._path, at, WINDOW_BYTES)
            if len(self._window) < size_bytes:
                raise EOFError
        begin = at - self._at
        return int.from_bytes(self._window[begin : begin + size_bytes], "big")


def begins(head: bytes) -> bool:
    """Whether these are the first bytes of a map that has something in it, and whose first key is a text."""
    if not head:
        return False
    first = head[0]
    behind = 1 if 0x81 <= first <= 0x8F else 1 + MAPS[first] if first in MAPS else 0
    if not behind or len(head) <= behind:
        return False
    return 0xA0 <= head[behind] <= 0xBF or head[behind] in (0xD9, 0xDA, 0xDB)


def check(path: str, fact: Fact, level: str, before_s: float) -> str:  # noqa: ARG001 - as every kind is asked
    """Walk it. Raises Damaged, whose words follow the file's name; OSError; Late past `before_s`."""
    if not part(path, 0, WINDOW_BYTES).strip(b"\0"):
        raise Damaged(UNFLUSHED, "begins with zeros where its map must be")
    cursor, at, left, walked = _Cursor(path), 0, 1, 0
    try:
        while left:
            at, more = _value(cursor, at)
            left += more - 1
            walked += 1
            if walked > VALUES_MAX:
                return ""
            if not walked & 0xFFF and time.monotonic() > before_s:
                raise Late
    except EOFError:
        at = fact.size_bytes + 1
    except KeyError:
        raise Damaged(TORN, f"has no value at byte {at}") from None
    if at > fact.size_bytes:
        raise Damaged(TORN, f"is cut: its {fact.size_bytes} bytes end inside a value")
    if at < fact.size_bytes:
        raise Damaged(TORN, f"has {fact.size_bytes} bytes, and its map ends at {at}")
    return "MessagePack values"


def _value(cursor: _Cursor, at: int) -> tuple[int, int]:
    """Where a value's own bytes end, and how many values are inside it. Raises EOFError, KeyError for a byte that begins none."""
    first = cursor.number(at, 1)
    at += 1
    if first <= 0x7F or first >= 0xE0:
        return at, 0
    if first <= 0x8F:
        return at, 2 * (first & 0x0F)
    if first <= 0x9F:
        return at, first & 0x0F
    if first <= 0xBF:
        return at + (first & 0x1F), 0
    if first in FIXED:
        return at + FIXED[first], 0
    if first in SIZED:
        return at + SIZED[first] + cursor.number(at, SIZED[first]), 0
    if first in EXTENDED:
        return at + EXTENDED[first] + 1 + cursor.number(at, EXTENDED[first]), 0
    if first in ARRAYS:
        return at + ARRAYS[first], cursor.number(at, ARRAYS[first])
    return at + MAPS[first], 2 * cursor.number(at, MAPS[first])
