"""What nodes run of ftrun, put where jobs find it. (I/O)

A job that has started looks for the node side behind one link, `tools/ftrun-hook.pyz` of the run's home, and keeps the file that it
found; so the supervisor that leads puts its own version there, and `ftrun sbatch` pays nothing for it. The first call of it leaves it compiled for all
later ones: that is made here, as all the nodes of the first job would else compile it at the same moment.
"""

from __future__ import annotations

import contextlib
import os
import subprocess

from ftrun.hooks.ownership import RUNNER
from ftrun.hooks.pack import archive
from ftrun.supervisor.store import TOOLS_LINK

__all__ = ["LINK", "provide"]

LINK = TOOLS_LINK


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
    _compile(path)
    return path


def _compile(path: str) -> None:
    """Call it once with the interpreter that nodes take first, and do not wait for it; where that fails nodes compile for themselves."""
    line = '/usr/bin/python3 -IS -c "$0" "$1" version >/dev/null 2>&1 &'
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        subprocess.run(
            ["/bin/sh", "-c", line, RUNNER, path],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=5.0,
            check=False,
            start_new_session=True,
        )
