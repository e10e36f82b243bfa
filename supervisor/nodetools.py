"""What nodes run of ftrun, put where jobs find it. (I/O)

A job that has started looks for the node side behind one link, `tools/ftrun-hook.pyz` of the run's home, and keeps the file that it
found; so the supervisor that leads puts its own version there, and `ftrun sbatch` pays nothing for it.
"""

from __future__ import annotations

import contextlib
import os

from ftrun.hooks.pack import archive

__all__ = ["LINK", "provide"]

LINK = "tools/ftrun-hook.pyz"


def provide(home: str) -> str:
    """Put the node side into `home`, let the link lead to it, and return its path. Raises OSError."""
    path, link = archive(home), os.path.join(home, LINK)
    name = os.path.basename(path)
    with contextlib.suppress(OSError):
        if os.readlink(link) == name:
            return path
    draft = f"{link}.{os.getpid()}"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(draft)
    os.symlink(name, draft)
    os.replace(draft, link)
    return path
