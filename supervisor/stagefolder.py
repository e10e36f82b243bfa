"""The folder that staged checkpoints are published to, looked at when a job is submitted. (I/O)

How it thinks. A wrong folder would be found by the first checkpoint, hours later and on a node. So who names one is told at once, in one line. A file system that does not
answer is no reason not to submit.
"""

from __future__ import annotations

import os
import threading

from ftrun.supervisor.errors import UserError

__all__ = ["ready"]

PATIENCE_S = 5.0


def ready(path: str, *, make: bool) -> None:
    """See that `path` is a folder that this user may write to; `make` it, and those above it, where it is missing. Raises UserError (exit 2)."""
    found: list[str] = []
    looking = threading.Thread(
        target=lambda: found.append(_wrong(os.path.expanduser(path), make=make)), daemon=True
    )
    looking.start()
    looking.join(PATIENCE_S)
    if found and found[0]:
        raise UserError(f"stage: {found[0]}")


def _wrong(path: str, *, make: bool) -> str:
    """Why checkpoints cannot be published there; "" where they can."""
    above = path
    while not os.path.lexists(above) and above != os.path.dirname(above):
        above = os.path.dirname(above)
    if not os.path.isdir(above):
        return f"{above} is no folder: name one that all nodes see, such as /shared/me/run7/checkpoints"
    if not os.access(above, os.W_OK | os.X_OK):
        missing = "" if above == path else f", so {path} cannot be made"
        return f"you may not write to {above}{missing}: name a folder that you may write to"
    try:
        if make:
            os.makedirs(path, exist_ok=True)
    except OSError as error:
        return f"{path} cannot be made: {error.strerror}"
    return ""
