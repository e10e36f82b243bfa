"""The tasks that `--array` asks for. (pure)

    0-5%4      tasks 0 to 5, four at a time          1,3,5-9:2   tasks 1, 3, 5, 7, 9

A later attempt submits the failed tasks alone, and Slurm would tell them the count and the bounds of those.
A script that splits its work by them would do other work than before, so it gets the values of the whole
array.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

__all__ = ["array_env", "array_limit", "array_tasks", "narrowed_array"]


_PART = re.compile(r"(\d+)(?:-(\d+)(?::(\d+))?)?")
_TASKS_MAX = 4_000_001  # Slurm's own bound of MaxArraySize


def array_tasks(spec: str) -> tuple[int, ...]:
    """The task numbers, sorted, each once; empty for what Slurm would refuse."""
    found: set[int] = set()
    for part in spec.partition("%")[0].strip().strip("[]").split(","):
        match = _PART.fullmatch(part.strip())
        if match is None:
            return ()
        first, last, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
        if last < first or not step or last >= _TASKS_MAX:
            return ()
        found.update(range(first, last + 1, step))
    return tuple(sorted(found))


def array_limit(spec: str) -> str:
    """How many tasks may run at a time, as typed; "" for no limit."""
    return spec.partition("%")[2].strip()


def narrowed_array(spec: str, wanted: tuple[int, ...]) -> str:
    """The same array with these tasks only."""
    most = array_limit(spec)
    return ",".join(map(str, wanted)) + (f"%{most}" if most else "")


def array_env(spec: str) -> Mapping[str, str]:
    """The variables by which Slurm describes the whole array to a task; empty for what is no array."""
    numbers = array_tasks(spec)
    if not numbers:
        return {}
    step = re.search(r":(\d+)", spec)
    return {
        "SLURM_ARRAY_TASK_COUNT": str(len(numbers)),
        "SLURM_ARRAY_TASK_MAX": str(numbers[-1]),
        "SLURM_ARRAY_TASK_MIN": str(numbers[0]),
        "SLURM_ARRAY_TASK_STEP": step[1] if step else "1",
    }
