"""Files that only make the next start quicker: in the user's cache folder, believed only where nobody else can have written them. (I/O)

How it thinks. What is kept here is trusted like code, so a file counts only when it belongs to this user and no one else may write it
or its folder. Its name says what it was made from, so an old one is never read; one that is damaged is made again. A cache that cannot be
read or written changes nothing but the time.
"""

from __future__ import annotations

import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

__all__ = ["keep", "read"]


def read(name: str) -> bytes | None:
    """The content of the cache file `name`; None where there is none that can be trusted."""
    folder = _folder()
    if folder is None:
        return None
    try:
        descriptor = os.open(folder / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    with open(descriptor, "rb") as file:
        fact = os.fstat(descriptor)
        if not stat.S_ISREG(fact.st_mode) or fact.st_uid != os.geteuid() or fact.st_mode & 0o022:
            return None
        with suppress(OSError):
            return file.read()
    return None


def keep(name: str, content: bytes) -> None:
    """Write the cache file `name` whole or not at all."""
    folder = _folder()
    if folder is None:
        return
    with suppress(OSError):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        fact = folder.stat()
        if fact.st_uid != os.geteuid() or fact.st_mode & 0o022:
            return
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".new-", delete=False) as file:
            file.write(content)
        os.replace(file.name, folder / name)


def _folder() -> Path | None:
    """XDG's cache folder, or ~/.cache; None where there is no home."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    base = base if os.path.isabs(base) else os.path.expanduser("~/.cache")
    return Path(base) / "ftrun" if os.path.isabs(base) else None
