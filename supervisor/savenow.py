"""`save-now` in a run's folder: the wish for a checkpoint, for scripts that look at a file. (I/O)

How it thinks. Supervisor and agent may wish at the same time, for different reasons; any new checkpoint answers both. What stands in the file tells
one wish from the next. So a second wish is not written over one that stands, but by the supervisor, whose wishes outlive a
start; and nobody removes a wish that is not its own. When a launch is over, so are all of its wishes.
"""

from __future__ import annotations

import contextlib
import os

from ftrun.supervisor import store

__all__ = ["FILE", "ask", "clear", "is_read", "unask"]

FILE = "save-now"
SIZE_MAX_BYTES = 4096


def ask(run_dir: str, token: str, *, beside: bool = False) -> None:
    """Let the wish `token` stand there; `beside` = not where another one does. Raises OSError."""
    path = os.path.join(run_dir, FILE)
    if beside and store.content(path, SIZE_MAX_BYTES):
        return
    store.write_atomically(path, f"{token}\n".encode(), mode=0o644)


def unask(run_dir: str, token: str) -> None:
    """The wish `token` stands there no more; any other one stays."""
    path = os.path.join(run_dir, FILE)
    if token and store.content(path, SIZE_MAX_BYTES) == f"{token}\n".encode():
        _remove(path)


def clear(run_dir: str) -> None:
    """Nobody's wish stands there any more."""
    _remove(os.path.join(run_dir, FILE))


def is_read(place: str, start_token: str) -> bool:
    """Some rank of this start tells where it is by `beat`, so it reads the file, too; `place` is the attempt's folder."""
    try:
        return bool(os.listdir(os.path.join(place, "beats", start_token)))
    except OSError:
        return False


def _remove(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)
