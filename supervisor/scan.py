"""Bytes of a log in, hits of signatures out; the compiled catalog is kept in a cache file. (I/O)

How it thinks: a stream is cut into segments, which end at a newline or a carriage return (progress bars) or after
64 KiB, whichever is first.  Whole segments are gathered into blocks; a block is cleaned of terminal codes and NUL only
if it has any, and is scanned in one pass for all signatures.  What the pass finds is confirmed by
`re` on its own segment, which also gives the captures.  So neither the chunks in which bytes arrive nor the engine
can change the hits: hyperscan is a fast sieve in front of the same `re`, and where it is not installed, the literals
that a pattern cannot do without are the sieve.

One voice for each segment: of all signatures that match it, the one with the highest priority speaks.  So a general rule
("a Python exception") never argues with one that knows the line ("the echo of a peer that died").  A code of a table
speaks as its own signature, with the priority of its level (`codes`).
"""

from __future__ import annotations

import hashlib
import os
import re
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Protocol

from ftrun.supervisor import literals, owncache
from ftrun.supervisor.signatures import Catalog
from ftrun.supervisor.voice import CATALOGS, Voice, compiled, speaker

__all__ = ["SEGMENT_BYTES", "TEXT_CHARS", "Hit", "Position", "Scanner", "clean", "refusal"]

SEGMENT_BYTES = 1 << 16
"""A segment is cut here, so a line of any length costs bounded memory."""

TEXT_CHARS = 2000
"""A hit quotes no more than this; of a longer segment, the part around the match."""

# Control sequences (colours, cursor), titles, and other two-byte escapes.  None of them can hold a separator.
_TERMINAL = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\r\n]*(?:\x07|\x1b\\)?|[ -/]*[0-Z\\^-~])?")
_DIRT = (b"\x1b", b"\0", b"\r")
_SEPARATOR = re.compile(rb"[\r\n]")
_NO_CAPTURES: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Hit:
    """One signature on one line: `line` counts newlines from 1, `offset_bytes` is where its segment begins in the stream."""

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


class Sieve(Protocol):
    """Finds where signatures may match: (index of the signature, an offset inside or at the end of that match's segment)."""

    def sift(self, block: bytes) -> Iterable[tuple[int, int]]: ...


class Scanner:
    """Scans one stream for all signatures of a catalog; any chunking gives the same hits.

    `engine`: "hyperscan" (raises ImportError where it is not installed), "re", or "auto", the first that is there.
    What is compiled is shared by all scanners of a catalog, so one more costs a few hundred bytes; not for two threads at once.
    """

    def __init__(self, catalog: Catalog, *, engine: str = "auto") -> None:
        known = catalog.signatures
        self._compiled = compiled(
            tuple(signature.id for signature in known),
            tuple(signature.pattern for signature in known),
            tuple(signature.priority for signature in known),
            tuple(catalog.tables.get(signature.table) for signature in known),
        )
        self._sieve = _sieve(self._compiled.expressions, engine)
        self._tail = b""
        self._line = 1
        self._offset = 0  # of the first byte of the tail

    @property
    def position(self) -> Position:
        """Return complete lines and bytes fed so far."""
        return Position(self._line - 1, self._offset + len(self._tail))

    def feed(self, chunk: bytes) -> list[Hit]:
        """Return the hits in the segments that `chunk` completes."""
        data = self._tail + chunk if self._tail else chunk
        hits: list[Hit] = []
        at = 0
        while at < len(data):
            window = at + SEGMENT_BYTES + 1
            end = max(data.rfind(b"\n", at, window), data.rfind(b"\r", at, window)) + 1
            if not end:
                if len(data) < window:
                    break
                end = window - 1
            hits += self._block(data[at:end])
            at = end
        self._tail = data[at:]
        return hits

    def flush(self) -> list[Hit]:
        """Return the hits in the last segment, which has no newline; what is fed later begins a new segment."""
        rest, self._tail = self._tail, b""
        return self._block(rest) if rest else []

    def _block(self, raw: bytes) -> list[Hit]:
        """Return the hits of a block of whole segments, ordered by place."""
        block = _cleaned(raw) if any(mark in raw for mark in _DIRT) else raw
        found: dict[int, set[int]] = {}
        for index, at in self._sieve.sift(block):
            found.setdefault(block.rfind(b"\n", 0, at) + 1, set()).add(index)
        hits = self._confirmed(raw, block, found) if found else []
        self._line += raw.count(b"\n")
        self._offset += len(raw)
        return hits

    def _confirmed(self, raw: bytes, block: bytes, found: Mapping[int, set[int]]) -> list[Hit]:
        """Return the hits of segments in `found` (start in `block` -> signatures), placed in `raw`.

        One voice for each segment: of the signatures that `re` confirms, the one with the highest priority.
        """
        starts = None if raw is block else [0, *(mark.end() for mark in _SEPARATOR.finditer(raw))]
        hits: list[Hit] = []
        # Counting goes on from the segment before: one pass over the block however many hits it has.
        line, ordinal, done, raw_done = self._line, 0, 0, 0
        for start in sorted(found):
            ordinal += block.count(b"\n", done, start)
            raw_start = start if starts is None else starts[ordinal]
            line = self._line + ordinal if starts is None else line + raw.count(b"\n", raw_done, raw_start)
            done, raw_done = start, raw_start
            end = block.find(b"\n", start)
            segment = block[start:] if end < 0 else block[start:end]
            voice = speaker(self._compiled, segment, found[start])
            if voice is not None:
                hits.append(_hit(voice, line, self._offset + raw_start, segment))
        return hits


def clean(line: bytes) -> str:
    """Return `line` as a person would see it: what was printed last over a progress bar, no terminal codes, no NUL."""
    parts = [part for part in _cleaned(line).split(b"\n") if part.strip()]
    return _decoded(parts[-1]) if parts else ""


def refusal(patterns: Sequence[str]) -> str:
    """Return why hyperscan would not compile `patterns`; "" when it does, or where it is not installed."""
    try:
        import hyperscan
    except ImportError:
        return ""
    try:
        _database(hyperscan, patterns)
    except hyperscan.error as error:
        return str(error)
    return ""


def _cleaned(raw: bytes) -> bytes:
    """Drop terminal codes and NUL, and make every separator a newline: as many segments as before, in order."""
    return _TERMINAL.sub(b"", raw.replace(b"\0", b"")).replace(b"\r", b"\n")


def _decoded(text: bytes) -> str:
    return text.decode("utf-8", "replace")


def _hit(voice: Voice, line: int, offset_bytes: int, segment: bytes) -> Hit:
    match = voice.match
    if len(segment) > TEXT_CHARS:
        first = max(0, min(match.start() - TEXT_CHARS // 4, len(segment) - TEXT_CHARS))
        segment = segment[first : first + TEXT_CHARS]
    captures = {name: _decoded(value) for name, value in match.groupdict().items() if value}
    if voice.code:
        captures["code"] = voice.code
    return Hit(voice.signature, line, offset_bytes, _decoded(segment), captures or _NO_CAPTURES)


def _sieve(patterns: tuple[str, ...], engine: str) -> Sieve:
    """Return the sieve that all scanners of a catalog share."""
    if engine not in {"auto", "hyperscan", "re"}:
        raise ValueError(f"no engine is called {engine!r}; there are auto, hyperscan and re")
    if engine == "re":
        return _literal_sieve(patterns)
    try:
        import hyperscan
    except ImportError:
        if engine == "hyperscan":
            raise
        return _literal_sieve(patterns)
    return _hyperscan_sieve(hyperscan, patterns)


@lru_cache(CATALOGS)
def _literal_sieve(patterns: tuple[str, ...]) -> LiteralSieve:
    return LiteralSieve(patterns)


@lru_cache(CATALOGS)
def _hyperscan_sieve(module: Any, patterns: tuple[str, ...]) -> HyperscanSieve:
    return HyperscanSieve(module, _loaded(module, patterns))


class LiteralSieve:
    """Looks for the literals that each pattern needs, then leaves the segments around them to `re`."""

    def __init__(self, patterns: Sequence[str]) -> None:
        self._needs: dict[bytes, list[int]] = {}
        self._always: list[int] = []
        for index, pattern in enumerate(patterns):
            needed = literals.required(pattern.encode())
            for literal in needed:
                self._needs.setdefault(literal, []).append(index)
            if not needed:
                self._always.append(index)

    def sift(self, block: bytes) -> Iterator[tuple[int, int]]:
        """Yield every segment with a needed literal, and every segment at all for patterns that need none."""
        lowered = block.lower()
        for literal, indices in self._needs.items():
            at = lowered.find(literal)
            while at >= 0:
                for index in indices:
                    yield index, at + 1
                end = lowered.find(b"\n", at)
                at = lowered.find(literal, end) if end >= 0 else -1
        if self._always:
            starts = [0, *(mark.end() for mark in _SEPARATOR.finditer(block))]
            yield from ((index, start) for start in starts for index in self._always)


class HyperscanSieve:
    """One pass for all patterns; a scratch for each thread, since two scans at once must never share one."""

    def __init__(self, module: Any, database: Any) -> None:
        self._module = module
        self._database = database
        self._local = threading.local()

    def sift(self, block: bytes) -> list[tuple[int, int]]:
        """Return the end of every match; a pattern that may end at several places reports each."""
        found: list[tuple[int, int]] = []

        def on_match(index: int, _start: int, end: int, _flags: int, _context: object) -> None:
            found.append((index, end))

        if not hasattr(self._local, "scratch"):
            self._local.scratch = self._module.Scratch(self._database)
        self._database.scan(block, match_event_handler=on_match, scratch=self._local.scratch)
        return found


def _database(module: Any, patterns: Sequence[str]) -> Any:
    """Compile `patterns`; raises hyperscan.error.  Newlines end `.`, `^` and `$` as they end a segment."""
    database = module.Database(mode=module.HS_MODE_BLOCK)
    database.compile(
        expressions=[_anonymous(pattern) for pattern in patterns],
        ids=list(range(len(patterns))),
        elements=len(patterns),
        flags=[module.HS_FLAG_MULTILINE] * len(patterns),
    )
    return database


def _anonymous(pattern: str) -> bytes:
    """Widen a pattern to what the sieve needs: no captures, and no counting of what lies between (it takes compiling 3 times as long)."""
    return re.sub(r"\.\{0,\d+\}", ".*", re.sub(r"\(\?P<\w+>", "(?:", pattern)).encode()


def _loaded(module: Any, patterns: Sequence[str]) -> Any:
    """Return the compiled database from the cache, or compile it and keep it there; a cache that fails changes nothing."""
    name = _cache_name(module, patterns)
    content = owncache.read(name)
    if content is not None:
        with suppress(module.error, ValueError):
            kept = module.loadb(content, module.HS_MODE_BLOCK)
            module.Scratch(kept)  # refuses a database that is not for this processor
            return kept
    database = _database(module, patterns)
    owncache.keep(name, module.dumpb(database))
    return database


def _cache_name(module: Any, patterns: Sequence[str]) -> str:
    """Return the name of the cache file for these expressions, this hyperscan and this kind of processor."""
    key = hashlib.sha256(f"{module.__version__} {os.uname().machine} {_processor()}".encode())
    for pattern in patterns:
        key.update(_anonymous(pattern) + b"\n")
    return f"signatures-{key.hexdigest()[:32]}.hs"


def _processor() -> str:
    """Return the features of the processor: a home that machines share has a database for each kind."""
    with suppress(OSError), open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        return next((line for line in file if line.startswith(("flags", "Features"))), "")
    return ""
