"""Whether a folder of plain files lacks what the checkpoints beside it have. (I/O)

How it thinks. Of a folder that no layout knows nothing is known but that its run has written others like it. What its two nearest neighbours by step have, it must have,
too: a part that is missing, empty or cut tells that it is torn. Two, since one alone may be the odd one: a run that went on with fewer ranks has
smaller sets from then on, and the second of them is whole. With one neighbour that one must do, if it is the older.

To call a good one torn costs the steps since the one before, so only what is surely a part counts: one of several with the same name but for a number, or one with a hundredth of
the bytes of its folder. Sizes may differ from save to save; a part is cut where it has less than `CUT` of the smallest one beside it, or less at all where those beside it are
of one size, as tensors are and text is not.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

from ftrun.hooks.checkpoints import look, manifest
from ftrun.hooks.checkpoints.judge import NOTES, YOUNG_S
from ftrun.hooks.checkpoints.look import Late
from ftrun.hooks.checkpoints.model import COMPLETE, TORN, WRITING, Damaged, Found, Judged

__all__ = ["compared"]

NEAREST = 2
CUT = 0.9
FIXED_MIN_BYTES = 4096  # smaller files of one size may be so by chance
SHARE = 0.01
FILES_MAX = 10_000
DIGITS = re.compile(r"\d+")

Sizes = Mapping[str, int]


def compared(one: Judged, others: Sequence[Found], *, before_s: float, now_s: float) -> Judged:
    """The same, or torn by comparison with `others`, those that were found with it. Never raises for what a file system does."""
    if one.state != COMPLETE or not _is_plain(one.found):
        return one
    folder = os.path.dirname(one.found.path)
    beside = [
        other
        for other in others
        if other.path != one.found.path and _is_plain(other) and os.path.dirname(other.path) == folder
    ]
    try:
        if manifest.read(one.found.path) is not None:  # it is judged by that list
            return one
        why = _why(one.found, _nearest(one.found, beside), before_s)
    except (OSError, Late, Damaged):
        return one
    if not why:
        return one
    return one._replace(state=WRITING if abs(now_s - one.written_s) < YOUNG_S else TORN, why=why)


def _is_plain(found: Found) -> bool:
    return found.layout == "any" and found.step is not None and os.path.isdir(found.path)


def _nearest(one: Found, beside: Sequence[Found]) -> list[Found]:
    """The neighbours: the older ones first, for what is newer may be torn itself, or of a later size; so a newer one alone tells nothing."""
    own = one.step or 0
    older = sorted(
        (other for other in beside if (other.step or 0) < own), key=lambda other: -(other.step or 0)
    )
    newer = sorted((other for other in beside if (other.step or 0) > own), key=lambda other: other.step or 0)
    found = [*older, *newer][:NEAREST]
    return [] if found == newer[:1] else found


def _why(one: Found, beside: Sequence[Found], before_s: float) -> str:
    """What speaks against it; "" = nothing. Raises OSError, Late."""
    mine = _sizes(one.path, before_s)
    known = [(other, sizes) for other in beside if (sizes := _sizes(other.path, before_s))]
    if not known or max(map(len, (mine, *(sizes for _, sizes in known)))) > FILES_MAX:
        return ""
    first, sizes = known[0]
    called = [_called(sizes, first, theirs, other) for other, theirs in (*known, (one, mine))]
    told = []
    for name in sorted(_parts(sizes)):
        has = [theirs.get(names[name], 0) for names, (_, theirs) in zip(called, known)]
        if not all(has):
            continue
        here = called[-1][name]
        size_bytes, there = mine.get(here), f"{has[0]} bytes in {os.path.basename(first.path)}"
        if size_bytes is None:
            told.append(f"{here} is missing, which has {there}")
        elif not size_bytes:
            told.append(f"{here} is empty, which has {there}")
        elif _is_cut(size_bytes, has):
            told.append(f"{here} has {size_bytes} bytes, and {there}")
    return " and ".join(told[:1] + ([f"{len(told) - 1} more of its parts are not whole"] if told[1:] else []))


def _is_cut(size_bytes: int, beside: Sequence[int]) -> bool:
    least = min(beside)
    fixed = len(beside) > 1 and len(set(beside)) == 1 and least >= FIXED_MIN_BYTES
    return size_bytes < least * (1.0 if fixed else CUT)


def _parts(sizes: Sizes) -> list[str]:
    """The files that are surely parts of it, and no notes about it."""
    families: dict[str, int] = {}
    for name in sizes:
        families[DIGITS.sub("#", name)] = families.get(DIGITS.sub("#", name), 0) + 1
    least = SHARE * sum(sizes.values())
    return [
        name
        for name, size_bytes in sizes.items()
        if size_bytes and (families[DIGITS.sub("#", name)] > 1 or size_bytes >= least)
    ]


def _called(sizes: Sizes, of: Found, theirs: Sizes, there: Found) -> Mapping[str, str]:
    """How each part of one folder is called in another: alike, or with the other's step where the one's stands, whichever fits most of them."""

    def moved(name: str, count: int) -> str:
        here = re.compile(rf"(?<![0-9])0*{of.step}(?![0-9])")
        return here.sub(lambda digits: str(there.step).zfill(len(digits[0])), name, count=count)

    ways = (
        {name: name for name in sizes},
        *({name: moved(name, count) for name in sizes} for count in (1, 0)),
    )
    return max(ways, key=lambda way: len(set(way.values()) & set(theirs)))


def _sizes(path: str, before_s: float) -> Sizes:
    tree = look.tree(path, before_s)
    return {
        name: fact.size_bytes
        for name, fact in tree.files.items()
        if not NOTES.search(name) and not manifest.is_ours(name)
    }
