"""What a node gives to the packs of its run, and how these are kept few, small and whole. (I/O)

How it thinks. Nodes of one job compile the same code, so the first one (the leader) gives first, and the others look at what is there by then: mostly
they have nothing to add. A pack is only ever added; the leader alone puts several into one when they have become many, when they take more than
they may, when one is damaged, or when a newer framework has written into the caches since. Whoever reads a pack that goes away
meanwhile has lost nothing but a warm entry.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO, NamedTuple, Optional

from ftrun.hooks import cachepack, caches
from ftrun.hooks.cachekinds import READ_BYTES_MAX, kind_of, why_not_whole
from ftrun.hooks.cachepack import Damaged, Entry, Header
from ftrun.hooks.caches import Index, Known, Where

__all__ = ["Giver", "merge"]

PACKS_MAX = 8
CROWD = 64  # with so many packs all but the leader wait until it has put them into one
ROOM_KEPT = 0.8  # of the limit, after it was reached: else every further entry would make all be written anew
LEFT_S = 3600.0  # what a writer left that was killed


class Giver(NamedTuple):
    """Who gives: the node's name, whether it leads, the versions that write here, the class's facts, the time, and until when (monotonic)."""

    node: str
    leads: bool
    writers: Mapping[str, str]
    facts: Mapping[str, str]
    now_s: float
    until_s: float


def merge(where: Where, index: Index, giver: Giver) -> tuple[Index, dict[str, Any]]:
    """Give what the packs do not have, and keep house where this node leads; what became of it. Raises OSError."""
    folder = os.path.join(where.shared, index.node_class)
    os.makedirs(folder, mode=0o700, exist_ok=True)
    index, damaged = _refreshed(folder, index)
    paths, torn = _fresh(where, index, giver)
    need = min(sum(_size(where, path) for path in paths), where.limit_bytes // 8)
    told: dict[str, Any] = {"given": 0, "given_bytes": 0, "torn": torn[:16], "damaged": damaged[:16]}
    room = where.limit_bytes - _bytes(folder)
    if giver.leads and (_is_untidy(folder, index, damaged) or room < need):
        index, told["merged"] = _compacted(where, folder, index, giver)
        room = where.limit_bytes - _bytes(folder)
    if paths and room > 0 and (giver.leads or len(index.packs) <= CROWD):
        about = _about(index, giver)
        entries: list[Entry] = []

        def put(stream: BinaryIO) -> list[Entry]:
            entries.extend(cachepack.put_files(stream, where.local, paths, room))
            return entries

        name = cachepack.write(folder, where.local, about, put)
        if name is not None:
            index = _with(index, name, entries)._replace(taken=index.taken | {name})
            told.update(given=len(entries), given_bytes=sum(one.size for one in entries))
    return index, told


def _size(where: Where, path: str) -> int:
    try:
        return os.lstat(os.path.join(where.local, path)).st_size
    except OSError:
        return 0


def _about(index: Index, giver: Giver) -> dict[str, Any]:
    return {
        "class": index.node_class, "facts": dict(giver.facts), "writers": dict(giver.writers), "made_s": giver.now_s, "node": giver.node,
        "epoch": index.epoch,
    }  # fmt: skip


def _with(index: Index, name: str, entries: list[Entry]) -> Index:
    return index._replace(
        packs={**index.packs, name: {one.path: Known(one.size, one.mtime_ns) for one in entries}}
    )


def _refreshed(folder: str, index: Index) -> tuple[Index, list[str]]:
    """The index with what other nodes have given since; packs that are gone are forgotten, damaged ones named."""
    there = cachepack.names(folder)
    packs = {name: files for name, files in index.packs.items() if name in there}
    packs[""] = _gone(index, frozenset(there))
    damaged = []
    for name in there:
        if name in packs:
            continue
        try:
            with open(os.path.join(folder, name), "rb") as stream:
                header = cachepack.read_header(stream)
                if header.epoch != index.epoch:
                    raise Damaged("it is from before the caches were cleared")
                if os.fstat(stream.fileno()).st_size < header.offset + sum(
                    one.stored for one in header.entries
                ):
                    raise Damaged("its end is missing")
            packs[name] = {one.path: Known(one.size, one.mtime_ns) for one in header.entries}
        except FileNotFoundError:
            continue
        except (Damaged, OSError) as error:
            damaged.append(f"{name}: {error}")
    return index._replace(packs=packs), damaged


def _gone(index: Index, there: frozenset[str]) -> dict[str, Known]:
    """The files of packs that were there once."""
    found = dict(index.packs.get("", {}))
    for name in sorted(index.packs):
        if name not in there:
            found.update(index.packs[name])
    return found


def _fresh(where: Where, index: Index, giver: Giver) -> tuple[list[str], list[str]]:
    """The paths of whole units that no pack has, and what is torn. Only the leader says what a name stands for that is written anew."""
    known = index.files()
    units: dict[str, list[str]] = {}
    torn, not_whole = [], set()
    for path, fact in caches.listed(where.local):
        had, kind = known.get(path), kind_of(path)
        if had is not None and (
            kind is None or kind.is_keyed or not giver.leads or had.mtime_ns >= fact.st_mtime_ns
        ):
            continue
        unit = cachepack.unit_of(path)
        why = "" if fact.st_mtime_ns / 1e9 <= giver.now_s - caches.SETTLED_S else "unsettled"
        why = why or _why_not_whole(os.path.join(where.local, path), path, fact.st_size)
        if why:
            not_whole.add(unit)
            torn += [] if why == "unsettled" else [f"{path}: {why}"]
        units.setdefault(unit, []).append(path)
    return [path for unit, paths in units.items() if unit not in not_whole for path in paths], torn


def _why_not_whole(whole: str, path: str, size: int) -> str:
    try:
        with open(os.open(whole, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as stream:
            return why_not_whole(path, stream.read(READ_BYTES_MAX), size)
    except OSError:
        return "unsettled"


def _bytes(folder: str) -> int:
    total = 0
    for name in cachepack.names(folder):
        with contextlib.suppress(OSError):
            total += os.stat(os.path.join(folder, name)).st_size
    return total


# ---------------------------------------------------------------------- keeping house


def _is_untidy(folder: str, index: Index, damaged: list[str]) -> bool:
    for name in os.listdir(folder):
        if name.startswith(".") and name.endswith(".tmp"):
            with contextlib.suppress(OSError):
                if time.time() - os.stat(os.path.join(folder, name)).st_mtime > LEFT_S:
                    os.unlink(os.path.join(folder, name))
    return bool(damaged) or len(index.packs) - 1 > PACKS_MAX


def _compacted(where: Where, folder: str, index: Index, giver: Giver) -> tuple[Index, str]:
    """All packs as one, without what is damaged, superseded or too much: the units that were not used for longest go first."""
    names = cachepack.names(folder)
    found = {name: _header_of(folder, name) for name in names}
    headers = {name: one for name, one in found.items() if one is not None and one.epoch == index.epoch}
    chosen, dropped = _chosen(where, headers, giver)
    entries: list[Entry] = []

    def put(stream: BinaryIO) -> list[Entry]:
        for name in headers:
            for entry, content in _bodies(os.path.join(folder, name), chosen[name]):
                if content is not None:
                    entries.append(
                        cachepack.put_content(stream, entry.path, content, entry.mtime_ns, entry.mode)
                    )
                if time.monotonic() >= giver.until_s:
                    raise TimeoutError("there was no time to put the packs into one")
        return entries

    made = cachepack.write(folder, where.local, _about(index, giver), put)
    for name in names:
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(folder, name))
    index = index._replace(packs={"": _gone(index, frozenset())})
    return (
        _with(index, made, entries) if made else index
    ), f"{len(names)} packs into one, {dropped} entries dropped"


def _header_of(folder: str, name: str) -> Optional[Header]:
    try:
        with open(os.path.join(folder, name), "rb") as stream:
            return cachepack.read_header(stream)
    except (Damaged, OSError):
        return None


def _bodies(path: str, wanted: frozenset[str]) -> Iterator[tuple[Entry, Any]]:
    try:
        with open(path, "rb") as stream:
            yield from cachepack.read_bodies(stream, cachepack.read_header(stream), wanted)
    except (Damaged, OSError):
        return


def _chosen(
    where: Where, headers: Mapping[str, Header], giver: Giver
) -> tuple[dict[str, frozenset[str]], int]:
    """Of each pack, newest first, the paths that stay; and how many do not."""
    units: dict[str, tuple[float, int, list[tuple[str, str]]]] = {}
    seen: set[str] = set()
    total = 0
    for name, header in headers.items():
        for entry in header.entries:
            total += 1
            if entry.path in seen or _is_superseded(entry, header, giver):
                continue
            seen.add(entry.path)
            used_s, size, paths = units.get(cachepack.unit_of(entry.path), (0.0, 0, []))
            used_s = max(used_s, entry.mtime_ns / 1e9, _read_s(where, entry))
            units[cachepack.unit_of(entry.path)] = (used_s, size + entry.stored, [*paths, (name, entry.path)])
    room = where.limit_bytes * ROOM_KEPT
    chosen: dict[str, set[str]] = {name: set() for name in headers}
    kept = 0
    for _, size, paths in sorted(units.values(), key=lambda one: -one[0]):
        room -= size
        if room < 0:
            break
        for name, path in paths:
            chosen[name].add(path)
            kept += 1
    return {name: frozenset(paths) for name, paths in chosen.items()}, total - kept


def _is_superseded(entry: Entry, header: Header, giver: Giver) -> bool:
    """Written by another version of its framework than the one that runs now, whose names it would never answer to."""
    kind = kind_of(entry.path)
    now = giver.writers.get(kind.framework, "") if kind else ""
    then = header.writers.get(kind.framework, "") if kind else ""
    return bool(now and then and now != then)


def _read_s(where: Where, entry: Entry) -> float:
    """When this node read what it had from the pack; 0 where it did not, or nobody can tell."""
    try:
        return os.lstat(os.path.join(where.local, entry.path)).st_atime
    except OSError:
        return 0.0
