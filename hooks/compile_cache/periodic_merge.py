"""Merges a node's compile caches into its run's from time to time while the script runs. (I/O)

Frameworks compile most in the first minutes, so the first merges come early and later ones rarely. The first
node of the job begins; the others follow over a time that grows with their number, so that a thousand nodes
neither write the same entries nor read one folder at once. Each merge is a process with the lowest priority;
one that hangs is abandoned.
"""

from __future__ import annotations

import os
import signal
import sys

from ftrun.hooks.runtime.command_line import own_command

HAS_MERGER = "FTRUN_TENDED"
"""Environment variable: a parent process of ours merges already."""

MERGES_S = (45.0, 180.0, 600.0)
THEN_S = 1800.0
BEHIND_S = 20.0  # how long after the first node the others begin
APART_S = 0.5  # for each node of the job
APART_MAX_S = 600.0
LIMIT_S = 180.0


class PeriodicMerge:
    """The merges of one node. Call `poll` periodically; it costs nothing if the run has no caches."""

    def __init__(self, folder: str, launch: str, now_s: float) -> None:
        """`folder`: `nodes` of the attempt; `now_s`: monotonic, when the step began."""
        self._words = ["cache", "merge", "--folder", folder, "--launch", launch]
        run = os.path.dirname(os.path.dirname(os.path.dirname(folder.rstrip("/"))))
        self._where = os.path.join(run, "caches", "where")
        self._began_s, self._behind_s = now_s, _behind_s()
        self._merges = 0
        self.pid, self._until_s = 0, 0.0

    def due_s(self) -> float:
        """When the next merge is due (monotonic)."""
        if self._merges < len(MERGES_S):
            return self._began_s + self._behind_s + MERGES_S[self._merges]
        return self._began_s + self._behind_s + MERGES_S[-1] + THEN_S * (self._merges - len(MERGES_S) + 1)

    def poll(self, now_s: float) -> None:
        """Reap a merge that has ended; start one that is due."""
        if self.pid:
            self._collect(now_s)
        elif now_s >= self.due_s():
            self._merges += 1
            if HAS_MERGER not in os.environ and os.path.exists(self._where):
                self.pid = os.posix_spawn(sys.executable, own_command(*self._words), os.environ)
                self._until_s = now_s + LIMIT_S

    def stop(self) -> None:
        """Kill a running merge; what it was writing is dropped."""
        if self.pid:
            try:
                os.kill(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, os.WNOHANG)
            except OSError:
                pass
            self.pid = 0

    def _collect(self, now_s: float) -> None:
        try:
            if os.waitpid(self.pid, os.WNOHANG)[0]:
                self.pid = 0
            elif now_s > self._until_s:
                self.stop()
        except ChildProcessError:
            self.pid = 0


def _behind_s() -> float:
    """How long after the first node of the job this one begins."""
    place, count = (os.environ.get(name, "") for name in ("SLURM_PROCID", "SLURM_NTASKS"))
    if not place.isdigit() or not count.isdigit() or not int(place):
        return 0.0
    span_s = min(APART_MAX_S, APART_S * int(count))
    return BEHIND_S + span_s * int(place) / max(1, int(count))
