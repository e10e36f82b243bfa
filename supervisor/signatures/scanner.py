r"""Bytes of a log in, hits of signatures out. (I/O)

A stream is cut into segments, which end at a newline, at a carriage return (progress bars) or after 64 KiB,
whichever comes first. Whole segments form blocks. A block is cleaned of terminal codes and NUL if it has any,
and goes through the prefilter in one pass for all signatures. `re` confirms each report on its own segment,
which also gives the captures. So neither the chunks in which bytes arrive nor the engine can change the hits.

Each segment has one winner: of all signatures that match it, the one with the highest priority. So a general
rule ("a Python exception") never competes with one that knows the line ("the echo of a peer that died"). A
signature that looks up codes counts as the worst code that it finds, with the priority of that code's level,
or as itself where the table has none of them (`codes`).

The time of a pattern is bounded by the length of a line, whatever a user writes into it. `re` tries a pattern
at each place of a line, and an open repetition (`[\w.]*`) may run to the line's end from each: a line of 64
KiB made for that would cost many seconds. Signatures repeat names, numbers and paths, so a repetition of one
kind of character ends after REPEATED_MAX (`bounded`).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple

from ftrun.slurm.records import dataclass
from ftrun.supervisor.signatures.catalog import Catalog
from ftrun.supervisor.signatures.codes import CodeTable
from ftrun.supervisor.signatures.prefilter import CATALOGS, prefilter_for

SEGMENT_BYTES = 1 << 16
"""A segment is cut here, so a line of any length costs bounded memory."""

BLOCK_BYTES = 1 << 18
"""How much is filtered at a time: large enough that Python's cost per block hardly counts, small enough for
the processor's cache.
"""

TEXT_CHARS = 2000
"""A hit quotes no more than this; of a longer segment, the part around the match."""

CAPTURE_CHARS = 1024
"""No name, number or path is longer. Python itself refuses numbers of some thousand digits."""

# Control sequences (colours, cursor), titles, and other two-byte escapes. None can hold a separator.
_TERMINAL = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\r\n]*(?:\x07|\x1b\\)?|[ -/]*[0-Z\\^-~])?")
_SEPARATOR = re.compile(rb"[\r\n]")
_NO_CAPTURES: Mapping[str, str] = MappingProxyType({})


class Hit(NamedTuple):
    """One signature on one line. `line` counts newlines from 1; `offset_bytes` is where its segment begins in
    the stream.
    """

    signature: str
    line: int
    offset_bytes: int
    text: str
    captures: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Position:
    """How much was fed: complete lines, and bytes."""

    lines: int
    size_bytes: int


class Scanner:
    """Scans one stream for all signatures of a catalog. Any chunking gives the same hits.

    `engine`: "hyperscan" (raises ImportError where it is not installed), "re", or "auto", the first that is
    installed and, from its first use by this user on, compiled. All scanners of a catalog share what is compiled, so one more costs a few hundred bytes. Not
    thread-safe.
    """

    def __init__(self, catalog: Catalog, *, engine: str = "auto") -> None:
        self._compiled = compile_catalog(*catalog.columns)
        self._sieve = prefilter_for(self._compiled.expressions, engine)
        self._tail = b""
        self._line = 1
        self._offset = 0  # of the first byte of the tail

    @property
    def position(self) -> Position:
        """The complete lines and the bytes fed so far."""
        return Position(self._line - 1, self._offset + len(self._tail))

    def feed(self, chunk: bytes) -> list[Hit]:
        """The hits in the segments that `chunk` completes."""
        hits: list[Hit] = []
        at = 0
        if self._tail:  # join it with at most a block of the chunk: the rest is not copied
            joined = self._tail + chunk[:BLOCK_BYTES]
            end = _block_end(joined, 0)
            if not end:
                self._tail = joined
                return hits
            hits += self._block(joined[:end])
            at = end - len(self._tail)  # a tail has no separator and is no longer than a segment
        while (end := _block_end(chunk, at)) > at:
            hits += self._block(chunk[at:end])
            at = end
        self._tail = chunk[at:]
        return hits

    def flush(self) -> list[Hit]:
        """The hits in the last segment, which has no newline. What is fed later begins a new segment."""
        rest, self._tail = self._tail, b""
        return self._block(rest) if rest else []

    def _block(self, raw: bytes) -> list[Hit]:
        """The hits of a block of whole segments, in order."""
        shrunk = b"\x1b" in raw or b"\0" in raw
        block = _cleaned(raw) if shrunk else raw.replace(b"\r", b"\n")
        found = self._found(block)
        hits = self._confirmed(raw, block, found, shrunk=shrunk) if found else []
        self._line += _newlines(raw)
        self._offset += len(raw)
        return hits

    def _found(self, block: bytes) -> dict[int, tuple[int, set[int]]]:
        """The segments that the prefilter reports: start -> end, and the signatures that may match."""
        found: dict[int, tuple[int, set[int]]] = {}
        start = end = -1
        those: set[int] = set()
        for index, at in self._sieve.sift(block):
            if not start <= at <= end:  # seldom: the prefilter goes from segment to segment
                start = block.rfind(b"\n", 0, at) + 1
                known = found.get(start)
                if known is None:
                    end = block.find(b"\n", at)
                    end = len(block) if end < 0 else end
                    known = found[start] = end, set()
                end, those = known
            those.add(index)
        return found

    def _confirmed(
        self, raw: bytes, block: bytes, found: Mapping[int, tuple[int, set[int]]], *, shrunk: bool
    ) -> list[Hit]:
        """The hits of the segments in `found`, placed in `raw`: one winner for each segment that `re`
        confirms.
        """
        starts = [0, *(mark.end() for mark in _SEPARATOR.finditer(raw))] if shrunk else None
        known, offset = self._compiled, self._offset
        hits: list[Hit] = []
        # Counting goes on from the last segment: one pass over the block, however many hits it has.
        line, ordinal, done, raw_done = self._line, 0, 0, 0
        for start in sorted(found):
            end, those = found[start]
            raw_start = start
            if starts is not None:
                ordinal += block.count(b"\n", done, start)
                raw_start, done = starts[ordinal], start
            line += raw.count(b"\n", raw_done, raw_start)
            raw_done = raw_start
            segment = block[start:end]
            winner = winning_signature(known, segment, those)
            if winner is not None:
                hits.append(_hit(winner, line, offset + raw_start, segment))
        return hits


def clean(line: bytes) -> str:
    """`line` as a person would see it: the last text of a progress bar, no terminal codes, no NUL."""
    parts = [part for part in _cleaned(line).split(b"\n") if part.strip()]
    return _decoded(parts[-1]) if parts else ""


def _block_end(data: bytes, at: int) -> int:
    """Where the block that begins at `at` ends: whole segments, `at` where none is whole yet.

    The segment after an overlong one begins a block, so that no pattern sees both as one line.
    """
    end = at
    while end - at < BLOCK_BYTES:
        window = end + SEGMENT_BYTES + 1
        newline = data.rfind(b"\n", end, window)
        mark = max(newline, data.rfind(b"\r", max(newline, end), window))
        if mark < 0:
            overlong = end == at and len(data) >= window
            return window - 1 if overlong else end
        end = mark + 1
    return end


def _newlines(raw: bytes) -> int:
    """Count newlines. Where they are rare, searching for each is twice as fast as checking every byte."""
    rare = raw.count(b"\n", 0, 2048) < 32
    return len(raw) - len(raw.replace(b"\n", b"")) if rare else raw.count(b"\n")


def _cleaned(raw: bytes) -> bytes:
    """Drop terminal codes and NUL; make every separator a newline: as many segments as before, in order."""
    return _TERMINAL.sub(b"", raw.replace(b"\0", b"")).replace(b"\r", b"\n")


def _decoded(text: bytes) -> str:
    return text.decode("utf-8", "replace")


def _hit(winner: Winner, line: int, offset_bytes: int, segment: bytes) -> Hit:
    match = winner.match
    if len(segment) > TEXT_CHARS:
        first = max(0, min(match.start() - TEXT_CHARS // 4, len(segment) - TEXT_CHARS))
        segment = segment[first : first + TEXT_CHARS]
    captures = {name: _decoded(value[:CAPTURE_CHARS]) for name, value in match.groupdict().items() if value}
    if winner.code:
        captures["code"] = winner.code
    return Hit(winner.signature, line, offset_bytes, _decoded(segment), captures or _NO_CAPTURES)


REPEATED_MAX = 256
"""The most repetitions of one kind of character."""

_TOKEN = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|.", re.DOTALL)
_KINDS = frozenset({r"\w", r"\W", r"\d", r"\D", r"\s", r"\S", "."})


def bounded(pattern: str) -> str:
    """`pattern` with a bound on each repetition of one kind of character."""
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


class Patterns(dict[int, re.Pattern[bytes]]):
    """The `re` expressions by index, each compiled when first wanted: most never are."""

    def __init__(self, expressions: tuple[str, ...]) -> None:
        super().__init__()
        self._expressions = expressions

    def __missing__(self, index: int) -> re.Pattern[bytes]:
        made = self[index] = re.compile(bounded(self._expressions[index]).encode())
        return made


@dataclass(frozen=True, slots=True)
class CompiledCatalog:
    """What all scanners of a catalog share, by the signature's index. `rank` 0 has the highest bound.

    The bound is the highest priority of a signature, or of any code that it may find.
    """

    ids: tuple[str, ...]
    expressions: tuple[str, ...]
    patterns: Patterns
    priorities: tuple[int, ...]
    tables: tuple[CodeTable | None, ...]
    bounds: tuple[int, ...]
    rank: tuple[int, ...]


class Winner(NamedTuple):
    """The signature that counts for a segment. `code` is from a table, "" if the signature itself counts."""

    signature: str
    priority: int
    match: re.Match[bytes]
    code: str = ""


def winning_signature(known: CompiledCatalog, segment: bytes, indices: Collection[int]) -> Winner | None:
    """Of the signatures that `re` confirms, the one with the highest priority; None if it confirms none."""
    best: Winner | None = None
    ranked = sorted(indices, key=known.rank.__getitem__) if len(indices) > 1 else indices
    for index in ranked:
        if best is not None and known.bounds[index] <= best.priority:
            break
        pattern = known.patterns[index]
        match = pattern.search(segment)
        if match is None:
            continue
        one = Winner(known.ids[index], known.priorities[index], match)
        table = known.tables[index]
        if table is not None:
            one = _worst_code(table, pattern.finditer(segment)) or one
        if best is None or one.priority > best.priority:
            best = one
    return best


def _worst_code(table: CodeTable, matches: Iterable[re.Match[bytes]]) -> Winner | None:
    """The worst code of a segment that the table has; the first of equals."""
    best: Winner | None = None
    for match in matches:
        found = table.worst((match["code"] or b"").decode("utf-8", "replace"))
        if found is not None and (best is None or found[1].level.priority > best.priority):
            best = Winner(found[0], found[1].level.priority, match, found[1].code)
    return best


@lru_cache(CATALOGS)
def compile_catalog(
    ids: tuple[str, ...],
    expressions: tuple[str, ...],
    priorities: tuple[int, ...],
    tables: tuple[CodeTable | None, ...],
) -> CompiledCatalog:
    """What all scanners of a catalog share. The four tuples have one index."""
    bounds = tuple(
        max(priority, *(level.priority for level in table.levels)) if table else priority
        for priority, table in zip(priorities, tables, strict=True)
    )
    order = sorted(range(len(ids)), key=lambda index: -bounds[index])
    rank = [0] * len(ids)
    for place, index in enumerate(order):
        rank[index] = place
    return CompiledCatalog(ids, expressions, Patterns(expressions), priorities, tables, bounds, tuple(rank))
