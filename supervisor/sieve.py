"""Engines that tell where signatures may match, quickly; what hyperscan compiled is kept in a cache file. (I/O)

How it thinks: a sieve may say too much, never too little, since `re` confirms what it says.  So hyperscan gets cheaper expressions than
the patterns are (`widen`).  Where it is not installed, the literals that a pattern cannot do without are looked for: a log has few
different words, and which literals a word may be part of is worked out once for each, so most literals are never looked for at all.
"""

from __future__ import annotations

import hashlib
import os
import re
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any, Protocol

from ftrun.supervisor import literals, owncache
from ftrun.supervisor.voice import CATALOGS
from ftrun.supervisor.widen import FORM, widened

__all__ = ["Sieve", "refusal", "sieve_of"]

_WORD = re.compile(rb"[a-z]{3,}")
_WORD_BYTES = 40  # what is longer is no word, and is not remembered
_WORDS_MAX = 50_000  # so many are remembered
_SEPARATOR = re.compile(rb"\n")


class Sieve(Protocol):
    """Finds where signatures may match: (index of the signature, an offset inside or at the end of that match's segment)."""

    def sift(self, block: bytes) -> Iterable[tuple[int, int]]:
        """Say them in any order, some more than once."""


def sieve_of(patterns: tuple[str, ...], engine: str) -> Sieve:
    """Return the sieve that all scanners of a catalog share.  Raises ImportError for an engine that is not installed."""
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


def refusal(patterns: Sequence[str]) -> str:
    """Return why hyperscan would not compile `patterns`; "" when it does, or where it is not installed.

    What compiles all together is kept in the cache, as the next scanner wants it.
    """
    try:
        import hyperscan
    except ImportError:
        return ""
    try:
        (_loaded if len(patterns) > 1 else _database)(hyperscan, patterns)
    except hyperscan.error as error:
        return str(error)
    return ""


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
        self._wordless = [literal for literal in self._needs if not _WORD.search(literal)]
        self._parts: dict[bytes, list[bytes]] = {}  # a part of a word -> the literals that have it
        for literal in self._needs:
            words = _WORD.findall(literal)
            if words:
                self._parts.setdefault(max(words, key=len), []).append(literal)
        self._known: dict[bytes, frozenset[bytes]] = {}  # a word -> the literals that it may be part of

    def sift(self, block: bytes) -> Iterator[tuple[int, int]]:
        """Yield every segment with a needed literal, and every segment at all for patterns that need none."""
        lowered = block.lower()
        for literal in self._possible(lowered):
            indices = self._needs[literal]
            at = lowered.find(literal)
            while at >= 0:
                for index in indices:
                    yield index, at + 1
                end = lowered.find(b"\n", at)
                at = lowered.find(literal, end) if end >= 0 else -1
        if self._always:
            starts = [0, *(mark.end() for mark in _SEPARATOR.finditer(block))]
            yield from ((index, start) for start in starts for index in self._always)

    def _possible(self, lowered: bytes) -> set[bytes]:
        """Return the literals that may stand in `lowered`, as its words tell."""
        found = set(self._wordless)
        known = self._known
        for word in set(_WORD.findall(lowered)):
            had = known.get(word)
            if had is None:
                had = self._of_word(word)
                if len(known) < _WORDS_MAX and len(word) <= _WORD_BYTES:
                    known[word] = had
            if had:
                found |= had
        return found

    def _of_word(self, word: bytes) -> frozenset[bytes]:
        if len(word) > _WORD_BYTES:
            parts = [part for part in self._parts if part in word]
        else:
            size = len(word)
            every = {word[a:b] for a in range(size) for b in range(a + 3, size + 1)}
            parts = list(every & self._parts.keys())
        return frozenset(literal for part in parts for literal in self._parts[part])


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
        expressions=[widened(pattern).encode() for pattern in patterns],
        ids=list(range(len(patterns))),
        elements=len(patterns),
        flags=[module.HS_FLAG_MULTILINE] * len(patterns),
    )
    return database


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
    """Return the name of the cache file for these patterns, this hyperscan and this kind of processor."""
    made_with = f"{module.__version__} {FORM} {os.uname().machine} {_processor()}"
    key = hashlib.sha256("\n".join((made_with, *patterns)).encode())
    return f"signatures-{key.hexdigest()[:32]}.hs"


def _processor() -> str:
    """Return the features of the processor: a home that machines share has a database for each kind."""
    with suppress(OSError), open("/proc/cpuinfo", "rb") as file:
        head = file.read(8192).decode(errors="replace").splitlines()
        return next((line for line in head if line.startswith(("flags", "Features"))), "")
    return ""
