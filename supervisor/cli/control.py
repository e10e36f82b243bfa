"""`ftrun cancel`, and what all commands that want something of a run share. (I/O)

Each leaves a request in the run's folder and sees to it that a supervisor takes it up; the journal is written by the
supervisor alone.

`ftrun stop`, `pause`, `resume`: leave runs in good order, and come back.
How it thinks. What is wanted is written to `halt.json` in the run's folder, whole or not at all, and a request points at it: the file
outlives every supervisor, and an agent inside the job reads it, too. The last word counts. `--clear` writes one without conditions.
"""

from __future__ import annotations

import datetime as dt
import getpass
import re
import time
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

from ftrun.slurm.client import nodeset
from ftrun.slurm.records import replace
from ftrun.supervisor.cli import common, view_run
from ftrun.supervisor.cli import runs as cli_runs
from ftrun.supervisor.cli.runs import Json
from ftrun.supervisor.model.errors import UserError
from ftrun.supervisor.model.run import Run
from ftrun.supervisor.model.states import State
from ftrun.supervisor.model.stop_conditions import FILE, LATEST_S, Halt
from ftrun.supervisor.store import flag_files

PATIENCE_S = 60.0
LOOK_EVERY_S = 0.25
No_Wait = Annotated[bool, typer.Option("--no-wait", help="Do not wait until it has taken effect.")]


def cancel(name: cli_runs.Name, no_wait: No_Wait = False, json: Json = False) -> int:
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


def run_facts(run: Run) -> dict[str, Any]:
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
        common.emit_json(run_facts(run))
    else:
        print(text)
    return 0


Names = Annotated[
    list[str] | None, typer.Argument(help="Run ids, or any job ids of runs.", metavar="RUN|JOBID...")
]
Name = Annotated[str, typer.Argument(help="A run id, or any job id of the run.", metavar="RUN|JOBID")]
After = Annotated[
    bool, typer.Option("--after-checkpoint", help="When its next checkpoint is complete (the default).")
]
At_Step = Annotated[
    int | None, typer.Option("--at-step", help="When training has made this step.", min=1, metavar="N")
]
Before = Annotated[
    str | None,
    typer.Option(
        "--before", help="So early that it is over by then: 18:00, 2026-12-24T18:00, or +2h.", metavar="TIME"
    ),
]
Now = Annotated[bool, typer.Option("--now", help="At once: a checkpoint is awaited for `save-wait` at most.")]
Clear = Annotated[bool, typer.Option("--clear", help="Take back what was asked for.")]
Wait = Annotated[bool, typer.Option("--wait", help="Return when it is over and the nodes are released.")]

_AHEAD = re.compile(r"\+(\d+(?:\.\d+)?)(s|m|min|h|d)")
_CLOCK = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2}))?")
_UNITS = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}


def stop(
    name: Name,
    *,
    after_checkpoint: After = False,
    at_step: At_Step = None,
    before: Before = None,
    now: Now = False,
    clear: Clear = False,
    wait: Wait = False,
    json: Json = False,
) -> int:
    """End a run in good order: it is asked for a checkpoint, ended when that is complete, and not submitted again. A paused one is given up."""
    halt = _halt(after_checkpoint, at_step, before, now, clear)
    run_dir, run = common.find(name)
    if not (run.paused and halt.wanted):
        return _leave([(run_dir, run)], halt, wait=wait, json=json)
    if at_step is not None or before is not None:
        raise UserError(f"{run.id} is paused and trains no further: ftrun stop {run.id} gives it up")
    return end(run_dir, "stop", wait=True, json=json)


def pause(
    names: Names = None,
    *,
    node: Annotated[
        list[str] | None,
        typer.Option("--node", help="Every run of yours that uses one of these nodes now.", metavar="NODES"),
    ] = None,
    after_checkpoint: After = False,
    at_step: At_Step = None,
    before: Before = None,
    now: Now = False,
    clear: Clear = False,
    wait: Wait = False,
    json: Json = False,
) -> int:
    """Save, release the nodes and wait: `ftrun resume` comes back. A pause is no fault and spends no budget."""
    halt = _halt(after_checkpoint, at_step, before, now, clear)
    if not names and not node:
        raise UserError("which run? name it, or a node with --node (`ftrun pause --help` tells more)")
    found = [common.find(name) for name in names or ()]
    if node:
        nodes = set(_expanded(node))
        found += [
            pair for pair in common.all_runs(common.home()) if _uses(pair[1], nodes) and pair not in found
        ]
        if not found:
            return _leave_say([], json, f"no run uses {nodeset.fold(sorted(nodes))}")
    return _leave(found, replace(halt, pause=halt.wanted), wait=wait, json=json)


def resume(name: Name, no_wait: No_Wait = False, json: Json = False) -> int:
    """Let a stopped or paused run go on, from the newest complete checkpoint: after a stop with fresh budgets."""
    run_dir, run = common.find(name)
    if run.state is not State.STOPPED:
        hint = "; to take back what was asked of it: ftrun stop --clear" if run.wish or run.halt else ""
        raise UserError(f"{run.id} is {run.state.value}: only a stopped run can be resumed{hint}")
    if not run.attempts:
        raise UserError(f"{run.id} was never submitted: submit it again with ftrun sbatch")
    attempts = len(run.attempts)
    run = ask(
        run_dir, "resume", wait=not no_wait, done=lambda r: len(r.attempts) > attempts and bool(r.job_ids)
    )
    job = run.attempt.job if run.attempt else ""
    return _leave_say([run], json, f"{run.id}: {run.state.value}" + (f", job {job}" if job else ""))


# ---------------------------------------------------------------------- what is wanted


def _halt(after: bool, at_step: int | None, before: str | None, now: bool, clear: bool) -> Halt:
    """The conditions of a command line. Raises UserError where they contradict each other."""
    others = after or at_step is not None or before is not None
    if clear and (others or now):
        raise UserError("--clear takes back what was asked for: it goes with no condition")
    if now and others:
        raise UserError("--now leaves at once: it goes with no other condition")
    if after and at_step is not None:
        raise UserError("--after-checkpoint or --at-step: at a step, a checkpoint is asked for anyway")
    token = str(time.time_ns())
    if clear:
        return Halt(token=token, by=getpass.getuser())
    before_s = None if before is None else at_time(before, time.time())
    at_once = not now and at_step is None and before is None
    return Halt(
        token=token,
        now=now,
        after_checkpoint=after or at_once,
        at_step=at_step,
        before_s=before_s,
        by=getpass.getuser(),
    )


def at_time(text: str, now_s: float) -> float:
    """The time (Unix seconds) that `18:00`, `2026-12-24T18:00` or `+2h` means, the local clock's. Raises UserError."""
    here = dt.datetime.fromtimestamp(now_s).astimezone()
    try:
        if ahead := _AHEAD.fullmatch(text):
            then_s = now_s + float(ahead[1]) * _UNITS[ahead[2]]
            if then_s > LATEST_S:
                raise OverflowError(text)
            return then_s
        if clock := _CLOCK.fullmatch(text):
            hour, minute, second = (int(part or 0) for part in clock.groups())
            when = here.replace(hour=hour, minute=minute, second=second, microsecond=0)
            return (when if when > here else when + dt.timedelta(days=1)).timestamp()
        if not re.match(r"\d{4}-\d{2}-\d{2}", text):
            raise ValueError(text)
        found = dt.datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        raise UserError(f"--before: 18:00, 2026-12-24T18:00 or +2h is wanted, not {text!r}") from None
    if found <= now_s:
        raise UserError(f"--before: {text} is over already")
    return found


def _expanded(nodes: Sequence[str]) -> list[str]:
    try:
        return [name for text in nodes for name in nodeset.expand(text)]
    except ValueError as error:
        raise UserError(f"--node: {error}") from None


def _uses(run: Run, nodes: set[str]) -> bool:
    attempt = run.attempt
    return (
        not run.final
        and attempt is not None
        and not attempt.launch.end.state
        and bool(nodes & set(attempt.reach))
    )


# ---------------------------------------------------------------------- saying so


def _leave(found: Sequence[tuple[str, Run]], halt: Halt, *, wait: bool, json: bool) -> int:
    """Write the wish to every run, and see to it that a supervisor takes it up."""
    asked = [run_dir for run_dir, run in found if _may(run, halt)]
    for run_dir in asked:
        _write(run_dir, halt)
        common.request(run_dir, halt.word if halt.wanted else "clear", halt=True)
    runs = [_taken_up(run_dir, halt, wait=wait) if run_dir in asked else run for run_dir, run in found]
    return _leave_say(
        runs,
        json,
        *(sentence(run, halt, asked=pair[0] in asked) for pair, run in zip(found, runs, strict=True)),
    )


def _may(run: Run, halt: Halt) -> bool:
    """Whether there is something to ask of this run. Raises UserError where the command is a mistake."""
    if halt.wanted:
        return not run.final
    if run.paused:
        raise UserError(f"{run.id} is paused already: ftrun resume {run.id} comes back")
    return not run.final and bool(run.halt or run.wish)


def _write(run_dir: str, halt: Halt) -> None:
    try:
        flag_files.write_halt(run_dir, halt)
    except OSError as error:
        raise UserError(f"{run_dir}/{FILE} cannot be written: {error.strerror}", 1) from None


def _taken_up(run_dir: str, halt: Halt, *, wait: bool) -> Run:
    def done(run: Run) -> bool:
        return run.final or (run.halt.get("token") == halt.token and not wait)

    ensure_watched(halt.word)
    return until(run_dir, done, patience_s=None if wait and halt.wanted else PATIENCE_S)


def sentence(run: Run, halt: Halt, *, asked: bool) -> str:
    """What the user is told of one run; `asked` where there was something to ask of it."""
    if run.final:
        word = "paused" if run.paused else f"{run.state.value}, {run.final_reason}"
        if asked:
            return f"{run.id}: {word}"
        if run.paused:
            return f"{run.id} is paused already: ftrun resume {run.id} comes back"
        return f"{run.id} is over already: {run.final_reason or run.state.value}"
    if not halt.wanted:
        too_late = run.state is State.ENDING
        if too_late:
            return f"{run.id}: too late, its job is being ended"
        return f"{run.id}: goes on" if asked else f"{run.id}: nothing was asked of it"
    note = ""
    if halt.after_checkpoint and not run.settings.get("checkpoint"):
        note = "; no checkpoint setting: checkpoints are taken from the log's lines"
    step = run.attempt.last_step if run.attempt else None
    if halt.at_step is not None and step is not None and step >= halt.at_step:
        note = f"; it is at step {step}, so it leaves now"
    return f"{run.id}: {'pauses' if halt.pause else 'ends'} {view_run.conditions(halt)}{note}"


def _leave_say(runs: Sequence[Run], json: bool, *texts: str) -> int:
    if json:
        facts: list[dict[str, Any]] = [run_facts(run) for run in runs]
        common.emit_json(facts[0] if len(facts) == 1 else {"runs": facts})
    else:
        for text in texts:
            print(text)
    return 0
