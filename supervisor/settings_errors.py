"""What a setting that cannot be meant is told by, and the word that was meant instead. (pure)"""

from __future__ import annotations

__all__ = ["SettingError", "nearest"]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable


class SettingError(Exception):
    """A name or value that cannot be meant. The message is one line and names what would be right."""


def nearest(word: str, known: Iterable[str]) -> str:
    """The known word that takes the fewest changes to get to; "" where none is near."""
    best, least = "", max(2, len(word) // 3) + 1
    for candidate in known:
        changes = _distance(word, candidate, least)
        if candidate.startswith(word) and word:
            changes = min(changes, 1)
        if changes < least:
            best, least = candidate, changes
    return best


def _distance(a: str, b: str, limit: int) -> int:
    if abs(len(a) - len(b)) >= limit:
        return limit
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        previous, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            previous, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, previous + (x != y))
    return row[-1]
