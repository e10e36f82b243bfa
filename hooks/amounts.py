"""Amounts of bytes as people write them: 8G, 500M, 40%. (pure)

How it thinks. A unit is a power of 1024, whichever way it is spelled (G, GB, GiB). A percentage is one of whatever whoever reads it
reckons with, such as the memory of a node.
"""

from __future__ import annotations

__all__ = ["amount_of", "bytes_of"]

_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5}


def amount_of(text: str, whole_bytes: int) -> int:
    """The bytes that `text` means, a percentage being one of `whole_bytes`. Raises ValueError where it means none."""
    words = text.strip()
    if not words.endswith("%"):
        return bytes_of(words)
    share = float(words[:-1])
    if not 0 <= share <= 100:
        raise ValueError(f"{text!r} is no percentage of a whole")
    return int(whole_bytes * share / 100)


def bytes_of(text: str) -> int:
    """The bytes that `text` means, such as 8G, 1.5 GiB or 1048576. Raises ValueError."""
    words = text.strip().upper()
    digits = words.rstrip("BIKMGTP ")
    unit = words[len(digits) :].strip()
    unit = unit[:-1] if unit.endswith("B") else unit
    unit = unit[:-1] if unit.endswith("I") else unit
    if unit not in _POWERS:
        raise ValueError(f"{text!r} has no unit that is known")
    size = float(digits) * 1024.0 ** _POWERS[unit]
    if not 0 <= size < 2.0**60:  # also what is no number
        raise ValueError(f"{text!r} is no size")
    return int(size)
