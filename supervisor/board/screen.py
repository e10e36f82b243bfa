"""`ftrun top` on a terminal: the runs, the nodes, and the keys. (I/O)

The journals are read in a thread, round after round; the screen shows what the last round found. A key that changes
something asks first and then starts the command of that name in a child, so that it does just what the command does.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any, ClassVar

from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Input, Static

from ftrun.hooks.runtime.formats import plain
from ftrun.slurm.client import nodeset
from ftrun.supervisor.board import lines
from ftrun.supervisor.board.dialogs import EFFECTS, Help, Question, question
from ftrun.supervisor.board.grid import Cells, Grid
from ftrun.supervisor.board.lines import Column
from ftrun.supervisor.board.reading import HomeReader, SeenRun, Told, Watch, in_order
from ftrun.supervisor.board.run_page import Foot, RunPage, tab_bar
from ftrun.supervisor.model.run import Run
from ftrun.supervisor.reports import view_run

TABS = ("runs", "nodes")
FIRST_LOOK_S = 0.5
WATCH_S = 10.0
COMMAND_S = 90.0

NODE_COLUMNS = (
    Column("NODE", 6, 24, 0), Column("RUN", 14, 32, 1), Column("STRIKES", 7, 7, 2, right=True), Column("LAST FAULT", 10, 24, 3),
    Column("WHEN", 11, 11, 6), Column("QUARANTINED UNTIL", 17, 17, 4), Column("WHY", 10, 60, 5), Column("SCORE", 5, 11, 7, right=True),
)  # fmt: skip

CSS = """
Screen { layout: vertical; }
#head, #page-head, #tabs { height: 1; text-wrap: nowrap; text-overflow: ellipsis; }
#notice, #facts { height: auto; }
#notice { color: ansi_red; text-style: bold; }
Foot, #said { text-style: dim; height: 1; }
#said { display: none; }
#detail { height: 4; border-top: solid ansi_bright_black; padding: 0 1; }
#filter { display: none; border: none; height: 1; padding: 0 1; }
#facts { margin: 0 0 1 0; }
#faults, #explain, #logs { height: 1fr; }
#empty { height: 1fr; padding: 1 2; display: none; }
Grid { height: 1fr; scrollbar-size: 0 0; }
VerticalScroll, RichLog { scrollbar-size: 1 1; scrollbar-color: ansi_bright_black; scrollbar-background: ansi_default; }
ContentSwitcher { height: 1fr; }
ModalScreen { align: center middle; background: transparent; }
.box { width: 78; max-width: 100%; height: auto; max-height: 100%; border: round ansi_blue; padding: 0 2; background: ansi_default; }
"""

KEYS = "? help|q quit|Enter open|s stop|p pause|r resume|c cancel|Tab nodes|/ find|a also those that are over"

EMPTY = """\
No run is under supervision{over}.

Submit one as you would with sbatch:

    ftrun sbatch train.sh

It appears here. To try it out first, on a Slurm of its own on this machine:

    ftrun sandbox up

{home}"""


class Board(App[None]):
    """The board. `told`: what the commands tell it."""

    CSS = CSS
    TITLE = "ftrun top"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q,ctrl+c,ctrl+q", "quit", show=False),
        Binding("question_mark", "help", show=False),
        Binding("tab,shift+tab", "turn", show=False, priority=True),
        Binding("a", "every", show=False),
        Binding("slash", "filter", show=False),
        Binding("escape", "unfilter", show=False),
        *(Binding(verb[0], f"ask('{verb}')", show=False) for verb in EFFECTS),
    ]

    def __init__(self, told: Told, *, every: bool = False) -> None:
        super().__init__()
        self.told = told
        self.reader = HomeReader(told.home)
        self.watch_now = Watch()
        self._seen: dict[str, SeenRun] = {}  # run id -> run, of the rows
        self._every, self._filter, self._tab = every, "", TABS[0]
        self._node_rows: dict[str, Sequence[object]] = {}
        self.failure: Exception | None = None
        self.animation_level = "none"

    def compose(self) -> ComposeResult:
        """The tabs, the table, the chosen run, the keys."""
        yield Static(id="head")
        yield Static(id="notice")
        with Vertical():
            yield Grid(lines.COLUMNS, self._run_cells, name="runs")
            yield Grid(NODE_COLUMNS, self._node_cells, name="nodes")
            yield Static(id="empty")
        yield Static(id="detail")
        yield Static(id="said")
        yield Input(placeholder="show only what holds this word", id="filter", compact=True)
        yield Foot(KEYS)

    def on_mount(self) -> None:
        """Begin to read."""
        self.theme = "ansi-dark"  # the terminal's own colours, on its own background
        self.query_one("#nodes", Grid).display = False
        self.runs_grid.focus()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self.exit)
        self._show()
        self.run_worker(self._read())
        self.run_worker(self._watch())

    @property
    def runs_grid(self) -> Grid:
        """The table of runs."""
        return self.screen_stack[0].query_one("#runs", Grid)

    # ------------------------------------------------------------------ reading

    async def _read(self) -> None:
        while True:
            round_ = asyncio.create_task(asyncio.to_thread(lambda: [*self.reader.round()]))
            while not (await asyncio.wait([round_], timeout=FIRST_LOOK_S))[0]:
                self._show()
            round_.result()
            self._show()
            await asyncio.sleep(self.reader.rest_s())

    async def _watch(self) -> None:
        while not self.reader.whole:
            await asyncio.sleep(FIRST_LOOK_S / 5)
        while True:
            runs = [one.run for one in [*self.reader.runs.values()] if one.run is not None]
            self.watch_now = await asyncio.to_thread(self.told.watch, sum(not run.final for run in runs))
            self._show()
            await asyncio.sleep(WATCH_S)

    # ------------------------------------------------------------------ showing

    def on_resize(self) -> None:
        """Show what has room now."""
        self.call_later(self._show)

    def _show(self) -> None:
        known = [*self.reader.runs.values()]
        shown = in_order(known, every=self._every, wanted=self._filter)
        self._seen = {one.name: one for one in shown}
        runs = [one.run for one in shown if one.run is not None]
        wanted = lines.wanted_widths(runs, self._seen, self.size.width, watched=self.watch_now.watched)
        self.runs_grid.show([*self._seen], wanted)
        if self._tab == "nodes":
            self._show_nodes(known)
        self._show_head(known)
        self._show_empty(known, shown)
        self._show_detail()

    def _show_head(self, known: Sequence[SeenRun]) -> None:
        states = Counter(_state(one) for one in known if self._every or not one.over)
        counts = ", ".join(f"{count} {state}" for state, count in states.most_common())
        read = len([one for one in known if one.run is not None or one.why])
        if not self.reader.whole and not self.reader.why:
            counts = f"reading the journals ... {read} runs"
        notes = [f"the home cannot be read: {plain(self.reader.why)}"] if self.reader.why else []
        watch = self.watch_now
        good = watch.watched and not watch.blind
        notes += [plain(line) for line in watch.lines[1:] if good] if not notes else []
        notes += [] if good else [plain(line) for line in watch.lines]
        found = f"  shown: those with {plain(self._filter)!r}" if self._filter else ""
        head = tab_bar(TABS, self._tab, f"{counts}{found}")
        right = f"   {plain(watch.lines[0])}" if good and watch.lines else ""
        self._set("#head", head + right if head.cell_length + len(right) < self.size.width else head)
        self._set("#notice", Content("\n".join(f" {line}" for line in notes[:3])))
        self.screen_stack[0].query_one("#notice").display = bool(notes)

    def _show_empty(self, known: Sequence[SeenRun], shown: Sequence[SeenRun]) -> None:
        empty = self._tab == "runs" and not shown and (self.reader.whole or bool(self.reader.why))
        text = ""
        if empty and self._filter:
            text = f"No run holds {plain(self._filter)!r}. Esc shows them all."
        elif empty and not self.reader.why:
            over = f"; {len(known)} are over: press a to see them" if known else ""
            text = EMPTY.format(over=over, home=f"Home: {plain(self.told.home)}")
        self._set("#empty", Content(text))
        base = self.screen_stack[0]
        base.query_one("#empty").display = empty
        self.runs_grid.display = self._tab == "runs" and not empty
        base.query_one("#detail").display = self._tab == "runs" and not empty and self.size.height > 12

    def _show_detail(self) -> None:
        seen = self._seen.get(self.runs_grid.chosen)
        if seen is None or self._tab != "runs":
            return
        if seen.run is None:
            self._set("#detail", Content(plain(seen.why)))
            return
        row, width = view_run.run_row(seen.run, time.time()), self.size.width - 2
        job = [f"job {row['job']}, attempt {row['attempt']}"] if row["job"] else []
        nodes = [f"on {nodes}"] if (nodes := lines.nodes_text(row)) else []
        left = [f"{row['retries_left']} retries left"]
        out = [f"excluded: {plain(nodeset.fold(row['excluded']))}"] if row["excluded"] else []
        aside = self.watch_now.aside.get(row["run"], "")
        told = [f"not supervised: {aside}"] if aside else []
        told += [view_run.why_text(row), *view_run.outlook_lines(row)[:1]]
        text = [f"{lines.cut('; '.join([' '.join(job + nodes), *left, *out]).lstrip('; '), width)}"]
        text += [lines.cut(plain(line), width) for line in filter(None, told)]
        self._set("#detail", Content("\n".join(text[:3])))

    def _set(self, name: str, text: Content) -> None:
        """Show a text, if it is another one than before."""
        shown = self.screen_stack[0].query_one(name, Static)
        if shown.content != text:
            shown.update(text)

    def _run_cells(self, key: str, layout: Sequence[tuple[Column, int]]) -> Cells:
        seen, now_s = self._seen[key], time.time()
        run, loss = self.reader.present(seen, now_s)
        points = tuple(seen.points)
        if run is None:
            texts = {"RUN": key, "STATE": "unreadable" if seen.why else ""}
        else:
            row = view_run.run_row(run, now_s)
            watched = self.watch_now.watched and key not in self.watch_now.aside
            texts = lines.cells(row, points, loss, now_s, watched=watched)
        tones = {"STATE": lines.tone(texts["STATE"]), "LOSS": "calm", "WHEN": "faint"}
        return [
            (lines.fitted(texts.get(one.name, ""), one, width, points), tones.get(one.name, ""))
            for one, width in layout
        ]

    # ------------------------------------------------------------------ nodes

    def _show_nodes(self, known: Sequence[SeenRun]) -> None:
        rows = self.told.nodes([one.run for one in known if one.run is not None])
        self._node_rows = {
            str(row[0]): row for row in rows if self._filter.casefold() in " ".join(map(str, row)).casefold()
        }
        self.query_one("#nodes", Grid).show([*self._node_rows], NODES_WANTED)

    def _node_cells(self, key: str, layout: Sequence[tuple[Column, int]]) -> Cells:
        names = [one.name for one in NODE_COLUMNS]
        texts = dict(
            zip(names, (plain("" if cell is None else cell) for cell in self._node_rows[key]), strict=True)
        )
        tones = {"QUARANTINED UNTIL": "bad", "LAST FAULT": "odd", "WHEN": "faint"}
        return [(lines.fitted(texts[one.name], one, width), tones.get(one.name, "")) for one, width in layout]

    # ------------------------------------------------------------------ keys

    def on_grid_moved(self) -> None:
        """Tell about the run that is chosen now."""
        self._show_detail()

    def on_grid_opened(self) -> None:
        """Open the chosen run."""
        seen = self._seen.get(self.runs_grid.chosen)
        if self._tab == "runs" and seen is not None and seen.run is not None:
            self.push_screen(RunPage(seen, self.reader, self.told))

    def action_help(self) -> None:
        """Show the keys."""
        if not isinstance(self.screen, Help | Question):
            self.push_screen(Help())

    def action_turn(self) -> None:
        """Show the other tab."""
        if isinstance(self.screen, RunPage):
            self.screen.turn()
        if len(self.screen_stack) > 1:
            return
        self._tab = TABS[1 - TABS.index(self._tab)]
        for name in TABS:
            self.query_one(f"#{name}").display = name == self._tab
        self._show()
        self.query_one(f"#{self._tab}").focus()

    def action_every(self) -> None:
        """Show also runs that are over, or only the others."""
        self._every = not self._every
        self._show()

    def action_filter(self) -> None:
        """Ask for a word."""
        if len(self.screen_stack) == 1:
            field = self.query_one("#filter", Input)
            field.display = True
            field.focus()

    def action_unfilter(self) -> None:
        """Show all again."""
        if len(self.screen_stack) == 1:
            self.query_one("#filter", Input).value = ""
            self._leave_filter()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Show what holds the word so far."""
        self._filter = event.value
        self._show()

    def on_input_submitted(self, _: Input.Submitted) -> None:
        """Go back to the table."""
        self._leave_filter()

    def _leave_filter(self) -> None:
        self.query_one("#filter", Input).display = False
        self.query_one(f"#{self._tab}").focus()

    # ------------------------------------------------------------------ effects

    def action_ask(self, verb: str) -> None:
        """Ask whether to stop, pause, resume or cancel the run that is chosen or open; on yes, do so."""
        if isinstance(self.screen, Help | Question) or self._tab != "runs":
            return
        run = self._run_meant()
        if run is None:
            self._say(f"{verb}: choose a run whose journal can be read")
            return

        def answered(yes: bool | None) -> None:
            if yes:
                self.run_worker(self._carry_out(verb, run.id))

        self.push_screen(Question(question(verb, run)), answered)

    def _run_meant(self) -> Run | None:
        if isinstance(self.screen, RunPage):
            return self.screen.shown_run
        seen = self._seen.get(self.runs_grid.chosen) if self._tab == "runs" else None
        return seen.run if seen is not None else None

    async def _carry_out(self, verb: str, run_id: str) -> None:
        self._say(f"{run_id}: {verb} is asked ...")
        words = self.told.command([verb, run_id])
        try:
            child = await asyncio.create_subprocess_exec(
                *words,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,  # a terminal that goes away does not end it
                env=os.environ | {"NO_COLOR": "1", "COLUMNS": "200"},
            )
            told, _ = await asyncio.wait_for(child.communicate(), COMMAND_S)
        except (OSError, TimeoutError) as error:
            self._say(f"ftrun {verb} {run_id}: {str(error) or 'no answer so far; see ftrun status'}")
            return
        text = [line for line in told.decode("utf-8", "replace").splitlines() if line.strip()]
        self._say(text[-1] if text else f"ftrun {verb} {run_id}: exit {child.returncode}")

    def _say(self, text: str) -> None:
        self._set("#said", Content(f" {plain(text)}"))
        self.screen_stack[0].query_one("#said").display = True
        if isinstance(self.screen, RunPage):
            self.screen.say(plain(text))

    def _fatal_error(self) -> None:
        """End the app; whoever started it reports the error."""
        self.failure = self._exception
        self._close_messages_no_wait()


NODES_WANTED = {
    "NODE": 14, "RUN": 24, "STRIKES": 7, "LAST FAULT": 20, "WHEN": 11, "QUARANTINED UNTIL": 17, "WHY": 30, "SCORE": 9,
}  # fmt: skip


def _state(one: SeenRun) -> str:
    if one.run is None:
        return "unreadable" if one.why else "unread"
    return "paused" if one.run.paused else one.run.state.value


def run_board(told: Told, *, every: bool = False) -> None:
    """Show the board until the person leaves it; `every`: also runs that are over. Raises what ended it."""
    board: Any = Board(told, every=every)
    board.run(mouse=False)
    if board.failure is not None:
        raise board.failure
