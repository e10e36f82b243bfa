r"""Who speaks for a segment: of the signatures that match it, the one with the highest priority. (pure)

How it thinks: a general rule never argues with one that knows the line.  A signature that looks up codes speaks as the worst code
that it finds, with the priority of that code's level, or for itself where the table has none of them.

Patterns whose time is bounded by the length of a line, whatever a user writes into it.
How it thinks. `re` tries a pattern at each place of a line, and a repetition without an end (`[\w.]*`) may run to the end of the line from each
of them: a line of 64 KiB made for it would cost many seconds. What a signature repeats is a name, a number or a path, so a repetition of
one kind of character ends after REPEATED_MAX.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from functools import lru_cache
from typing import NamedTuple

from ftrun.slurm.records import dataclass
from ftrun.supervisor.signatures.codes import CodeTable

__all__ = ["CATALOGS", "REPEATED_MAX", "Compiled", "Voice", "bounded", "compiled", "speaker"]


REPEATED_MAX = 256

_TOKEN = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|.", re.DOTALL)
_KINDS = frozenset({r"\w", r"\W", r"\d", r"\D", r"\s", r"\S", "."})


def bounded(pattern: str) -> str:
    """`pattern` with an end to each repetition of a kind of character."""
    out: list[str] = []
    kind = False
    for token in _TOKEN.findall(pattern):
        if kind and token in {"*", "+"}:
            out.append(f"{{{int(token == '+')},{REPEATED_MAX}}}")
            kind = False
            continue
        out.append(token)
        kind = token in _KINDS or (len(token) > 1 and token[0] == "[")
    return "".join(out)


CATALOGS = 4
"""So many compiled catalogs are kept in memory: ours, and ours with a site's."""


class Patterns(dict[int, re.Pattern[bytes]]):
    """The expressions for `re` by their index, each compiled when it is first wanted: most never are."""

    def __init__(self, expressions: tuple[str, ...]) -> None:
        super().__init__()
        self._expressions = expressions

    def __missing__(self, index: int) -> re.Pattern[bytes]:
        made = self[index] = re.compile(bounded(self._expressions[index]).encode())
        return made


@dataclass(frozen=True, slots=True)
class Compiled:
    """What all scanners of a catalog share, by the index of the signature; `rank` 0 has the highest bound.

    The bound is the highest priority with which a signature, or a code that it finds, can speak.
    """

    ids: tuple[str, ...]
    expressions: tuple[str, ...]
    patterns: Patterns
    priorities: tuple[int, ...]
    tables: tuple[CodeTable | None, ...]
    bounds: tuple[int, ...]
    rank: tuple[int, ...]


class Voice(NamedTuple):
    """Who speaks for a segment; `code` is the one of a table, "" where the signature speaks for itself."""

    signature: str
    priority: int
    match: re.Match[bytes]
    code: str = ""


def speaker(known: Compiled, segment: bytes, indices: Collection[int]) -> Voice | None:
    """Of the signatures that `re` confirms, the one with the highest priority; None where it confirms none."""
    best: Voice | None = None
    ranked = sorted(indices, key=known.rank.__getitem__) if len(indices) > 1 else indices
    for index in ranked:
        if best is not None and known.bounds[index] <= best.priority:
            break
        pattern = known.patterns[index]
        match = pattern.search(segment)
        if match is None:
            continue
        one = Voice(known.ids[index], known.priorities[index], match)
        table = known.tables[index]
        if table is not None:
            one = _worst(table, pattern.finditer(segment)) or one
        if best is None or one.priority > best.priority:
            best = one
    return best


def _worst(table: CodeTable, matches: Iterable[re.Match[bytes]]) -> Voice | None:
    """The worst code of a segment that the table has, the first of equals."""
    best: Voice | None = None
    for match in matches:
        found = table.worst((match["code"] or b"").decode("utf-8", "replace"))
        if found is not None and (best is None or found[1].level.priority > best.priority):
            best = Voice(found[0], found[1].level.priority, match, found[1].code)
    return best


@lru_cache(CATALOGS)
def compiled(
    ids: tuple[str, ...],
    expressions: tuple[str, ...],
    priorities: tuple[int, ...],
    tables: tuple[CodeTable | None, ...],
) -> Compiled:
    """Return what all scanners of a catalog share; the four belong together by index."""
    bounds = tuple(
        max(priority, *(level.priority for level in table.levels)) if table else priority
        for priority, table in zip(priorities, tables, strict=True)
    )
    order = sorted(range(len(ids)), key=lambda index: -bounds[index])
    rank = [0] * len(ids)
    for place, index in enumerate(order):
        rank[index] = place
    return Compiled(ids, expressions, Patterns(expressions), priorities, tables, bounds, tuple(rank))
