"""`flax`: a file `checkpoint_100` without a suffix, as flax.training.checkpoints wrote it before Orbax. (I/O)

The file is one MessagePack map, written under a temporary name (`tmp_`, `tmp`) and renamed. Its lengths lead
from the first byte to the last, so truncation is visible without reading tensors, and no object is made.
Arrays of several processes are beside it in `checkpoint_100_gda` folders of Orbax's kind, which are not
checked here.

Sources: flax/training/checkpoints.py (save_checkpoint, names), flax/serialization.py (its extension types),
files written by flax 0.12; the MessagePack specification (formats by their first byte).
"""

from __future__ import annotations

import re
import time

from ftrun.hooks.checkpoints.listing import Candidate, DeadlinePassed, FileFact, read_part
from ftrun.hooks.checkpoints.model import TORN, UNFLUSHED, Damaged, Expected, Layout, Need

NAME = re.compile(r"(?:checkpoint|ckpt|model|state)[-_][0-9]+(?:\.[0-9]+)?")


def _is_flax(candidate: Candidate) -> bool:
    """A file of such a name that begins as a map, or one of Flax's own name that begins with zeros."""
    if candidate.is_folder or not NAME.fullmatch(candidate.name):
        return False
    return begins_as_map(candidate.head) or (
        candidate.name.startswith("checkpoint_") and not candidate.head.strip(b"\0")
    )


FLAX = Layout(
    name="flax",
    recognise=_is_flax,
    expected=lambda tree: Expected({name: Need("msgpack") for name in tree.files}, "one file"),
    within=("checkpoint_*", "ckpt_*"),
)


WINDOW_BYTES = 1 << 16
VALUES_MAX = 2_000_000  # some seconds of walking
# First byte -> bytes of the length after it, and further bytes that the length does not count (a type).
SIZED = {
    0xC4: (1, 0), 0xC5: (2, 0), 0xC6: (4, 0), 0xD9: (1, 0), 0xDA: (2, 0), 0xDB: (4, 0), 0xC7: (1, 1), 0xC8: (2, 1), 0xC9: (4, 1),
}  # fmt: skip
FIXED = {
    0xC0: 0, 0xC2: 0, 0xC3: 0, 0xCA: 4, 0xCB: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8,
    0xD4: 2, 0xD5: 3, 0xD6: 5, 0xD7: 9, 0xD8: 17,
}  # fmt: skip
MAPS = {0xDE: 2, 0xDF: 4}
COUNTED = {
    0xDC: (2, 1),
    0xDD: (4, 1),
    0xDE: (2, 2),
    0xDF: (4, 2),
}  # arrays and maps: bytes of the count, values for each


class _Cursor:
    """Bytes of a file from wherever they are asked for, read a window at a time."""

    __slots__ = ("_at", "_path", "_window")

    def __init__(self, path: str) -> None:
        self._path, self._at, self._window = path, 0, b""

    def number(self, at: int, size_bytes: int) -> int:
        """An unsigned number, the highest byte first. Raises EOFError where the file ends in it."""
        if not self._at <= at <= self._at + len(self._window) - size_bytes:
            self._at, self._window = at, read_part(self._path, at, WINDOW_BYTES)
            if len(self._window) < size_bytes:
                raise EOFError
        begin = at - self._at
        return int.from_bytes(self._window[begin : begin + size_bytes], "big")


def begins_as_map(head: bytes) -> bool:
    """Whether these are the first bytes of a map that has something in it, and whose first key is a text."""
    if not head:
        return False
    first = head[0]
    behind = 1 if 0x81 <= first <= 0x8F else 1 + MAPS[first] if first in MAPS else 0
    if not behind or len(head) <= behind:
        return False
    return 0xA0 <= head[behind] <= 0xBF or head[behind] in (0xD9, 0xDA, 0xDB)


def check_msgpack(path: str, fact: FileFact, level: str, before_s: float) -> str:  # noqa: ARG001 - as every kind is asked
    """Walk the values. Raises Damaged, OSError, DeadlinePassed past `before_s`."""
    if not read_part(path, 0, WINDOW_BYTES).strip(b"\0"):
        raise Damaged(UNFLUSHED, "begins with zeros where its map must be")
    cursor, at, left, walked = _Cursor(path), 0, 1, 0
    try:
        while left:
            at, more = _skip_value(cursor, at)
            left += more - 1
            walked += 1
            if walked > VALUES_MAX:
                return ""
            if not walked & 0xFFF and time.monotonic() > before_s:
                raise DeadlinePassed
    except EOFError:
        at = fact.size_bytes + 1
    except KeyError:
        raise Damaged(TORN, f"has no value at byte {at}") from None
    if at > fact.size_bytes:
        raise Damaged(TORN, f"is cut: its {fact.size_bytes} bytes end inside a value")
    if at < fact.size_bytes:
        raise Damaged(TORN, f"has {fact.size_bytes} bytes, and its map ends at {at}")
    return "MessagePack values"


def _skip_value(cursor: _Cursor, at: int) -> tuple[int, int]:
    """The end of a value's own bytes, and the number of values inside it. Raises EOFError, KeyError."""
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
        length_bytes, more = SIZED[first]
        return at + length_bytes + more + cursor.number(at, length_bytes), 0
    count_bytes, values = COUNTED[first]
    return at + count_bytes, values * cursor.number(at, count_bytes)
