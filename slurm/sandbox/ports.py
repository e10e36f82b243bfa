"""A free range of ports that no other sandbox takes at the same moment. (I/O)

Two sandboxes that come up together must not choose the same range: the choice is made under one lock of
the user, and the lock is kept until the daemons have bound their ports. A lock of all users would be in
everybody's hands. The search starts at a random place, so that the sandbox of another user that comes up at
the same moment, or one with dead nodes (whose ports look free), is unlikely to be run over.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import socket
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from ftrun.slurm.sandbox.plan import SandboxError

# Below the ephemeral ports (32768 upwards), from which clients and srun draw.
FIRST_PORT = 20_000
LAST_PORT = 32_500
LOCK_WAIT_S_MAX = 900.0


@contextlib.contextmanager
def user_lock() -> Iterator[None]:
    """Hold the lock of all sandboxes of this user on this machine. SandboxError where whoever holds it lives and is not done in 15 minutes."""
    path = Path(tempfile.gettempdir()) / f"ftrun-sandbox-ports.{os.geteuid()}.lock"
    handle = _open_own(path)
    try:
        deadline = time.monotonic() + LOCK_WAIT_S_MAX
        while handle is not None:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise SandboxError(
                        f"another sandbox has been coming up for {LOCK_WAIT_S_MAX:.0f} s and holds {path}"
                    ) from None
                time.sleep(0.05)
        yield
    finally:
        if handle is not None:
            os.close(handle)


def _open_own(path: Path) -> int | None:
    """The lock file; None where another user has taken its name, who must hold nobody up."""
    try:  # no link is followed, and a pipe that somebody put there is not waited for
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        handle = os.open(path, flags, 0o600)
    except OSError:
        return None
    status = os.fstat(handle)
    if stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid():
        os.fchmod(handle, 0o600)
        return handle
    os.close(handle)
    return None


def port_range(count: int, base_port: int | None) -> int:
    """The first of `count` consecutive free TCP ports; `base_port` itself when given and free. Call it under
    `user_lock`. SandboxError when the wanted range, or every range, is taken.
    """
    if base_port is not None:
        busy = _first_busy(base_port, count)
        if busy is not None:
            raise SandboxError(f"port {busy} is in use: choose another base port or none", wrong_usage=True)
        return base_port
    start = random.randrange(FIRST_PORT, LAST_PORT - count)
    at, wrapped = start, False
    while not (wrapped and at >= start):
        busy = _first_busy(at, count)
        if busy is None:
            return at
        at = busy + 1
        if at + count > LAST_PORT:
            at, wrapped = FIRST_PORT, True
    raise SandboxError(f"no {count} consecutive free ports between {FIRST_PORT} and {LAST_PORT}")


def _first_busy(base: int, count: int) -> int | None:
    for port in range(base, base + count):
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("0.0.0.0", port))  # noqa: S104 - as slurmd binds; closed at once, never listens
            except OSError:
                return port
    return None
