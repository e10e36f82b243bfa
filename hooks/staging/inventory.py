"""Sealed parts in the memory of this node, its own and copies of others', and the room left. (I/O)

A seal says what a part was when it was sealed. A file counts as that file as long as its size, modification
time and inode are what the seal says: writing into a held file changes its time. So nothing is read in order
to know that it is good.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
from collections.abc import Collection, Iterator
from typing import NamedTuple, Optional

from ftrun.hooks.runtime.formats import parse_amount
from ftrun.hooks.runtime.start_processes import token_of
from ftrun.hooks.staging.records import File, Home, Seal, read_seal

SEAL_MAX_BYTES = 1 << 28
RESERVE = 0.05  # of the file system, which stays free: a trainer that finds no room dies


class StoredPart(NamedTuple):
    """A part that lies here: its seal, and the folder of its files (or the file, where the set is one).

    `is_own`: this node wrote it.
    """

    seal: Seal
    path: str
    is_own: bool


def stored_parts(home: Home) -> Iterator[StoredPart]:
    """All sealed parts, our own first, those of later starts before those of earlier ones."""
    yield from own_parts(home)
    for node in listed(f"{home.base}/partner"):
        for token in _tokens(f"{home.base}/partner/{node}"):
            for name in listed(f"{home.base}/partner/{node}/{token}"):
                seal = (
                    read_seal_file(f"{home.base}/partner/{node}/{token}/{name}")
                    if name.endswith(".json")
                    else None
                )
                if seal is not None and (seal.node, seal.token, f"{seal.name}.json") == (node, token, name):
                    yield StoredPart(seal, home.partner(node, token, seal.name), is_own=False)


def own_parts(home: Home) -> Iterator[StoredPart]:
    """The sealed parts that this node wrote."""
    for token in _tokens(f"{home.base}/parts"):
        for name in listed(home.seals(token)):
            seal = read_seal_file(f"{home.seals(token)}/{name}") if name.endswith(".json") else None
            if seal is not None and (seal.token, f"{seal.name}.json") == (token, name):
                yield StoredPart(seal, home.held(token, seal.name), is_own=True)


def stored_part(home: Home, node: str, token: str, name: str) -> Optional[StoredPart]:
    """The part of `node` in set `name` as it lies here, written here or copied.

    None where it is not here, or is not what it was.
    """
    for path, place, own in (
        (home.seal(token, name), home.held(token, name), True),
        (home.partner_seal(node, token, name), home.partner(node, token, name), False),
    ):
        seal = read_seal_file(path)
        if seal is not None and (seal.node, seal.token, seal.name) == (node, token, name):
            part = StoredPart(seal, place, own)
            if first_changed(part) is None:
                return part
    return None


def file_path(part: StoredPart, inner: str) -> str:
    """Where a file of a part lies."""
    return f"{part.path}/{inner}" if inner else part.path


def first_changed(part: StoredPart) -> Optional[str]:
    """The first file of a part that is not what it was when it was sealed; None where all are."""
    return next(
        (inner for inner, one in part.seal.files.items() if not is_unchanged(file_path(part, inner), one)),
        None,
    )


def summed(part: StoredPart, cores: int = 1, only: Optional[Collection[str]] = None) -> StoredPart:
    """The part with all its checksums, or with those of the files `only`; unknown ones are computed.

    `cores`: how many threads read. Raises OSError, copy.Changed."""
    from concurrent import futures  # a sweep and an epilog sum nothing

    from ftrun.hooks.staging import copy

    missing = [
        inner for inner, one in part.seal.files.items() if not one.sha256 and (only is None or inner in only)
    ]
    if not missing:
        return part

    def summing(inner: str) -> str:
        one = part.seal.files[inner]
        path = file_path(part, inner)
        return copy.digest(path, one.size_bytes, one.mtime_ns, lambda _: None, cores)

    with futures.ThreadPoolExecutor(cores) as threads:
        sums = dict(zip(missing, threads.map(summing, missing)))
    files = {
        inner: one._replace(sha256=one.sha256 or sums.get(inner, ""))
        for inner, one in part.seal.files.items()
    }
    return part._replace(seal=part.seal._replace(files=files))


def is_unchanged(path: str, one: File) -> bool:
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
    """How many more bytes fit into `limit` (as 200G, or 40% of the memory) and into what is free.

    Raises OSError, ValueError."""
    fact = os.statvfs(home.base)
    free = int(fact.f_bavail * fact.f_frsize - RESERVE * fact.f_blocks * fact.f_frsize)
    return max(0, min(free, parse_amount(limit, memory_bytes()) - used_bytes(home.base)))


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


def read_seal_file(path: str) -> Optional[Seal]:
    """The seal in a file; None where it is gone, torn, or of a version that is not understood."""
    try:
        fact = os.stat(path)
    except OSError:
        return None
    return _parsed_seal(path, fact.st_mtime_ns, fact.st_ino, fact.st_size)


@functools.lru_cache(maxsize=64)
def _parsed_seal(path: str, _mtime_ns: int, _inode: int, _size_bytes: int) -> Optional[Seal]:
    """A seal is written once and looked at again and again."""
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as stream:
            return read_seal(stream.read(SEAL_MAX_BYTES))
    except OSError:
        return None


def remove(path: str) -> None:
    """Remove a file, or a folder with all that is in it, as far as that goes."""
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            os.unlink(path)
