"""Where all runs of a user lie. (I/O)"""

from __future__ import annotations

import os

__all__ = ["home_dir"]


def home_dir(env: dict[str, str] | None = None) -> str:
    """The folder of all runs: $FTRUN_HOME, else `~/.local/state/ftrun` (XDG_STATE_HOME respected)."""
    source = os.environ if env is None else env
    if source.get("FTRUN_HOME"):
        return os.path.abspath(os.path.expanduser(source["FTRUN_HOME"]))
    state = source.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    return os.path.join(state, "ftrun")
