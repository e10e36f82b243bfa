"""Writes the table of rungs by class into docs/ladder.md from the ladder itself; `--check` compares. (I/O)"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from ftrun.supervisor import settings
from ftrun.supervisor.model import FaultClass
from ftrun.supervisor.whatif import NEVER, what_if

PAGE = Path(__file__).resolve().parents[2] / "docs" / "ladder.md"
BEGIN = "<!-- rungs: begin, written by `make docs` from supervisor/whatif.py -->"
END = "<!-- rungs: end -->"
COLUMNS = ("rank", "step", "swap", "resubmit")
HEAD = f"| class | {' | '.join(f'`{column}`' for column in COLUMNS)} |\n|{'---|' * (len(COLUMNS) + 1)}"


def table() -> str:
    """Return a row for each class: a job with spares whose framework lets a process join again."""
    values = {**settings.defaults(), "spares": 1, "rejoin": True}
    return "\n".join(
        [HEAD, *(_row(values, fault) for fault in FaultClass if fault is not FaultClass.HEALTHY)]
    )


def _row(values: dict[str, Any], fault: FaultClass) -> str:
    path = dict(what_if(values, fault))
    if "resubmit" not in path:
        return f"| `{fault.value}` | - | - | - | no: {path['stop']} |"
    cells = [path.get(column, NEVER).partition("; budget")[0] for column in COLUMNS]
    return f"| `{fault.value}` | {' | '.join('-' if cell.startswith(NEVER) else cell for cell in cells)} |"


def renewed(text: str) -> str:
    """Return the page's text with the table between the two marks replaced."""
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise SystemExit(f"{PAGE.name} must have these two lines once:\n{BEGIN}\n{END}")
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n{table()}\n{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    present = PAGE.read_text(encoding="utf-8")
    if "--check" not in sys.argv:
        PAGE.write_text(renewed(present), encoding="utf-8")
    elif present != renewed(present):
        sys.exit("the table in docs/ladder.md is not current: run `make docs`")
