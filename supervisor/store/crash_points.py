"""Crash points for tests: FTRUN_CRASH_AT names a point at which the process kills itself. (I/O)

Every effect and every record passes such a point.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable


class PlannedCrash(BaseException):
    """A planned crash in a simulation, in place of SIGKILL; no Exception, so that nothing catches it."""


def crash_plan(text: str) -> Callable[[str], None]:
    """Return a function that, for `submit:after:2`, kills this process (SIGKILL) at the second such point;
    for "" it does nothing.

    Points are `<effect>:before`, `<effect>:after` and `record:after:<kind>`; a shorter name stands for all
    that begin with it.
    """
    if not text:
        return lambda point: None
    name, _, number = text.rpartition(":")
    wanted = name if number.isdigit() else text
    left = [int(number) if number.isdigit() else 1]

    def maybe(point: str) -> None:
        if point == wanted or point.startswith(wanted + ":"):
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    return maybe
