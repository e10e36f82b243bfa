"""A run's compile caches on one node: folder, owner, entries, and the class of nodes that share them. (I/O)

Every start of a run gets the same folder on its node (`local`). Compiled code is executed, so a folder of
another owner is refused for the whole run. A filled entry gets 1970 as its access time; a later one is a hit.

Code compiled for one processor can be loaded on another and dies of an illegal instruction. So nodes share
only with nodes of the same processor, instruction sets, C library, accelerators and drivers. The versions of
Python and the frameworks are read from the processes that use the cache.

Sources: /proc/driver/nvidia (driver's README, chapter on /proc), /sys/module/amdgpu/version,
/usr/local/Ascend/driver/version.info.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import json
import os
import re
import shutil
import stat
import time
from collections.abc import Container, Iterable, Iterator
from itertools import islice
from typing import Any, NamedTuple, Optional

from ftrun.hooks.compile_cache.packs import READ_BYTES_MAX, Entry, is_entry, is_safe, kind_of, torn_reason
from ftrun.hooks.runtime import node_report, ownership
from ftrun.hooks.runtime.procfs import read_text

INDEX = ".ftrun-index.json"
DOUBTED = (
    ".ftrun-doubted"  # others could write here before we closed it: no entry is shared, a fill empties it
)
FILES_MAX = 200_000
NEVER_NS = 0


class ForeignFolder(Exception):
    """The folder on this node belongs to somebody else. One line."""


class Location(NamedTuple):
    """The folder on the node, the size limit of the run's packs, the run's `caches`, its epoch."""

    local: str
    limit_bytes: int
    shared: str
    epoch: int


class Known(NamedTuple):
    """A file in a pack."""

    size: int
    mtime_ns: int


class Index(NamedTuple):
    """What a node knows of the packs: the files of each; under "" those of removed packs, not shared again.
    `taken`: the packs with nothing left for this node; `filled`, `filled_bytes`: what was taken from them.
    """

    epoch: int
    node_class: str
    packs: dict[str, dict[str, Known]]
    taken: frozenset[str] = frozenset()
    filled: frozenset[str] = frozenset()
    filled_bytes: int = 0

    def with_pack(self, name: str, entries: Iterable[Entry]) -> Index:
        """The index with this pack in it."""
        return self._replace(
            packs={**self.packs, name: {one.path: Known(one.size, one.mtime_ns) for one in entries}}
        )

    def only(self, there: Container[str]) -> Index:
        """The index with these packs alone; files of the others are not shared again."""
        kept = {name: files for name, files in self.packs.items() if name in there}
        gone = dict(self.packs.get("", {}))
        for name in sorted(self.packs.keys() - kept.keys()):
            gone.update(self.packs[name])
        return self._replace(packs={**kept, "": gone})

    def files(self) -> dict[str, Known]:
        """The files of all packs; of two with the same path that of the newer pack."""
        found: dict[str, Known] = {}
        for name in sorted(self.packs):
            found.update(self.packs[name])
        return found


def locate(attempt_folder: str) -> Optional[Location]:
    """The caches of the run as batch.sh recorded them; None if its starts use none."""
    shared = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(attempt_folder))), "caches")
    with (
        contextlib.suppress(OSError, ValueError),
        open(os.path.join(shared, "where"), encoding="utf-8", errors="surrogateescape") as stream,
    ):
        limit, _, local = stream.readline().rstrip("\n").partition(" ")
        if os.path.isabs(local) and not os.path.exists(os.path.join(shared, "refused")):
            return Location(local, int(limit), shared, _epoch(shared))
    return None


def _epoch(shared: str) -> int:
    with (
        contextlib.suppress(OSError, ValueError),
        open(os.path.join(shared, "epoch"), encoding="ascii") as stream,
    ):
        return int(stream.readline())
    return 0


def refuse(location: Location, why: str) -> None:
    """Use no caches in later starts of this run. Raises OSError."""
    node_report.write_json(os.path.join(location.shared, "refused"), {"why": why})


def ensure_private(local: str) -> bool:
    """Make the folder and the user's folder above it, private to this user. Raises ForeignFolder. Returns
    whether nobody else could write into it before. A folder that cannot be made is foreign as well: anybody
    could make it later.
    """
    above = os.path.dirname(local)
    try:
        open_before = (ownership.is_own_folder(above) and ownership.why_untrusted(above)) or (
            ownership.is_own_folder(local) and ownership.why_untrusted(local)
        )
        ownership.private_folder(above)
        if why := ownership.why_replaceable(above):
            raise ForeignFolder(why)
        ownership.private_folder(local)
        doubted = os.path.join(local, DOUBTED)
        if open_before:
            os.close(os.open(doubted, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
        return not os.path.lexists(doubted)
    except OSError as error:
        raise ForeignFolder(
            str(error) if isinstance(error, ownership.NotPrivate) else f"{local}: {error.strerror}"
        ) from None


def list_entries(local: str) -> Iterator[tuple[str, os.stat_result]]:
    """The entries below the folder: regular files of this user whose names are no temporary ones."""
    seen = 0
    for folder, below, names in os.walk(local):
        below.sort()
        for name in sorted(names):
            path = os.path.relpath(os.path.join(folder, name), local)
            seen += 1
            if seen > FILES_MAX or not is_entry(path) or not is_safe(path):
                continue
            with contextlib.suppress(OSError):
                fact = os.lstat(os.path.join(folder, name))
                if stat.S_ISREG(fact.st_mode) and fact.st_uid == os.geteuid():
                    yield path, fact


def load_index(location: Location, node_class: str) -> Index:
    """The index of the node; a folder of an earlier epoch or another class is emptied. Raises OSError."""
    table: Any = None
    with (
        contextlib.suppress(OSError, ValueError),
        open(os.path.join(location.local, INDEX), encoding="utf-8") as stream,
    ):
        table = json.load(stream)
    with contextlib.suppress(ValueError, TypeError, KeyError, AttributeError):
        packs = {
            str(name): {str(path): Known(int(size), int(mtime)) for path, size, mtime in rows}
            for name, rows in table["packs"].items()
        }
        if (int(table["epoch"]), str(table["class"])) == (location.epoch, node_class):
            taken, filled = (frozenset(map(str, table[name])) for name in ("taken", "filled"))
            return Index(location.epoch, node_class, packs, taken, filled, int(table["filled_bytes"]))
    if isinstance(table, dict) or location.epoch:
        empty_folder(location.local)
    return Index(location.epoch, node_class, {})


def store_index(location: Location, index: Index) -> None:
    """Write the index. Raises OSError."""
    rows = {name: [[path, *known] for path, known in files.items()] for name, files in index.packs.items()}
    table = {
        "epoch": index.epoch, "class": index.node_class, "packs": rows, "taken": sorted(index.taken),
        "filled": sorted(index.filled), "filled_bytes": index.filled_bytes,
    }  # fmt: skip
    draft = os.path.join(location.local, f"{INDEX}.{os.getpid()}.tmp")  # nodes of a sandbox share the folder
    number = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with open(number, "w", encoding="utf-8") as stream:
        json.dump(table, stream)
    os.replace(draft, os.path.join(location.local, INDEX))


def empty_folder(local: str) -> None:
    """Remove everything in the folder. Raises OSError."""
    for name in os.listdir(local):
        path = os.path.join(local, name)
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path, ignore_errors=True)
        else:
            os.unlink(path)


def summary(location: Location, index: Index) -> dict[str, Any]:
    """Entries and bytes by kind, and how many filled entries were read since (None: access times are off)."""
    kinds: dict[str, list[int]] = {}
    known = index.files()
    hits = 0
    for path, fact in list_entries(location.local):
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
    silent = bool(os.statvfs(location.local).f_flag & getattr(os, "ST_NOATIME", 1024))
    rows = {name: {"entries": count, "bytes": size} for name, (count, size) in sorted(kinds.items())}
    hit = None if silent else hits
    return {"local": rows, "filled": len(index.filled), "filled_bytes": index.filled_bytes, "hits": hit}


def torn_reason_of_file(local: str, path: str, size: int) -> str:
    """How an entry below the folder is visibly incomplete; "" if it is not. Raises OSError."""
    whole = os.path.join(local, path)
    with open(os.open(whole, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as stream:
        return torn_reason(path, stream.read(READ_BYTES_MAX), size)


def remove_torn(location: Location, index: Index, until_s: float) -> list[str]:
    """Remove incomplete entries until `until_s` (monotonic), newest first; returns a line for each. No
    process may be writing here. Entries from packs are not read again. The newest entries are the likely
    ones: their writer may have died.
    """
    known = index.files()
    unknown = [
        (fact.st_mtime_ns, path, fact.st_size)
        for path, fact in list_entries(location.local)
        if known.get(path) != Known(fact.st_size, fact.st_mtime_ns)
    ]
    dropped = []
    for _, path, size in sorted(unknown, reverse=True):
        if time.monotonic() >= until_s:
            break
        with contextlib.suppress(OSError):
            if why := torn_reason_of_file(location.local, path, size):
                os.unlink(os.path.join(location.local, path))
                dropped.append(f"{path}: {why}")
    return dropped


PROCESSES_MAX = 64
# The flags that compilers use. Others depend on the kernel and its mitigations.
INSTRUCTIONS = re.compile(
    r"(?:avx\w*|sse\w*|ssse3|fma\d?|bmi\d|amx\w*|f16c|aes|vaes|gfni|adx|popcnt|lzcnt|abm|movbe|sha_ni|asimd\w*|sve\w*|bf16|i8mm|fphp|atomics)"
)
# Part of a mapped file's path -> the framework, and the file with its version.
_LIBRARIES = (
    (re.compile(r"^(.*/torch)/lib/libtorch"), "torch", "version.py"),
    (re.compile(r"^(.*/jaxlib)/"), "jax", "version.py"),
    (re.compile(r"^(.*/triton)/_C/"), "triton", "__init__.py"),
    (re.compile(r"^(.*/mindspore)/(?:lib/|_c_expression)"), "mindspore", "version.py"),
)
_VERSION = r"""(?m)^_{0,2}version_{0,2}\s*(?::\s*\w+\s*)?=\s*["']([\w.+-]{1,60})["']"""


def node_facts(root: str = "/") -> dict[str, str]:
    """What distinguishes this node's class, by name; only what is present."""
    flags = _first(r"(?m)^(?:flags|Features)\s*:(.*)$", _text(root, "proc/cpuinfo")).split()
    gpus = glob.glob(os.path.join(root, "proc/driver/nvidia/gpus/*/information"))
    models = {_first(r"(?m)^Model:\s*(.*?)\s*$", _text("", path)) for path in gpus}
    facts = {
        "arch": os.uname().machine,
        "libc": _libc(),
        "instructions": " ".join(sorted({word for word in flags if INSTRUCTIONS.fullmatch(word)})),
        "nvidia": _first(r"Module +(?:for \w+ +)?(\d[\d.]+)", _text(root, "proc/driver/nvidia/version")),
        "gpus": ", ".join(sorted(models - {""})),
        "amdgpu": _text(root, "sys/module/amdgpu/version").strip(),
        "ascend": _first(r"(?im)^Version=(\S+)", _text(root, "usr/local/Ascend/driver/version.info")),
    }
    return {name: value for name, value in facts.items() if value}


def node_class_of(facts: dict[str, str]) -> str:
    """12 hexadecimal digits, equal for nodes with the same facts."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:12]


def _libc() -> str:
    try:
        return os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (ValueError, OSError):  # another C library
        return ""


def _first(pattern: str, text: str) -> str:
    found = re.search(pattern, text)
    return found[1].strip() if found else ""


def _text(root: str, path: str) -> str:
    return read_text(os.path.join(root, path))


def in_use(local: str, root: str = "/proc") -> bool:
    """Whether a process of this user has the cache folder `local` in its environment."""
    return next(_users(local, root), None) is not None


def framework_versions(local: str, root: str = "/proc") -> dict[str, str]:
    """Framework -> version, from the processes of this user with `local` in their environment."""
    found: dict[str, str] = {}
    for place in islice(_users(local, root), PROCESSES_MAX):
        maps = _text(place, "maps")
        for path in {line[line.index("/") :] for line in maps.splitlines() if "/" in line}:
            _note_library(path, found)
        with contextlib.suppress(OSError):
            if version := _first(r"/python(\d\.\d+)$", os.readlink(f"{place}/exe")):
                found["python"] = version
    return found


def _users(local: str, root: str) -> Iterator[str]:
    """Their folders below /proc, without our own."""
    for name in os.listdir(root):
        place = f"{root}/{name}"
        with contextlib.suppress(OSError):
            if (
                name.isdigit()
                and name != str(os.getpid())
                and os.stat(place).st_uid == os.getuid()
                and local in _text(place, "environ")
            ):
                yield place


def _note_library(path: str, found: dict[str, str]) -> None:
    for pattern, framework, beside in _LIBRARIES:
        hit = pattern.match(path) if framework not in found else None
        version = _first(_VERSION, _text(hit[1], beside)) if hit else ""
        if version:
            found[framework] = version
