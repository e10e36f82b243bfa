"""Amounts of bytes (8G, 500M, 40%), times for people, texts of others, Slurm's node lists (`n[01-03,7],gpu5`). (pure)

A unit is a power of 1024, however it is spelled (G, GB, GiB). The caller says what a percentage refers to,
such as the memory of a node.

In node lists widths are kept (n01 is not n1), several brackets in one name multiply, and text that is no list
is refused, not guessed.
"""

from __future__ import annotations

import re

HOUR_S, DAY_S = 3600.0, 86_400.0

_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5}


def parse_amount(text: str, whole_bytes: int) -> int:
    """The bytes that `text` means; a percentage refers to `whole_bytes`. Raises ValueError."""
    words = text.strip()
    if not words.endswith("%"):
        return parse_bytes(words)
    share = float(words[:-1])
    if not 0 <= share <= 100:
        raise ValueError(f"{text!r} is no percentage of a whole")
    return int(whole_bytes * share / 100)


def parse_bytes(text: str) -> int:
    """The bytes that `text` means, such as 8G, 1.5 GiB or 1048576. Raises ValueError."""
    words = text.strip().upper()
    digits = words.rstrip("BIKMGTP ")
    unit = words[len(digits) :].strip()
    unit = unit[:-1] if unit.endswith("B") else unit
    unit = unit[:-1] if unit.endswith("I") else unit
    if unit not in _POWERS:
        raise ValueError(f"{text!r} has no unit that is known")
    size = float(digits) * 1024.0 ** _POWERS[unit]
    if not 0 <= size < 2.0**60:  # also refuses NaN
        raise ValueError(f"{text!r} is no size")
    return int(size)


def size_text(size_bytes: int) -> str:
    """A size in a unit of 1024: `12 B`, `3.4 MiB`."""
    size = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def duration_text(seconds: float) -> str:
    """A span of time: `90 s`, `15 min`, `3.5 h`, `4.0 days`."""
    if seconds < 120:
        return f"{max(0.0, seconds):.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 172_800 else f"{seconds / 86_400:.1f} days"


NODES_MAX = 100_000
_WORD = re.compile(r"(?:[^\[\],\s]|\[[^\[\]]*\])+")
_RANGE = re.compile(r"(\d+)(?:-(\d+))?\Z")


_UNSEEN = re.compile(r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def counted(number: int, noun: str) -> str:
    """A number of things: `1 line`, `3 lines`, `2 retries`."""
    many = f"{noun[:-1]}ies" if noun.endswith("try") else f"{noun}s"
    return f"{number} {noun if number == 1 else many}"


def plain(text: object, *, keep: str = "") -> str:
    """A text of somebody else that shows what it holds: control characters and marks that turn the direction of
    writing as their codes, but for those to `keep`.
    """
    return _UNSEEN.sub(lambda found: found[0] if found[0] in keep else f"\\x{ord(found[0]):02x}", str(text))


def expand_node_list(text: str) -> list[str]:
    """The names in a list, in order, without duplicates. Raises ValueError for no list or too long a one."""
    names: dict[str, None] = {}
    at = 0
    words = text.strip()
    while at < len(words):
        found = _WORD.match(words, at)
        if found is None or (found.end() < len(words) and words[found.end()] != ","):
            raise ValueError(f"{text[:80]!r} is no list of nodes")
        names.update(dict.fromkeys(_of_word(found[0])))
        if len(names) > NODES_MAX:
            raise ValueError(f"{text[:80]!r} names too many nodes")
        at = found.end() + 1
    return list(names)


def _of_word(word: str) -> list[str]:
    found = [""]
    for number, piece in enumerate(re.split(r"\[([^\[\]]*)\]", word)):
        ends = _of_ranges(piece) if number % 2 else [piece]
        if len(found) * len(ends) > NODES_MAX:
            raise ValueError(f"{word[:80]!r} names too many nodes")
        found = [head + end for head in found for end in ends]
    return found


def _of_ranges(text: str) -> list[str]:
    ends: list[str] = []
    for one in text.split(","):
        found = _RANGE.match(one.strip())
        if found is None:
            raise ValueError(f"[{text[:80]}] is no range")
        first, last = found[1], found[2] or found[1]
        if not 0 <= int(last) - int(first) < NODES_MAX:
            raise ValueError(f"[{text[:80]}] is no range")
        ends += [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]
    return ends
