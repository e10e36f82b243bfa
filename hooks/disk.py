"""What is done to a shared file system, one effect after the other. (I/O)

How it thinks. A process may die, and a file system may fill up, behind every single effect. So each of them stands alone here and is announced
before it happens: a test stops the world at any of them. What must be there after a crash is synchronised before anything names it.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import shutil
import tempfile
from typing import Optional

__all__ = ["Disk", "is_full", "read"]


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
        """A small file, whole or not at all, and safe on disk. `writer` keeps two writers of one path apart."""
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
        """The names in a folder are safe on disk; a file system that knows no such thing for folders is believed."""
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
