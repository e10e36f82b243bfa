"""An append-only log of one long-lived service, one file a month: what it saw, intended and did. (I/O)

`<folder>/<year>-<month>.jsonl` has one record a line. A record is synced before the service acts on it; a
torn last line is a crash during the write, so the act was not begun. Files of old months stay for people;
only the last ones are read. `held` is a lock of the kernel (flock): it goes with the process, however that
ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

from ftrun.supervisor.store import journal

MONTHS_READ = 4


class AppendLog:
    """The journal in one folder (made by the first record, 0700). Its methods raise OSError."""

    def __init__(self, folder: str, now: Callable[[], float] = time.time) -> None:
        self.folder = folder
        self._now = now

    def append(self, kind: str, /, **data: Any) -> dict[str, Any]:
        """Write one record, durable when this returns, and return it."""
        at = self._now()
        os.makedirs(self.folder, mode=0o700, exist_ok=True)
        record = {"kind": kind, "at": round(at, 3), **data}
        path = os.path.join(self.folder, time.strftime("%Y-%m.jsonl", time.gmtime(at)))
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            size_bytes = os.fstat(fd).st_size
            if size_bytes and os.pread(fd, 1, size_bytes - 1) != b"\n":
                os.write(fd, b"\n")  # behind what a crash or a full disk cut off
            journal.append_record(fd, record)
        finally:
            os.close(fd)
        return record

    def read(self) -> list[dict[str, Any]]:
        """The whole records of the last months, oldest first."""
        try:
            names = sorted(name for name in os.listdir(self.folder) if name.endswith(".jsonl"))
        except FileNotFoundError:
            return []
        found: list[dict[str, Any]] = []
        for name in names[-MONTHS_READ:]:
            with open(os.path.join(self.folder, name), "rb") as stream:
                for line in stream:
                    with contextlib.suppress(ValueError):
                        record = journal.parse_record(line.rstrip(b"\n"))
                        if isinstance(record, dict) and isinstance(record.get("at"), int | float):
                            found.append(record)
        return found


def is_locked(folder: str) -> bool:
    """Whether a process on this host holds the office of that folder, as the kernel tells; takes nothing. Raises OSError."""
    try:
        inode = os.stat(os.path.join(folder, "lock")).st_ino
    except FileNotFoundError:
        return False
    with open("/proc/locks", encoding="ascii") as locks:
        return any(f":{inode} " in line for line in locks)


@contextlib.contextmanager
def lock_service(folder: str) -> Iterator[bool]:
    """Whether this process alone holds the office of that folder, until the block ends."""
    os.makedirs(folder, mode=0o700, exist_ok=True)
    fd = os.open(os.path.join(folder, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(fd)
