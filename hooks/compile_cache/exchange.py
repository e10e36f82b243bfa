"""Exchanges entries through packs: a node takes what it lacks, adds what is new; the leader compacts. (I/O)

Packs are in the run's folder, in one folder for each class of nodes (`node`). Nothing here may cost a start:
a damaged entry is left out, and what takes too long is left for the framework to compile.

The nodes of a job compile the same code. The leader adds its entries first, so the others find little to add.
Packs are only added. The leader alone compacts them: if there are many, if they exceed the limit, or if one
is damaged. A node that reads a pack while it is removed loses only warm entries.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, BinaryIO, NamedTuple, Optional

from ftrun.hooks.compile_cache import packs
from ftrun.hooks.compile_cache.node import NEVER_NS, Index, Location, list_entries, torn_reason_of_file
from ftrun.hooks.compile_cache.packs import Damaged, Entry, Header, kind_of, unit_of

PACKS_MAX = 8
CROWD = 64  # with more packs only the leader adds one, until it has compacted them
ROOM_KEPT = 0.8  # of the limit, after compacting; otherwise every further entry would compact again
LEFT_S = 3600.0  # age of drafts of killed writers
SETTLED_S = 3.0  # a younger file may still be written to
RESERVE = 0.05  # of the node's file system, which stays free
_NEW = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC


class Contributor(NamedTuple):
    """A node that adds entries: name, whether it leads, framework versions, facts, time, deadline."""

    node: str
    leads: bool
    writers: Mapping[str, str]
    facts: Mapping[str, str]
    now_s: float
    until_s: float


class _Bounds(NamedTuple):
    """A deadline (monotonic), and the list of errors."""

    until_s: float
    trouble: list[str]

    def are_over(self) -> bool:
        """Whether the time is up; then that is an error."""
        if time.monotonic() < self.until_s:
            return False
        self.trouble.append("the time was up: the rest is left where it is")
        return True


def fill(location: Location, index: Index, until_s: float) -> tuple[Index, list[str]]:
    """Take the missing entries until `until_s` (monotonic); also returns errors as lines. Raises OSError."""
    folder = os.path.join(location.shared, index.node_class)
    bounds = _Bounds(until_s, [])
    for name in packs.pack_names(folder):
        if name in index.taken:
            continue
        if bounds.are_over():
            break
        try:
            index = _fill_from(location, index, name, bounds)
        except (Damaged, OSError) as error:  # such as a pack that was compacted meanwhile
            bounds.trouble.append(f"{name}: {error}")
    return index, bounds.trouble


def _fill_from(location: Location, index: Index, name: str, bounds: _Bounds) -> Index:
    folder = os.path.join(location.shared, index.node_class)
    with packs.open_pack(folder, name, location.epoch) as (stream, header):
        wanted = frozenset(one.path for one in header.entries if not _has(location.local, one))
        need = sum(one.size for one in header.entries if one.path in wanted)
        room = os.statvfs(location.local)
        if need > (room.f_bavail - room.f_blocks * RESERVE) * room.f_frsize:
            raise Damaged("there is no room for it on this node")
        put = _put_units(location.local, stream, header, wanted, bounds)
    return index.with_pack(name, header.entries)._replace(
        taken=index.taken | {name} if len(put) == len(wanted) else index.taken,
        filled=index.filled | put.keys(),
        filled_bytes=index.filled_bytes + sum(put.values()),
    )


def _has(local: str, entry: Entry) -> bool:
    """Whether the node has the file: any file if the name identifies the content, else one that is as new."""
    kind = kind_of(entry.path)
    try:
        fact = os.lstat(os.path.join(local, entry.path))
    except OSError:
        return False
    return kind is None or kind.is_keyed or fact.st_mtime_ns >= entry.mtime_ns


def _put_units(
    local: str, stream: Any, header: Header, wanted: frozenset[str], bounds: _Bounds
) -> dict[str, int]:
    """Write the wanted entries in complete units; returns path -> size of those written."""
    put: dict[str, int] = {}
    unit: list[tuple[Entry, Optional[bytes]]] = []
    for entry, content in packs.read_entries(stream, header, wanted):
        if unit and unit_of(unit[0][0].path) != unit_of(entry.path):
            put.update(_put_unit(local, unit, bounds.trouble))
            unit = []
        unit.append((entry, content))
        if bounds.are_over():
            return put
    put.update(_put_unit(local, unit, bounds.trouble))
    return put


def _put_unit(local: str, unit: list[tuple[Entry, Optional[bytes]]], trouble: list[str]) -> dict[str, int]:
    bad = [entry.path for entry, content in unit if content is None]
    if bad:
        trouble.append(f"{bad[0]}: damaged in its pack, left out")
        return {}
    # In the order of their times: files that refer to others, such as Triton's groups, come last.
    for entry, content in sorted(unit, key=lambda one: one[0].mtime_ns):
        _put(os.path.join(local, entry.path), entry, content or b"")
    return {entry.path: entry.size for entry, _ in unit}


def _put(path: str, entry: Entry, content: bytes) -> None:
    folder, _, name = path.rpartition("/")
    draft = f"{folder}/.{name[:200]}.{os.getpid()}.tmp"
    try:
        number = os.open(draft, _NEW, entry.mode | 0o600)
    except FileNotFoundError:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        number = os.open(draft, _NEW, entry.mode | 0o600)
    try:
        with open(number, "wb") as stream:
            stream.write(content)
            stream.flush()  # a later write would change the time again
            os.utime(number, ns=(NEVER_NS, entry.mtime_ns))
        os.rename(draft, path)
    except OSError:  # such as a full disk
        os.unlink(draft)
        raise


def merge(location: Location, index: Index, contributor: Contributor) -> tuple[Index, dict[str, Any]]:
    """Add what the packs lack, and compact them if this node leads; returns also a report. Raises OSError."""
    folder = os.path.join(location.shared, index.node_class)
    os.makedirs(folder, mode=0o700, exist_ok=True)
    index, damaged = _refreshed(folder, index)
    paths, torn = _fresh(location, index, contributor)
    files = (os.path.join(location.local, path) for path in paths)
    need = min(_total_bytes(files), location.limit_bytes // 8)
    told: dict[str, Any] = {"given": 0, "given_bytes": 0, "torn": torn[:16], "damaged": damaged[:16]}
    room = location.limit_bytes - _bytes(folder)
    if contributor.leads and (_is_untidy(folder, index, damaged) or room < need):
        index, told["merged"] = _compacted(location, folder, index, contributor)
        room = location.limit_bytes - _bytes(folder)
    if paths and room > 0 and (contributor.leads or len(index.packs) <= CROWD):
        entries: list[Entry] = []

        def put(stream: BinaryIO) -> list[Entry]:
            entries.extend(packs.append_files(stream, location.local, paths, room))
            return entries

        name = packs.write_pack(folder, location.local, _about(index, contributor), put)
        if name is not None:
            index = index.with_pack(name, entries)._replace(taken=index.taken | {name})
            told.update(given=len(entries), given_bytes=sum(one.size for one in entries))
    return index, told


def _about(index: Index, contributor: Contributor) -> dict[str, Any]:
    return {
        "class": index.node_class, "facts": dict(contributor.facts), "writers": dict(contributor.writers),
        "made_s": contributor.now_s, "node": contributor.node, "epoch": index.epoch,
    }  # fmt: skip


def _refreshed(folder: str, index: Index) -> tuple[Index, list[str]]:
    """The index with the packs of other nodes and without removed ones; returns also the damaged ones."""
    there = packs.pack_names(folder)
    index = index.only(there)
    damaged = []
    for name in there:
        if name in index.packs:
            continue
        try:
            with packs.open_pack(folder, name, index.epoch) as (stream, header):
                size = header.offset + sum(one.stored for one in header.entries)
                if os.fstat(stream.fileno()).st_size < size:
                    raise Damaged("its end is missing")
            index = index.with_pack(name, header.entries)
        except FileNotFoundError:
            continue
        except (Damaged, OSError) as error:
            damaged.append(f"{name}: {error}")
    return index, damaged


def _fresh(location: Location, index: Index, contributor: Contributor) -> tuple[list[str], list[str]]:
    """The paths of complete units that no pack has, and torn entries; only the leader replaces an entry."""
    known = index.files()
    units: dict[str, list[str]] = {}
    torn, not_whole = [], set()
    for path, fact in list_entries(location.local):
        had, kind = known.get(path), kind_of(path)
        if had is not None and (
            kind is None or kind.is_keyed or not contributor.leads or had.mtime_ns >= fact.st_mtime_ns
        ):
            continue
        unit = unit_of(path)
        settled = fact.st_mtime_ns / 1e9 <= contributor.now_s - SETTLED_S
        try:
            why = torn_reason_of_file(location.local, path, fact.st_size) if settled else ""
        except OSError:
            settled, why = False, ""
        if why or not settled:
            not_whole.add(unit)
            torn += [f"{path}: {why}"] if why else []
        units.setdefault(unit, []).append(path)
    return [path for unit, paths in units.items() if unit not in not_whole for path in paths], torn


def _bytes(folder: str) -> int:
    return _total_bytes(os.path.join(folder, name) for name in packs.pack_names(folder))


def _total_bytes(paths: Iterable[str]) -> int:
    total = 0
    for path in paths:
        with contextlib.suppress(OSError):
            total += os.lstat(path).st_size
    return total


def _is_untidy(folder: str, index: Index, damaged: list[str]) -> bool:
    for name in os.listdir(folder):
        if name.startswith(".") and name.endswith(".tmp"):
            with contextlib.suppress(OSError):
                if time.time() - os.stat(os.path.join(folder, name)).st_mtime > LEFT_S:
                    os.unlink(os.path.join(folder, name))
    return bool(damaged) or len(index.packs) - 1 > PACKS_MAX


def _compacted(location: Location, folder: str, index: Index, contributor: Contributor) -> tuple[Index, str]:
    """Rewrite all packs as one, without damaged and superseded entries, and within the limit."""
    names = packs.pack_names(folder)
    headers: dict[str, Header] = {}
    for name in names:
        with contextlib.suppress(Damaged, OSError), packs.open_pack(folder, name, index.epoch) as (_, header):
            headers[name] = header
    chosen, dropped = _chosen(location, headers, contributor)
    entries: list[Entry] = []

    def put(stream: BinaryIO) -> list[Entry]:
        for name in headers:
            for entry, content in _bodies(folder, name, chosen[name]):
                if content is not None:
                    entries.append(
                        packs.append_entry(stream, entry.path, content, entry.mtime_ns, entry.mode)
                    )
                if time.monotonic() >= contributor.until_s:
                    raise TimeoutError("there was no time to put the packs into one")
        return entries

    made = packs.write_pack(folder, location.local, _about(index, contributor), put)
    for name in names:
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(folder, name))
    index = index.only(())
    if made:
        index = index.with_pack(made, entries)
    return index, f"{len(names)} packs into one, {dropped} entries dropped"


def _bodies(folder: str, name: str, wanted: frozenset[str]) -> Iterator[tuple[Entry, Optional[bytes]]]:
    """The readable entries; errors of the caller are not caught."""
    try:
        with packs.open_pack(folder, name) as (stream, header):
            yield from packs.read_entries(stream, header, wanted)
    except (Damaged, OSError):
        return


def _chosen(
    location: Location, headers: Mapping[str, Header], contributor: Contributor
) -> tuple[dict[str, frozenset[str]], int]:
    """The paths that stay of each pack, newest first, and the number of those that do not."""
    units: dict[str, tuple[float, int, list[tuple[str, str]]]] = {}
    seen: set[str] = set()
    total = 0
    for name, header in headers.items():
        for entry in header.entries:
            total += 1
            if entry.path in seen or _is_superseded(entry, header, contributor):
                continue
            seen.add(entry.path)
            used_s, size, paths = units.get(unit_of(entry.path), (0.0, 0, []))
            with contextlib.suppress(OSError):  # when this node read it
                used_s = max(used_s, os.lstat(os.path.join(location.local, entry.path)).st_atime)
            used_s = max(used_s, entry.mtime_ns / 1e9)
            units[unit_of(entry.path)] = (used_s, size + entry.stored, [*paths, (name, entry.path)])
    room = location.limit_bytes * ROOM_KEPT
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


def _is_superseded(entry: Entry, header: Header, contributor: Contributor) -> bool:
    """Whether another version of its framework wrote it than the one that runs now."""
    kind = kind_of(entry.path)
    now, then = (one.writers.get(kind.framework, "") if kind else "" for one in (contributor, header))
    return bool(now and then and now != then)
