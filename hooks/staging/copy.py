"""Effects on a shared file system, one by one, and copies of files with their checksum. (I/O)

A process may die, and a file system may fill up, behind every single effect. So each of them stands alone
(`Disk`) and is announced before it happens: a test stops the world at any of them. What must be there after a
crash is synchronised before anything names it.

The trainer beside us is not to be disturbed, and most of what a copy costs is not the disk but the processor.
So one thread reads and sums, another one writes, with four buffers between them, and both together take no
more than one core. A large file goes past the page cache (O_DIRECT) where that is possible, which saves a
copy and leaves nothing behind. Some file systems are much slower that way, so both ways are tried with real
files and their speeds remembered. What goes through the page cache is written out and dropped from it on the
way. A source that changes meanwhile is no copy of anything: its size and times show it.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import hashlib
import mmap
import os
import queue
import shutil
import tempfile
import threading
import time
from typing import Callable, Optional


def is_full(error: OSError) -> bool:
    """Whether an error says that there is no room, or no more of it for this user."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def read(path: str, size_bytes: int = -1) -> Optional[bytes]:
    """What stands in a file, `size_bytes` of it at most; None where there is no such file. Raises OSError."""
    try:
        with open(path, "rb") as stream:
            return stream.read(size_bytes)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return None


def read_text(path: str, size_bytes: int = -1) -> str:
    """The text of a file, `size_bytes` of it at most; "" where there is none. Raises OSError."""
    return (read(path, size_bytes) or b"").decode("utf-8", "replace")


AT_FDCWD, RENAME_EXCHANGE = -100, 2
UNABLE = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)
_can_exchange: dict[int, bool] = {}  # by device


class Disk:
    """The effects. All raise OSError."""

    def effect(self, what: str) -> None:
        """Called before each effect; here it does nothing."""

    def make(self, folder: str) -> None:
        """A folder and those above it."""
        if not os.path.isdir(folder):
            self.effect(f"make {folder}")
            os.makedirs(folder, exist_ok=True)

    def put(self, path: str, content: bytes, writer: str) -> None:
        """A small file, whole or not at all, and safe on disk.

        `writer` keeps two writers of one path apart.
        """
        draft = f"{os.path.dirname(path)}/.{os.path.basename(path)}.{writer}.tmp"
        self.effect(f"write {draft}")
        try:
            with open(draft, "wb") as stream:
                stream.write(content)
                stream.flush()
                os.fsync(stream.fileno())
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(draft)
            raise
        self.rename(draft, path)
        self.settle(os.path.dirname(path))

    def rename(self, source: str, target: str) -> None:
        """By another name at once; a file there is replaced."""
        self.effect(f"rename {source} {target}")
        os.rename(source, target)

    def exchange(self, one: str, other: str) -> bool:
        """Two names change places at once; False where the file system cannot do that."""
        self.effect(f"exchange {one} {other}")
        return _exchange(one, other)

    def can_exchange(self, folder: str) -> bool:
        """Whether the file system of a folder can: tried once."""
        device = os.stat(folder).st_dev
        if device not in _can_exchange:
            with tempfile.TemporaryDirectory(prefix=".ftrun-", dir=folder) as place:
                for name in ("a", "b"):
                    os.mkdir(f"{place}/{name}")
                _can_exchange[device] = _exchange(f"{place}/a", f"{place}/b")
        return _can_exchange[device]

    def relink(self, target: str, path: str) -> None:
        """A symbolic link, in the place of the one that is there."""
        draft = f"{os.path.dirname(path)}/.{os.path.basename(path)}.{os.uname().nodename}.{os.getpid()}.tmp"
        with contextlib.suppress(FileNotFoundError):
            os.unlink(draft)
        self.effect(f"symlink {draft}")
        os.symlink(target, draft)
        self.rename(draft, path)

    def link(self, source: str, target: str) -> None:
        """A second name. Raises FileExistsError."""
        self.effect(f"link {source} {target}")
        os.link(source, target)

    def settle(self, folder: str) -> None:
        """The names in a folder are safe on disk; a file system that cannot sync folders is believed."""
        self.effect(f"sync {folder}")
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with contextlib.suppress(OSError):
                os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def remove(self, path: str) -> None:
        """A file; one that is gone is no error."""
        self.effect(f"remove {path}")
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)

    def clear(self, folder: str) -> None:
        """A folder and all in it, as far as that goes."""
        self.effect(f"clear {folder}")
        shutil.rmtree(folder, ignore_errors=True)


def _exchange(one: str, other: str) -> bool:
    """renameat2(2) with RENAME_EXCHANGE. Raises OSError; False where there is no such thing here."""
    try:
        call = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return False
    if call(AT_FDCWD, os.fsencode(one), AT_FDCWD, os.fsencode(other), RENAME_EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in UNABLE:
        return False
    raise OSError(number, os.strerror(number), other)


# ---------------------------------------------------------------------- copies

CHUNK_BYTES = 4 << 20
BUFFERS = 4
LARGE_BYTES = 8 << 20  # from here on it goes past the page cache
WORTH_BYTES = 32 << 20  # from here on it says something of how fast a way is
BETTER = 1.3  # the page cache must bring that much more to be used
WINDOW_BYTES = 32 << 20
SYNC_BYTES = 8 * WINDOW_BYTES
ALIGNED = 4096

Pace = Callable[[int], None]
"""Called with the number of bytes just done, so that it can wait, or raise to end the work."""


class Changed(Exception):
    """The source is not the file that was meant, or changed while it was read."""


class Ways:
    """Bytes per second of writing past the page cache (`True`) and through it (`False`), by device."""

    def __init__(self) -> None:
        self.brought: dict[tuple[int, bool], float] = {}

    def is_direct(self, device: int, size_bytes: int) -> bool:
        """How to write a file of this size there."""
        if size_bytes < LARGE_BYTES:
            return False
        past, through = self.brought.get((device, True)), self.brought.get((device, False))
        if through is None:  # each is tried once
            return past is None or size_bytes < WORTH_BYTES
        return past is not None and through <= BETTER * past

    def note(self, device: int, is_direct: bool, size_bytes: int, seconds: float) -> None:
        """A file was written there."""
        if size_bytes >= WORTH_BYTES and seconds > 0:
            self.brought[device, is_direct] = size_bytes / seconds


WAYS = Ways()
"""Of this process."""


def copy(source: str, target: str, size_bytes: int, mtime_ns: int, pace: Pace) -> str:
    """Copy `source`, which has this size and time, to `target`; returns its SHA-256.

    Raises Changed, OSError.
    """
    with open(source, "rb", buffering=0) as reader:
        device, began_s = os.stat(os.path.dirname(target) or ".").st_dev, time.monotonic()
        writer = _Writer(target, WAYS.is_direct(device, size_bytes))
        is_direct = writer.is_direct
        try:
            found = _through(reader.fileno(), pace, writer)
            writer.finish()
        finally:
            writer.close()
        WAYS.note(device, is_direct, size_bytes, time.monotonic() - began_s)
        _compare(source, reader.fileno(), size_bytes, mtime_ns)
    return found


def digest(source: str, size_bytes: int, mtime_ns: int, pace: Pace, cores: int = 1) -> str:
    """The SHA-256 of a file that has this size and time; this process may take so many cores meanwhile.

    Raises Changed, OSError.
    """
    with open(source, "rb", buffering=0) as reader:
        found = _through(reader.fileno(), pace, None, cores)
        _compare(source, reader.fileno(), size_bytes, mtime_ns)
    return found


def _compare(source: str, descriptor: int, size_bytes: int, mtime_ns: int) -> None:
    now = os.fstat(descriptor)
    if (now.st_size, now.st_mtime_ns) != (size_bytes, mtime_ns):
        raise Changed(f"{source} changed while it was read")


def _through(reader: int, pace: Pace, writer: Optional[_Writer], cores: int = 1) -> str:
    """Read to the end, write if there is a target, and return the checksum."""
    found, own = hashlib.sha256(), mmap.mmap(-1, CHUNK_BYTES)
    began_s, used_s = time.monotonic(), time.process_time()
    while size_bytes := _fill(reader, buffer := own if writer is None else writer.buffer()):
        chunk = memoryview(buffer)[:size_bytes]
        if writer is not None:
            writer.put(buffer, size_bytes)
        found.update(chunk)  # only we fill a buffer again, so it stays as it is
        pace(size_bytes)
        ahead_s = (time.process_time() - used_s) / cores - (time.monotonic() - began_s)
        if ahead_s > 0:
            time.sleep(ahead_s)  # more than it may take
    return found.hexdigest()


def _fill(reader: int, buffer: mmap.mmap) -> int:
    """As much as there is, but for the end all of the buffer."""
    filled, room = 0, memoryview(buffer)
    while filled < CHUNK_BYTES and (more := os.readv(reader, [room[filled:]])):
        filled += more
    return filled


class _Writer:
    """A new file that is written in order by a thread of its own. All raise OSError where a write failed."""

    def __init__(self, path: str, is_direct: bool) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        self.is_direct = is_direct
        try:
            self._descriptor = os.open(path, flags | (os.O_DIRECT if is_direct else 0), 0o666)
        except OSError as error:
            if not is_direct or error.errno != errno.EINVAL:
                raise
            self.is_direct, self._descriptor = False, os.open(path, flags, 0o666)
        self._error: Optional[OSError] = None
        self._written = self._begun = self._safe = 0
        self._free: queue.SimpleQueue[mmap.mmap] = queue.SimpleQueue()
        self._full: queue.SimpleQueue[Optional[tuple[mmap.mmap, int]]] = queue.SimpleQueue()
        for _ in range(BUFFERS):
            self._free.put(mmap.mmap(-1, CHUNK_BYTES))  # such memory is aligned
        self._thread = threading.Thread(target=self._live, daemon=True)
        self._thread.start()

    def buffer(self) -> mmap.mmap:
        """One that is free, CHUNK_BYTES long."""
        buffer = self._free.get()
        self._raise()
        return buffer

    def put(self, buffer: mmap.mmap, size_bytes: int) -> None:
        """Have the beginning of a buffer written next."""
        self._full.put((buffer, size_bytes))

    def finish(self) -> None:
        """All is written, and safe on disk; nothing of it stays in the page cache."""
        self._stop()
        self._raise()
        os.fsync(self._descriptor)
        self._forget(0, 0)

    def close(self) -> None:
        """Whatever came of it."""
        self._stop()
        os.close(self._descriptor)

    def _stop(self) -> None:
        self._full.put(None)
        self._thread.join()

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    def _live(self) -> None:
        while (work := self._full.get()) is not None:
            buffer, size_bytes = work
            if self._error is None:
                try:
                    self._write(memoryview(buffer)[:size_bytes])
                except OSError as error:
                    self._error = error
            self._free.put(buffer)

    def _write(self, rest: memoryview) -> None:
        while rest:
            if self.is_direct and (self._written % ALIGNED or len(rest) < ALIGNED):
                self._be_plain()  # the end of a file is seldom aligned
            even = len(rest) - len(rest) % ALIGNED if self.is_direct else len(rest)
            try:
                written = os.write(self._descriptor, rest[:even])
            except OSError as error:
                if not self.is_direct or error.errno != errno.EINVAL:
                    raise
                self._be_plain()
                continue
            rest = rest[written:]
            self._written += written
        if not self.is_direct and self._written - self._begun >= WINDOW_BYTES:
            self._write_out()

    def _be_plain(self) -> None:
        flags = fcntl.fcntl(self._descriptor, fcntl.F_GETFL)
        fcntl.fcntl(self._descriptor, fcntl.F_SETFL, flags & ~os.O_DIRECT)
        self.is_direct = False

    def _write_out(self) -> None:
        """Have Linux write out what is dirty and drop the rest; now and then wait for it."""
        self._forget(self._safe, self._written - self._safe)
        self._begun = self._written
        if self._written - self._safe >= SYNC_BYTES:
            os.fdatasync(self._descriptor)
            self._forget(self._safe, self._written - self._safe)
            self._safe = self._written

    def _forget(self, from_byte: int, size_bytes: int) -> None:
        with contextlib.suppress(OSError):
            os.posix_fadvise(self._descriptor, from_byte, size_bytes, os.POSIX_FADV_DONTNEED)
