"""The far end of a connection: a command's input and output, and direct byte streams between nodes. (I/O)

`Ways` closes connections in order, `talk` feeds a remote command and collects its output.

`Listener` and `call` make a direct connection for file contents. The output of a step reaches srun over
connections that the step's node opens to the node of srun, so that direction is known to be open, and the
step knows the address. The sender, which started the step, listens there and accepts only the caller that
presents the secret it received over the step's own output; it drops all other callers. The stream is as plain
as that of sbcast or srun; the receiver verifies it by checksums exchanged over the step.
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

OUTPUT_BYTES_MAX = 1 << 20
PIECE = 1 << 15
POLL_S = 0.25
LEFTOVERS_S = 0.5
"""How long `talk` still reads output of processes that an ended command left behind."""


class Refused(Exception):
    """The host is reachable but refuses us: host key or login."""


class Unreachable(Exception):
    """The host cannot be reached."""


def left_s(give_up_s: float) -> float:
    """Seconds until a monotonic time; never 0, which would mean "no limit"."""
    return max(0.001, give_up_s - time.monotonic())


def error_text(error: BaseException) -> str:
    """The error as text, without errno and class name where it has a message."""
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


class OpenConnections:
    """Connections and processes to close, in reverse order of opening."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: list[Callable[[], object]] = []
        self._closed = False

    def add(self, close: Callable[[], object]) -> None:
        """Register something to close; it is closed at once if `close` was called already."""
        with self._lock:
            if not self._closed:
                self._open.append(close)
                return
        close()

    def close(self) -> None:
        """Close all, the last one first."""
        with self._lock:
            self._closed = True
            todo, self._open = self._open, []
        for close in reversed(todo):
            with contextlib.suppress(OSError, EOFError):
                close()


def open_proxy_command(command: str, ways: OpenConnections) -> socket.socket:
    """Start a ProxyCommand and return a socket that is its stdin and stdout; `ways` ends it. Raises OSError."""
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


def exchange(
    channel: Any, stdin: bytes, texts: tuple[bytearray, bytearray], give_up_s: float
) -> Optional[int]:
    """Send `stdin` to a command and collect what it prints in `texts` (stdout, stderr) until it ends. Returns
    its exit code, -1 if a signal ended it or the connection broke, None when time is up. Output beyond
    OUTPUT_BYTES_MAX is read and dropped.
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
            # Processes that the command left behind may hold its output open forever.
            leave_s = min(leave_s, time.monotonic() + LEFTOVERS_S)
        if not rest or ended:
            waker.poll(1000 * min(POLL_S, left_s(give_up_s)))
    return None


def _taken(channel: Any, texts: tuple[bytearray, bytearray]) -> bool:
    """Read what is available; True if there was anything."""
    got = False
    ways = ((channel.recv_ready, channel.recv), (channel.recv_stderr_ready, channel.recv_stderr))
    for text, (ready, take) in zip(texts, ways):
        while ready() and (piece := take(PIECE)):
            got = True
            text.extend(piece[: max(0, OUTPUT_BYTES_MAX - len(text))])
    return got


def _sent(channel: Any, rest: memoryview) -> int:
    """How many bytes were sent; all of them if the command has closed its input, since it may still end well."""
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


class JumpChannel:
    """A channel through another host as a socket; errors on closing are ignored: that host may be gone."""

    def __init__(self, channel: Any) -> None:
        self._channel = channel

    def __getattr__(self, name: str) -> Any:
        return getattr(self._channel, name)

    def close(self) -> None:
        """Close the channel, ignoring errors."""
        with contextlib.suppress(EOFError, OSError):
            self._channel.close()


CALL_S = 5.0
SECRET_BYTES = 32


def address_of_srun() -> str:
    """The address, as seen from this node, of the srun that started this process; "" if none did."""
    return os.environ.get("SLURM_LAUNCH_NODE_IPADDR", "")


class Listener:
    """Waits for one caller at an address of this node. Raises OSError."""

    def __init__(self, address: str) -> None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._server = socket.create_server((address, 0), family=family, backlog=4)
        self.port = int(self._server.getsockname()[1])
        self.secret = secrets.token_hex(SECRET_BYTES // 2)

    def answer(self, limit_s: float) -> socket.socket:
        """Accept the caller that knows the secret. Raises OSError if none connects in time."""
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
        """Stop listening."""
        self._server.close()


def connect(address: str, port: int, secret: str, limit_s: float) -> socket.socket:
    """Connect to a `Listener` and present the secret, within `limit_s`. Raises OSError."""
    line = socket.create_connection((address, port), timeout=CALL_S)
    line.settimeout(limit_s)
    line.sendall(secret.encode())
    return line
