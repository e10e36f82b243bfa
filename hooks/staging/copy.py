"""Effects on a shared file system, one by one, and copies of files with their checksum. (I/O)

A process may die, and a file system may fill up, after any effect. So each effect is a method of `Disk` and
announced first: tests stop at each of them. Data is synchronised before anything refers to it.

A copy must not disturb the trainer, and costs more processor than disk. So one thread reads and computes the
checksum, another one writes, with four buffers between them, and both together take one core at most. A large
file bypasses the page cache (O_DIRECT), which saves a copy and leaves nothing in the cache. Some file systems
are much slower that way, so both ways are tried with real files and their speeds remembered. Data in the page
cache is written out and dropped on the way. Size and times show whether the source changed meanwhile.
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
    """Whether an error means that the disk or this user's quota is full."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def read(path: str, size_bytes: int = -1) -> Optional[bytes]:
    """The content of a file, `size_bytes` at most; None if there is no such file. Raises OSError."""
    try:
        with open(path, "rb") as stream:
            return stream.read(size_bytes)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return None


def read_text(path: str, size_bytes: int = -1) -> str:
    """The text of a file, `size_bytes` at most; "" if there is no such file. Raises OSError."""
    return (read(path, size_bytes) or b"").decode("utf-8", "replace")


AT_FDCWD, RENAME_EXCHANGE = -100, 2
UNABLE = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)
_can_exchange: dict[int, bool] = {}  # by device


class Disk:
    """The effects. All raise OSError."""

    def effect(self, what: str) -> None:
        """Called before each effect; tests override it."""

    def make(self, folder: str) -> None:
        """Make a folder and those above it."""
        if not os.path.isdir(folder):
            self.effect(f"make {folder}")
            os.makedirs(folder, exist_ok=True)

    def put(self, path: str, content: bytes, writer: str) -> None:
        """Write a small file atomically and synchronise it. `writer` distinguishes writers of one path."""
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
        """Rename; a file there is replaced."""
        self.effect(f"rename {source} {target}")
        os.rename(source, target)

    def exchange(self, one: str, other: str) -> bool:
        """Exchange two names atomically; False if the file system cannot."""
        self.effect(f"exchange {one} {other}")
        return _exchange(one, other)

    def can_exchange(self, folder: str) -> bool:
        """Whether the file system of a folder can exchange names; tried once for each device."""
        device = os.stat(folder).st_dev
        if device not in _can_exchange:
            with tempfile.TemporaryDirectory(prefix=".ftrun-", dir=folder) as place:
                for name in ("a", "b"):
                    os.mkdir(f"{place}/{name}")
                _can_exchange[device] = _exchange(f"{place}/a", f"{place}/b")
        return _can_exchange[device]

    def relink(self, target: str, path: str) -> None:
        """Make or replace a symbolic link atomically."""
        draft = f"{os.path.dirname(path)}/.{os.path.basename(path)}.{os.uname().nodename}.{os.getpid()}.tmp"
        with contextlib.suppress(FileNotFoundError):
            os.unlink(draft)
        self.effect(f"symlink {draft}")
        os.symlink(target, draft)
        self.rename(draft, path)

    def link(self, source: str, target: str) -> None:
        """Make a hard link. Raises FileExistsError."""
        self.effect(f"link {source} {target}")
        os.link(source, target)

    def settle(self, folder: str) -> None:
        """Synchronise the names in a folder, if the file system can."""
        self.effect(f"sync {folder}")
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with contextlib.suppress(OSError):
                os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def remove(self, path: str) -> None:
        """Remove a file; a missing one is no error."""
        self.effect(f"remove {path}")
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)

    def clear(self, folder: str) -> None:
        """Remove a folder and its content, as far as possible."""
        self.effect(f"clear {folder}")
        shutil.rmtree(folder, ignore_errors=True)


def _exchange(one: str, other: str) -> bool:
    """renameat2(2) with RENAME_EXCHANGE; False if it is not supported. Raises OSError."""
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


CHUNK_BYTES = 4 << 20
BUFFERS = 4
LARGE_BYTES = 8 << 20  # larger files bypass the page cache
WORTH_BYTES = 32 << 20  # smaller files do not measure the speed
BETTER = 1.3  # the page cache must be that much faster to be used
WINDOW_BYTES = 32 << 20
SYNC_BYTES = 8 * WINDOW_BYTES
ALIGNED = 4096

Pace = Callable[[int], None]
"""Called with the number of bytes just done; it may wait, or raise to end the work."""


class Changed(Exception):
    """The source is another file than expected, or changed while it was read."""


class Ways:
    """The speed of direct (`True`) and cached (`False`) writes by device, in bytes per second."""

    def __init__(self) -> None:
        self.brought: dict[tuple[int, bool], float] = {}

    def is_direct(self, device: int, size_bytes: int) -> bool:
        """Whether to write a file of this size directly."""
        if size_bytes < LARGE_BYTES:
            return False
        past, through = self.brought.get((device, True)), self.brought.get((device, False))
        if through is None:  # each is tried once
            return past is None or size_bytes < WORTH_BYTES
        return past is not None and through <= BETTER * past

    def note(self, device: int, is_direct: bool, size_bytes: int, seconds: float) -> None:
        """Record that a file was written."""
        if size_bytes >= WORTH_BYTES and seconds > 0:
            self.brought[device, is_direct] = size_bytes / seconds


WAYS = Ways()
"""Of this process."""


def copy(source: str, target: str, size_bytes: int, mtime_ns: int, pace: Pace) -> str:
    """Copy `source`, of this size and time, to `target`; returns its SHA-256. Raises Changed, OSError."""
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
    """The SHA-256 of a file of this size and time, with so many cores at most. Raises Changed, OSError."""
    with open(source, "rb", buffering=0) as reader:
        found = _through(reader.fileno(), pace, None, cores)
        _compare(source, reader.fileno(), size_bytes, mtime_ns)
    return found


def _compare(source: str, descriptor: int, size_bytes: int, mtime_ns: int) -> None:
    now = os.fstat(descriptor)
    if (now.st_size, now.st_mtime_ns) != (size_bytes, mtime_ns):
        raise Changed(f"{source} changed while it was read")


def _through(reader: int, pace: Pace, writer: Optional[_Writer], cores: int = 1) -> str:
    """Read to the end, write if there is a writer, and return the checksum."""
    found, own = hashlib.sha256(), mmap.mmap(-1, CHUNK_BYTES)
    began_s, used_s = time.monotonic(), time.process_time()
    while size_bytes := _fill(reader, buffer := own if writer is None else writer.buffer()):
        chunk = memoryview(buffer)[:size_bytes]
        if writer is not None:
            writer.put(buffer, size_bytes)
        found.update(chunk)  # the buffer is filled again only here
        pace(size_bytes)
        ahead_s = (time.process_time() - used_s) / cores - (time.monotonic() - began_s)
        if ahead_s > 0:
            time.sleep(ahead_s)  # more than it may take
    return found.hexdigest()


def _fill(reader: int, buffer: mmap.mmap) -> int:
    """Fill the buffer; less only at the end of the file."""
    filled, room = 0, memoryview(buffer)
    while filled < CHUNK_BYTES and (more := os.readv(reader, [room[filled:]])):
        filled += more
    return filled


class _Writer:
    """Writes a new file in a thread of its own. All methods raise OSError if a write failed."""

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
        """A free buffer of CHUNK_BYTES."""
        buffer = self._free.get()
        self._raise()
        return buffer

    def put(self, buffer: mmap.mmap, size_bytes: int) -> None:
        """Queue the first `size_bytes` of a buffer."""
        self._full.put((buffer, size_bytes))

    def finish(self) -> None:
        """Write everything, synchronise, and drop it from the page cache."""
        self._stop()
        self._raise()
        os.fsync(self._descriptor)
        self._forget(0, 0)

    def close(self) -> None:
        """Stop the thread and close the file."""
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
                self._be_plain()  # the end of a file is rarely aligned
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
        """Start writing out dirty pages and drop clean ones; wait for them every SYNC_BYTES."""
        self._forget(self._safe, self._written - self._safe)
        self._begun = self._written
        if self._written - self._safe >= SYNC_BYTES:
            os.fdatasync(self._descriptor)
            self._forget(self._safe, self._written - self._safe)
            self._safe = self._written

    def _forget(self, from_byte: int, size_bytes: int) -> None:
        with contextlib.suppress(OSError):
            os.posix_fadvise(self._descriptor, from_byte, size_bytes, os.POSIX_FADV_DONTNEED)
