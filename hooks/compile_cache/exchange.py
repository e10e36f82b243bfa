"""A node takes entries from the packs of its run, gives what they lack, and its leader compacts them. (I/O)

Packs lie in the run's folder, one folder for each class of nodes (`node`). A node takes what
it does not have. Nothing here may cost a start: a damaged entry is left out, what takes too long stays
where it is, and the framework compiles it again.

Nodes of one job compile the same code. The leader gives first; the others then find little or nothing to
add. A pack is only ever added. The leader alone compacts: when there are many packs, when they exceed the
limit, when one is damaged, or when a newer framework has written into the caches since. A node that reads a
pack while it is removed loses only warm entries.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO, NamedTuple, Optional

from ftrun.hooks.compile_cache import packs
from ftrun.hooks.compile_cache.node import NEVER_NS, Index, Location, list_entries, torn_reason_of_file
from ftrun.hooks.compile_cache.packs import Damaged, Entry, Header, kind_of, unit_of

PACKS_MAX = 8
CROWD = 64  # with so many packs all but the leader wait until it has put them into one
ROOM_KEPT = 0.8  # of the limit, after it was reached: else every further entry would make all be written anew
LEFT_S = 3600.0  # what a writer left that was killed
SETTLED_S = 3.0  # a file that was written to so lately may still be
RESERVE = 0.05  # of the node's file system, which stays free
_NEW = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC


class Contributor(NamedTuple):
    """Who gives: the node's name, whether it leads, the versions that write here, the class's facts, the time, and until when (monotonic)."""

    node: str
    leads: bool
    writers: Mapping[str, str]
    facts: Mapping[str, str]
    now_s: float
    until_s: float


# ---------------------------------------------------------------------- taking


class _Bounds(NamedTuple):
    """Until when (monotonic) something may take, and where it notes what went wrong."""

    until_s: float
    trouble: list[str]

    def are_over(self) -> bool:
        """Whether the time is up; then that is noted."""
        if time.monotonic() < self.until_s:
            return False
        self.trouble.append("the time was up: the rest is left where it is")
        return True


def fill(location: Location, index: Index, until_s: float) -> tuple[Index, list[str]]:
    """Take from the packs what the node does not have, until `until_s` (monotonic); also what went wrong, a line each. Raises OSError."""
    folder = os.path.join(location.shared, index.node_class)
    bounds = _Bounds(until_s, [])
    for name in packs.pack_names(folder):
        if name in index.taken:
            continue
        if bounds.are_over():
            break
        try:
            index = _fill_from(location, index, name, bounds)
        except (Damaged, OSError) as error:  # one that was merged into another meanwhile is no loss
            bounds.trouble.append(f"{name}: {error}")
    return index, bounds.trouble


def _fill_from(location: Location, index: Index, name: str, bounds: _Bounds) -> Index:
    with packs.open_pack(os.path.join(location.shared, index.node_class), name, location.epoch) as (
        stream,
        header,
    ):
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
    """Whether the node has the file already: under a name that stands for its content any whole one will do, else the newer one."""
    kind = kind_of(entry.path)
    try:
        fact = os.lstat(os.path.join(local, entry.path))
    except OSError:
        return False
    return kind is None or kind.is_keyed or fact.st_mtime_ns >= entry.mtime_ns


def _put_units(
    local: str, stream: Any, header: Header, wanted: frozenset[str], bounds: _Bounds
) -> dict[str, int]:
    """Write the wanted entries, whole units only; path -> bytes of what was written."""
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
    # In the order in which they were written: what names others, as the groups of Triton do, comes last.
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
            stream.flush()  # a write that comes later would change the time again
            os.utime(number, ns=(NEVER_NS, entry.mtime_ns))
        os.rename(draft, path)
    except OSError:  # such as a full disk, of which no part is to be ours
        os.unlink(draft)
        raise


# ---------------------------------------------------------------------- giving


def merge(location: Location, index: Index, contributor: Contributor) -> tuple[Index, dict[str, Any]]:
    """Give what the packs do not have, and keep house where this node leads; what became of it.

    Raises OSError.
    """
    folder = os.path.join(location.shared, index.node_class)
    os.makedirs(folder, mode=0o700, exist_ok=True)
    index, damaged = _refreshed(folder, index)
    paths, torn = _fresh(location, index, contributor)
    need = min(sum(_size(location, path) for path in paths), location.limit_bytes // 8)
    told: dict[str, Any] = {"given": 0, "given_bytes": 0, "torn": torn[:16], "damaged": damaged[:16]}
    room = location.limit_bytes - _bytes(folder)
    if contributor.leads and (_is_untidy(folder, index, damaged) or room < need):
        index, told["merged"] = _compacted(location, folder, index, contributor)
        room = location.limit_bytes - _bytes(folder)
    if paths and room > 0 and (contributor.leads or len(index.packs) <= CROWD):
        about = _about(index, contributor)
        entries: list[Entry] = []

        def put(stream: BinaryIO) -> list[Entry]:
            entries.extend(packs.append_files(stream, location.local, paths, room))
            return entries

        name = packs.write_pack(folder, location.local, about, put)
        if name is not None:
            index = index.with_pack(name, entries)._replace(taken=index.taken | {name})
            told.update(given=len(entries), given_bytes=sum(one.size for one in entries))
    return index, told


def _size(location: Location, path: str) -> int:
    try:
        return os.lstat(os.path.join(location.local, path)).st_size
    except OSError:
        return 0


def _about(index: Index, contributor: Contributor) -> dict[str, Any]:
    return {
        "class": index.node_class, "facts": dict(contributor.facts), "writers": dict(contributor.writers), "made_s": contributor.now_s, "node": contributor.node,
        "epoch": index.epoch,
    }  # fmt: skip


def _refreshed(folder: str, index: Index) -> tuple[Index, list[str]]:
    """The index with what other nodes have given since; packs that are gone are forgotten, damaged ones named."""
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
    """The paths of whole units that no pack has, and what is torn.

    Only the leader says what a name stands for that is written anew.
    """
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
    total = 0
    for name in packs.pack_names(folder):
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


def _compacted(location: Location, folder: str, index: Index, contributor: Contributor) -> tuple[Index, str]:
    """All packs as one, without what is damaged, superseded or too much: the units that were not used for longest go first."""
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
    """What can be read of them; errors of whoever takes them are not caught."""
    try:
        with packs.open_pack(folder, name) as (stream, header):
            yield from packs.read_entries(stream, header, wanted)
    except (Damaged, OSError):
        return


def _chosen(
    location: Location, headers: Mapping[str, Header], contributor: Contributor
) -> tuple[dict[str, frozenset[str]], int]:
    """Of each pack, newest first, the paths that stay; and how many do not."""
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
            used_s = max(used_s, entry.mtime_ns / 1e9, _read_s(location, entry))
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
    """Written by another version of its framework than the one that runs now, whose names it would never answer to."""
    kind = kind_of(entry.path)
    now = contributor.writers.get(kind.framework, "") if kind else ""
    then = header.writers.get(kind.framework, "") if kind else ""
    return bool(now and then and now != then)


def _read_s(location: Location, entry: Entry) -> float:
    """When this node read what it had from the pack; 0 where it did not, or nobody can tell."""
    try:
        return os.lstat(os.path.join(location.local, entry.path)).st_atime
    except OSError:
        return 0.0
