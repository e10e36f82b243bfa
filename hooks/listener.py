"""Answers whoever connects, each in a thread of its own, until it is closed. (I/O)"""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Callable, Optional

__all__ = ["Listener"]


class Listener:
    """Listens at an address; port 0 takes a free one. `answer` gets each connection, and closes it."""

    def __init__(
        self, address: str, port: int, answer: Callable[[socket.socket], None], backlog: Optional[int] = None
    ) -> None:
        self._answer = answer
        self._socket = socket.create_server(
            (address, port), family=socket.AF_INET6 if ":" in address else socket.AF_INET, backlog=backlog
        )
        self.port: int = self._socket.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        """Answer no more; a thread that waits for a connection is woken by it."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()
