"""How fast two nodes talk over plain TCP: round trip, and bytes a second in both directions. (I/O)

How it thinks. The client says what it wants, the server only echoes, swallows or pours. Bytes are counted by whoever receives them, so that what lies in
buffers is not counted. A test has a time, not a size: a bad link must not make it long.

On the wire: one line of JSON {"token", "want": "echo" | "swallow" | "pour", "seconds"}, then bytes. After "swallow" the server answers with one line, the bytes that
it received and the seconds from the first to the last.
"""

from __future__ import annotations

import contextlib
import json
import socket
import time
from statistics import median

from ftrun.hooks.listener import Listener
from ftrun.hooks.pairing import Measured

__all__ = ["Server", "measured"]

CHUNK_BYTES = 1 << 20
LINE_BYTES_MAX = 4096
PINGS = 30
SECONDS_MAX = 30.0


class Server:
    """Takes part in tests until it is closed; those that do not tell its token are hung up on."""

    def __init__(self, address: str, token: str, limit_s: float = 10.0) -> None:
        self._token = token
        self._limit_s = limit_s
        self._listener = Listener(address, 0, self._take_part)
        self.port: int = self._listener.port

    def close(self) -> None:
        """Take part no more."""
        self._listener.close()

    def _take_part(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            connection.settimeout(self._limit_s)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            asked = json.loads(_line(connection))
            if asked["token"] != self._token:
                return
            if asked["want"] == "echo":
                while True:
                    byte = connection.recv(1)
                    if not byte:
                        return
                    connection.sendall(byte)
            elif asked["want"] == "pour":
                _pour(connection, min(float(asked["seconds"]), SECONDS_MAX))
                connection.shutdown(socket.SHUT_WR)
            else:
                received, seconds = _swallowed(connection)
                connection.sendall(json.dumps([received, seconds]).encode() + b"\n")


def measured(address: str, port: int, token: str, *, seconds: float = 0.5, limit_s: float = 10.0) -> Measured:
    """Test the way to a server. What fails is told in `why`; nothing is raised. `seconds` for each direction."""
    try:
        trip_s = _round_trip_s(address, port, token, limit_s)
        there = _poured(address, port, token, seconds, limit_s)
        back = _drawn(address, port, token, seconds, limit_s)
    except (OSError, ValueError, IndexError) as error:
        return Measured(
            why=f"no connection: {getattr(error, 'strerror', None) or error or type(error).__name__}"
        )
    return Measured(min(there, back), trip_s)


def _round_trip_s(address: str, port: int, token: str, limit_s: float) -> float:
    with _opened(address, port, {"token": token, "want": "echo"}, limit_s) as connection:
        trips = []
        for _ in range(PINGS):
            began = time.perf_counter()
            connection.sendall(b".")
            if not connection.recv(1):
                raise ConnectionError("the other side hung up")
            trips.append(time.perf_counter() - began)
    return median(trips)


def _poured(address: str, port: int, token: str, seconds: float, limit_s: float) -> float:
    with _opened(address, port, {"token": token, "want": "swallow"}, limit_s) as connection:
        _pour(connection, seconds)
        connection.shutdown(socket.SHUT_WR)
        received, took_s = json.loads(_line(connection))
    return float(received) / max(float(took_s), 1e-6)


def _drawn(address: str, port: int, token: str, seconds: float, limit_s: float) -> float:
    with _opened(address, port, {"token": token, "want": "pour", "seconds": seconds}, limit_s) as connection:
        received, took_s = _swallowed(connection)
    if not received:
        raise ConnectionError("the other side hung up")
    return received / max(took_s, 1e-6)


def _opened(address: str, port: int, question: dict[str, object], limit_s: float) -> socket.socket:
    connection = socket.create_connection((address, port), limit_s)
    connection.settimeout(limit_s)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.sendall(json.dumps(question).encode() + b"\n")
    return connection


def _pour(connection: socket.socket, seconds: float) -> None:
    chunk = memoryview(bytes(CHUNK_BYTES))
    give_up = time.monotonic() + seconds
    while time.monotonic() < give_up:
        connection.sendall(chunk)


def _swallowed(connection: socket.socket) -> tuple[int, float]:
    """Bytes until the other side is done, and the seconds from the first of them to the last."""
    buffer = bytearray(CHUNK_BYTES)
    received = connection.recv_into(buffer)
    began_s = ended_s = time.monotonic()
    while True:
        count = connection.recv_into(buffer)
        if not count:
            return received, ended_s - began_s
        ended_s = time.monotonic()
        received += count


def _line(connection: socket.socket) -> bytes:
    """One line, byte by byte, so that nothing behind it is taken."""
    line = b""
    while not line.endswith(b"\n") and len(line) < LINE_BYTES_MAX:
        byte = connection.recv(1)
        if not byte:
            raise ConnectionError("the other side hung up")
        line += byte
    return line
