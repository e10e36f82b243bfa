"""Tells the staging daemon of this node that there is something to look at: a byte through a named pipe in the job's folder. (I/O)

How it thinks. The staging daemon looks now and then in any case; who pokes it only spares the wait. So nothing that fails here matters to anybody.
"""

from __future__ import annotations

import contextlib
import os
import select
import time

__all__ = ["Ear", "poke"]

BYTES = 1 << 16


def poke(base: str) -> None:
    """Something is done in the job's folder `base`; where nobody listens nothing happens."""
    with contextlib.suppress(OSError):
        descriptor = os.open(_path(base), os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            os.write(descriptor, b".")
        finally:
            os.close(descriptor)


class Ear:
    """Of the one who is poked."""

    def __init__(self, base: str) -> None:
        self._descriptor = -1
        with contextlib.suppress(OSError):
            with contextlib.suppress(FileExistsError):
                os.mkfifo(_path(base), 0o600)
            # Open for writing as well: so it has no end when the last one who poked is gone.
            self._descriptor = os.open(_path(base), os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)

    def wait(self, limit_s: float) -> None:
        """Until somebody pokes, so many seconds at most."""
        if self._descriptor < 0:
            time.sleep(limit_s)
        elif select.select([self._descriptor], [], [], limit_s)[0]:
            with contextlib.suppress(BlockingIOError):
                os.read(self._descriptor, BYTES)


def _path(base: str) -> str:
    return f"{base}/poke"
