"""The newest complete checkpoint, by the rule that batch.sh applies on the node. (I/O)

Both sides use one rule (tested against each other): paths that match the glob, neither empty nor temporary by name, with
the marker where one is asked for, not set aside; the highest step number in the base name wins, then the name.
"""

from __future__ import annotations

import glob as globbing
import os
import re

__all__ = ["newest"]

_LAST_NUMBER = re.compile(r"(\d+)(?!.*\d)")
_TEMPORARY = re.compile(r"(\.tmp|\.partial|-tmp|\.temp|~)$")


def newest(pattern: str, *, marker: str = "", set_aside: tuple[str, ...] = (), cwd: str = "/") -> str:
    """The path of the newest complete checkpoint; "" where there is none (or no pattern)."""
    if not pattern:
        return ""
    paths = globbing.glob(os.path.join(cwd, os.path.expanduser(pattern)))
    usable = [p for p in paths if p not in set_aside and not _TEMPORARY.search(p) and _complete(p, marker)]
    return max(usable, key=_rank, default="")


def _rank(path: str) -> tuple[int, str]:
    number = _LAST_NUMBER.search(os.path.basename(path))
    return (int(number[1]) if number else -1, path)


def _complete(path: str, marker: str) -> bool:
    try:
        if os.path.isdir(path):
            return os.path.exists(os.path.join(path, marker)) if marker else bool(os.listdir(path))
        return os.path.getsize(path) > 0 and (not marker or os.path.exists(path + marker))
    except OSError:
        return False
