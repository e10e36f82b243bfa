"""`ftrun cancel`, and what all commands that want something of a run share. (I/O)

Each leaves a request in the run's folder and sees to it that a supervisor takes it up; the journal is written by the
supervisor alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Annotated, Any

import typer

from ftrun.supervisor.cli import common, output
from ftrun.supervisor.cli.runs import Json, Name
from ftrun.supervisor.errors import UserError
from ftrun.supervisor.run_types import Run

PATIENCE_S = 60.0
LOOK_EVERY_S = 0.25
No_Wait = Annotated[bool, typer.Option("--no-wait", help="Do not wait until it has taken effect.")]


def cancel(name: Name, no_wait: No_Wait = False, json: Json = False) -> int:
    """End a run now: its job is cancelled and nothing is submitted again. Works between two attempts and on a paused run, too."""
    run_dir, run = common.find(name)
    if _over(run):
        return _say(run, json, f"{run.id} is over already: {run.final_reason or run.state.value}")
    return end(run_dir, "cancel", wait=not no_wait, json=json)


def end(run_dir: str, want: str, *, wait: bool, json: bool) -> int:
    """Have a run end for good, `want` being cancel, or stop of a paused one. Raises UserError."""
    run = ask(run_dir, want, wait=wait, done=_over)
    if not wait or _over(run):
        told = f"{run.state.value}, {run.final_reason}" if _over(run) else f"{want} requested"
        return _say(run, json, f"{run.id}: {told}")
    raise UserError(
        f"{run.id}: the request is kept, but it has not taken effect within {PATIENCE_S:.0f} s; see: ftrun status",
        1,
    )


def _over(run: Run) -> bool:
    return run.final and not run.paused


def ask(run_dir: str, want: str, *, wait: bool, done: Callable[[Run], bool]) -> Run:
    """Leave a request and wait until it is `done`, a minute at most. Raises UserError where nobody is watching."""
    common.request(run_dir, want)
    ensure_watched(want)
    return until(run_dir, done, patience_s=PATIENCE_S if wait else 0.0)


def ensure_watched(want: str) -> None:
    """See to it that a supervisor is alive. Raises UserError: the request is kept."""
    home_dir = common.home()
    if not common.watch_state(home_dir).watched and not common.ensure_supervisor(home_dir):
        raise UserError(
            f"the request to {want} is kept, but nobody is watching: run ftrun supervise --once", 1
        )


def until(run_dir: str, done: Callable[[Run], bool], *, patience_s: float | None) -> Run:
    """The run when it is `done`, or as it is after so long (None = however long that takes)."""
    give_up = float("inf") if patience_s is None else time.monotonic() + patience_s
    while True:
        run = common.read(run_dir)
        if done(run) or time.monotonic() >= give_up:
            return run
        time.sleep(LOOK_EVERY_S)


def facts(run: Run) -> dict[str, Any]:
    """What these commands print with --json."""
    return {
        "run": run.id,
        "state": run.state.value,
        "paused": run.paused,
        "wish": run.wish,
        "halt": dict(run.halt),
        "reason": run.final_reason,
    }


def _say(run: Run, json: bool, text: str) -> int:
    if json:
        output.emit_json(facts(run))
    else:
        print(text)
    return 0
