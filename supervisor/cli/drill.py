"""`ftrun drill`: run drills, with a live view while they run and a table at the end. (I/O)

On a terminal rich shows one line for each running drill, and events scroll above; in a pipe every event is a
plain line.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from ftrun.supervisor.cli import common, stats
from ftrun.supervisor.cli.options import argument, option
from ftrun.supervisor.config.home import write_atomically
from ftrun.supervisor.drill import runner
from ftrun.supervisor.drill.runner import Result
from ftrun.supervisor.drill.scenario import Scenario
from ftrun.supervisor.drill.timeline import Event, Row
from ftrun.supervisor.model.errors import UserError
from ftrun.supervisor.store.run_dir import run_dirs

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


class _Plain:
    """Prints one line for each event, on stdout, or on stderr if stdout is for JSON."""

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
    """Lets events scroll above one line for each running drill."""

    def __init__(self, *, several: bool) -> None:
        from rich.live import Live

        self._several = several
        self._lock = threading.Lock()
        self._now: dict[str, tuple[float, str]] = {}  # drill -> when it began, how it stands
        self._live = Live(
            console=common.console(),
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
def live(*, several: bool, json: bool) -> Iterator[_Plain | _Screen]:
    """A view for the terminal or for a pipe."""
    if json or not common.is_terminal():
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


def show_results(results: Sequence[Result]) -> None:
    """Print the table; then, for each failed drill, what was expected, what was seen, and where to look."""
    common.print_table(
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
    """The results of all drills, as printed with --json."""
    return {"held": all(result.held for result in results), "drills": [asdict(result) for result in results]}


LANES_MAX = 4


def drill(  # noqa: PLR0917 - options are given by name
    names: Annotated[
        list[str] | None, argument("[NAME]...", "Drills to run [default: the first of the list].")
    ] = None,
    list_: Annotated[bool, option("--list", "List the drills.")] = False,
    all_: Annotated[bool, option("--all", "Run all of them.")] = False,
    json: Annotated[bool, option("--json", "Print results as JSON; events go to stderr.")] = False,
    here: Annotated[
        bool, option("--here", "Run on the Slurm of this shell, not in a sandbox: needs 3 nodes.")
    ] = False,
    keep: Annotated[bool, option("--keep", "Keep the folder of each drill, with logs and journal.")] = False,
    folder: Annotated[
        Path | None, option("", "Where to make the folders of the drills; with --here the nodes must see it.")
    ] = None,
    report: Annotated[
        Path | None, option("--report", "Write a report of each drill into this folder.", "FOLDER")
    ] = None,
    show: Annotated[bool, option("--open", "Open the reports in a browser.")] = False,
    lanes: Annotated[int, option("", "Number of drills to run at a time.", min=1, max=16)] = LANES_MAX,
) -> int:
    """Inject faults into a real training job on a real Slurm and watch ftrun recover it.

    Exit status: 0 if every drill went as expected, 1 if not.
    """
    scenarios = runner.user_scenarios()
    if list_:
        show_list(scenarios, json=json)
        return 0
    chosen = choose(scenarios, names or [], everything=all_, here=here)
    if show and report is None:
        report = Path(tempfile.mkdtemp(prefix="ftrun-reports-"))
    parent = _parent(folder, here=here)
    written: list[Path] = []
    on_home = partial(_write_reports, report, written) if report is not None else runner.ignore
    status = run_drills(chosen, json=json, here=here, keep=keep, parent=parent, lanes=lanes, on_home=on_home)
    for path in sorted(written):
        print(f"report: {path}", file=sys.stderr if json else sys.stdout)
        if show:
            stats.open_in_browser(path)
    return status


def _write_reports(folder: Path, written: list[Path], name: str, home: Path) -> None:
    """Write a report of each run in the home of a drill. A report that cannot be written costs no drill."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for place, run_dir in enumerate(run_dirs(str(home))):
            path = folder / (f"{name}-{place + 1}.html" if place else f"{name}.html")
            write_atomically(str(path), stats.page_of_run(run_dir).encode("utf-8", "replace"))
            written.append(path.absolute())
    except (OSError, UserError) as error:
        print(f"ftrun: no report of {name}: {error}", file=sys.stderr)


def show_list(scenarios: Sequence[Scenario], *, json: bool) -> None:
    """Print name and title of each drill, and where it can run."""
    if json:
        common.print_json(
            [{"name": s.name, "title": s.title, "needs_sandbox": s.needs_sandbox} for s in scenarios]
        )
        return
    rows = [[s.name, s.title, "sandbox" if s.needs_sandbox else "anywhere"] for s in scenarios]
    common.print_table(["NAME", "WHAT HAPPENS", "WHERE"], rows)


def choose(
    scenarios: Sequence[Scenario], names: Sequence[str], *, everything: bool, here: bool
) -> list[Scenario]:
    """The drills of these names; the first of the table if none is named. Raises UserError."""
    if everything and names:
        raise UserError("--all means every drill: give names or --all, not both")
    if everything:
        held = (s for s in scenarios if not (here and s.needs_sandbox))
        return [s for s in held if not (s.needs_root and os.geteuid())]
    known = {s.name: s for s in scenarios}
    for name in names:
        if name not in known:
            raise UserError(f"no drill is called {name!r}: `ftrun drill --list` shows them")
        if here and known[name].needs_sandbox:
            raise UserError(f"{name} breaks nodes or the controller: it runs in a sandbox only")
        if known[name].needs_root and os.geteuid():
            raise UserError(f"{name} mounts a disk of its own: only root can run it")
    return [known[name] for name in dict.fromkeys(names)] or [scenarios[0]]


def run_drills(
    chosen: Sequence[Scenario],
    *,
    json: bool,
    here: bool,
    keep: bool,
    parent: Path | None,
    lanes: int,
    on_home: Callable[[str, Path], None] = runner.ignore,
) -> int:
    """Run these drills, show their events and results, and return the exit status."""
    with _signals(), live(several=len(chosen) > 1, json=json) as shown:
        results = runner.run_all(
            chosen,
            lanes=min(lanes, len(chosen)),
            here=here,
            keep=keep,
            parent=parent,
            on_event=shown.event,
            on_end=shown.over,
            on_home=on_home,
        )
    if json:
        common.print_json(as_json(results))
    else:
        show_results(results)
    return 0 if all(result.held for result in results) else 1


def _parent(folder: Path | None, *, here: bool) -> Path | None:
    """Where to make the folders: nodes usually see the home directory, but not this machine's /tmp."""
    if here and not shutil.which("sbatch"):
        raise UserError("sbatch was not found: load Slurm's client commands, or drop --here")
    if folder is None:
        return Path.home() if here else None
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise UserError(f"{folder} is not a writable folder")
    return folder.absolute()


@contextmanager
def _signals() -> Iterator[None]:
    """Let TERM and HUP end a drill as Ctrl-C does; during its cleanup all three are ignored."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    ours = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def interrupt(*_: object) -> None:
        for one in ours:
            signal.signal(one, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = {one: signal.signal(one, interrupt) for one in ours}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
