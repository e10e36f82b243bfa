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

import io
import os
import pickle
import sys
import time
from binascii import crc32
from typing import Any, NamedTuple

from ftrun.supervisor.config.home import write_atomically
from ftrun.supervisor.model import agent_events, events, renamed_settings, run, states, types
from ftrun.supervisor.model.run import Run
from ftrun.supervisor.store import journal

FILE = "supervisor.cache"
CHECKED_BYTES = 1 << 20
LAST_BYTES = 1 << 16
SETTLED_NS = 2_000_000_000

_FOLD = (agent_events, events, renamed_settings, run, states, types)
_RECORDS = frozenset({*(module.__name__ for module in _FOLD), "ftrun.hooks.checkpoints.diverged"})
_MAGIC = b"folded runs "


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
    over: dict[str, tuple[Mark, float]]  # of a run that is over: the time of its requests folder, too


class RunCache:
    """The cache of one home as it was when this object was made; empty where there is none that counts."""

    def __init__(self, home: str) -> None:
        self._live, self.over = _read(os.path.join(home, FILE))

    def is_over(self, run_dir: str, requests_s: float | None = None) -> bool:
        """Whether the run is known to be over, nobody paused it, and its journal has not changed since.

        `requests_s`: the time of its requests folder must be this, too.
        """
        mark, seen_s = self.over.get(os.path.basename(run_dir), (None, 0.0))
        if mark is None or (requests_s is not None and requests_s != seen_s):
            return False
        folder = os.path.join(run_dir, "journal")
        name, size_bytes, _ = mark.files[-1]
        try:
            fact = os.stat(os.path.join(folder, name))
            return (
                fact.st_size == size_bytes
                and fact.st_mtime_ns == mark.newest_ns
                and os.stat(folder).st_mtime_ns == mark.folder_ns
            )
        except OSError:
            return False

    def load(self, run_dir: str, *, whole: bool = False) -> tuple[Run, dict[str, int]]:
        """As `journal.load_whole`. `whole`: check all bytes of the journal, for those who act on the run."""
        known = self._live.get(os.path.basename(run_dir))
        if known is not None:
            try:
                found = _read_on(run_dir, *known, whole=whole)
            except OSError:
                found = None
            if found is not None:
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
        self._ended: dict[str, tuple[str, dict[str, int], float]] = {}  # of these a mark is still to be made
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

    def note_over(self, run_dir: str, known: Run, lengths: dict[str, int], requests_s: float) -> None:
        """The same of a run that is over; nothing is left to do for it."""
        self._content.live.pop(known.id, None)
        if not known.paused:
            self._ended[known.id] = run_dir, lengths, requests_s

    def keep_over(self, cache: RunCache, run_dir: str) -> None:
        """What an earlier supervisor noted of a run that is over still holds."""
        name = os.path.basename(run_dir)
        self._content.over[name] = cache.over[name]

    def write(self, live: set[str]) -> None:
        """Write what was noted, of those `live` runs and of all that are over. Raises OSError."""
        for gone in self._content.live.keys() - live:
            del self._content.live[gone]
        for name, (run_dir, lengths, requests_s) in list(self._ended.items()):
            mark = _mark(run_dir, lengths, None)
            if mark is None or (mark.newest_ns and mark.folder_ns):
                del self._ended[name]
            if mark is not None and name not in self._ended:
                self._content.over[name] = mark, requests_s
        body = pickle.dumps(tuple(self._content), 5)
        text = b"%b%08x %08x\n%b" % (_MAGIC, _form(), crc32(body), body)
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
        found = getattr(sys.modules.get(module), name, None) if module in _RECORDS else None
        if not isinstance(found, type) or found.__module__ != module:
            raise pickle.UnpicklingError(f"{module}.{name} is no record of a run")
        return found


def _read(path: str) -> _Content:
    empty = _Content({}, {})
    try:
        with open(path, "rb") as stream:
            head, _, body = stream.read().partition(b"\n")
        if head != b"%b%08x %08x" % (_MAGIC, _form(), crc32(body)):
            return empty
        return _Content(*_Unpickler(io.BytesIO(body)).load())
    except (OSError, pickle.UnpicklingError, EOFError, LookupError, TypeError, ValueError, AttributeError):
        return empty


def _form() -> int:
    """A number that other code that folds journals, or makes other records of them, does not have. Raises OSError."""
    found = 0
    for module in _FOLD:
        assert module.__file__ is not None
        with open(module.__file__, "rb") as stream:
            found = crc32(stream.read(), found)
    return found
