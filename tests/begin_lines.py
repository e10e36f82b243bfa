"""The line that ftrun writes into a job's log where its script begins again, for tests of what the script itself says. (pure)"""

from __future__ import annotations

import re

__all__ = ["without_begin_lines"]


def without_begin_lines(log: str, run: str = r"\S+") -> str:
    """The log of a job as its script alone would have written it. `run`: a pattern of the run's id."""
    return re.sub(rf"(?m)^ftrun: [-\d]+ [:\d]+ [-+\w]+: {run} begins: attempt \d.*; from .*\n", "", log)
