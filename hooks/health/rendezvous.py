"""A board where workers on several nodes post short notes, in a shared folder or over TCP. (I/O)

Nodes must know of each other before they can test anything. A note is written once and never changes, so
readers may cache it. With a shared folder no worker depends on another; without one, one of them stores the
notes and serves them over TCP, each connection in a thread of its own.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import socket
import threading
import time
from collections.abc import Mapping
from typing import Any, Callable, Optional, Protocol

HANG_UP = (OSError, ValueError, KeyError, TypeError, RecursionError, AttributeError, OverflowError)
"""What a caller without the token may cause by its line: the server hangs up, and says nothing."""


def is_token(told: object, token: str) -> bool:
    """Whether a caller knows the token; takes as long for each wrong one."""
    return isinstance(told, str) and hmac.compare_digest(told.encode("utf-8", "replace"), token.encode())


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
        """Stop listening; this wakes a thread that waits for a connection."""
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


NOTE_BYTES_MAX = 1 << 22
ASK_LIMIT_S = 5.0
PAUSE_S = 0.1


class Board(Protocol):
    """Notes by name. Names have letters, digits, dots, hyphens and underscores."""

    def put(self, name: str, value: Any) -> None:
        """Post a note. Raises OSError."""

    def notes(self, prefix: str) -> dict[str, Any]:
        """The notes whose names have this prefix; {} if the board does not answer."""


class FolderBoard:
    """One file for each note, in a folder that all workers see and only their user may read."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._known: dict[str, Any] = {}
        os.makedirs(folder, mode=0o700, exist_ok=True)

    def put(self, name: str, value: Any) -> None:
        """Write and rename: a reader sees all of it or nothing."""
        draft = os.path.join(self._folder, f".{name}.{os.getpid()}")
        with open(
            os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8"
        ) as stream:
            json.dump(value, stream)
        os.rename(draft, os.path.join(self._folder, name))

    def notes(self, prefix: str) -> dict[str, Any]:
        """Read each file once."""
        names: list[str] = []
        with contextlib.suppress(OSError):
            names = [name for name in os.listdir(self._folder) if name.startswith(prefix)]
        for name in names:
            if name not in self._known:
                with (
                    contextlib.suppress(OSError, ValueError, RecursionError),
                    open(os.path.join(self._folder, name), encoding="utf-8") as stream,
                ):
                    self._known[name] = json.loads(stream.read(NOTE_BYTES_MAX))
        return {name: self._known[name] for name in names if name in self._known}


class BoardServer:
    """Serves a board over TCP until it is closed. Clients must present `token`."""

    def __init__(self, address: str, port: int, token: str) -> None:
        self._token = token
        self._notes: dict[str, Any] = {}
        self._listener = Listener(address, port, self._answer, backlog=1024)
        self.port: int = self._listener.port

    def close(self) -> None:
        """Stop serving."""
        self._listener.close()

    def _answer(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(*HANG_UP):
            connection.settimeout(ASK_LIMIT_S)
            with connection.makefile("rwb") as stream:
                asked = json.loads(stream.readline(NOTE_BYTES_MAX))
                if not is_token(asked["token"], self._token):
                    return
                if "put" in asked:
                    self._notes.setdefault(str(asked["put"]), asked["value"])
                prefix = str(asked.get("prefix", "."))
                found = {name: value for name, value in list(self._notes.items()) if name.startswith(prefix)}
                stream.write(json.dumps(found).encode() + b"\n")


class SocketBoard:
    """A board that a `BoardServer` serves, perhaps later than clients start: `put` retries."""

    def __init__(self, address: str, port: int, token: str, patience_s: float = ASK_LIMIT_S) -> None:
        self._place = (address, port)
        self._token = token
        self._patience_s = patience_s

    def put(self, name: str, value: Any) -> None:
        """Retry until the note is stored or time is up."""
        give_up = time.monotonic() + self._patience_s
        while not self._is_taken(name, value, is_last=time.monotonic() > give_up):
            time.sleep(PAUSE_S)

    def _is_taken(self, name: str, value: Any, *, is_last: bool) -> bool:
        try:
            self._ask({"put": name, "value": value})
        except (OSError, ValueError):
            if is_last:
                raise
            return False
        return True

    def notes(self, prefix: str) -> dict[str, Any]:
        """Ask the server."""
        try:
            return self._ask({"prefix": prefix})
        except (OSError, ValueError, RecursionError):
            return {}

    def _ask(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """Raises OSError, or ValueError if the server hangs up, as it does for a wrong token."""
        with socket.create_connection(self._place, ASK_LIMIT_S) as connection:
            connection.settimeout(ASK_LIMIT_S)
            with connection.makefile("rwb") as stream:
                stream.write(json.dumps({"token": self._token, **question}).encode() + b"\n")
                stream.flush()
                answer: dict[str, Any] = json.loads(stream.readline(NOTE_BYTES_MAX))
                return answer


def wait_for_notes(
    board: Board, prefix: str, enough: Callable[[Mapping[str, Any]], bool], limit_s: float
) -> dict[str, Any]:
    """The notes with this prefix, when they are enough or time is up."""
    give_up = time.monotonic() + limit_s
    while True:
        found = board.notes(prefix)
        if enough(found) or time.monotonic() > give_up:
            return found
        # Many workers poll one folder or server: the more notes, the longer the pause.
        time.sleep(PAUSE_S + len(found) / 2000)
