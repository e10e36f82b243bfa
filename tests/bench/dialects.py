"""A pattern of the catalog in the words of other programs: ripgrep's and POSIX's. (pure)

How it thinks: the parsed pattern is written anew, without names and without case flags (a letter that may have either case becomes a set of
two), so that each rival searches for the same language.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable
from enum import Enum
from typing import Any

__all__ = ["Dialect", "translated"]

_PARSER: Any = importlib.import_module("re._parser")
_SPECIAL = frozenset(".[]{}()*+?^$|\\")
_WORD = frozenset("_0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
_CLASSES = {"DIGIT": frozenset("0123456789"), "SPACE": frozenset(" \t\r\f\v"), "WORD": _WORD}
_EVERY = frozenset(map(chr, range(1, 128))) - {"\n"}
_PLACES = {
    "AT_BEGINNING": "^",
    "AT_BEGINNING_STRING": "^",
    "AT_END": "$",
    "AT_END_STRING": "$",
    "AT_BOUNDARY": r"\b",
    "AT_NON_BOUNDARY": r"\B",
}


class Dialect(Enum):
    """Who is to read the pattern."""

    RIPGREP = "(?:"
    POSIX = "("


def translated(pattern: str, dialect: Dialect) -> str:
    """Return `pattern` for another program.  Raises ValueError for what no pattern of the catalog has."""
    parsed = _PARSER.parse(pattern)
    return _sequence(parsed, dialect, bool(parsed.state.flags & re.IGNORECASE))


def _sequence(items: Iterable[tuple[Any, Any]], dialect: Dialect, fold: bool) -> str:
    return "".join(_item(str(name), argument, dialect, fold) for name, argument in items)


def _item(name: str, argument: Any, dialect: Dialect, fold: bool) -> str:
    if name == "LITERAL":
        one = chr(argument)
        if fold and one.isalpha():
            return f"[{one.lower()}{one.upper()}]"
        return "\\" + one if one in _SPECIAL else one
    if name == "ANY":
        return "."
    if name == "NOT_LITERAL":
        return _set(_EVERY - {chr(argument)}, dialect)
    if name == "IN":
        return _set(_members(argument, fold), dialect)
    if name == "AT":
        return _PLACES[str(argument)]
    if name in {"MAX_REPEAT", "MIN_REPEAT"}:
        return _repeated(argument, dialect, fold)
    if name == "SUBPATTERN":
        _, add, drop, inner = argument
        inside = (fold or bool(add & re.IGNORECASE)) and not drop & re.IGNORECASE
        return f"{dialect.value}{_sequence(inner, dialect, inside)})"
    if name == "BRANCH":
        return dialect.value + "|".join(_sequence(branch, dialect, fold) for branch in argument[1]) + ")"
    raise ValueError(f"no word for {name}")


def _repeated(argument: tuple[Any, Any, Any], dialect: Dialect, fold: bool) -> str:
    least, most, inner = argument
    endless = most == _PARSER.MAXREPEAT
    bound = {(0, True): "*", (1, True): "+"}.get((least, endless), f"{{{least},{'' if endless else most}}}")
    return f"{dialect.value}{_sequence(inner, dialect, fold)}){bound}"


def _members(argument: Iterable[tuple[Any, Any]], fold: bool) -> frozenset[str]:
    """The characters of a set: ASCII without newline and NUL, which is all that a line has."""
    found: set[str] = set()
    negated = False
    for name, value in argument:
        if str(name) == "NEGATE":
            negated = True
        elif str(name) == "LITERAL":
            found.add(chr(value))
        elif str(name) == "RANGE":
            found |= set(map(chr, range(value[0], value[1] + 1)))
        else:
            kind = str(value).removeprefix("CATEGORY_")
            plain = _CLASSES[kind.removeprefix("NOT_")]
            found |= _EVERY - plain if kind.startswith("NOT_") else plain
    if fold:
        found |= {other for one in found for other in (one.lower(), one.upper())}
    return frozenset(_EVERY - found if negated else found & _EVERY)


def _set(members: frozenset[str], dialect: Dialect) -> str:
    """Write a set by the shorter of what it has and what it lacks."""
    lacking = _EVERY - members
    if not lacking:
        return "."
    negated = len(lacking) < len(members)
    chars = sorted(
        lacking | {"\n"} if negated and dialect is Dialect.RIPGREP else lacking if negated else members
    )
    if dialect is Dialect.RIPGREP:
        body = "".join("\\n" if one == "\n" else "\\" + one if one in "[]\\^-&~" else one for one in chars)
        return f"[{'^' if negated else ''}{body}]"
    # POSIX: ] stands first, - last, and ^ anywhere but first; a backslash is itself.
    plain = "".join(one for one in chars if one not in "]-^[")
    tail = "".join(one for one in "[^-" if one in chars)
    head = "]" if "]" in chars else ""
    if not (head or plain) and tail.startswith("^") and not negated:
        return "\\^" if tail == "^" else "[-^]"
    return f"[{'^' if negated else ''}{head}{plain}{tail}]"
