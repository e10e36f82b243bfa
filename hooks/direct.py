"""A connection of its own between two nodes, for the bytes of files. (I/O)

How it thinks. A step's output reaches srun over connections that the step's node opens to the node of srun, so that way is open, and the step knows the address. The sender, who has started the step,
listens there for the one caller that knows a word which was told within the step's own talk; everybody else is turned away. What comes is as plain as with sbcast or srun, and is believed by
the sums that are told in the talk.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets
import socket
import time

__all__ = ["Listener", "address_of_srun", "call"]

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
