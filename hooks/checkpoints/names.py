"""What the name of a checkpoint says: its step, and whether a writer had not finished it. (pure)

This is the rule of hooks/batch.sh, which works without Python; tests/unit/test_batch_sh.py holds both against each other.
"""

from __future__ import annotations

import re
from typing import Optional

__all__ = ["is_temporary", "step_of"]

WORDS = ("step", "iter", "epoch")
BEHIND_WORD = re.compile(r"[a-z_=.-]*([0-9]+)")
LAST_NUMBER = re.compile(r"([0-9]+)(?![\s\S]*[0-9])")
TEMPORARY = re.compile(
    r"(\.tmp|\.temp|\.partial|\.incomplete|[-_]tmp|~|\.ftrun-manifest\.json|\.ftrun-complete)$|-tmp-|^tmp[-_]|^\.tmp"
)
DIGITS_MAX = 18  # what a shell can compare


def step_of(path: str) -> Optional[int]:
    """The number behind step, iter or epoch in the base name, else the last number of the name without its extension; None for none."""
    name = path.rstrip("/").rpartition("/")[2]
    for word in WORDS:
        _, found, rest = name.lower().rpartition(word)
        number = BEHIND_WORD.match(rest) if found else None
        if number:
            return _number(number[1])
    stem, dot, extension = name.rpartition(".")
    if dot and extension[:1].isascii() and extension[:1].isalpha() and re.search(r"[0-9]", stem):
        name = stem
    last = LAST_NUMBER.search(name)
    return _number(last[1]) if last else None


def is_temporary(path: str) -> bool:
    """Whether the base name is one that writers give to what they have not finished."""
    return TEMPORARY.search(path.rstrip("/").rpartition("/")[2]) is not None


def _number(digits: str) -> int:
    return int(digits.lstrip("0")[-DIGITS_MAX:] or "0")
