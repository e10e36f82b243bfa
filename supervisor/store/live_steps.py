"""The step of each running run as the supervisor saw it last, for those who look at many at once. (I/O)

The journal notes a step once a minute, and to read the end of a thousand logs takes seconds. The supervisor reads them
anyway, so it writes `$FTRUN_HOME/supervisor-steps.json` every few seconds: of each run the log with its steps, up to
which byte it was read, and the step there. Whoever reads it looks only at what that log holds beyond; without the file,
or for a log that is not as long as that, at the end of the log itself. For a few runs nothing is written.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from typing import NamedTuple

from ftrun.supervisor.config.home import write_atomically

FILE = "supervisor-steps.json"
EVERY_S = 5.0
RUNS_MIN = 20


class StepSeen(NamedTuple):
    """The step up to byte `size_bytes` of a log. `start`: attempt, launch and start that wrote it."""

    start: tuple[int, int, int]
    log: str
    size_bytes: int
    step: int


class StepsWriter:
    """Writes the file of one home where there is something new, every `EVERY_S` at most."""

    def __init__(self, home: str) -> None:
        self._path = os.path.join(home, FILE)
        self._due_s = float("-inf")
        self._written: Mapping[str, StepSeen] = {}

    def due(self, now_s: float) -> bool:
        """Whether it is time to write. `now_s`: by any clock."""
        if now_s < self._due_s:
            return False
        self._due_s = now_s + EVERY_S
        return True

    def write(self, seen: Mapping[str, StepSeen]) -> None:
        """Write the steps of these runs; where they are few, nothing."""
        seen = seen if len(seen) >= RUNS_MIN else {}
        if seen == self._written:
            return
        with contextlib.suppress(OSError):  # it only saves time
            write_atomically(self._path, json.dumps(seen).encode(), sync=False)
            self._written = seen


def read_steps(home: str) -> dict[str, StepSeen]:
    """Run id -> the step that the supervisor saw last; {} where it wrote none."""
    try:
        with open(os.path.join(home, FILE), "rb") as stream:
            told = json.loads(stream.read())
        return {
            str(run): StepSeen((int(start[0]), int(start[1]), int(start[2])), str(log), int(size), int(step))
            for run, (start, log, size, step) in told.items()
        }
    except (OSError, ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError):
        return {}
