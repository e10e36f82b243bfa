"""The line that ftrun writes into a job's log where its script begins again, for tests of what the script itself says. (pure)"""

from __future__ import annotations

import re

__all__ = ["without_begin_lines"]

_LINE = re.compile(r"(?m)^ftrun: [-\d]+ [:\d]+: \S+ begins: attempt \d.*; from .*\n")


def without_begin_lines(log: str) -> str:
    """The log of a job as its script alone would have written it."""
    return _LINE.sub("", log)
