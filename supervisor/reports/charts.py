"""The pictures of a report as numbers for its template: bars, lines and ticks on axes of 1,000 by 150 units. (I/O)

Times are those of this machine's zone.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

from ftrun.hooks.runtime.formats import duration_text
from ftrun.slurm.records import dataclass
from ftrun.supervisor.model.run import Run
from ftrun.supervisor.reports.time_ledger import Interval, Spent, TimeLedger, TimePoint
from ftrun.supervisor.reports.view_run import clock_text

WIDTH, HEIGHT = 1000.0, 150.0
COLUMNS = 1000
"""A band has so many columns at most: each shows what most of its time was spent on."""

NODE_ROWS_MAX = 24
TICKS_S = (
    1, 5, 15, 30, 60, 300, 900, 1800, 3600, 3 * 3600, 6 * 3600, 12 * 3600, 86_400, 2 * 86_400, 7 * 86_400, 14 * 86_400, 28 * 86_400,
)  # fmt: skip
LOG_RATIO = 100.0
"""A curve whose values lie further apart is drawn on a logarithmic scale."""


@dataclass(frozen=True, slots=True)
class TimeAxis:
    """Times of a run (Unix seconds) to 0..WIDTH."""

    begin_s: float
    end_s: float

    def x(self, at_s: float) -> float:
        """The place of a moment."""
        span_s = max(1e-9, self.end_s - self.begin_s)
        return round(min(1.0, max(0.0, (at_s - self.begin_s) / span_s)) * WIDTH, 2)

    def ticks(self) -> list[dict[str, Any]]:
        """At most nine round moments."""
        span_s = self.end_s - self.begin_s
        every_s = next(
            (step for step in TICKS_S if span_s / step <= 8),
            TICKS_S[-1] * math.ceil(span_s / TICKS_S[-1] / 8),
        )
        form = "%H:%M:%S" if every_s < 60 else "%H:%M" if every_s < 86_400 else "%b %d"
        shift_s = time.localtime(self.begin_s).tm_gmtoff
        first = math.ceil((self.begin_s + shift_s) / every_s) * every_s - shift_s
        moments = (
            first + number * every_s for number in range(int(max(0.0, self.end_s - first) / every_s) + 1)
        )
        return [{"x": self.x(at_s), "text": time.strftime(form, time.localtime(at_s))} for at_s in moments]


def axis_of(ledger: TimeLedger) -> TimeAxis:
    """The axis of a run's whole life."""
    return TimeAxis(ledger.intervals[0].begin_s, max(one.end_s for one in ledger.intervals))


def band(run: Run, ledger: TimeLedger, axis: TimeAxis) -> dict[str, Any]:
    """The run over time: what it was spent on, and its attempts."""
    used = [spent.value for spent in Spent if any(one.spent is spent for one in ledger.intervals)]
    attempts, jobs = [], {one.number: one.job for one in run.attempts}
    for number, group in groupby(
        (one for one in ledger.intervals if one.attempt), key=lambda one: one.attempt
    ):
        parts = list(group)
        job = jobs.get(number, "")
        title = (
            f"attempt {number}" + (f", job {job}" if job else "") + f", from {clock_text(parts[0].begin_s)}"
        )
        attempts.append(
            _bar(axis, parts[0].begin_s, parts[-1].end_s, "attempt", title) | {"label": str(number)}
        )
    return {"bars": _bars(ledger.intervals, axis), "attempts": attempts, "ticks": axis.ticks(), "key": used}


def _bar(axis: TimeAxis, begin_s: float, end_s: float, kind: str, title: str) -> dict[str, Any]:
    x = axis.x(begin_s)
    return {"x": x, "width": round(max(0.6, axis.x(end_s) - x), 2), "kind": kind, "title": title}


def _bars(intervals: Sequence[Interval], axis: TimeAxis) -> list[dict[str, Any]]:
    """One bar for each interval; where they are finer than a column, one for what most of a column was."""
    if len(intervals) <= COLUMNS // 2:
        return [_bar(axis, one.begin_s, one.end_s, one.spent.value, _told(one)) for one in intervals]
    shares: list[dict[str, float]] = [{} for _ in range(COLUMNS)]
    for one in intervals:
        first, last = (axis.x(at_s) / WIDTH * COLUMNS for at_s in (one.begin_s, one.end_s))
        for column in range(int(first), min(COLUMNS - 1, int(last)) + 1):
            part = min(last, column + 1) - max(first, column)
            shares[column][one.spent.value] = shares[column].get(one.spent.value, 0.0) + part
    kinds = [max(share, key=lambda kind: share[kind]) if share else "" for share in shares]
    found, place = [], 0
    for kind, group in groupby(kinds):
        count = len(list(group))
        if kind:
            found.append({"x": place, "width": count, "kind": kind, "title": f"mostly {kind}"})
        place += count
    return found


def _told(one: Interval) -> str:
    phase = f" ({one.phase})" if one.phase else ""
    fault = f", fault {one.incident}" if one.incident else ""
    return f"{one.spent}{phase} for {duration_text(one.seconds)} from {clock_text(one.begin_s)}{fault}"


def fault_marks(run: Run, at_s: Mapping[str, float], axis: TimeAxis) -> list[dict[str, Any]]:
    """One mark for each fault; faults in the same place share one. `at_s`: fault -> when it began."""
    marks: dict[float, list[str]] = {}
    for one in run.incidents:
        if one.id in at_s:
            marks.setdefault(round(axis.x(at_s[one.id])), []).append(f"{one.id} {one.fault}: {one.title}")
    return [{"x": x, "title": "; ".join(words[:8])} for x, words in sorted(marks.items())]


def node_rows(run: Run, ledger: TimeLedger, axis: TimeAxis) -> dict[str, Any]:
    """When the script used which node: all nodes of a small run, those that changed or were blamed of a large one."""
    spans: dict[str, list[tuple[float, float]]] = {}
    starts = 0
    for begin_s, end_s, nodes in _uses(run, ledger):
        starts += 1
        for node in nodes:
            before = spans.setdefault(node, [])
            if before and begin_s - before[-1][1] < 1.0:
                before[-1] = (before[-1][0], end_s)
            else:
                before.append((begin_s, end_s))
    blamed: dict[str, list[float]] = {}
    for one in run.incidents:
        for node in one.nodes:
            blamed.setdefault(node, []).append(one.diagnosed_at_s)
    names = sorted({*spans, *(node for node in blamed if node in spans)})
    if len(names) > NODE_ROWS_MAX:
        whole = max((sum(end_s - begin_s for begin_s, end_s in one) for one in spans.values()), default=0.0)
        changed = [n for n in names if n in blamed or sum(e - b for b, e in spans[n]) < 0.999 * whole]
        changed.sort(key=lambda node: (-len(blamed.get(node, ())), node))
        shown = sorted(changed[:NODE_ROWS_MAX])
    else:
        shown = names
    rows = []
    for node in shown:
        bars = [
            _bar(axis, begin_s, end_s, "used", f"{node}: used from {clock_text(begin_s)}")
            for begin_s, end_s in spans[node]
        ]
        bars += [
            _bar(axis, at_s, at_s, "blamed", f"{node}: blamed at {clock_text(at_s)}") | {"width": 3}
            for at_s in blamed.get(node, ())
        ]
        rows.append({"name": node, "bars": bars})
    more = len(names) - len(shown)
    return {
        "rows": rows,
        "more": f"{more} more nodes were used" + (" all the time" if starts and more else "") if more else "",
    }


def _uses(run: Run, ledger: TimeLedger) -> Iterable[tuple[float, float, tuple[str, ...]]]:
    """(from, to, nodes) of each start of the script."""
    noted = {(a.number, one.launch, one.number): one.nodes for a in run.attempts for one in a.begun}
    nodes_of = {one.number: one.used or one.nodes for one in run.attempts}
    running = (one for one in ledger.intervals if one.used and one.attempt)
    for place, group in groupby(running, key=lambda one: (one.attempt, one.launch, one.start)):
        parts = list(group)
        yield parts[0].begin_s, parts[-1].end_s, noted.get(place) or nodes_of.get(place[0], ())


def curves(points: Sequence[TimePoint], axis: TimeAxis) -> list[dict[str, Any]]:
    """The loss and the seconds a step, over time; those that have two values at least."""
    loss = [(one.attempt, one.start, one.at_s, one.loss) for one in points if one.loss is not None]
    speed = [(one.attempt, one.start, one.at_s, one.step_s) for one in points if one.step_s]
    found = []
    for title, rows in (("loss", loss), ("seconds a step", speed)):
        known = [
            (attempt, start, at_s, value)
            for attempt, start, at_s, value in rows
            if value is not None and math.isfinite(value)
        ]
        if len(known) > 1:
            found.append(_curve(title, known, axis))
    return found


def _curve(title: str, rows: Sequence[tuple[int, int, float, float]], axis: TimeAxis) -> dict[str, Any]:
    values = [row[3] for row in rows]
    least, most = min(values), max(values)
    logarithmic = least > 0.0 and most / least > LOG_RATIO
    low, high = (math.log10(least), math.log10(most)) if logarithmic else (least, most)
    if high - low < 1e-12:
        low, high = low - (abs(low) or 1.0) * 0.05, high + (abs(high) or 1.0) * 0.05

    def y(value: float) -> float:
        place = math.log10(value) if logarithmic else value
        return round(HEIGHT * (1.0 - (place - low) / (high - low)), 2)

    lines = [
        _line([(axis.x(row[2]), y(row[3])) for row in group])
        for _, group in groupby(rows, key=lambda row: row[:2])
    ]
    marks = [low + (high - low) * part / 3 for part in range(4)]
    ticks = [
        {"y": round(HEIGHT * (1.0 - part / 3), 2), "text": f"{10**mark if logarithmic else mark:.4g}"}
        for part, mark in enumerate(marks)
    ]
    return {"title": title + (" (logarithmic)" if logarithmic else ""), "lines": lines, "ticks": ticks}


def _line(points: Iterable[tuple[float, float]]) -> str:
    """A polyline with the lowest and the highest value of each unit of the axis."""
    told = []
    for _, group in groupby(points, key=lambda point: int(point[0])):
        column = list(group)
        ends = {column[0], min(column, key=lambda p: p[1]), max(column, key=lambda p: p[1]), column[-1]}
        told += [f"{x},{y}" for x, y in sorted(ends)]
    return " ".join(told * 2 if len(told) == 1 else told)  # a single value is a dot
