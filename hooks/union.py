"""The parts of a set put together, by their records alone. (pure)

How it thinks. Every node that took part in a start says what it has of a set, or that it has nothing. A file that several nodes have must be the
same on all of them. Whatever nodes put the parts together, and however often, they come to the same set.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Optional

from ftrun.hooks.staged import File, Seal

__all__ = ["Union", "generation", "turn_s", "union"]

TURN_S = 5.0
TURNS_MAX = 12


class Union(NamedTuple):
    """A set: its files, the node that each is taken from, and which nodes have said nothing yet.

    `why`: why it can never be published ("" where it can). `key` names this very union, for two of them never mix. `is_again`: its name was saved before
    in this start, as far as any node saw.
    """

    files: Mapping[str, tuple[File, str]]
    missing: Sequence[str]
    is_file: bool
    is_proven: bool
    key: str
    why: str = ""
    is_again: bool = False

    def is_whole(self) -> bool:
        """Whether nothing is missing; of a single file one node is enough."""
        return bool(self.files) and (self.is_file or not self.missing)


def generation(seal: Seal) -> str:
    """A short name for what a part holds: a part that is sealed anew with other content has another one."""
    rows = [f"{path}\0{one.size_bytes}\0{one.mtime_ns}" for path, one in sorted(seal.files.items())]
    return _digest([seal.name, seal.token, seal.node, str(seal.proven), *rows])


def union(parts: Mapping[str, Seal], expected: Sequence[str]) -> Union:
    """What the parts of these nodes make, where those of the `expected` nodes make it whole. All sums are known."""
    files: dict[str, tuple[File, str]] = {}
    why = ""
    for node in sorted(parts):
        for path, one in parts[node].files.items():
            known = files.setdefault(path, (one, node))
            if (known[0].size_bytes, known[0].sha256) != (one.size_bytes, one.sha256):
                why = why or f"{path or parts[node].name} is not the same on {known[1]} and {node}"
    holders = [part for part in parts.values() if part.files]
    if len({part.is_file for part in holders}) > 1:
        why = why or "it is a file on one node and a folder on another"
    why = why or _clash(files)
    is_file = any(part.is_file for part in holders)
    is_alone = len(holders) == 1 and holders[0].is_alone
    missing = [node for node in expected if node not in parts and not is_alone]
    key = _digest([f"{node}={generation(parts[node])}" for node in sorted(parts)])
    return Union(
        files,
        missing,
        is_file,
        all(part.proven for part in parts.values()),
        key,
        why,
        any(part.save > 1 for part in holders),
    )


def turn_s(expected: Sequence[str], node: str) -> Optional[float]:
    """After how many seconds it is this node's turn to publish a set that is whole; None for one that never does."""
    names = sorted(expected)
    if node not in names:
        return None
    place = names.index(node)
    return TURN_S * place if place < TURNS_MAX else None


def _clash(files: Mapping[str, object]) -> str:
    """A name that is a file on one node and a folder on another."""
    folders = {path[:end] for path in files for end, letter in enumerate(path) if letter == "/"}
    both = sorted(folders & set(files))
    return f"{both[0]} is a file on one node and a folder on another" if both else ""


def _digest(words: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(words).encode("utf-8", "surrogatepass")).hexdigest()[:16]
