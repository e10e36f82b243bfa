"""The process that started this one: a helper that runs for long ends with it. (I/O)

Whoever starts a helper hands over its own pid in the helper's environment. A helper that only asked for its
parent once it runs would, where that one has died meanwhile, take the process that adopted it for its parent,
and wait for its end for ever. Where nobody hands over a pid (slurmstepd, a shell, an older build) the present
parent counts, unless that is init, which starts no helper.
"""

from __future__ import annotations

import os

PARENT_PID = "FTRUN_PARENT_PID"
_INIT = 1


class Parent:
    """The parent of this process, noted at its beginning and taken from the environment of grandchildren."""

    def __init__(self) -> None:
        handed_over = os.environ.pop(PARENT_PID, "")
        self.pid = int(handed_over) if handed_over.isdigit() else os.getppid()

    @property
    def is_gone(self) -> bool:
        """Whether that process has ended."""
        return self.pid == _INIT or os.getppid() != self.pid


def environment_for_helper(env: dict[str, str]) -> dict[str, str]:
    """`env` with the pid of this process, for a child that is to end with it."""
    return {**env, PARENT_PID: str(os.getpid())}
