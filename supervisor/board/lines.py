"""Rows of runs for a screen of any width: the columns that fit, their texts, sparklines. (I/O)

A text of somebody else, such as a fault's title, is shown with its control characters as codes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from ftrun.hooks.runtime.formats import duration_text, plain
from ftrun.slurm.client import nodeset
from ftrun.supervisor.model.run import Run
from ftrun.supervisor.reports import view_run
from ftrun.supervisor.reports.time_ledger import TimePoint

BARS = "▁▂▃▄▅▆▇█"
WIDE = 120
"""From so many characters on there are two between columns."""
RUN_MAX = 40


EXTRA = 6
"""Columns of this rank come only into room that the others leave."""


class Column(NamedTuple):
    """A column: the narrowest and widest that it may be, and how much it matters (less = more)."""

    name: str
    least: int
    most: int
    rank: int
    right: bool = False


COLUMNS = (
    Column("RUN", 14, RUN_MAX, 0),
    Column("STATE", 10, 24, 0),
    Column("JOB", 6, 10, 8),
    Column("TRY", 3, 4, 9, right=True),
    Column("NODES", 8, 24, 7),
    Column("STEP", 7, 10, 1, right=True),
    Column("S/STEP", 6, 8, 4, right=True),
    Column("LOSS", 6, 30, 5),
    Column("TIME LEFT", 9, 9, 2, right=True),
    Column("LAST FAULT", 12, 18, 3),
    Column("WHEN", 11, 11, 6, right=True),
)
"""Of the runs, from left to right."""


def gap(width: int) -> int:
    """How many characters are between two columns of a line."""
    return 2 if width >= WIDE else 1


def fitting(columns: Sequence[Column], width: int, wanted: Mapping[str, int]) -> list[tuple[Column, int]]:
    """The columns that fit into a line of so many characters, each with its width. `wanted`: name -> the width at which
    all its texts fit; who stands first there gets it first.
    """
    widths: dict[str, int] = {}
    left, grown = width, False
    for one in sorted(columns, key=lambda column: column.rank):
        if one.rank >= EXTRA and not grown:
            left, grown = left - _grow(widths, columns, wanted, left), True
        cost = one.least + (gap(width) if widths else 0)
        if cost > left and widths:
            break
        widths[one.name] = min(one.least, width)
        left -= cost
    _grow(widths, columns, wanted, left)
    return [(one, widths[one.name]) for one in columns if one.name in widths]


def _grow(widths: dict[str, int], columns: Sequence[Column], wanted: Mapping[str, int], room: int) -> int:
    """Widen columns as far as their texts want and the room allows; how much of it they took."""
    most = {one.name: one.most for one in columns}
    left = room
    for name in (name for name in wanted if name in widths):
        more = max(0, min(left, min(wanted[name], most[name]) - widths[name]))
        widths[name] += more
        left -= more
    return room - left


def cut(text: str, width: int) -> str:
    """A text in so many characters; what is cut off is shown by a mark."""
    return text if len(text) <= width else text[: max(0, width - 1)] + "…"


def sparkline(values: Iterable[float], width: int) -> str:
    """Values as bars, the newest at the right; many values share a bar, which shows their mean."""
    known = [value for value in values if math.isfinite(value)]
    if not known or width < 1:
        return ""
    count = min(width, len(known))
    edges = [round(i * len(known) / count) for i in range(count + 1)]
    means = [sum(known[a:b]) / (b - a) for a, b in pairwise(edges)]
    low, high = min(means), sorted(means)[int(0.9 * (count - 1))]  # what is higher must not flatten the rest
    if high == low:
        return BARS[0] * count
    return "".join(
        BARS[max(0, min(len(BARS) - 1, int((one - low) / (high - low) * len(BARS))))] for one in means
    )


def losses(points: Iterable[TimePoint]) -> list[float]:
    """The losses of points that have one."""
    return [one.loss for one in points if one.loss is not None]


def state_words(row: Mapping[str, Any], *, watched: bool) -> str:
    """The state of a run; `watched`: a supervisor looks after it."""
    state = view_run.state_text(row)
    return state if watched or state in ("finished", "stopped", "paused") else f"unwatched, {state}"


TONES = {
    "running": "good", "finished": "faint", "stopped": "bad", "paused": "calm", "unwatched": "bad", "unreadable": "bad",
    "queued": "calm", "submitting": "calm", "new": "calm",
}  # fmt: skip


def tone(state: str) -> str:
    """How a state is shown: good, bad, calm, faint, or odd."""
    return TONES.get(state.partition(" ")[0].rstrip(","), "odd")


def number_text(value: float | None, digits: int = 3) -> str:
    """A figure in few characters: `0.0213`, `2.31`, `412`; "" for none."""
    if value is None or not math.isfinite(value):
        return "" if value is None else str(value)
    if value and (abs(value) >= 1e6 or abs(value) < 1e-3):
        return f"{value:.1e}"
    whole = len(str(int(abs(value))))
    return f"{value:.{max(0, digits - whole) if abs(value) >= 1 else digits}f}"


def step_text(step: int | None) -> str:
    """A step with its thousands apart."""
    return "" if step is None else f"{step:,}"


def left_text(row: Mapping[str, Any], now_s: float) -> str:
    """The time until the expected end, without time in the queue; "" where it is unknown."""
    end = row["expected_end"]
    return duration_text(max(0.0, end["at"] - now_s)) if end else ""


def nodes_text(row: Mapping[str, Any]) -> str:
    """The nodes that the script uses, and how many spares the job has."""
    inside = row["inside"]
    spares = f" +{len(inside['spares'])}" if inside["spares"] else ""
    return plain(nodeset.fold(inside["active"] or row["nodes"])) + spares


def cells(
    row: Mapping[str, Any], points: Sequence[TimePoint], loss: float | None, now_s: float, *, watched: bool
) -> dict[str, str]:
    """The texts of a run by column (`row`: a `run_row`); that of LOSS is a figure, before which its bars come."""
    at_s = row["last_fault_at"]
    return {
        "RUN": plain(row["run"]),
        "STATE": state_words(row, watched=watched),
        "JOB": plain(row["job"]),
        "TRY": str(row["attempt"] or ""),
        "NODES": nodes_text(row),
        "STEP": step_text(row["step"]),
        "S/STEP": number_text(row["step_s"]),
        "LOSS": number_text(loss if loss is not None else next(iter(losses(points)[-1:]), None)),
        "TIME LEFT": left_text(row, now_s),
        "LAST FAULT": plain(row["last_fault"]),
        "WHEN": f"{duration_text(now_s - at_s)} ago" if at_s is not None else "",
    }


def _cut_inside(text: str, width: int) -> str:
    """The beginning and the end of a text: run ids end in what tells them apart."""
    end = width // 2
    return f"{text[: width - end - 1]}…{text[-end:]}" if width > 2 else cut(text, width)


SHORTER: Mapping[str, Callable[[str, int], str]] = {
    "RUN": _cut_inside,
    "STATE": lambda text, width: cut(text.partition("(")[2].rstrip(")") or text.partition(",")[0], width),
    "STEP": lambda text, width: cut(text.replace(",", ""), width),
}
"""Column -> how a text that is too long for it is shown."""

LOSS_FIGURE = 5
LOSS_WIDTHS = (14, 22)
"""Of its column, in a narrow and in a wide line."""


def wanted_widths(runs: Iterable[Run], ids: Iterable[str], width: int, *, watched: bool) -> dict[str, int]:
    """The widths at which the texts of these runs fit, the columns that need them most first."""
    states, steps, faults = [10], [0], [0]
    for run in runs:
        asked = bool(run.wish or run.halt) and not run.final
        states.append(12 if asked else len(run.state.value))
        steps.append(len(step_text(run.attempt.last_step if run.attempt is not None else run.best_step)) + 1)
        faults.append(len(run.incidents[-1].fault) if run.incidents else 0)
    first = {
        "RUN": max(map(len, ids), default=0), "STEP": max(steps), "LAST FAULT": max(faults), "STATE": max(states),
        "LOSS": LOSS_WIDTHS[width >= WIDE], "NODES": 16, "JOB": 8, "WHEN": 11,
    }  # fmt: skip
    if not watched:  # what stands before the comma suffices
        del first["STATE"]
        first["STATE"] = 21
    return first


def fitted(text: str, column: Column, width: int, points: Sequence[TimePoint] = ()) -> str:
    """A text in a cell of exactly so many characters; a loss with the bars that have room before it."""
    if column.name == "LOSS":
        room = width - LOSS_FIGURE - 1
        bars = sparkline(losses(points), room) if room > 3 else ""
        text = f"{bars:>{room}} {text:>{LOSS_FIGURE}}" if room > 3 else text
    if len(text) > width:
        text = SHORTER.get(column.name, cut)(text, width)
    return text.rjust(width) if column.right else text.ljust(width)
