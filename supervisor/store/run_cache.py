"""Folded runs beside their journals, so that a journal is not folded anew by everybody who looks. (I/O)

The supervisor writes `$FTRUN_HOME/supervisor.cache` now and then: the runs that it looks after, each with a mark of
its journal, and the marks of those that are over. It is only ever a cache. A run is taken from it only while its
journal is what was folded: the same files, each as long as then, but for the newest, which may have grown. Of that one
all bytes that were folded are checked (of a file above `CHECKED_BYTES` the last record), and what is new is folded on
top. Who acts on the run, as a supervisor does, has all bytes of all files checked. Where anything differs, where the cache is damaged or another release
wrote it, the journal is read as a whole.

A file that is as long as it was, with the same time of change, has not changed. Times of file systems tick, so a time
that was not `SETTLED_NS` old when the mark was made is not kept.
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
import pickle
import re
import sys
import time
from binascii import crc32
from enum import Enum
from types import CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

from ftrun.supervisor.config.home import write_atomically
from ftrun.supervisor.model import events
from ftrun.supervisor.model.run import Run
from ftrun.supervisor.store import journal

FILE = "supervisor.cache"
CHECKED_BYTES = 1 << 20
LAST_BYTES = 1 << 16
SETTLED_NS = 2_000_000_000

_MAGIC = b"folded runs "
_PLAIN = frozenset({type(None), bool, int, float, str, bytes})


class Mark(NamedTuple):
    """What a journal was when it was folded. Times are those of the last change, 0 where they cannot be told.

    `files`: (name, bytes, their checksum), the newest last; `records`: how many the newest has.
    """

    folder_ns: int
    files: tuple[tuple[str, int, int], ...]
    newest_ns: int
    records: int


class _Content(NamedTuple):
    live: dict[str, tuple[Mark, Run]]  # run id -> its journal and what it told
    over: dict[str, tuple[Mark, int]]  # of a run that is over: the time of its requests folder, too


class RunCache:
    """The cache of one home as it was when this object was made; empty where there is none that counts."""

    def __init__(self, home: str) -> None:
        self._live, self.over = _read(os.path.join(home, FILE))

    def is_over(self, run_dir: str, requests_ns: int | None = None) -> bool:
        """Whether the run is known to be over, nobody paused it, and its journal has not changed since.

        `requests_ns`: the time of its requests folder must be this, too.
        """
        try:
            mark, seen_ns = self.over.get(os.path.basename(run_dir), (None, 0))
            if mark is None or (requests_ns is not None and requests_ns != seen_ns):
                return False
            folder = os.path.join(run_dir, "journal")
            name, size_bytes, _ = mark.files[-1]
            fact = os.stat(os.path.join(folder, name))
            return (
                fact.st_size == size_bytes
                and fact.st_mtime_ns == mark.newest_ns
                and os.stat(folder).st_mtime_ns == mark.folder_ns
            )
        except Exception:  # noqa: BLE001  as below
            return False

    def load(self, run_dir: str, *, whole: bool = False) -> tuple[Run, dict[str, int]]:
        """As `journal.load_whole`. `whole`: check all bytes of the journal, for those who act on the run."""
        with contextlib.suppress(Exception):  # whatever is wrong with a cache, the journal tells
            known = self._live.get(os.path.basename(run_dir))
            if known is not None and (found := _read_on(run_dir, *known, whole=whole)) is not None:
                return found
        return journal.load_whole(run_dir)


def _read_on(run_dir: str, mark: Mark, known: Run, *, whole: bool) -> tuple[Run, dict[str, int]] | None:
    """The run and its lengths, with what is new; None where its journal is not what was folded, and more.

    Raises OSError.
    """
    folder, lengths = (
        os.path.join(run_dir, "journal"),
        {name: size_bytes for name, size_bytes, _ in mark.files},
    )
    name, size_bytes, checksum = mark.files[-1]
    same = os.stat(folder).st_mtime_ns == mark.folder_ns and not whole
    if not same and {**journal.sizes(run_dir), name: 0} != {**lengths, name: 0}:
        return None
    if whole and any(crc32(_content(folder, older)) != told for older, _, told in mark.files[:-1]):
        return None
    path = os.path.join(folder, name)
    with open(path, "rb", buffering=0) as stream:
        fact = os.fstat(stream.fileno())
        if fact.st_size == size_bytes and fact.st_mtime_ns == mark.newest_ns and not whole:
            return known, lengths
        if fact.st_size < size_bytes:
            return None
        last_alone = not whole and size_bytes > CHECKED_BYTES
        start = max(0, size_bytes - LAST_BYTES) if last_alone else 0
        stream.seek(start)
        content = stream.read()
    old, new = content[: size_bytes - start], content[size_bytes - start :]
    if last_alone:
        begin = old.rfind(b"\n", 0, -1) + 1
        if not journal.parse_more(path, old[begin:], seq=mark.records - 1, start_bytes=start + begin):
            return None
    elif crc32(old) != checksum:
        return None
    added = journal.parse_more(path, new, seq=mark.records, start_bytes=size_bytes)
    if added is None:
        return None
    if added:
        lengths[name] = added[-1][0]
        known = events.fold(known.id, (record for _, record in added), onto=known)
    return known, lengths


def _content(folder: str, name: str, start_bytes: int = 0) -> bytes:
    with open(os.path.join(folder, name), "rb", buffering=0) as stream:
        stream.seek(start_bytes)
        return stream.read()


class RunCacheWriter:
    """Keeps the cache of one home. Only the supervisor that leads there writes it."""

    def __init__(self, home: str) -> None:
        self._path = os.path.join(home, FILE)
        self._content = _Content({}, {})
        self._ended: dict[str, tuple[str, dict[str, int], int]] = {}  # of these a mark is still to be made
        self._told = b""

    def note_live(self, run_dir: str, known: Run, lengths: dict[str, int]) -> None:
        """This is what so much of a journal told; its files are as long as that."""
        before = self._content.live.get(known.id)
        if before is None or before[1] is not known:
            self._content.live.pop(known.id, None)
            self._content.over.pop(known.id, None)
            self._ended.pop(known.id, None)
            mark = _mark(run_dir, lengths, before[0] if before is not None else None)
            if mark is not None:
                self._content.live[known.id] = mark, known

    def note_over(self, run_dir: str, known: Run, lengths: dict[str, int], requests_ns: int) -> None:
        """The same of a run that is over; nothing is left to do for it."""
        self._content.live.pop(known.id, None)
        if not known.paused:
            self._ended[known.id] = run_dir, lengths, requests_ns

    def keep_over(self, cache: RunCache, run_dir: str) -> None:
        """What an earlier supervisor noted of a run that is over still holds."""
        name = os.path.basename(run_dir)
        self._content.over[name] = cache.over[name]

    def write(self, live: set[str]) -> None:
        """Write what was noted, of those `live` runs and of all that are over. Raises OSError."""
        for gone in self._content.live.keys() - live:
            del self._content.live[gone]
        for name, (run_dir, lengths, requests_ns) in list(self._ended.items()):
            mark = _mark(run_dir, lengths, None)
            if mark is None or (mark.newest_ns and mark.folder_ns):
                del self._ended[name]
            if mark is not None and name not in self._ended:
                self._content.over[name] = mark, requests_ns
        body = pickle.dumps(tuple(self._content), 5)
        text = b"%b%08x %08x\n%b" % (_MAGIC, _code_of_fold()[0], crc32(body), body)
        if text != self._told:
            write_atomically(self._path, text, sync=False)
            self._told = text


def _mark(run_dir: str, lengths: dict[str, int], before: Mark | None) -> Mark | None:
    """The mark of a journal of which so much was folded; None where it holds anything else."""
    folder, files, records = os.path.join(run_dir, "journal"), [], 0
    earlier = {name: (read, checksum) for name, read, checksum in before.files} if before is not None else {}
    try:
        folder_ns = os.stat(folder).st_mtime_ns
        if not lengths or journal.sizes(run_dir) != lengths:
            return None
        for name, size_bytes in sorted(lengths.items()):
            read, checksum = earlier.get(name, (0, 0))
            more = _content(folder, name, read) if size_bytes != read else b""
            if read + len(more) != size_bytes:
                return None
            files.append((name, size_bytes, crc32(more, checksum)))
            known = before.records if before is not None and before.files[-1][0] == name else 0
            records = known + more.count(b"\n")
        fact = os.stat(os.path.join(folder, name))
    except OSError:
        return None
    if fact.st_size != size_bytes:
        return None
    settled_ns = time.time_ns() - SETTLED_NS
    return Mark(
        folder_ns if folder_ns < settled_ns else 0,
        tuple(files),
        fact.st_mtime_ns if fact.st_mtime_ns < settled_ns else 0,
        records,
    )


class _Unpickler(pickle.Unpickler):
    """Knows the records of a run and nothing else: no damage makes it call anything."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == (__name__, Mark.__name__):
            return Mark
        found = getattr(sys.modules.get(module), name, None)
        if found not in _code_of_fold()[1]:
            raise pickle.UnpicklingError(f"{module}.{name} is no record of a run")
        return found


def _read(path: str) -> _Content:
    empty = _Content({}, {})
    try:
        with open(path, "rb") as stream:
            head, _, body = stream.read().partition(b"\n")
        if head != b"%b%08x %08x" % (_MAGIC, _code_of_fold()[0], crc32(body)):
            return empty
        return _Content(*_Unpickler(io.BytesIO(body)).load())
    except Exception:  # noqa: BLE001  whatever is wrong with a cache, the journals are there
        return empty


@functools.cache
def _code_of_fold() -> tuple[int, frozenset[type]]:
    """A checksum of the code that folds journals here and of the records that it makes; and its classes.

    It is taken from what this process runs: an upgrade may have replaced the files. `fold` counts, and all of ftrun's
    that it names, and what that names in turn: functions, tables, the fields of classes in their order.
    """
    checksum, seen, todo = 0, set(), [events.fold]
    while todo:
        one = todo.pop()
        if one not in seen:
            seen.add(one)
            parts = _parts_of_class(one) if isinstance(one, type) else _parts_of_function(one)
            checksum = crc32(repr(_plain(parts, todo)).encode("utf-8", "surrogateescape"), checksum)
    return checksum, frozenset(one for one in seen if isinstance(one, type))


def _parts_of_class(cls: Any) -> list[Any]:
    made: Any = getattr(cls, "__dataclass_fields__", {})
    fields = [(name, one.default, one.default_factory) for name, one in made.items()]
    own = [
        (name, getattr(value, "fget", None) or getattr(value, "__func__", value))
        for name, value in vars(cls).items()
        if not name.startswith("__") or isinstance(value, FunctionType)
    ]
    return [cls.__module__, cls.__qualname__, cls.__bases__, fields, own]


def _parts_of_function(function: Any) -> list[Any]:
    codes = [function.__code__]
    for code in codes:
        codes += [inside for inside in code.co_consts if isinstance(inside, CodeType)]
    names = list(dict.fromkeys(name for code in codes for name in code.co_names))
    spaces = [function.__globals__]
    spaces += [
        vars(one) for name in names if isinstance(one := spaces[0].get(name), ModuleType) and _is_ours(one)
    ]
    named = [(name, space[name]) for space in spaces for name in names if name in space]
    closure = [cell.cell_contents for cell in function.__closure__ or ()]
    return [function.__qualname__, codes, function.__defaults__, function.__kwdefaults__, closure, named]


def _is_ours(one: Any) -> bool:
    name = one.__name__ if isinstance(one, ModuleType) else one.__module__
    return str(name).startswith("ftrun.")


def _plain(value: Any, named: list[Any]) -> Any:
    """What prints alike in each process; the functions and classes of ftrun are added to `named`."""
    if type(value) in _PLAIN:
        return value
    value = getattr(value, "__wrapped__", value)
    found: Any = type(value).__qualname__
    if isinstance(value, Enum):
        named.append(type(value))
        found = value.name, value.value
    elif isinstance(value, FunctionType | type):
        named += [value] if _is_ours(value) else []
        found = value.__qualname__
    elif isinstance(value, CodeType):
        found = value.co_code, value.co_names, value.co_varnames, _plain(value.co_consts, named)
    elif isinstance(value, dict):
        found = [(_plain(key, named), _plain(one, named)) for key, one in value.items()]
    elif isinstance(value, tuple | list):
        found = [_plain(one, named) for one in value]
    elif isinstance(value, frozenset | set):
        found = [_plain(one, named) for one in sorted(value, key=repr)]
    elif isinstance(value, re.Pattern):
        found = value.pattern, value.flags
    return found
