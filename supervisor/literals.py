"""The text that a pattern cannot do without. (pure)

How it thinks: for every node of the parsed pattern, a set of literals of which each match holds at least one, or
nothing where there is no such set.  A sequence has the best of its parts' sets and of its runs of plain
characters; a choice has the union of its branches' sets, if each has one.  Best: the shortest literal is longest.
Case is folded, so a set is also right for patterns that ignore case; that makes the sieve a little wider, never narrower.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import Any

__all__ = ["of_sequence", "required"]

# The parser of `re` has no public name; where it is gone, every pattern is tried on every line.
try:
    _PARSER: Any = importlib.import_module("re._parser")
except ImportError:
    _PARSER = None

_MANY = 40  # a larger set is no sieve


def required(pattern: bytes) -> frozenset[bytes]:
    """Return lower-case literals of which every match of `pattern` holds at least one; empty when none are known."""
    if _PARSER is None:
        return frozenset()
    return of_sequence(_PARSER.parse(pattern))


def of_sequence(items: Iterable[tuple[Any, Any]]) -> frozenset[bytes]:
    """Return the same of parsed items that follow each other."""
    candidates: list[frozenset[bytes]] = []
    run = bytearray()
    for operation, argument in items:
        name = str(operation)
        if name == "LITERAL":
            run.append(argument)
            continue
        if name == "AT":  # an anchor or \b takes no text: the run goes on
            continue
        candidates.append(frozenset({bytes(run).lower()}))
        run.clear()
        candidates.append(_item(name, argument))
    candidates.append(frozenset({bytes(run).lower()}))
    return max(candidates, key=_worth)


def _item(name: str, argument: Any) -> frozenset[bytes]:
    if name == "SUBPATTERN":
        return of_sequence(argument[-1])
    if name in {"MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"}:
        least, _, item = argument
        return of_sequence(item) if least else frozenset()
    if name == "ATOMIC_GROUP":
        return of_sequence(argument)
    if name == "BRANCH":
        sets = [of_sequence(branch) for branch in argument[1]]
        if all(_worth(found)[0] for found in sets):
            return frozenset().union(*sets)
    return frozenset()


def _worth(literals: frozenset[bytes]) -> tuple[int, int]:
    """How good a set is as a sieve: the length of its shortest literal, then how few they are."""
    if not literals or len(literals) > _MANY:
        return (0, 0)
    return (min(map(len, literals)), -len(literals))
