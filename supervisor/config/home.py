"""The home folder of all runs of a user, and atomic writes below it. (I/O)"""

from __future__ import annotations

import functools
import os


def home_dir(env: dict[str, str] | None = None) -> str:
    """The folder of all runs: $FTRUN_HOME, else `~/.local/state/ftrun` (XDG_STATE_HOME respected)."""
    source = os.environ if env is None else env
    if source.get("FTRUN_HOME"):
        return os.path.abspath(os.path.expanduser(source["FTRUN_HOME"]))
    state = source.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    return os.path.join(state, "ftrun")


def write_atomically(path: str, data: bytes, *, mode: int = 0o600, sync: bool = True) -> None:
    """Write a file so that a reader sees the old content or the new one, never half of it."""
    temporary = f"{path}.{host_name()}.{os.getpid()}.tmp"
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        if sync:
            os.fsync(fd)
    finally:
        os.close(fd)
    os.replace(temporary, path)


@functools.cache
def host_name() -> str:
    """The name of this host without its domain, in characters that are safe in a path."""
    name = os.uname().nodename.split(".")[0]
    return "".join(c if c.isascii() and c.isalnum() else "-" for c in name) or "host"
