"""What a person sees of drills: a live view while they run, a table at the end. (I/O)

On a terminal rich keeps a line for each drill under way and lets what happened scroll above; in a pipe there
are plain lines.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, Protocol

from ftrun.supervisor.cli import output
from ftrun.supervisor.drill.runner import Result
from ftrun.supervisor.drill.scenario import Scenario
from ftrun.supervisor.drill.timeline import Event, Row

__all__ = ["View", "as_json", "live", "show_list", "show_results"]

COLUMNS = (
    "DRILL",
    "FAULT",
    "DETECTED",
    "DIAGNOSED AS",
    "BLAMED",
    "ACTION",
    "RUNNING AGAIN",
    "STEPS LOST",
    "FINISHED",
    "VERDICT",
)
REFRESH_PER_S = 4


class View(Protocol):
    """Where events go while drills run; called from several threads."""

    def event(self, event: Event) -> None:
        """Something happened, or (passing) the present state of a drill."""

    def over(self, result: Result) -> None:
        """A drill came to its end."""


class _Plain:
    """One line an event on stdout, or on stderr where stdout is for JSON."""

    def __init__(self, *, several: bool, to_stderr: bool) -> None:
        self._several, self._stream = several, sys.stderr if to_stderr else sys.stdout
        self._lock = threading.Lock()

    def event(self, event: Event) -> None:
        if not event.passing:
            self._print(_line(event, several=self._several))

    def over(self, result: Result) -> None:
        self._print(_line(_end(result), several=self._several))

    def _print(self, line: str) -> None:
        with self._lock:
            print(line, file=self._stream, flush=True)


class _Screen:
    """Events scroll by; below them stands a line for each drill under way."""

    def __init__(self, *, several: bool) -> None:
        from rich.live import Live

        self._several = several
        self._lock = threading.Lock()
        self._now: dict[str, tuple[float, str]] = {}  # drill -> when it began, how it stands
        self._live = Live(
            console=output.console(),
            get_renderable=self._lines,
            refresh_per_second=REFRESH_PER_S,
            transient=True,
        )

    def start(self) -> None:
        self._live.start()

    def stop(self) -> None:
        self._live.stop()

    def event(self, event: Event) -> None:
        from rich.text import Text

        with self._lock:
            began, standing = self._now.get(event.drill, (time.monotonic() - event.after_s, ""))
            self._now[event.drill] = (began, event.text if event.passing else standing)
        if not event.passing:
            style = "bold red" if event.text.startswith("!!") else ""
            self._live.console.print(Text(_line(event, several=self._several), style=style))

    def over(self, result: Result) -> None:
        from rich.text import Text

        with self._lock:
            self._now.pop(result.name, None)
        style = "bold green" if result.held else "bold red"
        self._live.console.print(Text(_line(_end(result), several=self._several), style=style))

    def _lines(self) -> Any:
        from rich.console import Group
        from rich.spinner import Spinner

        with self._lock:
            now = sorted(self._now.items())
        lines = (f"{time.monotonic() - began:6.1f} s  {name}  {how}" for name, (began, how) in now)
        return Group(*(Spinner("dots", text=line) for line in lines))


@contextmanager
def live(*, several: bool, json: bool) -> Iterator[View]:
    """The view that fits where stdout goes."""
    if json or not output.is_terminal():
        yield _Plain(several=several, to_stderr=json)
        return
    screen = _Screen(several=several)
    screen.start()
    try:
        yield screen
    finally:
        screen.stop()


def _line(event: Event, *, several: bool) -> str:
    name = f"{event.drill:<22} " if several else ""
    return f"+{event.after_s:6.1f} s  {name}{event.text}"


def _end(result: Result) -> Event:
    return Event(result.name, result.took_s, "as expected" if result.held else "NOT as expected")


def show_list(scenarios: Sequence[Scenario]) -> None:
    """Name, title, and where it can be held."""
    output.table(
        ["NAME", "WHAT HAPPENS", "WHERE"],
        [[s.name, s.title, "sandbox" if s.needs_sandbox else "anywhere"] for s in scenarios],
    )


def show_results(results: Sequence[Result]) -> None:
    """The table; then for each drill that failed what was wanted, what was seen, and where to look."""
    output.table(
        COLUMNS, [_cells(result, row, first=not n) for result in results for n, row in enumerate(result.rows)]
    )
    for result in results:
        if result.held:
            continue
        print(f"\n{result.name}: {result.title}")
        for check in result.checks:
            if not check.held:
                print(f"  wanted: {check.wanted}\n  seen:   {check.seen}")
        where = result.folder or "nothing was kept; `--keep` keeps logs, journal and sandbox logs"
        print(f"  look at: {where}")
    held = sum(result.held for result in results)
    print(f"\n{held} of {len(results)} drills as expected")


def _cells(result: Result, row: Row, *, first: bool) -> list[object]:
    return [
        result.name if first else "",
        row.fault,
        _seconds(row.detected_after_s),
        row.diagnosed_as,
        row.node_blamed,
        row.action,
        _seconds(row.running_after_s),
        row.steps_lost,
        row.finished,
        ("ok" if result.held else "FAILED") if first else "",
    ]


def _seconds(value: float | None) -> str | None:
    return None if value is None else f"{value:.1f} s"


def as_json(results: Sequence[Result]) -> dict[str, Any]:
    """The facts of all drills."""
    return {
        "held": all(result.held for result in results),
        "drills": [asdict(result) for result in results],
    }
