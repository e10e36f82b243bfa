"""Wakes the staging daemon of this node: a byte through a named pipe in the job's folder. (I/O)

The staging daemon polls anyway; a wakeup only saves the wait. So every error here is ignored.
"""

from __future__ import annotations

import contextlib
import os
import select
import time

BYTES = 1 << 16


def wake(base: str) -> None:
    """Wake the daemon that listens in the job's folder `base`; without one nothing happens."""
    with contextlib.suppress(OSError):
        descriptor = os.open(_path(base), os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            os.write(descriptor, b".")
        finally:
            os.close(descriptor)


class WakeupListener:
    """The listening end."""

    def __init__(self, base: str) -> None:
        self._descriptor = -1
        with contextlib.suppress(OSError):
            with contextlib.suppress(FileExistsError):
                os.mkfifo(_path(base), 0o600)
            # Open for writing as well: otherwise the pipe reports its end when the last writer closes it.
            self._descriptor = os.open(_path(base), os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)

    def wait(self, limit_s: float) -> None:
        """Wait for a wakeup, at most `limit_s`."""
        if self._descriptor < 0:
            time.sleep(limit_s)
        elif select.select([self._descriptor], [], [], limit_s)[0]:
            with contextlib.suppress(BlockingIOError):
                os.read(self._descriptor, BYTES)


def _path(base: str) -> str:
    return f"{base}/poke"
