"""`ftrun cancel`, `stop`, `resume`: what a person wants of a run. (I/O)

Each leaves a request in the run's folder and sees to it that a supervisor takes it up; the journal is written by the
supervisor alone.
"""

from __future__ import annotations

import time
from typing import Annotated

import typer

from ftrun.supervisor.cli import common, output
from ftrun.supervisor.cli.runs import Json, Name
from ftrun.supervisor.errors import UserError
from ftrun.supervisor.events import Run
from ftrun.supervisor.lifecycle import State

PATIENCE_S = 60.0
No_Wait = Annotated[bool, typer.Option("--no-wait", help="Do not wait until it has taken effect.")]


def cancel(name: Name, no_wait: No_Wait = False, json: Json = False) -> int:
    """End a run now: its job is cancelled and nothing is submitted again. Works between two attempts, too."""
    run_dir, run = common.find(name)
    if run.final:
        return _say(run, json, f"{run.id} is over already: {run.final_reason or run.state.value}")
    run = _ask(run_dir, "cancel", wait=not no_wait, done=lambda r: r.final)
    if no_wait or run.final:
        return _say(
            run,
            json,
            f"{run.id}: "
            + ("cancel requested" if not run.final else f"{run.state.value}, {run.final_reason}"),
        )
    raise UserError(
        f"{run.id}: the request is kept, but it has not taken effect within {PATIENCE_S:.0f} s; see: ftrun status",
        1,
    )


def stop(name: Name, json: Json = False) -> int:
    """End a run in good order: after its next checkpoint, without another attempt."""
    run_dir, run = common.find(name)
    if run.final:
        return _say(run, json, f"{run.id} is over already: {run.final_reason or run.state.value}")
    if not run.settings.get("checkpoint"):
        note = "; no checkpoint setting: checkpoints are taken from the log's lines"
    else:
        note = ""
    run = _ask(run_dir, "stop", wait=True, done=lambda r: r.final or r.wish == "stop")
    return _say(run, json, f"{run.id}: ends after its next checkpoint{note}")


def resume(name: Name, no_wait: No_Wait = False, json: Json = False) -> int:
    """Let a stopped run go on with fresh budgets: a new attempt from the newest complete checkpoint."""
    run_dir, run = common.find(name)
    if run.state is not State.STOPPED:
        raise UserError(f"{run.id} is {run.state.value}: only a stopped run can be resumed")
    if not run.attempts:
        raise UserError(f"{run.id} was never submitted: submit it again with ftrun sbatch")
    attempts = len(run.attempts)
    run = _ask(
        run_dir, "resume", wait=not no_wait, done=lambda r: len(r.attempts) > attempts and bool(r.job_ids)
    )
    job = run.attempt.job if run.attempt else ""
    return _say(run, json, f"{run.id}: {run.state.value}" + (f", job {job}" if job else ""))


def _ask(run_dir: str, want: str, *, wait: bool, done: object) -> Run:
    assert callable(done)
    common.request(run_dir, want)
    home_dir = common.home()
    if not common.watch_state(home_dir).watched and not common.ensure_supervisor(home_dir):
        raise UserError(
            f"the request to {want} is kept, but nobody is watching: run ftrun supervise --once", 1
        )
    give_up = time.monotonic() + (PATIENCE_S if wait else 0.0)
    while True:
        run = common.read(run_dir)
        if done(run) or time.monotonic() >= give_up:
            return run
        time.sleep(0.25)


def _say(run: Run, json: bool, text: str) -> int:
    if json:
        output.emit_json(
            {"run": run.id, "state": run.state.value, "wish": run.wish, "reason": run.final_reason}
        )
    else:
        print(text)
    return 0
