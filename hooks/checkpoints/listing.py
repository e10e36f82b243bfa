"""Reads a checkpoint's files: names, sizes, times, content; in parallel with a deadline, or slowly. (I/O)

A shared file system answers thirty questions in the time of one, so files are read by threads. They are
daemon threads, and nobody waits for them after the deadline: a file system that hangs costs an answer, but no
start.

A start waits for the result, so files are read in parallel. The deep level runs in the background: it reads
one file at a time, at a limited rate, and drops what it has read from the page cache. A process does one or
the other for its whole life.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple, Optional, TypeVar

HEAD_BYTES = 64
CHUNK_BYTES = 4 << 20  # what a reader holds at once
PIECE_BYTES = 16 << 20  # what is asked of a file system at once
THREADS = 32
FILES_MAX = 200_000  # of one checkpoint; array stores have a file for each chunk

A = TypeVar("A")
B = TypeVar("B")
Above = tuple[tuple[int, int], ...]  # folders by device and inode


class DeadlinePassed(Exception):
    """The deadline passed before everything was looked at."""


class FileFact(NamedTuple):
    """One file: its size, and when it was written (Unix seconds)."""

    size_bytes: int
    written_s: float


class Candidate:
    """A path that may be a checkpoint, read on demand: `names` of a folder, `head` of a file."""

    def __init__(self, path: str, is_folder: Optional[bool] = None) -> None:
        self.path = path
        self.name = os.path.basename(path)
        self.is_folder = os.path.isdir(path) if is_folder is None else is_folder

    @cached_property
    def names(self) -> Mapping[str, bool]:
        """The entries of the folder: name -> whether it is a folder; none if it cannot be read."""
        if not self.is_folder:
            return {}
        try:
            with os.scandir(self.path) as entries:
                return {entry.name: _is_folder(entry) for entry in entries}
        except OSError:
            return {}

    @cached_property
    def head(self) -> bytes:
        """The first bytes of the file; none for a folder or an unreadable file."""
        try:
            return b"" if self.is_folder else read_part(self.path, 0, HEAD_BYTES)
        except OSError:
            return b""

    def below(self, name: str) -> Candidate:
        """The entry of that name in the folder."""
        return Candidate(os.path.join(self.path, name), self.names.get(name, False))


class Tree(NamedTuple):
    """All files of a checkpoint by path from `base`: the folder itself, or the folder of a single file.
    `before_s`: the deadline for reading them (monotonic).
    """

    path: str
    base: str
    files: Mapping[str, FileFact]
    before_s: float = math.inf

    def at(self, name: str) -> str:
        """The path of a file of it."""
        return os.path.join(self.base, name)

    def below(self, folder: str) -> Tree:
        """What lies in one of its folders."""
        begin, path = folder + "/", self.at(folder)
        files = {name[len(begin) :]: fact for name, fact in self.files.items() if name.startswith(begin)}
        return self._replace(path=path, base=path, files=files)

    def read(self, name: str, limit_bytes: int) -> bytes:
        """The file's content, `limit_bytes` of it at most. Raises OSError."""
        return read_part(self.at(name), 0, limit_bytes)


class _Pace:
    """The pace of this process. `due_s`: when the next piece may be read (monotonic)."""

    threads = THREADS
    piece_bytes = PIECE_BYTES
    rate_bytes_per_s = 0
    is_slow = False
    due_s = 0.0


def slow_down(rate_bytes_per_s: int) -> None:
    """Read one file at a time from now on, at this rate (0: no limit), outside of the page cache."""
    _Pace.threads, _Pace.is_slow = 1, True
    _Pace.rate_bytes_per_s = rate_bytes_per_s
    # Pieces of a tenth of a second avoid bursts.
    _Pace.piece_bytes = max(1 << 16, min(PIECE_BYTES, rate_bytes_per_s // 10 or PIECE_BYTES))


def _read_piece(number: int, size_bytes: int, offset: int) -> bytes:
    """One piece of an open file, of that size at most, at the set pace. Raises OSError."""
    size_bytes = min(size_bytes, _Pace.piece_bytes)
    if not _Pace.is_slow:
        return os.pread(number, size_bytes, offset)
    time.sleep(max(0.0, _Pace.due_s - time.monotonic()))
    piece = os.pread(number, size_bytes, offset)
    if _Pace.rate_bytes_per_s:
        _Pace.due_s = max(_Pace.due_s, time.monotonic()) + len(piece) / _Pace.rate_bytes_per_s
    with contextlib.suppress(OSError):  # a file system that has no cache to forget
        os.posix_fadvise(number, offset, len(piece), os.POSIX_FADV_DONTNEED)
    return piece


@contextlib.contextmanager
def open_file(path: str) -> Iterator[int]:
    """The descriptor of a file that is open for reading. Raises OSError."""
    number = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield number
    finally:
        os.close(number)


def begins_in_hole(path: str) -> bool:
    """Whether a file begins in a hole; False if the file system does not tell. Raises OSError."""
    with open_file(path) as number:
        try:
            return os.lseek(number, 0, os.SEEK_HOLE) == 0
        except OSError:
            return False


def read_part(path: str, offset: int, size_bytes: int) -> bytes:
    """Bytes of a file, fewer at its end. Raises OSError."""
    with open_file(path) as number:
        return read_open(number, offset, size_bytes)


def read_open(number: int, offset: int, size_bytes: int) -> bytes:
    """As `read_part`, of an open file. Raises OSError."""
    pieces = []
    while size_bytes > 0:
        piece = _read_piece(number, size_bytes, offset)
        if not piece:
            break
        pieces.append(piece)
        offset += len(piece)
        size_bytes -= len(piece)
    return b"".join(pieces)


def read_chunks(path: str, before_s: float = math.inf, end: float = math.inf) -> Iterator[bytes]:
    """A file in pieces, to its end or byte `end`. Raises OSError, DeadlinePassed (`before_s`: monotonic)."""
    at = 0
    with open_file(path) as number:
        while piece := read_open(number, at, int(min(CHUNK_BYTES, end - at))):
            at += len(piece)
            if time.monotonic() > before_s:
                raise DeadlinePassed
            yield piece


def list_tree(path: str, before_s: float) -> Tree:
    """All files of a checkpoint. Raises OSError if it is gone, DeadlinePassed (`before_s`: monotonic)."""
    if not os.path.isdir(path):
        return Tree(path, os.path.dirname(path), {os.path.basename(path): _file_fact(path)}, before_s)
    names: list[str] = []
    folders: list[tuple[str, Above]] = [("", ())]
    while folders:
        found = map_parallel(lambda one: _list_folder(path, *one), folders, before_s)
        folders = [(name, above) for inside, above in found for name, is_folder in inside if is_folder]
        names += [name for inside, _ in found for name, is_folder in inside if not is_folder]
        if len(names) > FILES_MAX:
            raise DeadlinePassed
    facts = map_parallel(lambda name: _file_fact_or_none(os.path.join(path, name)), names, before_s)
    return Tree(path, path, {name: fact for name, fact in zip(names, facts) if fact is not None}, before_s)


def map_parallel(function: Callable[[A], B], items: Sequence[A], before_s: float) -> Sequence[B]:
    """The function's values in order, computed in parallel. Raises its first exception, or DeadlinePassed
    (`before_s`: monotonic). With a deadline even a single item is processed by a thread, so a file system
    that hangs does not hold the caller.
    """
    if before_s == math.inf and (len(items) < 2 or _Pace.threads == 1):
        return [function(item) for item in items]
    values: dict[int, B] = {}
    errors: list[Exception] = []
    places = iter(range(len(items)))  # whose `next` no other thread interrupts
    over = threading.Semaphore(0)

    def work() -> None:
        try:
            for place in places:
                if errors or time.monotonic() > before_s:
                    return
                values[place] = function(items[place])
        except Exception as error:  # noqa: BLE001 - raised in the caller's thread
            errors.append(error)
        finally:
            over.release()

    count = min(_Pace.threads, len(items))
    for _ in range(count):
        threading.Thread(target=work, daemon=True).start()
    for _ in range(count):
        if not over.acquire(timeout=max(0.0, min(before_s - time.monotonic(), threading.TIMEOUT_MAX))):
            raise DeadlinePassed
    if errors:
        raise errors[0]
    if len(values) < len(items):
        raise DeadlinePassed
    return [values[place] for place in range(len(items))]


def _list_folder(top: str, short: str, above: Above) -> tuple[list[tuple[str, bool]], Above]:
    """The entries of a folder (path from the top, whether it is a folder), and all folders above them. Links
    to folders are followed, since a resume view consists of them, but never into a folder above.
    """
    path = os.path.join(top, short)
    facts = os.stat(path)
    if (facts.st_dev, facts.st_ino) in above:
        return [], above
    with os.scandir(path) as entries:
        inside = [(os.path.join(short, entry.name), _is_folder(entry)) for entry in entries]
    return inside, (*above, (facts.st_dev, facts.st_ino))


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link that leads to itself
        return False


def _file_fact_or_none(path: str) -> Optional[FileFact]:
    try:
        return _file_fact(path)
    except OSError as error:
        # A file that vanished meanwhile, such as a temporary one, or a broken link.
        if error.errno in (errno.ENOENT, errno.ELOOP):
            return None
        raise


def _file_fact(path: str) -> FileFact:
    facts = os.stat(path)
    if not stat.S_ISREG(facts.st_mode):
        return FileFact(0, facts.st_mtime)
    return FileFact(facts.st_size, facts.st_mtime)
