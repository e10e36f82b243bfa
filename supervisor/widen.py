r"""The cheapest expression that the sieve may use in a pattern's place. (pure)

How it thinks: the sieve only has to name the segments in which a pattern may match, `re` does the rest.  So of `^\d+, .*Unknown Error` the
words behind the gap are enough, and a great deal cheaper: whoever looks out for the end of a line that begins with a number does so at
almost every line.  So each branch of a pattern begins with its first piece that has a literal long enough to be rare, or with the longest it has;
what stands in front of that piece is left to `re`, and so is whatever may be missing or go on at either end.  Captures have no names, and
the length of a gap is not counted.  Whatever a pattern matches, its expression matches in the same segment.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from ftrun.supervisor import literals

__all__ = ["FORM", "widened"]

FORM = 5
"""To be raised with every change of the expressions: what was compiled of others is not used."""

# The parser of `re` has no public name; where it is gone, patterns lose their names and nothing else.
try:
    _PARSER: Any = importlib.import_module("re._parser")
except ImportError:
    _PARSER = None

_RARE_BYTES = 7  # a literal of so many bytes is rare enough to begin with
_SHORT_BYTES = 4  # where there is none, one of so many bytes is better than a gap
_GAP = 8  # what may repeat so often is a gap
_WORD = frozenset(b"_0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
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
    """Return an expression for the sieve: it matches in every segment in which `pattern` does, and in few others."""
    if _PARSER is None:
        return re.sub(r"\(\?P<\w+>", "(?:", pattern)
    parsed = _PARSER.parse(pattern.encode())
    cheapest = _cheapest(parsed)
    text = _sequence(_short_end(_short_start(cheapest) or cheapest) or cheapest)
    return f"(?i){text}" if parsed.state.flags & re.IGNORECASE else text


def _cheapest(items: Iterable[_Item]) -> list[_Item]:
    """Return the part of a sequence that is to stand for it: from its first rare piece to its end; all of it where no piece is rare.

    A choice with gaps inside is cut branch by branch and stands alone, as what follows it does not touch it any more: the second best.
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
    return rare[0][1] if most >= _RARE_BYTES else flat  # short words alone stand in too many lines


def _literal_bytes(piece: Sequence[_Item]) -> int:
    """Return how long the shortest literal is that a piece may stand for; 0 where it has none."""
    return min(map(len, literals.of_sequence(piece)), default=0)


def _short_start(items: Sequence[_Item]) -> list[_Item]:
    """Return a sequence without what may be missing at its beginning: what is looked for anywhere need not begin as early as it can."""
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
    """Return a sequence without what may be missing at its end, so that fewer ends are reported."""
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
    """Yield the items without groups that only hold things together."""
    for item in items:
        if str(item[0]) == "SUBPATTERN" and not item[1][1] and not item[1][2]:
            yield from _flat(item[1][3])
        else:
            yield item


def _pieces(items: Sequence[_Item]) -> Iterator[tuple[int, list[_Item]]]:
    """Yield what stands between the gaps, and where; a choice that has gaps inside is a piece of its own."""
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
    """Write one item.  Raises KeyError for one that no pattern may have."""
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
    return chr(value) if value in _WORD or value == ord(" ") else f"\\x{value:02x}"
