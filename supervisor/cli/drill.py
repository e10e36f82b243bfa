"""`ftrun drill`: see a recovery with your own eyes. (I/O)"""

from __future__ import annotations

import os
import shutil
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from ftrun.supervisor.cli import output, view_drill
from ftrun.supervisor.drill import runner
from ftrun.supervisor.drill.scenario import Scenario
from ftrun.supervisor.errors import UserError

LANES_MAX = 4


def drill(  # noqa: PLR0917 - options are given by name
    names: Annotated[
        list[str] | None,
        typer.Argument(help="Which drills [default: the first of the list].", metavar="[NAME]..."),
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="List the drills.")] = False,
    all_: Annotated[bool, typer.Option("--all", help="Hold all of them.")] = False,
    json: Annotated[
        bool, typer.Option("--json", help="Results as JSON; what happens goes to stderr.")
    ] = False,
    here: Annotated[
        bool, typer.Option("--here", help="On the Slurm of this shell, not in a sandbox: needs 3 nodes.")
    ] = False,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep the folder of each drill: logs, journal.")
    ] = False,
    folder: Annotated[
        Path | None,
        typer.Option(help="Where the drills' folders are made; with --here the nodes must see it."),
    ] = None,
    lanes: Annotated[int, typer.Option(help="How many drills run at a time.", min=1, max=16)] = LANES_MAX,
) -> int:
    """Hurt a real training job on a real Slurm and watch ftrun bring it to its end.

    Exit status: 0 where everything came as it must, 1 where not.
    """
    scenarios = runner.user_scenarios()
    if list_:
        show_list(scenarios, json=json)
        return 0
    chosen = choose(scenarios, names or [], everything=all_, here=here)
    return hold(chosen, json=json, here=here, keep=keep, parent=_parent(folder, here=here), lanes=lanes)


def show_list(scenarios: Sequence[Scenario], *, json: bool) -> None:
    """The drills of a table."""
    if json:
        rows = [{"name": s.name, "title": s.title, "needs_sandbox": s.needs_sandbox} for s in scenarios]
        output.emit_json(rows)
    else:
        view_drill.show_list(scenarios)


def choose(
    scenarios: Sequence[Scenario], names: Sequence[str], *, everything: bool, here: bool
) -> list[Scenario]:
    """The drills of these names, the first of the table where none is named. Raises UserError."""
    if everything and names:
        raise UserError("--all means every drill: name some or say --all")
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
            raise UserError(f"{name} mounts a disk of its own: only root can hold it")
    return [known[name] for name in dict.fromkeys(names)] or [scenarios[0]]


def hold(
    chosen: Sequence[Scenario], *, json: bool, here: bool, keep: bool, parent: Path | None, lanes: int
) -> int:
    """Hold these drills and show how they go; the exit status."""
    with _signals(), view_drill.live(several=len(chosen) > 1, json=json) as shown:
        results = runner.run_all(
            chosen,
            lanes=min(lanes, len(chosen)),
            here=here,
            keep=keep,
            parent=parent,
            on_event=shown.event,
            on_end=shown.over,
        )
    if json:
        output.emit_json(view_drill.as_json(results))
    else:
        view_drill.show_results(results)
    return 0 if all(result.held for result in results) else 1


def _parent(folder: Path | None, *, here: bool) -> Path | None:
    """Where folders are made: nodes see the home directory, as a rule, but not this machine's /tmp."""
    if here and not shutil.which("sbatch"):
        raise UserError("sbatch was not found: load Slurm's client commands, or drop --here")
    if folder is None:
        return Path.home() if here else None
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise UserError(f"{folder} is no folder that can be written")
    return folder.absolute()


@contextmanager
def _signals() -> Iterator[None]:
    """TERM and HUP end a drill as Ctrl-C does; while it clears away none of them interrupts."""
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
