r"""The prefilter: engines that quickly find where signatures may match. (I/O)

A prefilter may report too much, never too little, since the scanner confirms each report with `re`. Hyperscan
therefore gets expressions that are cheaper than the patterns (`widened`); its compiled database is kept in a
cache file. Where hyperscan is not installed, and until its database is compiled (some seconds, once a user),
the prefilter looks for the literals that a pattern cannot do without (`required_literals`). A log has few different words, and which literals a word may be part of is computed once
for each, so most literals are never looked for.

Required literals: for every node of the parsed pattern, a set of literals of which each match holds at least
one, or none where there is no such set. A sequence takes the best of its parts' sets and of its runs of plain
characters; a choice takes the union of its branches' sets, if each has one. Best: the shortest literal is
longest. Case is folded, so a set also holds for patterns that ignore case; that makes the prefilter a little
wider, never narrower.

Widened expressions: for `^\d+, .*Unknown Error`, the words behind the gap are enough and much cheaper, since
a search for the end of a line that begins with a number runs at almost every line. So each branch of a
pattern begins with its first piece that has a literal long enough to be rare, or with the longest it has.
What precedes that piece is left to `re`, and so is anything optional or open at either end. Captures have no
names, and the length of a gap is not counted. Whatever a pattern matches, its expression matches in the same
segment.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import re
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any, Protocol

from ftrun.supervisor.store import user_cache

CATALOGS = 4
"""How many compiled catalogs stay in memory: ours, and ours with a site's."""

_MANY = 40  # a larger set filters nothing


def required_literals(pattern: bytes) -> frozenset[bytes]:
    """Lower-case literals of which every match of `pattern` holds at least one; empty if none are known."""
    if _PARSER is None:
        return frozenset()
    return sequence_literals(_PARSER.parse(pattern))


def sequence_literals(items: Iterable[tuple[Any, Any]]) -> frozenset[bytes]:
    """The same for parsed items that follow each other."""
    candidates: list[frozenset[bytes]] = []
    run = bytearray()
    for operation, argument in items:
        name = str(operation)
        if name == "LITERAL":
            run.append(argument)
            continue
        if name == "AT":  # an anchor or \b matches no text: the run goes on
            continue
        candidates.append(frozenset({bytes(run).lower()}))
        run.clear()
        candidates.append(_literals_item(name, argument))
    candidates.append(frozenset({bytes(run).lower()}))
    return max(candidates, key=_worth)


def _literals_item(name: str, argument: Any) -> frozenset[bytes]:
    if name == "SUBPATTERN":
        return sequence_literals(argument[-1])
    if name in {"MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"}:
        least, _, item = argument
        return sequence_literals(item) if least else frozenset()
    if name == "ATOMIC_GROUP":
        return sequence_literals(argument)
    if name == "BRANCH":
        sets = [sequence_literals(branch) for branch in argument[1]]
        if all(_worth(found)[0] for found in sets):
            return frozenset().union(*sets)
    return frozenset()


def _worth(literals: frozenset[bytes]) -> tuple[int, int]:
    """How well a set filters: the length of its shortest literal, then how few they are."""
    if not literals or len(literals) > _MANY:
        return (0, 0)
    return (min(map(len, literals)), -len(literals))


FORM = 5
"""Raise this with every change of the expressions: databases that were compiled of others are not used."""

# The parser of `re` has no public name. Without it, patterns only lose their group names.
try:
    _PARSER: Any = importlib.import_module("re._parser")
except ImportError:
    _PARSER = None

_RARE_BYTES = 7  # a literal of so many bytes is rare enough
_SHORT_BYTES = 4  # where there is none, one of so many bytes is better than a gap
_GAP = 8  # an item that may repeat so often is a gap
_WIDEN_WORD = frozenset(b"_0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
_CLASSES = {"DIGIT": "d", "SPACE": "s", "WORD": "w"}
_PLACES = {
    "AT_BEGINNING": "^",
    "AT_BEGINNING_STRING": "^",
    "AT_END": "$",
    "AT_END_STRING": "$",
    "AT_BOUNDARY": r"\b",
    "AT_NON_BOUNDARY": r"\B",
}
_REPEATS = frozenset({"MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"})
_Item = tuple[Any, Any]


def widened(pattern: str) -> str:
    """An expression for the prefilter: it matches in every segment in which `pattern` does, and in few
    others.
    """
    if _PARSER is None:
        return re.sub(r"\(\?P<\w+>", "(?:", pattern)
    parsed = _PARSER.parse(pattern.encode())
    cheapest = _cheapest(parsed)
    text = _sequence(_short_end(_short_start(cheapest) or cheapest) or cheapest)
    return f"(?i){text}" if parsed.state.flags & re.IGNORECASE else text


def _cheapest(items: Iterable[_Item]) -> list[_Item]:
    """The part that stands for a sequence: from its first rare piece to its end; all of it where no piece is
    rare.

    A choice with gaps inside is the second best: it is cut branch by branch and stands alone, since what
    follows no longer touches it.
    """
    flat = list(_flat(items))
    sizes = [(start, piece, _literal_bytes(piece)) for start, piece in _pieces(flat)]
    most = max((size for _, _, size in sizes), default=0)
    if most < _SHORT_BYTES:
        return flat
    rare = [(start, piece) for start, piece, size in sizes if size >= min(most, _RARE_BYTES)]
    for start, _ in rare:
        if not _has_gap(flat[start]):
            return flat[start:]
    return rare[0][1] if most >= _RARE_BYTES else flat  # short words alone are in too many lines


def _literal_bytes(piece: Sequence[_Item]) -> int:
    """The length of the shortest literal that a piece may stand for; 0 where it has none."""
    return min(map(len, sequence_literals(piece)), default=0)


def _short_start(items: Sequence[_Item]) -> list[_Item]:
    """A sequence without what is optional at its beginning: a search anywhere need not begin as early as
    possible.
    """
    kept = list(items)
    while kept and str(kept[0][0]) in _REPEATS:
        least, _, inner = kept[0][1]
        if least:
            kept[:1] = (
                [(kept[0][0], (least, least, inner))] if least > 1 else _short_start(list(_flat(inner)))
            )
            break
        kept = kept[1:]
    return kept


def _short_end(items: Sequence[_Item]) -> list[_Item]:
    """A sequence without what is optional at its end, so that fewer ends are reported."""
    kept = list(items)
    while kept:
        name, argument = str(kept[-1][0]), kept[-1][1]
        if name == "BRANCH":
            branches = [_short_end(list(_flat(branch))) for branch in argument[1]]
            if all(branches):
                kept[-1] = (kept[-1][0], (None, branches))
                break
        elif name not in _REPEATS:
            break
        elif argument[0]:
            least, _, inner = argument
            kept[-1:] = (
                [(kept[-1][0], (least, least, inner))] if least > 1 else _short_end(list(_flat(inner)))
            )
            break
        kept.pop()
    return kept


def _flat(items: Iterable[_Item]) -> Iterator[_Item]:
    """The items without groups that only hold things together."""
    for item in items:
        if str(item[0]) == "SUBPATTERN" and not item[1][1] and not item[1][2]:
            yield from _flat(item[1][3])
        else:
            yield item


def _pieces(items: Sequence[_Item]) -> Iterator[tuple[int, list[_Item]]]:
    """What is between the gaps, and where. A choice with gaps inside is a piece of its own."""
    piece: list[_Item] = []
    first = 0
    for at, item in enumerate(items):
        if str(item[0]) == "BRANCH" and _has_gap(item):
            yield from _ended(piece, first)
            yield at, [(item[0], (None, [_cheapest(branch) for branch in item[1][1]]))]
            piece = []
        elif _has_gap(item):
            yield from _ended(piece, first)
            piece = []
        elif piece or not _optional(item):
            first = first if piece else at
            piece.append(item)
    yield from _ended(piece, first)


def _ended(piece: list[_Item], first: int) -> Iterator[tuple[int, list[_Item]]]:
    while piece and _optional(piece[-1]):
        piece = piece[:-1]
    if piece:
        yield first, piece


def _optional(item: _Item) -> bool:
    return str(item[0]) in _REPEATS and not item[1][0]


def _has_gap(item: _Item) -> bool:
    name, argument = str(item[0]), item[1]
    if name in _REPEATS:
        return argument[1] >= _GAP or any(map(_has_gap, argument[2]))
    if name == "BRANCH":
        return any(_has_gap(one) for branch in argument[1] for one in branch)
    return name == "SUBPATTERN" and any(map(_has_gap, argument[3]))


def _sequence(items: Iterable[_Item]) -> str:
    return "".join(_item(str(name), argument) for name, argument in items)


def _item(name: str, argument: Any) -> str:
    """Write one item. Raises KeyError for one that no pattern may have."""
    if name == "LITERAL":
        return _byte(argument)
    if name == "ANY":
        return "."
    if name == "NOT_LITERAL":
        return f"[^{_byte(argument)}]"
    if name == "IN":
        return f"[{''.join(_member(str(kind), value) for kind, value in argument)}]"
    if name == "AT":
        return _PLACES[str(argument)]
    if name in _REPEATS:
        return _repeated(*argument)
    if name == "SUBPATTERN":
        _, add, drop, inner = argument
        folds = "i" if add & re.IGNORECASE else "-i" if drop & re.IGNORECASE else ""
        return f"(?{folds}:{_sequence(inner)})"
    if name == "ATOMIC_GROUP":
        return f"(?:{_sequence(argument)})"
    if name == "BRANCH":
        return f"(?:{'|'.join(_sequence(branch) for branch in argument[1])})"
    raise KeyError(name)


def _repeated(least: int, most: int, inner: Sequence[_Item]) -> str:
    body = _sequence(inner)
    if len(inner) != 1 or str(inner[0][0]) in _REPEATS:
        body = f"(?:{body})"
    if most == _PARSER.MAXREPEAT or (not least and most >= _GAP and str(inner[0][0]) == "ANY"):
        return body + {0: "*", 1: "+"}.get(least, f"{{{least},}}")
    if least == most:
        return f"{body}{{{least}}}"
    return body + ("?" if (least, most) == (0, 1) else f"{{{least},{most}}}")


def _member(kind: str, value: Any) -> str:
    if kind == "NEGATE":
        return "^"
    if kind == "LITERAL":
        return _byte(value)
    if kind == "RANGE":
        return f"{_byte(value[0])}-{_byte(value[1])}"
    named = str(value).removeprefix("CATEGORY_")
    letter = _CLASSES[named.removeprefix("NOT_")]
    return f"\\{letter.upper() if named.startswith('NOT_') else letter}"


def _byte(value: int) -> str:
    return chr(value) if value in _WIDEN_WORD or value == ord(" ") else f"\\x{value:02x}"


_WORD = re.compile(rb"[a-z]{3,}")
_WORD_BYTES = 40  # anything longer is no word, and is not remembered
_WORDS_MAX = 50_000  # words remembered
_SEPARATOR = re.compile(rb"\n")


class Prefilter(Protocol):
    """Finds where signatures may match: (index of the signature, an offset inside or at the end of that
    match's segment).
    """

    def sift(self, block: bytes) -> Iterable[tuple[int, int]]:
        """Report them in any order, some more than once."""


def prefilter_for(patterns: tuple[str, ...], engine: str) -> Prefilter:
    """The prefilter that all scanners of a catalog share. Raises ImportError for an engine that is not
    installed. With "hyperscan" it is compiled when this returns; with "auto" nobody waits for that.
    """
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
    return _hyperscan_sieve(hyperscan, patterns, wait=engine == "hyperscan")


def compile_error(patterns: Sequence[str]) -> str:
    """Why hyperscan would not compile `patterns`; "" where it does, or is not installed.

    A database of all patterns together goes to the cache for the next scanner.
    """
    try:
        import hyperscan
    except ImportError:
        return ""
    try:
        if len(patterns) == 1:
            _database(hyperscan, patterns)
        elif _cached(hyperscan, patterns) is None:
            _made(hyperscan, patterns)
    except hyperscan.error as error:
        return str(error)
    return ""


@lru_cache(CATALOGS)
def _literal_sieve(patterns: tuple[str, ...]) -> LiteralPrefilter:
    return LiteralPrefilter(patterns)


@lru_cache(CATALOGS)
def _hyperscan_sieve(module: Any, patterns: tuple[str, ...], *, wait: bool) -> Prefilter:
    database = _cached(module, patterns)
    if database is None and not wait:
        return PendingPrefilter(module, patterns)
    return HyperscanPrefilter(module, _made(module, patterns) if database is None else database)


class LiteralPrefilter:
    """Looks for the literals that each pattern needs; `re` then searches the segments around them."""

    def __init__(self, patterns: Sequence[str]) -> None:
        self._needs: dict[bytes, list[int]] = {}
        self._always: list[int] = []
        for index, pattern in enumerate(patterns):
            needed = required_literals(pattern.encode())
            for literal in needed:
                self._needs.setdefault(literal, []).append(index)
            if not needed:
                self._always.append(index)
        self._wordless = [literal for literal in self._needs if not _WORD.search(literal)]
        self._parts: dict[bytes, list[bytes]] = {}  # a part of a word -> the literals with it
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
        """The literals that may be in `lowered`, by its words."""
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


class HyperscanPrefilter:
    """One pass for all patterns, with one scratch for each thread: two scans at once must not share one."""

    def __init__(self, module: Any, database: Any) -> None:
        self._module = module
        self._database = database
        self._local = threading.local()

    def sift(self, block: bytes) -> list[tuple[int, int]]:
        """The end of every match. A pattern that may end at several places reports each."""
        found: list[tuple[int, int]] = []

        def on_match(index: int, _start: int, end: int, _flags: int, _context: object) -> None:
            found.append((index, end))

        if not hasattr(self._local, "scratch"):
            self._local.scratch = self._module.Scratch(self._database)
        self._database.scan(block, match_event_handler=on_match, scratch=self._local.scratch)
        return found


class PendingPrefilter:
    """Hyperscan's once a thread has compiled its database, the literals' until then; no hit depends on which.

    The thread is none that a process leaves behind at its end, so even a short one leaves a database to the next.
    """

    def __init__(self, module: Any, patterns: tuple[str, ...]) -> None:
        self._present: Prefilter = _literal_sieve(patterns)
        self.compiler = threading.Thread(target=self._compile, args=(module, patterns), name="signatures")
        with suppress(RuntimeError):  # no more threads for this user
            self.compiler.start()

    def sift(self, block: bytes) -> Iterable[tuple[int, int]]:
        """As the one that is ready reports them."""
        return self._present.sift(block)

    def _compile(self, module: Any, patterns: tuple[str, ...]) -> None:
        with suppress(module.error):  # `ftrun catalog check` says why
            self._present = HyperscanPrefilter(module, _made(module, patterns))


def _database(module: Any, patterns: Sequence[str]) -> Any:
    """Compile `patterns`. Raises hyperscan.error. Newlines end `.`, `^` and `$` as they end a segment."""
    database = module.Database(mode=module.HS_MODE_BLOCK)
    database.compile(
        expressions=[widened(pattern).encode() for pattern in patterns],
        ids=list(range(len(patterns))),
        elements=len(patterns),
        flags=[module.HS_FLAG_MULTILINE] * len(patterns),
    )
    return database


def _cached(module: Any, patterns: Sequence[str]) -> Any:
    """The compiled database from the cache; None where there is none that this processor can use."""
    content = user_cache.read_cached(_cache_name(module, patterns))
    if content is not None:
        with suppress(module.error, ValueError):
            kept = module.loadb(content, module.HS_MODE_BLOCK)
            module.Scratch(kept)  # refuses a database that is not for this processor
            return kept
    return None


def _made(module: Any, patterns: Sequence[str]) -> Any:
    """Compile the database and put it into the cache, which may fail. Raises hyperscan.error."""
    database = _database(module, patterns)
    user_cache.write_cached(_cache_name(module, patterns), module.dumpb(database))
    return database


def _cache_name(module: Any, patterns: Sequence[str]) -> str:
    """The name of the cache file for these patterns, this hyperscan and this kind of processor."""
    made_with = f"{module.__version__} {FORM} {os.uname().machine} {_processor()}"
    key = hashlib.sha256("\n".join((made_with, *patterns)).encode())
    return f"signatures-{key.hexdigest()[:32]}.hs"


def _processor() -> str:
    """The features of the processor: a home shared by different machines has a database for each kind."""
    with suppress(OSError), open("/proc/cpuinfo", "rb") as file:
        head = file.read(8192).decode(errors="replace").splitlines()
        return next((line for line in head if line.startswith(("flags", "Features"))), "")
    return ""
