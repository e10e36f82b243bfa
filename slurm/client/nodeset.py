"""Slurm's folded node lists, both ways. (pure)

The only module that imports ClusterShell, and only for lists that are really folded: a plain name costs no import.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

# What Slurm prints where there is no list.
_EMPTY = frozenset({"", "(null)", "n/a", "none", "none assigned", "unknown"})


NODES_MAX = 1 << 17
"""Largest list that is expanded. The text may come from a job's log, and ClusterShell keeps every name of a
set.
"""

_RANGE = re.compile(r"(\d{1,18})-(\d{1,18})")
_TERM = re.compile(r"(?:[^,\[]|\[[^\]]*\])+")


def expand(text: str) -> tuple[str, ...]:
    """Node names in a Slurm node list: `n[0-2,5],gpu-a` -> ("n0", "n1", "n2", "n5", "gpu-a") as a sorted
    tuple. `(null)`, `None assigned` and their like are the empty list. A list without brackets keeps its
    order. Raises ValueError for text that is no node list.
    """
    text = text.strip()
    if text.lower() in _EMPTY:
        return ()
    if "[" not in text:
        return tuple(name for name in text.split(",") if name)
    if _size(text) > NODES_MAX:
        raise ValueError(f"not a node list: {text[:80]!r}: more than {NODES_MAX} nodes")
    from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet, NodeSetException

    try:
        return tuple(NodeSet(text, resolver=RESOLVER_NOGROUP))
    except NodeSetException as wrong:
        raise ValueError(f"not a node list: {text[:80]!r}: {wrong!s:.200}") from wrong


def _size(text: str) -> int:
    """About how many nodes a list names: those of its terms together, each the product of its brackets."""
    total = 0
    for term in _TERM.findall(text):
        size = 1
        for inside in re.findall(r"\[([^\]]*)\]", term):
            ranges = _RANGE.findall(inside)
            size *= inside.count(",") + 1 + sum(max(0, int(last) - int(first)) for first, last in ranges)
        total += size
    return total


def fold(names: Iterable[str]) -> str:
    """One Slurm node list for these names, sorted and without doubles: ("n1", "n0", "gpu-a") -> `gpu-a,n[0-1]`."""
    unique = sorted(set(names))
    if len(unique) <= 1:
        return "".join(unique)
    from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet, NodeSetException

    try:
        return str(NodeSet.fromlist(unique, resolver=RESOLVER_NOGROUP))
    except NodeSetException as wrong:
        raise ValueError(f"not node names: {unique!r}: {wrong}") from wrong
