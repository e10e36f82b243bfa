"""A checkpoint's files as they lie there: names, sizes, times, first bytes; many at once, and never longer than a deadline. (I/O)

How it thinks. A shared file system answers one question in a millisecond and thirty in the same time, so what is asked of many files is
asked by threads. They are daemons and nobody waits for them after the deadline: a file system that hangs costs an answer, no start.
"""

from __future__ import annotations

import errno
import math
import os
import stat
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, Optional, TypeVar

from ftrun.hooks.checkpoints import pace

__all__ = ["HEAD_BYTES", "Fact", "Late", "Place", "Tree", "begins_in_hole", "each", "part", "part_of", "tree"]

HEAD_BYTES = 64
FILES_MAX = 200_000  # of one checkpoint; array stores keep a file a chunk

A = TypeVar("A")
B = TypeVar("B")
Above = tuple[tuple[int, int], ...]  # folders by device and inode


class Late(Exception):
    """The deadline passed before everything was looked at."""


class Fact(NamedTuple):
    """One file: its size, and when it was written (Unix seconds)."""

    size_bytes: int
    written_s: float


class Place:
    """A path that may be a checkpoint, read as far as somebody asks: `names` of a folder, `head` of a file."""

    __slots__ = ("_head", "_names", "is_folder", "path")

    def __init__(self, path: str, is_folder: Optional[bool] = None) -> None:
        self.path = path
        self.is_folder = os.path.isdir(path) if is_folder is None else is_folder
        self._names: Optional[Mapping[str, bool]] = None
        self._head: Optional[bytes] = None

    @property
    def name(self) -> str:
        """Its base name."""
        return os.path.basename(self.path)

    @property
    def names(self) -> Mapping[str, bool]:
        """What lies in the folder, by name: whether it is a folder. Empty for a file and for what cannot be read."""
        if self._names is None:
            self._names = _names(self.path) if self.is_folder else {}
        return self._names

    @property
    def head(self) -> bytes:
        """The first bytes of the file; none for a folder and for what cannot be read."""
        if self._head is None:
            try:
                self._head = b"" if self.is_folder else part(self.path, 0, HEAD_BYTES)
            except OSError:
                self._head = b""
        return self._head

    def below(self, name: str) -> Place:
        """The place of that name in the folder."""
        return Place(os.path.join(self.path, name), self.names.get(name, False))


class Tree(NamedTuple):
    """All files of a checkpoint by their path from `base`: the folder itself, or the folder of a single file.

    `before_s`: until when one may look at them (by time.monotonic).
    """

    path: str
    base: str
    files: Mapping[str, Fact]
    before_s: float = math.inf

    def at(self, name: str) -> str:
        """The path of a file of it."""
        return os.path.join(self.base, name)

    def read(self, name: str, limit_bytes: int) -> bytes:
        """The file's content, `limit_bytes` of it at most. Raises OSError."""
        return part(self.at(name), 0, limit_bytes)


def begins_in_hole(path: str) -> bool:
    """Whether the file system says that nothing was ever written at its beginning; False where it does not tell. Raises OSError."""
    number = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.lseek(number, 0, os.SEEK_HOLE) == 0
    except OSError:
        return False
    finally:
        os.close(number)


def part(path: str, offset: int, size_bytes: int) -> bytes:
    """Bytes of a file, fewer where it ends. Raises OSError."""
    number = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return part_of(number, offset, size_bytes)
    finally:
        os.close(number)


def part_of(number: int, offset: int, size_bytes: int) -> bytes:
    """The same of a file that is open. Raises OSError."""
    pieces = []
    while size_bytes > 0:
        piece = pace.read(number, size_bytes, offset)
        if not piece:
            break
        pieces.append(piece)
        offset += len(piece)
        size_bytes -= len(piece)
    return b"".join(pieces)


def tree(path: str, before_s: float) -> Tree:
    """Look at all files of a checkpoint. Raises OSError where it is gone, Late past `before_s` (by time.monotonic)."""
    if not os.path.isdir(path):
        return Tree(path, os.path.dirname(path), {os.path.basename(path): _fact(path)}, before_s)
    names: list[str] = []
    folders: list[tuple[str, Above]] = [("", ())]
    while folders:
        found = each(lambda one: _listed(path, *one), folders, before_s)
        folders = [folder for one in found for folder in one.folders]
        names += [name for one in found for name in one.files]
        if len(names) > FILES_MAX:
            raise Late
    facts = each(lambda name: _fact_or_none(os.path.join(path, name)), names, before_s)
    return Tree(path, path, {name: fact for name, fact in zip(names, facts) if fact is not None}, before_s)


def each(function: Callable[[A], B], items: Sequence[A], before_s: float) -> Sequence[B]:
    """The function's values, in order, asked side by side. Raises what it raised first, Late past `before_s` (by time.monotonic).

    With a deadline even one item is asked by a thread: a file system that hangs holds that one, not the caller.
    """
    if before_s == math.inf and (len(items) < 2 or pace.threads() == 1):
        return [function(item) for item in items]
    values: dict[int, B] = {}
    errors: list[Exception] = []
    waiting = iter(enumerate(items))
    lock = threading.Lock()
    over = threading.Semaphore(0)

    def work() -> None:
        try:
            for place, item in _taken(waiting, lock):
                if errors or time.monotonic() > before_s:
                    return
                values[place] = function(item)
        except Exception as error:  # noqa: BLE001 - told to the caller, who is in another thread
            errors.append(error)
        finally:
            over.release()

    count = min(pace.threads(), len(items))
    for _ in range(count):
        threading.Thread(target=work, daemon=True).start()
    for _ in range(count):
        if not over.acquire(timeout=max(0.0, min(before_s - time.monotonic(), threading.TIMEOUT_MAX))):
            raise Late
    if errors:
        raise errors[0]
    if len(values) < len(items):
        raise Late
    return [values[place] for place in range(len(items))]


def _taken(waiting: Iterator[tuple[int, A]], lock: threading.Lock) -> Iterable[tuple[int, A]]:
    while True:
        with lock:
            taken = next(waiting, None)
        if taken is None:
            return
        yield taken


class Listed(NamedTuple):
    """What lies in one folder, by paths from the top; its folders with all that they lie in."""

    folders: Sequence[tuple[str, Above]]
    files: Sequence[str]


def _listed(top: str, short: str, above: Above) -> Listed:
    """Links to folders are followed, a resume view is made of them, but not into what they lie in themselves."""
    path = os.path.join(top, short)
    facts = os.stat(path)
    if (facts.st_dev, facts.st_ino) in above:
        return Listed((), ())
    inside = (*above, (facts.st_dev, facts.st_ino))
    folders: list[tuple[str, Above]] = []
    files: list[str] = []
    with os.scandir(path) as entries:
        for entry in entries:
            name = os.path.join(short, entry.name)
            if _is_folder(entry):
                folders.append((name, inside))
            else:
                files.append(name)
    return Listed(folders, files)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link that leads to itself
        return False


def _fact_or_none(path: str) -> Optional[Fact]:
    try:
        return _fact(path)
    except OSError as error:
        # What goes while one looks, a temporary file most often; and links that lead nowhere.
        if error.errno in (errno.ENOENT, errno.ELOOP):
            return None
        raise


def _fact(path: str) -> Fact:
    facts = os.stat(path)
    if not stat.S_ISREG(facts.st_mode):
        return Fact(0, facts.st_mtime)
    return Fact(facts.st_size, facts.st_mtime)


def _names(path: str) -> Mapping[str, bool]:
    try:
        with os.scandir(path) as entries:
            return {entry.name: _is_folder(entry) for entry in entries}
    except OSError:
        return {}
