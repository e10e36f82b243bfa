"""The far end of a connection: what is open to it, and the talk with a command there. (I/O)"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import threading
import time
from typing import Any, Callable, Optional

__all__ = ["Lane", "Lost", "Refused", "Ways", "in_words", "left_s", "piped", "talk"]

OUTPUT_BYTES_MAX = 1 << 20
PIECE = 1 << 15
POLL_S = 0.25
LEFTOVERS_S = 0.5
"""How long output is taken from what a command that ended has left behind."""


class Refused(Exception):
    """The way is there, and we may not go it: a host key, a login."""


class Lost(Exception):
    """The way is not there."""


def left_s(give_up_s: float) -> float:
    """What is left until a monotonic time, in seconds, and never nothing at all, which would mean no limit."""
    return max(0.001, give_up_s - time.monotonic())


def in_words(error: BaseException) -> str:
    """What went wrong, without numbers and classes where there are words."""
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


class Ways:
    """Connections and processes to close, in the order they must be."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: list[Callable[[], object]] = []
        self._closed = False

    def add(self, close: Callable[[], object]) -> None:
        """Remember how to close something; at once where all was closed before."""
        with self._lock:
            if not self._closed:
                self._open.append(close)
                return
        close()

    def close(self) -> None:
        """Close all, the last first."""
        with self._lock:
            self._closed = True
            todo, self._open = self._open, []
        for close in reversed(todo):
            with contextlib.suppress(OSError, EOFError):
                close()


def piped(command: str, ways: Ways) -> socket.socket:
    """The near end of a ProxyCommand, whose input and output are one socket; `ways` ends it. Raises OSError."""
    ours, theirs = socket.socketpair()
    ways.add(ours.close)
    with theirs:
        child = subprocess.Popen(
            ["/bin/sh", "-c", f"exec {command}"],
            stdin=theirs.fileno(),
            stdout=theirs.fileno(),
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def end() -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()

    ways.add(end)
    return ours


def talk(channel: Any, stdin: bytes, texts: tuple[bytearray, bytearray], give_up_s: float) -> Optional[int]:
    """Send `stdin` to a command and gather what it prints in `texts` (stdout, stderr) until it ends.

    Returns its exit code, -1 where a signal ended it or the connection broke, None when time is up. What goes beyond
    OUTPUT_BYTES_MAX is read and forgotten.
    """
    waker = select.poll()
    waker.register(channel.fileno(), select.POLLIN)
    rest = memoryview(stdin)
    leave_s = give_up_s
    channel.settimeout(POLL_S)
    _close_at_end(channel, rest)
    while time.monotonic() < give_up_s:
        if rest:
            rest = rest[_sent(channel, rest) :]
            _close_at_end(channel, rest)
        if _taken(channel, texts):
            continue
        ended = channel.exit_status_ready()
        if ended and (channel.eof_received or channel.closed or time.monotonic() > leave_s):
            return int(channel.recv_exit_status())
        if ended:
            # What the command has left behind may hold its output open for ever.
            leave_s = min(leave_s, time.monotonic() + LEFTOVERS_S)
        if not rest or ended:
            waker.poll(1000 * min(POLL_S, left_s(give_up_s)))
    return None


def _taken(channel: Any, texts: tuple[bytearray, bytearray]) -> bool:
    """Take what is there; whether there was any."""
    got = False
    ways = ((channel.recv_ready, channel.recv), (channel.recv_stderr_ready, channel.recv_stderr))
    for text, (ready, take) in zip(texts, ways):
        while ready() and (piece := take(PIECE)):
            got = True
            text.extend(piece[: max(0, OUTPUT_BYTES_MAX - len(text))])
    return got


def _sent(channel: Any, rest: memoryview) -> int:
    """How much of the rest went out, or need not: a command that reads no more may still end well."""
    try:
        return int(channel.send(rest[:PIECE]))
    except socket.timeout:
        return 0
    except OSError:
        return len(rest)


def _close_at_end(channel: Any, rest: memoryview) -> None:
    if not rest:
        with contextlib.suppress(OSError):
            channel.shutdown_write()


class Lane:
    """A channel through another host, as the socket of a connection. Its end is no news where that host has gone first."""

    def __init__(self, channel: Any) -> None:
        self._channel = channel

    def __getattr__(self, name: str) -> Any:
        return getattr(self._channel, name)

    def close(self) -> None:
        """Close it, as far as there is somebody to tell."""
        with contextlib.suppress(EOFError, OSError):
            self._channel.close()
