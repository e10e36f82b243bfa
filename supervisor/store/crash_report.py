"""The report of an internal error: the traceback goes to a file, never to the user's terminal. (I/O)"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import time
import traceback
from importlib import metadata
from pathlib import Path


def report(error: BaseException) -> str:
    """Write the traceback of `error` to a private file and return the one line that a user sees.

    The file goes to `$FTRUN_HOME/crashes/`, or to the temporary folder where that cannot be written
    (an unset home is not created for it).  The file holds the arguments, but not the environment.
    """
    summary = " ".join(f"{type(error).__name__}: {error}".split())
    path = _written(_details(error))
    where = f"details in {path}" if path else "and the details could not be written anywhere"
    return f"internal error of ftrun: {summary[:200]}; {where}"


def _details(error: BaseException) -> str:
    try:
        version = metadata.version("ftrun")
    except metadata.PackageNotFoundError:
        version = "unknown"
    return "\n".join(
        [
            f"ftrun {version}, Python {sys.version.split()[0]}, {time.strftime('%Y-%m-%dT%H:%M:%S%z')}",
            f"arguments: {sys.argv[1:]!r}",
            "",
            *traceback.format_exception(error),
        ]
    )


def _written(text: str) -> Path | None:
    home = os.environ.get("FTRUN_HOME")
    folders = [Path(home) / "crashes"] if home and Path(home).is_dir() else []
    for folder in [*folders, Path(tempfile.gettempdir())]:
        with contextlib.suppress(OSError):
            folder.mkdir(mode=0o700, exist_ok=True)
            # mkstemp makes the file private and follows no link.
            descriptor, name = tempfile.mkstemp(prefix="ftrun-crash-", suffix=".txt", dir=folder)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
            return Path(name)
    return None
