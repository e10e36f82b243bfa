"""What of staged checkpoints lies in the memory of this node: sealed parts of its own and copies of others', and how much more would fit. (I/O)

How it thinks. A seal says what a part was when it was sealed. A file counts as that file as long as its size, its time of change and its inode are what the seal says:
whoever writes into a file that is held changes its time. So nothing is read in order to know that it is good.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from typing import NamedTuple, Optional

from ftrun.hooks.amounts import amount_of
from ftrun.hooks.staged import File, Home, Seal, read_seal
from ftrun.hooks.tokens import token_of

__all__ = [
    "Part", "changed", "file_path", "is_same", "listed", "memory_bytes", "own_parts", "part_of", "parts", "room_bytes", "used_bytes",
]  # fmt: skip

SEAL_MAX_BYTES = 1 << 28
RESERVE = 0.05  # of the file system, which stays free: a trainer that finds no room dies


class Part(NamedTuple):
    """A part that lies here: its seal, and the folder of its files (or the file, where the set is one). `own`: this node wrote it."""

    seal: Seal
    place: str
    own: bool


def parts(home: Home) -> Iterator[Part]:
    """All sealed parts, our own first, those of later starts before those of earlier ones."""
    yield from own_parts(home)
    for node in listed(f"{home.base}/partner"):
        for token in _tokens(f"{home.base}/partner/{node}"):
            for name in listed(f"{home.base}/partner/{node}/{token}"):
                seal = _read(f"{home.base}/partner/{node}/{token}/{name}") if name.endswith(".json") else None
                if seal is not None and (seal.node, seal.token, f"{seal.name}.json") == (node, token, name):
                    yield Part(seal, home.partner(node, token, seal.name), own=False)


def own_parts(home: Home) -> Iterator[Part]:
    """The sealed parts that this node wrote."""
    for token in _tokens(f"{home.base}/parts"):
        for name in listed(home.seals(token)):
            seal = _read(f"{home.seals(token)}/{name}") if name.endswith(".json") else None
            if seal is not None and (seal.token, f"{seal.name}.json") == (token, name):
                yield Part(seal, home.held(token, seal.name), own=True)


def part_of(home: Home, node: str, token: str, name: str) -> Optional[Part]:
    """The part of `node` in set `name` as it lies here, written here or copied; None where it is not here, or is not what it was."""
    for path, place, own in (
        (home.seal(token, name), home.held(token, name), True),
        (home.partner_seal(node, token, name), home.partner(node, token, name), False),
    ):
        seal = _read(path)
        if seal is not None and (seal.node, seal.token, seal.name) == (node, token, name):
            part = Part(seal, place, own)
            if changed(part) is None:
                return part
    return None


def file_path(part: Part, inner: str) -> str:
    """Where a file of a part lies."""
    return f"{part.place}/{inner}" if inner else part.place


def changed(part: Part) -> Optional[str]:
    """The first file of a part that is not what it was when it was sealed; None where all are."""
    return next(
        (inner for inner, one in part.seal.files.items() if not is_same(file_path(part, inner), one)), None
    )


def is_same(path: str, one: File) -> bool:
    """Whether a file is what a seal says of it."""
    try:
        fact = os.lstat(path)
    except OSError:
        return False
    return (fact.st_size, fact.st_mtime_ns, fact.st_ino) == (one.size_bytes, one.mtime_ns, one.inode)


# ---------------------------------------------------------------------- room


def used_bytes(folder: str) -> int:
    """What all files below a folder take, each counted once however many names it has."""
    seen: set[tuple[int, int]] = set()
    total = 0
    for where, _, names in os.walk(folder):
        for name in names:
            try:
                fact = os.lstat(os.path.join(where, name))
            except OSError:
                continue  # it has just gone
            if (fact.st_dev, fact.st_ino) not in seen:
                seen.add((fact.st_dev, fact.st_ino))
                total += fact.st_blocks * 512
    return total


def room_bytes(home: Home, limit: str) -> int:
    """How many bytes more may be put here: within `limit` (as 200G or 40% of the memory), and of what is free. Raises OSError, ValueError."""
    fact = os.statvfs(home.base)
    free = int(fact.f_bavail * fact.f_frsize - RESERVE * fact.f_blocks * fact.f_frsize)
    return max(0, min(free, amount_of(limit, memory_bytes()) - used_bytes(home.base)))


def memory_bytes() -> int:
    """How much memory this node has. Raises OSError where it cannot be told."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


# ---------------------------------------------------------------------- looking


def _tokens(folder: str) -> list[str]:
    """The tokens of starts in a folder, latest first."""
    found = [name for name in listed(folder) if token_of(name) is not None]
    return sorted(found, key=lambda name: token_of(name) or (0, 0), reverse=True)


def listed(folder: str) -> list[str]:
    """The names in a folder, sorted; none where it cannot be read."""
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def _read(path: str) -> Optional[Seal]:
    try:
        fact = os.stat(path)
    except OSError:
        return None
    return _parsed(path, fact.st_mtime_ns, fact.st_ino, fact.st_size)


@functools.lru_cache(maxsize=64)
def _parsed(path: str, _mtime_ns: int, _inode: int, _size_bytes: int) -> Optional[Seal]:
    """A seal is written once and looked at again and again."""
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as stream:
            return read_seal(stream.read(SEAL_MAX_BYTES))
    except OSError:
        return None
