"""A run's compile caches on one node: filled from the run's folder before a start, kept whole, and merged into it afterwards. (I/O)

How it thinks. Every start of a run is told the same folder on its node (`local`). What lies there is the frameworks' own; what travels is packs in the
run's folder, one folder for each class of nodes (`cacheclass`). A node takes from the packs what it does not have, and gives what the packs do not
have, so the second and all later nodes with the same code find nothing to give. Nothing here may cost a start: what is damaged is left out, what takes
too long is left where it is, and the framework compiles it.

Compiled code is run, so it is believed only from a folder that nobody else could write: a local folder of another owner is
refused for the whole run. Which entry of a pack was used is told by the time of its last reading: it is put back to 1970 when it is filled in.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
import time
from collections.abc import Iterator
from typing import Any, NamedTuple, Optional

from ftrun.hooks import cachepack, nodefile
from ftrun.hooks.cachekinds import READ_BYTES_MAX, is_entry, kind_of, why_not_whole
from ftrun.hooks.cachepack import Damaged, Entry, Header
from ftrun.hooks.ownership import NotPrivate, distrust, exposed, is_own_folder, private_folder

__all__ = [
    "Foreign",
    "Index",
    "Where",
    "drop_torn",
    "fill",
    "listed",
    "load",
    "own",
    "refuse",
    "tally",
    "where_of",
]

INDEX = ".ftrun-index.json"
DOUBTED = ".ftrun-doubted"  # others could write here until we closed the folder: nothing in it is given, and a fill begins anew
SETTLED_S = 3.0  # a file that was written to so lately may still be
RESERVE = 0.05  # of the node's file system, which stays free
FILES_MAX = 200_000
NEVER_NS = 0
_NEW = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC


class Foreign(Exception):
    """The folder on this node belongs to somebody else. One line."""


class Where(NamedTuple):
    """The folder on the node, how many bytes the run's packs may take, the run's `caches`, and how often these were cleared."""

    local: str
    limit_bytes: int
    shared: str
    epoch: int


class Known(NamedTuple):
    """One file as a pack has it."""

    size: int
    mtime_ns: int


class Index(NamedTuple):
    """What a node knows of the packs: by pack, its files; under "" those of packs that are gone, which are not given again.

    `taken`: the packs that have nothing for this node any more; `filled`, `filled_bytes`: what was taken out of them here.
    """

    epoch: int
    node_class: str
    packs: dict[str, dict[str, Known]]
    taken: frozenset[str] = frozenset()
    filled: frozenset[str] = frozenset()
    filled_bytes: int = 0

    def files(self) -> dict[str, Known]:
        """All files of all packs; of two with one path the newer pack's."""
        found: dict[str, Known] = {}
        for name in sorted(self.packs):
            found.update(self.packs[name])
        return found


def where_of(attempt_folder: str) -> Optional[Where]:
    """What batch.sh noted of the run's caches; None where its starts are told of none."""
    shared = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(attempt_folder))), "caches")
    with (
        contextlib.suppress(OSError, ValueError),
        open(os.path.join(shared, "where"), encoding="utf-8", errors="surrogateescape") as stream,
    ):
        limit, _, local = stream.readline().rstrip("\n").partition(" ")
        if os.path.isabs(local) and not os.path.exists(os.path.join(shared, "refused")):
            return Where(local, int(limit), shared, _epoch(shared))
    return None


def _epoch(shared: str) -> int:
    with (
        contextlib.suppress(OSError, ValueError),
        open(os.path.join(shared, "epoch"), encoding="ascii") as stream,
    ):
        return int(stream.readline())
    return 0


def refuse(where: Where, why: str) -> None:
    """No start of this run is told of caches any more. Raises OSError."""
    nodefile.write(os.path.join(where.shared, "refused"), {"why": why})


def own(local: str) -> bool:
    """Make sure that the folder, and the user's that it lies in, are there, ours, and closed to others from now on. Raises Foreign.

    Whether nobody else could write into it before. Where neither can be had, whoever makes it later may be anybody: that is foreign, too.
    """
    above = os.path.dirname(local)
    try:
        open_before = (is_own_folder(above) and distrust(above)) or (is_own_folder(local) and distrust(local))
        private_folder(above)
        if why := exposed(above):
            raise Foreign(why)
        private_folder(local)
        doubted = os.path.join(local, DOUBTED)
        if open_before:
            os.close(os.open(doubted, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
        return not os.path.lexists(doubted)
    except OSError as error:
        raise Foreign(str(error) if isinstance(error, NotPrivate) else f"{local}: {error.strerror}") from None


# ---------------------------------------------------------------------- what a node has and knows


def listed(local: str) -> Iterator[tuple[str, os.stat_result]]:
    """The entries below the folder by path, with their facts: regular files of this user, by their names complete."""
    seen = 0
    for folder, below, names in os.walk(local):
        below.sort()
        for name in sorted(names):
            path = os.path.relpath(os.path.join(folder, name), local)
            seen += 1
            if seen > FILES_MAX or not is_entry(path) or not cachepack.is_safe(path):
                continue
            with contextlib.suppress(OSError):
                fact = os.lstat(os.path.join(folder, name))
                if stat.S_ISREG(fact.st_mode) and fact.st_uid == os.geteuid():
                    yield path, fact


def load(where: Where, node_class: str) -> Index:
    """What the node knows of the packs. A folder that is from before the caches were cleared, or of another class of nodes, is emptied. Raises OSError."""
    table: Any = None
    with (
        contextlib.suppress(OSError, ValueError),
        open(os.path.join(where.local, INDEX), encoding="utf-8") as stream,
    ):
        table = json.load(stream)
    with contextlib.suppress(ValueError, TypeError, KeyError, AttributeError):
        packs = {
            str(name): {str(path): Known(int(size), int(mtime)) for path, size, mtime in rows}
            for name, rows in table["packs"].items()
        }
        found = Index(
            int(table["epoch"]),
            str(table["class"]),
            packs,
            frozenset(map(str, table["taken"])),
            frozenset(map(str, table["filled"])),
            int(table["filled_bytes"]),
        )
        if (found.epoch, found.node_class) == (where.epoch, node_class):
            return found
    if isinstance(table, dict) or where.epoch:
        empty(where.local)
    return Index(where.epoch, node_class, {})


def store(where: Where, index: Index) -> None:
    """Keep what the node knows. Raises OSError."""
    rows = {name: [[path, *known] for path, known in files.items()] for name, files in index.packs.items()}
    table = {
        "epoch": index.epoch,
        "class": index.node_class,
        "packs": rows,
        "taken": sorted(index.taken),
        "filled": sorted(index.filled),
        "filled_bytes": index.filled_bytes,
    }
    draft = os.path.join(where.local, f"{INDEX}.{os.getpid()}.tmp")  # nodes of a sandbox share the folder
    with open(
        os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "w", encoding="utf-8"
    ) as stream:
        json.dump(table, stream)
    os.replace(draft, os.path.join(where.local, INDEX))


def empty(local: str) -> None:
    """Remove all that lies in the folder. Raises OSError."""
    for name in os.listdir(local):
        path = os.path.join(local, name)
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path, ignore_errors=True)
        else:
            os.unlink(path)


def tally(where: Where, index: Index) -> dict[str, Any]:
    """Entries and bytes by kind, and how many of those that were filled in have been read since: None where the file system does not tell."""
    kinds: dict[str, list[int]] = {}
    known = index.files()
    hits = 0
    for path, fact in listed(where.local):
        kind = kind_of(path)
        row = kinds.setdefault(kind.folder if kind else "", [0, 0])
        row[0] += 1
        row[1] += fact.st_size
        hits += (
            path in index.filled
            and path in known
            and known[path] == Known(fact.st_size, fact.st_mtime_ns)
            and fact.st_atime_ns > NEVER_NS
        )
    silent = bool(os.statvfs(where.local).f_flag & getattr(os, "ST_NOATIME", 1024))
    told = {name: {"entries": count, "bytes": size} for name, (count, size) in sorted(kinds.items())}
    return {
        "local": told,
        "filled": len(index.filled),
        "filled_bytes": index.filled_bytes,
        "hits": None if silent else hits,
    }


def drop_torn(where: Where, index: Index, until_s: float) -> list[str]:
    """Remove what is visibly not whole, and say what it was, until `until_s` (monotonic). Nobody may be writing here.

    What came whole out of a pack is not read again. What was written last comes first: that is what was being written when its writer died.
    """
    known = index.files()
    unknown = [
        (fact.st_mtime_ns, path, fact.st_size)
        for path, fact in listed(where.local)
        if known.get(path) != Known(fact.st_size, fact.st_mtime_ns)
    ]
    dropped = []
    for _, path, size in sorted(unknown, reverse=True):
        if time.monotonic() >= until_s:
            break
        whole = os.path.join(where.local, path)
        with contextlib.suppress(OSError):
            with open(os.open(whole, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as stream:
                why = why_not_whole(path, stream.read(READ_BYTES_MAX), size)
            if why:
                os.unlink(whole)
                dropped.append(f"{path}: {why}")
    return dropped


# ---------------------------------------------------------------------- filling


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


def fill(where: Where, index: Index, until_s: float) -> tuple[Index, list[str]]:
    """Take from the packs what the node does not have, until `until_s` (monotonic); also what went wrong, a line each. Raises OSError."""
    folder = os.path.join(where.shared, index.node_class)
    bounds = _Bounds(until_s, [])
    for name in cachepack.names(folder):
        if name in index.taken:
            continue
        if bounds.are_over():
            break
        try:
            index = _fill_from(where, index, os.path.join(folder, name), bounds)
        except (Damaged, OSError) as error:  # one that was merged into another meanwhile is no loss
            bounds.trouble.append(f"{name}: {error}")
    return index, bounds.trouble


def _fill_from(where: Where, index: Index, path: str, bounds: _Bounds) -> Index:
    with open(path, "rb") as stream:
        header = cachepack.read_header(stream)
        if header.epoch != where.epoch:
            raise Damaged("it is from before the caches were cleared")
        wanted = frozenset(one.path for one in header.entries if not _has(where.local, one))
        need = sum(one.size for one in header.entries if one.path in wanted)
        room = os.statvfs(where.local)
        if need > (room.f_bavail - room.f_blocks * RESERVE) * room.f_frsize:
            raise Damaged("there is no room for it on this node")
        put = _put_units(where.local, stream, header, wanted, bounds)
    name = os.path.basename(path)
    return index._replace(
        packs={**index.packs, name: {one.path: Known(one.size, one.mtime_ns) for one in header.entries}},
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
    for entry, content in cachepack.read_bodies(stream, header, wanted):
        if unit and cachepack.unit_of(unit[0][0].path) != cachepack.unit_of(entry.path):
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
