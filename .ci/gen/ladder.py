"""Writes the table of rungs by class into docs/ladder.md from the ladder itself; `--check` compares. (I/O)"""

from __future__ import annotations

from typing import Any

from marked import keep_current

from ftrun.supervisor.config import settings
from ftrun.supervisor.model.types import FaultClass
from ftrun.supervisor.policy.what_if import NEVER, what_if

BEGIN = "<!-- rungs: begin, written by `make docs` from supervisor/policy/what_if.py -->"
END = "<!-- rungs: end -->"
COLUMNS = ("rank", "step", "swap", "companion", "shrink", "resubmit")
HEAD = f"| class | {' | '.join(f'`{column}`' for column in COLUMNS)} |\n|{'---|' * (len(COLUMNS) + 1)}"


def table() -> str:
    """Return a row for each class: a job with spares and sizes whose framework lets a process join again."""
    values = {**settings.defaults(), "spares": 1, "rank-restart": True, "nodes": "2-4"}
    return "\n".join(
        [HEAD, *(_row(values, fault) for fault in FaultClass if fault is not FaultClass.HEALTHY)]
    )


def _row(values: dict[str, Any], fault: FaultClass) -> str:
    path = dict(what_if(values, fault))
    if "resubmit" not in path:
        return f"| `{fault.value}` | {'- | ' * (len(COLUMNS) - 1)}no: {path['stop']} |"
    cells = [path.get(column, NEVER).partition("; budget")[0] for column in COLUMNS]
    return f"| `{fault.value}` | {' | '.join('-' if cell.startswith(NEVER) else cell for cell in cells)} |"


if __name__ == "__main__":
    keep_current("ladder.md", "the table", BEGIN, END, table())
