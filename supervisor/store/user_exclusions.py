"""The nodes that a person keeps runs off, by `ftrun nodes exclude`: one small file for each in the home. (I/O)

The ledger holds the same, and is the truth. It is long, and `ftrun sbatch` must not wait for it: it reads this
folder, which most homes do not even have.

    $FTRUN_HOME/nodes/excluded/<node>      until when, in Unix time
"""

from __future__ import annotations

import contextlib
import os

from ftrun.hooks.runtime.ownership import private_folder
from ftrun.supervisor.config import home as config_home

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable


def _folder(home: str) -> str:
    return os.path.join(home, "nodes", "excluded")


def read_exclusions(home: str, now_s: float) -> tuple[str, ...]:
    """The nodes that are to be avoided now, sorted; what cannot be read counts as none."""
    found = []
    try:
        names = os.listdir(_folder(home))
    except OSError:
        return ()
    for name in names:
        with contextlib.suppress(OSError, ValueError), open(os.path.join(_folder(home), name)) as stream:
            if float(stream.read(64)) > now_s:
                found.append(name)
    return tuple(sorted(found))


def write_exclusions(home: str, nodes: Iterable[str], until_s: float) -> None:
    """Avoid these nodes until then; 0 ends it. Raises OSError."""
    private_folder(_folder(home))
    for node in nodes:
        path = os.path.join(_folder(home), os.path.basename(node))
        if until_s:
            config_home.write_atomically(path, f"{until_s:.0f}\n".encode(), sync=False)
        else:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
