"""Sealed parts in the memory of this node, its own and copies of others', and the free room. (I/O)

A file counts as unchanged while it has the size, modification time and inode in the seal, since writing into
a held file changes its time. So no content is read to verify it.
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
    """A part here: its seal, the folder of its files (or the one file); `is_own`: this node wrote it."""

    seal: Seal
    path: str
    is_own: bool


def stored_parts(home: Home) -> Iterator[StoredPart]:
    """All sealed parts: this node's own first, then copies; later starts first."""
    yield from own_parts(home)
    for node in listed(f"{home.base}/partner"):
        for token in _tokens(f"{home.base}/partner/{node}"):
            folder = f"{home.base}/partner/{node}/{token}"
            yield from (part for part in _sealed_in(folder, folder, token) if part.seal.node == node)


def own_parts(home: Home) -> Iterator[StoredPart]:
    """The sealed parts that this node wrote."""
    for token in _tokens(f"{home.base}/parts"):
        for part in _sealed_in(home.seals(token), f"{home.base}/held/{token}", token):
            yield part._replace(is_own=True)


def _sealed_in(seals: str, files: str, token: str) -> Iterator[StoredPart]:
    for name in listed(seals):
        seal = read_seal_file(f"{seals}/{name}") if name.endswith(".json") else None
        if seal is not None and (seal.token, f"{seal.name}.json") == (token, name):
            yield StoredPart(seal, f"{files}/{seal.name}", is_own=False)


def stored_part(home: Home, node: str, token: str, name: str) -> Optional[StoredPart]:
    """The part of `node` in set `name`, written here or copied; None if it is not here or has changed."""
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
    """The path of a file of a part."""
    return f"{part.path}/{inner}" if inner else part.path


def first_changed(part: StoredPart) -> Optional[str]:
    """The first file of a part that changed since it was sealed; None without any."""
    return next(
        (inner for inner, one in part.seal.files.items() if not is_unchanged(file_path(part, inner), one)),
        None,
    )


def summed(part: StoredPart, cores: int = 1, only: Optional[Collection[str]] = None) -> StoredPart:
    """The part with the checksums of all files, or of the files `only`; missing ones are computed. `cores`:
    the number of reading threads. Raises OSError, copy.Changed.
    """
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
    """Whether a file is as its seal describes it."""
    try:
        fact = os.lstat(path)
    except OSError:
        return False
    return (fact.st_size, fact.st_mtime_ns, fact.st_ino) == (one.size_bytes, one.mtime_ns, one.inode)


def used_bytes(folder: str) -> int:
    """The size on disk of all files below a folder; a file with several names counts once."""
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
    """How many bytes still fit into `limit` (200G, 40%) and what is free. Raises OSError, ValueError."""
    fact = os.statvfs(home.base)
    free = int(fact.f_bavail * fact.f_frsize - RESERVE * fact.f_blocks * fact.f_frsize)
    return max(0, min(free, parse_amount(limit, memory_bytes()) - used_bytes(home.base)))


def memory_bytes() -> int:
    """The memory of this node. Raises OSError."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _tokens(folder: str) -> list[str]:
    """The tokens of starts in a folder, the latest first."""
    found = [name for name in listed(folder) if token_of(name) is not None]
    return sorted(found, key=lambda name: token_of(name) or (0, 0), reverse=True)


def listed(folder: str) -> list[str]:
    """The names in a folder, sorted; none where it cannot be read."""
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def read_seal_file(path: str) -> Optional[Seal]:
    """The seal in a file; None if it is gone, torn, or of an unknown version."""
    try:
        fact = os.stat(path)
    except OSError:
        return None
    return _parsed_seal(path, fact.st_mtime_ns, fact.st_ino, fact.st_size)


@functools.lru_cache(maxsize=64)
def _parsed_seal(path: str, _mtime_ns: int, _inode: int, _size_bytes: int) -> Optional[Seal]:
    """A seal is written once and read many times."""
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as stream:
            return read_seal(stream.read(SEAL_MAX_BYTES))
    except OSError:
        return None


def remove(path: str) -> None:
    """Remove a file, or a folder with its content, as far as possible."""
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            os.unlink(path)
