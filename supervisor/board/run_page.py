"""One run on the screen: where it is, its faults, its journal explained, its logs as they grow. (I/O)"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import Screen
from textual.widgets import ContentSwitcher, RichLog, Static

from ftrun.hooks.runtime.formats import plain
from ftrun.slurm.client import nodeset
from ftrun.supervisor.board import lines
from ftrun.supervisor.board.logs import LogFollower
from ftrun.supervisor.board.reading import HomeReader, SeenRun, Told
from ftrun.supervisor.model.errors import UnreadableRun
from ftrun.supervisor.model.run import Run
from ftrun.supervisor.reports import view_run
from ftrun.supervisor.reports.time_ledger import TimePoint, point_of
from ftrun.supervisor.store import journal, journal_tail

TABS = ("faults", "explain", "logs")
EXPLAINED_MAX = 1000
LOG_LINES_KEPT = 2000
POINTS_KEPT = 5000
LOOK_S = 1.0
NO_LOG = "no log can be read yet (its job has not started, or the file is elsewhere)"


KEYS = "? help|Esc back|Tab next|s stop|p pause|r resume|c cancel"


class Foot(Static):
    """The keys that have room, the first ones first."""

    def __init__(self, keys: str) -> None:
        super().__init__()
        self._known = keys.split("|")

    def on_resize(self, event: events.Resize) -> None:
        """Show what fits now."""
        text = ""
        for key in self._known:
            if len(f"{text}  {key}") < event.size.width:
                text += f"  {key}" if text else f" {key}"
        self.update(text)


def tab_bar(names: tuple[str, ...], chosen: str, rest: str = "") -> Content:
    """Names of tabs, the chosen one marked, and a text behind them."""
    parts: list[tuple[str, str]] = [(" ", "")]
    for name in names:
        parts += [(f" {name.capitalize()} ", "bold reverse" if name == chosen else ""), (" ", "")]
    return Content.assemble(*parts, "  ", rest)


class RunPage(Screen[None]):
    """One run; its keys for effects are those of the board."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "app.pop_screen", show=False),
        *(Binding(str(number), f"tab('{name}')", show=False) for number, name in enumerate(TABS, 1)),
    ]

    def __init__(self, seen: SeenRun, reader: HomeReader, told: Told) -> None:
        super().__init__()
        self._seen, self._reader, self._told = seen, reader, told
        self._journal = journal_tail.RunReader()
        self._records: list[journal.Record] = []
        self._points: list[TimePoint] = []
        self._logs = LogFollower(seen.folder)
        self.shown_run: Run | None = None
        self._tab = TABS[0]
        self._logged: bool | None = None  # lines of a log are shown; None = nothing is

    def compose(self) -> ComposeResult:
        """The head, the facts, the tabs and what they show."""
        yield Static(id="page-head")
        yield Static(id="facts")
        yield Static(tab_bar(TABS, self._tab), id="tabs")
        with ContentSwitcher(initial=TABS[0]):
            with VerticalScroll(id="faults"):
                yield Static(id="faults-text")
            with VerticalScroll(id="explain"):
                yield Static(id="explain-text")
            yield RichLog(id="logs", max_lines=LOG_LINES_KEPT, wrap=True, highlight=False, markup=False)
        yield Static(id="said")
        yield Foot(KEYS)

    def on_mount(self) -> None:
        """Look at once, then every second."""
        self.look()
        self.set_interval(LOOK_S, self.look)
        self.query_one("#faults").focus()

    def turn(self) -> None:
        """Show the next tab."""
        self.action_tab(TABS[(TABS.index(self._tab) + 1) % len(TABS)])

    def action_tab(self, name: str) -> None:
        """Show this tab."""
        self._tab = name
        self.query_one(ContentSwitcher).current = name
        self.query_one("#tabs", Static).update(tab_bar(TABS, name))
        self.query_one(f"#{name}").focus()
        self.look()

    def look(self) -> None:
        """Read what is new, and show it."""
        now_s = time.time()
        try:
            run, new, whole = self._journal.look(self._seen.folder)
        except (UnreadableRun, OSError):
            self._set("#page-head", Content.styled(plain(self._seen.why or self._seen.name), "bold red"))
            return
        if whole:
            self._records, self._points = [], []
        self._records += new
        found = (point_of(record, float(record["at"])) for record in new)
        self._points = [*self._points, *(one for one in found if one is not None)][-POINTS_KEPT:]
        self.shown_run, loss = self._reader.present(SeenRun(self._seen.folder, run), now_s)
        self._show_facts(self.shown_run or run, loss, now_s)
        if new:
            self._set("#faults-text", faults_text(run))
            told = self._told.explain(self._records)[-EXPLAINED_MAX:]
            self._set("#explain-text", Content("\n".join(plain(line) for line in told)))
            self.query_one("#explain", VerticalScroll).scroll_end(animate=False)
        if self._tab == "logs":
            log = self.query_one("#logs", RichLog)
            new_lines = [*self._logs.new_lines(run)]
            if new_lines and not self._logged:
                log.clear()
            for line in new_lines or ([] if self._logged is not None else [NO_LOG]):
                log.write(line, animate=False)
            self._logged = bool(new_lines or self._logged)

    def say(self, text: str) -> None:
        """Tell what a command answered."""
        self._set("#said", Content(f" {text}"))
        self.query_one("#said").display = True

    def _set(self, name: str, text: Content) -> None:
        """Show a text, if it is another one than before."""
        shown = self.query_one(name, Static)
        if shown.content != text:
            shown.update(text)

    def _show_facts(self, run: Run, loss: float | None, now_s: float) -> None:
        facts = view_run.run_row(run, now_s)
        state = lines.state_words(facts, watched=True)
        name = f"  {plain(run.name)}" if run.name and not run.id.startswith(run.name) else ""
        head = Content.assemble((f" {run.id}", "bold"), name, "  ", (state, STYLES[lines.tone(state)]))
        self._set("#page-head", head)
        width = max(20, self.size.width - 4)
        self._set("#facts", Content("\n".join(fact_lines(facts, self._points, loss, now_s, width))))


STYLES = {"good": "green", "bad": "bold red", "odd": "bold magenta", "calm": "blue", "faint": "dim", "": ""}


def fact_lines(
    facts: dict[str, Any], points: list[TimePoint], loss: float | None, now_s: float, width: int
) -> Iterator[str]:
    """Where a run is, a line each: steps, job, what the next end is, the curve of its losses."""
    texts = lines.cells(facts, points, loss, now_s, watched=True)
    step = f"step {texts['STEP']}" if texts["STEP"] else "no step so far"
    if facts["expected_end"]:
        step += f" of {lines.step_text(facts['expected_end']['target_step'])}"
    pace = f", {texts['S/STEP']} s a step" if texts["S/STEP"] else ""
    job = f"job {texts['JOB']}, " if texts["JOB"] else ""
    yield f" {step}{pace}; {facts['retries_used']} retries used, {facts['retries_left']} left"
    yield f" {job}attempt {facts['attempt']}" + (f" on {texts['NODES']}" if texts["NODES"] else "")
    more = [view_run.why_text(facts), *view_run.outlook_lines(facts)]
    excluded = nodeset.fold(facts["excluded"])
    more += [f"excluded: {excluded}"] if excluded else []
    yield from (f" {lines.cut(plain(one), width)}" for one in dict.fromkeys(filter(None, more)))
    yield from (f" warning: {lines.cut(plain(one), width - 9)}" for one in facts["warnings"][-2:])
    known = lines.losses(points)
    if known:
        ends = f"loss {lines.number_text(known[0])} "
        last = f" {texts['LOSS']}"
        yield f" {ends}{lines.sparkline(known, width - len(ends) - len(last))}{last}"


def faults_text(run: Run) -> Content:
    """The faults of a run, the newest first: what it was, what was done and why."""
    parts: list[str | tuple[str, str]] = []
    for incident in reversed(run.incidents):
        one = view_run.incident_facts(incident)
        clock = view_run.zoned_clock_text(incident.diagnosed_at_s, begin=5) or ""
        nodes = f" on {nodeset.fold(one['nodes'])}" if one["nodes"] else ""
        parts += [(f" {clock}  {plain(one['class'])}{plain(nodes)}", "bold")]
        parts += [f"  {plain(one['title'])}\n"]
        for proof in one["diagnosis"].get("because", ())[:2]:
            parts += [(f"     {plain(proof.get('text', ''))}\n", "dim")]
        done = one["rung"] or one["action"] or "no decision yet"
        parts += [f"     {plain(done)}" + (f": {plain(one['reason'])}" if one["reason"] else "") + "\n\n"]
    return Content.assemble(*parts) if parts else Content(" no faults so far")
