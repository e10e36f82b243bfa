"""A checkpoint's files as they lie there: names, sizes, times, first bytes; many at once, never longer than a deadline, at a set pace. (I/O)

A shared file system answers one question in a millisecond and thirty in the same time, so what is asked of many files is
asked by threads. They are daemons and nobody waits for them after the deadline: a file system that hangs costs an answer, no start.

At a start somebody waits, so many files are read side by side. The deep level in the background is not waited for: it reads one file at a
time, no more bytes in a second than it was told, and what it has read leaves the page cache, which is the trainer's. Which of the two a
process does is settled before it begins, and for its whole life.
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
FILES_MAX = 200_000  # of one checkpoint; array stores keep a file a chunk

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
    """A path that may be a checkpoint, read as far as somebody asks: `names` of a folder, `head` of a file."""

    def __init__(self, path: str, is_folder: Optional[bool] = None) -> None:
        self.path = path
        self.name = os.path.basename(path)
        self.is_folder = os.path.isdir(path) if is_folder is None else is_folder

    @cached_property
    def names(self) -> Mapping[str, bool]:
        """What lies in the folder, by name: whether it is a folder. Empty for a file and for what cannot be read."""
        if not self.is_folder:
            return {}
        try:
            with os.scandir(self.path) as entries:
                return {entry.name: _is_folder(entry) for entry in entries}
        except OSError:
            return {}

    @cached_property
    def head(self) -> bytes:
        """The first bytes of the file; none for a folder and for what cannot be read."""
        try:
            return b"" if self.is_folder else read_part(self.path, 0, HEAD_BYTES)
        except OSError:
            return b""

    def below(self, name: str) -> Candidate:
        """The place of that name in the folder."""
        return Candidate(os.path.join(self.path, name), self.names.get(name, False))


class Tree(NamedTuple):
    """All files of a checkpoint by their path from `base`: the folder itself, or the folder of a single file.

    `before_s`: until when one may look at them (by time.monotonic).
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
    """This process's own. `due_s`: when the next piece may be read (time.monotonic)."""

    threads = THREADS
    piece_bytes = PIECE_BYTES
    rate_bytes_per_s = 0
    is_slow = False
    due_s = 0.0


def slow_down(rate_bytes_per_s: int) -> None:
    """From now on: one file at a time, at this rate (0: as quickly as that goes), and nothing is left in the page cache."""
    _Pace.threads, _Pace.is_slow = 1, True
    _Pace.rate_bytes_per_s = rate_bytes_per_s
    # Pieces of a tenth of a second: bytes come evenly, and not in bursts.
    _Pace.piece_bytes = max(1 << 16, min(PIECE_BYTES, rate_bytes_per_s // 10 or PIECE_BYTES))


def _read_piece(number: int, size_bytes: int, offset: int) -> bytes:
    """One piece of an open file, of that size at most, when its time has come. Raises OSError."""
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
    """The number of a file that is open for reading. Raises OSError."""
    number = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield number
    finally:
        os.close(number)


def begins_in_hole(path: str) -> bool:
    """Whether the file system says that nothing was ever written at its beginning; False where it does not tell. Raises OSError."""
    with open_file(path) as number:
        try:
            return os.lseek(number, 0, os.SEEK_HOLE) == 0
        except OSError:
            return False


def read_part(path: str, offset: int, size_bytes: int) -> bytes:
    """Bytes of a file, fewer where it ends. Raises OSError."""
    with open_file(path) as number:
        return read_open(number, offset, size_bytes)


def read_open(number: int, offset: int, size_bytes: int) -> bytes:
    """The same of a file that is open. Raises OSError."""
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
    """A file piece by piece, to its end or to byte `end`. Raises OSError, DeadlinePassed past `before_s` (by time.monotonic)."""
    at = 0
    with open_file(path) as number:
        while piece := read_open(number, at, int(min(CHUNK_BYTES, end - at))):
            at += len(piece)
            if time.monotonic() > before_s:
                raise DeadlinePassed
            yield piece


def list_tree(path: str, before_s: float) -> Tree:
    """Look at all files of a checkpoint. Raises OSError where it is gone, DeadlinePassed past `before_s` (by time.monotonic)."""
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
    """The function's values, in order, asked side by side. Raises what it raised first, DeadlinePassed past `before_s` (by time.monotonic).

    With a deadline even one item is asked by a thread: a file system that hangs holds that one, not the caller.
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
        except Exception as error:  # noqa: BLE001 - told to the caller, who is in another thread
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
    """What lies in a folder, by paths from the top: whether it is a folder; and all folders that it lies in.

    Links to folders are followed, a resume view is made of them, but not into what they lie in themselves.
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
        # What goes while one looks, a temporary file most often; and links that lead nowhere.
        if error.errno in (errno.ENOENT, errno.ELOOP):
            return None
        raise


def _file_fact(path: str) -> FileFact:
    facts = os.stat(path)
    if not stat.S_ISREG(facts.st_mode):
        return FileFact(0, facts.st_mtime)
    return FileFact(facts.st_size, facts.st_mtime)
