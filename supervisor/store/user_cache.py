"""Cache files in the user's cache folder that only speed up the next start. (I/O)

A cached file is trusted like code, so it counts only if it belongs to this user and nobody else can write
it or its folder. Its name says what it was made from, so a stale one is never read; a damaged one is made
again. A cache that cannot be read or written costs time only.

A writer drops the oldest files of the same kind. A process that has one open reads on; one that comes too
late makes it again. Nothing is dropped that this module did not write: another owner's file, a link, a
folder, a name of another form.
"""

from __future__ import annotations

import os
import re
import stat
import tempfile
import time
from contextlib import suppress
from pathlib import Path

FILES_KEPT_MAX = 6
"""How many files of a kind are kept: our catalogue and a site's, of two editions, on machines of two kinds
that share a home.
"""

_NEW = ".new-"  # a file that is being written
_LEFT_S = 3600.0  # a file that was begun so long ago has lost its writer
_USED_S = 86_400.0  # a file that is read was used today: its time is renewed no more often
_NAME = re.compile(r"(?P<kind>[a-z]+)-[0-9a-f]{8,}(?:-[0-9a-f]+)?(?:\.[a-z]+)?")


def read_cached(name: str) -> bytes | None:
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
            content = file.read()
            if time.time() - fact.st_mtime > _USED_S:
                os.utime(descriptor)
            return content
    return None


def write_cached(name: str, content: bytes) -> None:
    """Write the cache file `name` (kind-digest) whole or not at all; drop the oldest of its kind."""
    folder = _folder()
    if folder is None:
        return
    with suppress(OSError):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        fact = folder.stat()
        if fact.st_uid != os.geteuid() or fact.st_mode & 0o022:
            return
        with tempfile.NamedTemporaryFile(dir=folder, prefix=_NEW, delete=False) as file:
            file.write(content)
        os.replace(file.name, folder / name)
        _drop_old(folder, name)


def _drop_old(folder: Path, name: str) -> None:
    """Drop all but the newest of the kind of `name`, and what writers left that were killed."""
    kind = _kind(name)
    times: list[tuple[float, str]] = []
    for entry in os.scandir(folder):
        with suppress(OSError):
            fact = entry.stat(follow_symlinks=False)
            if not stat.S_ISREG(fact.st_mode) or fact.st_uid != os.geteuid():
                continue
            if entry.name.startswith(_NEW) and time.time() - fact.st_mtime > _LEFT_S:
                os.unlink(entry.path)
            elif kind and entry.name != name and _kind(entry.name) == kind:
                times.append((fact.st_mtime, entry.path))
    for _, path in sorted(times, reverse=True)[FILES_KEPT_MAX - 1 :]:
        with suppress(OSError):  # another process was quicker
            os.unlink(path)


def _kind(name: str) -> str:
    match = _NAME.fullmatch(name)
    return match["kind"] if match else ""


def _folder() -> Path | None:
    """XDG's cache folder, or ~/.cache; None where there is no home."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    base = base if os.path.isabs(base) else os.path.expanduser("~/.cache")
    return Path(base) / "ftrun" if os.path.isabs(base) else None
