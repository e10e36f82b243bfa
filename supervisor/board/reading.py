"""Follow the runs of a home: each round reads what was written since the last. (I/O)

A run that is over is looked at again only now and then: nothing but `ftrun resume` changes it. `rest_s` says how long
to wait after a round, so that the looking takes a small share of one processor however many runs there are.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any

from ftrun.slurm.records import dataclass
from ftrun.supervisor.model.errors import UnreadableRun, unreadable_text
from ftrun.supervisor.model.run import Run
from ftrun.supervisor.reports import view_run
from ftrun.supervisor.reports.time_ledger import TimePoint, point_of
from ftrun.supervisor.store import journal_tail
from ftrun.supervisor.store import run_dir as store_run_dir

POINTS_KEPT = 120
"""Of the losses of one run; a step is journalled once a minute."""

POINTS_FEW = 16
"""So many may come from the log itself: a run that has just begun has a curve, too."""

ROUND_S = 2.0
SHARE = 0.05
"""Of one processor, at most, for looking at journals."""

OVER_EVERY = 15
"""Runs that are over are looked at in each such round."""


@dataclass(frozen=True, slots=True)
class Watch:
    """Who supervises the runs: `lines` for people; `watched`: a supervisor is alive; `aside`: runs that it leaves alone."""

    watched: bool = True
    lines: tuple[str, ...] = ()
    aside: Mapping[str, str] = field(default_factory=dict)
    blind: bool = False


@dataclass(frozen=True, slots=True)
class Told:
    """What the commands tell the board.

    `watch(open runs)`: as `ftrun status` says it; it may start a supervisor, as every command does. `explain(records)`:
    the lines of `ftrun explain`. `nodes(runs)`: the rows of `ftrun nodes`, without asking Slurm.
    `command(words)`: the words that start `ftrun WORDS` in a child.
    """

    home: str
    watch: Callable[[int], Watch]
    explain: Callable[[Sequence[dict[str, Any]]], Sequence[str]]
    nodes: Callable[[Iterable[Run]], Sequence[Sequence[object]]]
    command: Callable[[Sequence[str]], Sequence[str]]


@dataclass(slots=True)
class SeenRun:
    """One run as it was last read; `run` None where its journal cannot be, and `why`."""

    folder: str
    run: Run | None = None
    why: str = ""
    points: deque[TimePoint] = field(default_factory=lambda: deque(maxlen=POINTS_KEPT))

    @property
    def name(self) -> str:
        """The id of the run."""
        return os.path.basename(self.folder)

    @property
    def over(self) -> bool:
        """It is over, and no person has paused it."""
        return self.run is not None and self.run.final and not self.run.paused


class HomeReader:
    """The runs of one home, or those in the folders `only`. `why`: why the home could not be read at the last round."""

    def __init__(self, home: str, only: Sequence[str] = ()) -> None:
        self.home = home
        self._only = sorted(only)
        self.runs: dict[str, SeenRun] = {}  # folder -> run
        self.why = ""
        self.whole = False  # every run was looked at once
        self.live = view_run.LiveSteps()
        self._journals = journal_tail.RunReader()
        self._rounds = 0
        self._spent_s = 0.0

    def round(self) -> Iterator[SeenRun]:
        """Look at the runs once, newest folder first, and yield those of which something is new. Where the home
        cannot be read, the runs stay as they were.
        """
        begun_s = time.thread_time()
        try:
            folders = self._only or store_run_dir.run_dirs(self.home)
        except OSError as error:
            self.why = f"{error.filename}: {error.strerror}"
            return
        self.why = ""
        for gone in set(self.runs) - set(folders):
            del self.runs[gone]
        for folder in reversed(folders):
            seen = self.runs.get(folder)
            if seen is not None and seen.over and self._rounds % OVER_EVERY:
                continue
            seen = self.runs.setdefault(folder, SeenRun(folder))
            if self._look(seen):
                yield seen
        self._rounds += 1
        self.whole = True
        self._spent_s = time.thread_time() - begun_s

    def rest_s(self) -> float:
        """How long to wait until the next round."""
        return max(ROUND_S, self._spent_s / SHARE)

    def _look(self, seen: SeenRun) -> bool:
        before = (seen.run, seen.why)
        try:
            seen.run, new, whole = self._journals.look(seen.folder)
        except (UnreadableRun, OSError) as error:
            seen.run, seen.why = None, unreadable_text(seen.name, error)
            return before != (None, seen.why)
        seen.why = ""
        if whole:
            seen.points.clear()
        points = (point_of(record, float(record["at"])) for record in new)
        seen.points.extend(one for one in points if one is not None)
        return before != (seen.run, "") or bool(new)

    def present(self, seen: SeenRun, now_s: float) -> tuple[Run | None, float | None]:
        """The run with the step that its live log shows now, and the loss that it shows; for the runs that somebody
        looks at.
        """
        if seen.run is None:
            return None, None
        progress = self.live.progress(seen.folder, seen.run, now_s)
        loss = progress.loss if progress is not None else None
        newest = seen.points[-1].step if seen.points else -1
        if (
            progress is not None
            and progress.step is not None
            and len(seen.points) < POINTS_FEW
            and progress.step > newest
        ):
            seen.points.append(TimePoint(now_s, progress.step, loss))
        if loss is None:
            loss = next((one.loss for one in reversed(seen.points) if one.loss is not None), None)
        return view_run.at_step(seen.run, progress, now_s), loss


def in_order(runs: Iterable[SeenRun], *, every: bool, wanted: str = "") -> list[SeenRun]:
    """Runs for a table: unreadable ones first, then those that are not over, then the rest if `every`; the newest
    first in each. `wanted`: a part of a run's id, name, state, job or node.
    """
    found = [one for one in runs if (every or not one.over) and _matches(one, wanted.casefold())]
    return sorted(
        found,
        key=lambda one: (
            one.run is not None,
            one.over,
            -(one.run.created_at_s if one.run else 0.0),
            one.name,
        ),
    )


def _matches(one: SeenRun, wanted: str) -> bool:
    if not wanted:
        return True
    words = [
        one.name,
        *([one.run.name, one.run.state.value, *one.run.job_ids] if one.run else ["unreadable"]),
    ]
    nodes = one.run.attempt.nodes if one.run is not None and one.run.attempt is not None else ()
    return any(wanted in word.casefold() for word in (*words, *nodes))
