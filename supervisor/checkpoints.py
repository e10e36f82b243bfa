"""The newest complete checkpoint, by the rule that batch.sh applies on the node. (I/O)

Both sides use one rule (tests/unit/test_batch_sh.py holds them against each other): paths that match the glob, neither
empty nor temporary by name, with the marker where one is asked for, not set aside. The highest step wins: the number behind
step, iter or epoch in the base name, else the last number of the name without its extension; then the youngest, then the
last by name.
"""

from __future__ import annotations

import glob as globbing
import os
import re
from collections.abc import Iterable

__all__ = ["newer", "newest", "stamp", "step_of", "still_aside", "written_s"]

_WORDS = ("step", "iter", "epoch")
_BEHIND_WORD = re.compile(r"[a-z_=.-]*([0-9]+)")
_LAST_NUMBER = re.compile(r"([0-9]+)(?![\s\S]*[0-9])")
_TEMPORARY = re.compile(r"(\.tmp|\.temp|\.partial|\.incomplete|[-_]tmp|~)$|-tmp-|^tmp[-_]|^\.tmp")
_DIGITS_MAX = 18  # what a shell can compare


def newest(pattern: str, *, marker: str = "", set_aside: tuple[str, ...] = (), cwd: str = "/") -> str:
    """The path of the newest complete checkpoint; "" where there is none (or no pattern)."""
    if not pattern:
        return ""
    paths = globbing.glob(os.path.join(cwd, os.path.expanduser(pattern)))
    aside = {os.path.join(cwd, path) for path in set_aside}
    usable = [path.rstrip("/") for path in paths]
    usable = [
        p
        for p in usable
        if p not in aside and not _TEMPORARY.search(os.path.basename(p)) and _complete(p, marker)
    ]
    return max(usable, key=_rank, default="")


def newer(path: str, than: str, since_s: float) -> bool:
    """A checkpoint is newer than another by the same rule; one that is always written under the same name, when it was
    written after `since_s` (Unix seconds, by the file system's clock). The other one need not exist any more."""
    if not path or path != than:
        return bool(path) and (not than or _rank(path) > _rank(than))
    try:
        return os.path.getmtime(path) > since_s
    except OSError:
        return False


def stamp(path: str) -> str:
    """What tells one writing of a checkpoint from the next; "" where it is gone."""
    try:
        entries = [path, *(entry.path for entry in os.scandir(path))] if os.path.isdir(path) else [path]
        facts = [os.stat(entry) for entry in entries]
    except OSError:
        return ""
    return f"{max(fact.st_mtime_ns for fact in facts)}.{sum(fact.st_size for fact in facts)}.{len(facts)}"


def still_aside(set_aside: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """Of (path, its stamp when it was set aside) those paths that nobody wrote anew since."""
    return tuple(path for path, then in set_aside if not then or stamp(path) == then)


def written_s(path: str) -> float | None:
    """When it was written last (Unix seconds, by the file system's clock); None where there is none."""
    try:
        return os.stat(path).st_mtime
    except OSError:
        return None


def step_of(path: str) -> int | None:
    """The step in a checkpoint's name; None where the name has no number."""
    name = os.path.basename(path)
    for word in _WORDS:
        _, found, rest = name.lower().rpartition(word)
        number = _BEHIND_WORD.match(rest) if found else None
        if number:
            return int(number[1].lstrip("0")[-_DIGITS_MAX:] or "0")
    stem, dot, extension = name.rpartition(".")
    if dot and extension[:1].isascii() and extension[:1].isalpha() and re.search(r"[0-9]", stem):
        name = stem
    last = _LAST_NUMBER.search(name)
    return int(last[1].lstrip("0")[-_DIGITS_MAX:] or "0") if last else None


def _rank(path: str) -> tuple[int, int, str]:
    step = step_of(path)
    try:
        age = os.stat(path).st_mtime_ns
    except OSError:
        age = 0
    return (-1 if step is None else step, age, path)


def _complete(path: str, marker: str) -> bool:
    try:
        if os.path.isdir(path):
            if marker:
                return os.path.exists(os.path.join(path, marker)) or os.path.exists(path + marker)
            return bool(os.listdir(path))
        if marker and (path.endswith(marker) or not os.path.exists(path + marker)):
            return False
        return os.path.getsize(path) > 0
    except OSError:
        return False
