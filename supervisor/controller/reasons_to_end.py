"""When a supervisor ends by itself although runs are open: it can do nothing for them any more. (I/O)

Blindness is no reason as such: ftrun waits for a Slurm that is down and for a disk that is full, since ending
would abandon the runs. But what will not come back must not keep a process for ever. Whatever ends, the
journals stay, and the next `ftrun` command begins a supervisor that goes on from them.
"""

from __future__ import annotations

import os

from ftrun.supervisor.model.timers import Stopwatch

HOME_GONE_S = 60.0  # a file system may be mounted again
CONFIG_GONE_S = 600.0  # Slurm does not answer, and the slurm.conf that this process was given is gone
BLIND_MAX_S = 7 * 86_400.0  # longer than any maintenance that somebody did not plan
LEASE_UNWRITABLE_MAX_S = 86_400.0  # the lease cannot be written: disk full, quota, read-only


class ReasonsToEnd:
    """The reasons of one supervisor, by its own monotonic clock. `slurm_conf`: the file it was given, or ""."""

    def __init__(self, home: str, slurm_conf: str = "") -> None:
        self._home, self._slurm_conf = home, slurm_conf
        self._home_gone, self._config_gone, self._blind = Stopwatch(), Stopwatch(), Stopwatch()
        self._lease_unwritable = Stopwatch()

    def why(self, mono_s: float, *, blind: bool, lease_unwritable: bool) -> str:
        """Why the supervisor ends now, or "". `blind`: Slurm does not answer; `lease_unwritable`: the lease cannot be
        written.
        """
        config_gone = blind and bool(self._slurm_conf) and not os.path.exists(self._slurm_conf)
        for watch, holds, limit_s, words in (
            (self._home_gone, not os.path.isdir(self._home), HOME_GONE_S, f"{self._home} is gone"),
            (self._config_gone, config_gone, CONFIG_GONE_S, f"{self._slurm_conf} is gone and Slurm silent"),
            (self._blind, blind, BLIND_MAX_S, "Slurm has not answered"),
            (
                self._lease_unwritable,
                lease_unwritable,
                LEASE_UNWRITABLE_MAX_S,
                f"the lease in {self._home} cannot be written",
            ),
        ):
            if not holds:
                watch.stop()
            elif (held_s := watch.held_s(mono_s)) > limit_s:
                return f"{words} for {held_s:.0f} s"
        return ""
