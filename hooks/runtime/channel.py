"""The far end of a connection: what is open to it, and the talk with a command there. (I/O)

A connection of its own between two nodes, for the bytes of files.
How it thinks. A step's output reaches srun over connections that the step's node opens to the node of srun, so that way is open, and the step knows the address. The sender, who has started the step,
listens there for the one caller that knows a word which was told within the step's own talk; everybody else is turned away. What comes is as plain as with sbcast or srun, and is believed by
the sums that are told in the talk.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets
import select
import signal
import socket
import subprocess
import threading
import time
from typing import Any, Callable, Optional

__all__ = [
    "Lane",
    "Listener",
    "Lost",
    "Refused",
    "Ways",
    "address_of_srun",
    "call",
    "in_words",
    "left_s",
    "piped",
    "talk",
]


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


CALL_S = 5.0
SECRET_BYTES = 32


def address_of_srun() -> str:
    """Where the srun is that started this process, as this node reaches it; "" where it was none."""
    return os.environ.get("SLURM_LAUNCH_NODE_IPADDR", "")


class Listener:
    """Waits for one caller at an address of this node. Raises OSError."""

    def __init__(self, address: str) -> None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._server = socket.create_server((address, 0), family=family, backlog=4)
        self.port = int(self._server.getsockname()[1])
        self.secret = secrets.token_hex(SECRET_BYTES // 2)

    def answer(self, limit_s: float) -> socket.socket:
        """The connection of the caller that knows the word. Raises OSError where none comes."""
        give_up_s = time.monotonic() + limit_s
        while True:
            self._server.settimeout(max(0.01, give_up_s - time.monotonic()))
            caller, _ = self._server.accept()
            caller.settimeout(max(0.01, min(1.0, give_up_s - time.monotonic())))
            told = b""
            with contextlib.suppress(OSError):
                while len(told) < SECRET_BYTES and (more := caller.recv(SECRET_BYTES - len(told))):
                    told += more
            if hmac.compare_digest(told, self.secret.encode()):
                return caller
            caller.close()

    def close(self) -> None:
        """Nobody else is listened to."""
        self._server.close()


def call(address: str, port: int, secret: str, limit_s: float) -> socket.socket:
    """The other end of it, whose limit is `limit_s`. Raises OSError."""
    line = socket.create_connection((address, port), timeout=CALL_S)
    line.settimeout(limit_s)
    line.sendall(secret.encode())
    return line
