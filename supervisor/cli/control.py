"""`ftrun cancel`, `stop`, `pause`, `resume`, `prune`: what a person does to runs. (I/O)

A command writes a request into the run's folder and makes sure that a supervisor handles it; only the
supervisor writes the journal. `stop` and `pause` write their conditions to `halt.json` (atomically), and the
request refers to that file: it outlives every supervisor, and the agent in the job reads it as well. The last
request counts. `--clear` writes a file without conditions.

`prune` removes runs that ended long ago. A run is a candidate only if its journal can be read and says that the
run is final, and if no request waits for it; all other runs are kept and reported. Age and `keep` choose first; a
size cap then removes the oldest of the rest. A run is renamed to a hidden name before it is removed, so that no
command sees half a run; the next call removes the `$FTRUN_HOME/runs/.removing-*` of a crash.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import getpass
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Annotated, Any

from ftrun.hooks.runtime.formats import DAY_S, parse_bytes, size_text
from ftrun.slurm import records
from ftrun.slurm.client import nodeset
from ftrun.slurm.records import dataclass, replace
from ftrun.supervisor.cli import common
from ftrun.supervisor.cli.options import Json, Name, argument, option
from ftrun.supervisor.model.errors import UnreadableRun, UserError
from ftrun.supervisor.model.run import Run
from ftrun.supervisor.model.states import State
from ftrun.supervisor.model.stop_conditions import HALT_FILE, LATEST_S, StopConditions
from ftrun.supervisor.reports import view_run
from ftrun.supervisor.store import flag_files, journal
from ftrun.supervisor.store import run_dir as store_run_dir

WAIT_S = 60.0
POLL_S = 0.25
No_Wait = Annotated[bool, option("--no-wait", "Do not wait until the request takes effect.")]


def cancel(name: Name, no_wait: No_Wait = False, json: Json = False) -> int:
    """End a run now: cancel its job and submit nothing again. Works between two attempts and on a paused run,
    too.
    """
    run_dir, run = common.find_run(name)
    if _over(run):
        return _print_results([run], json, f"{run.id} is over already: {run.final_reason or run.state.value}")
    return end_run(run_dir, "cancel", wait=not no_wait, json=json)


def end_run(run_dir: str, want: str, *, wait: bool, json: bool) -> int:
    """End a run for good; `want` is "cancel", or "stop" for a paused run. Raises UserError."""
    run = send_request(run_dir, want, wait=wait, done=_over)
    if not wait or _over(run):
        told = f"{run.state.value}, {run.final_reason}" if _over(run) else f"{want} requested"
        return _print_results([run], json, f"{run.id}: {told}")
    raise UserError(
        f"{run.id}: the request is kept, but it has not taken effect within {WAIT_S:.0f} s; see: ftrun status",
        1,
    )


def _over(run: Run) -> bool:
    return run.final and not run.paused


def send_request(run_dir: str, want: str, *, wait: bool, done: Callable[[Run], bool]) -> Run:
    """Write a request, wait a minute for `done`. Raises UserError where no supervisor is alive."""
    common.write_request(run_dir, want)
    require_supervisor(want)
    return wait_until(run_dir, done, patience_s=WAIT_S if wait else 0.0)


def require_supervisor(want: str) -> None:
    """Make sure that a supervisor is alive. Raises UserError, which says that the request is kept."""
    home_dir = common.home()
    if not common.supervisor_state(home_dir).watched and not common.ensure_supervisor(home_dir):
        raise UserError(
            f"the request to {want} is kept, but no supervisor is alive: run ftrun supervise --once", 1
        )


def wait_until(run_dir: str, done: Callable[[Run], bool], *, patience_s: float | None) -> Run:
    """The run as soon as it is `done`, or as it is after `patience_s` (None: wait without limit)."""
    give_up = float("inf") if patience_s is None else time.monotonic() + patience_s
    while True:
        run = common.load_run(run_dir)
        if done(run) or time.monotonic() >= give_up:
            return run
        time.sleep(POLL_S)


def run_facts(run: Run) -> dict[str, Any]:
    """The output of these commands with --json."""
    facts = records.columns(run, "run=id paused wish halt reason=final_reason")
    return facts | {"state": run.state.value}


Names = Annotated[list[str] | None, argument("RUN|JOBID...", "Run ids, or any job ids of runs.")]
After = Annotated[bool, option("--after-checkpoint", "When its next checkpoint is complete (the default).")]
At_Step = Annotated[int | None, option("--at-step", "When training has completed this step.", "N", min=1)]
Before = Annotated[
    str | None,
    option("--before", "Early enough to be over by then: 18:00, 2026-12-24T18:00, or +2h.", "TIME"),
]
Now = Annotated[bool, option("--now", "At once: waits at most `save-wait` for a checkpoint.")]
Clear = Annotated[bool, option("--clear", "Withdraw an earlier request.")]
Wait = Annotated[bool, option("--wait", "Return when the run is over and its nodes are released.")]

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
    """End a run in good order: ask it for a checkpoint, end its job when the checkpoint is complete, and
    submit nothing again.

    A paused run is ended for good.
    """
    halt = _halt(after_checkpoint, at_step, before, now, clear)
    run_dir, run = common.find_run(name)
    if not (run.paused and halt.wanted):
        return _send_halt([(run_dir, run)], halt, wait=wait, json=json)
    if at_step is not None or before is not None:
        raise UserError(f"{run.id} is paused and trains no further: ftrun stop {run.id} gives it up")
    return end_run(run_dir, "stop", wait=True, json=json)


def pause(
    names: Names = None,
    *,
    node: Annotated[
        list[str] | None, option("--node", "Every run of yours that uses one of these nodes now.", "NODES")
    ] = None,
    after_checkpoint: After = False,
    at_step: At_Step = None,
    before: Before = None,
    now: Now = False,
    clear: Clear = False,
    wait: Wait = False,
    json: Json = False,
) -> int:
    """Save a checkpoint, release the nodes, and wait for `ftrun resume`. A pause is not a fault and spends no
    budget.
    """
    halt = _halt(after_checkpoint, at_step, before, now, clear)
    if not names and not node:
        raise UserError("which run? name it, or a node with --node (see `ftrun pause --help`)")
    found = [common.find_run(name) for name in names or ()]
    if node:
        nodes = {*common.nodes_named(node, "--node")}
        found += [
            pair for pair in common.all_runs(common.home()) if _uses(pair[1], nodes) and pair not in found
        ]
        if not found:
            return _print_results([], json, f"no run uses {nodeset.fold(sorted(nodes))}")
    return _send_halt(found, replace(halt, pause=halt.wanted), wait=wait, json=json)


def resume(name: Name, no_wait: No_Wait = False, json: Json = False) -> int:
    """Continue a stopped or paused run from its newest complete checkpoint. After a stop the budgets start
    afresh.
    """
    run_dir, run = common.find_run(name)
    if run.state is not State.STOPPED:
        hint = "; to withdraw a request: ftrun stop --clear" if run.wish or run.halt else ""
        raise UserError(f"{run.id} is {run.state.value}: only a stopped run can be resumed{hint}")
    if not run.attempts:
        raise UserError(f"{run.id} was never submitted: submit it again with ftrun sbatch")
    attempts = len(run.attempts)
    run = send_request(
        run_dir, "resume", wait=not no_wait, done=lambda r: len(r.attempts) > attempts and bool(r.job_ids)
    )
    job = run.attempt.job if run.attempt else ""
    return _print_results([run], json, f"{run.id}: {run.state.value}" + (f", job {job}" if job else ""))


# ---------------------------------------------------------------------- what is wanted


def _halt(after: bool, at_step: int | None, before: str | None, now: bool, clear: bool) -> StopConditions:
    """The conditions of the command line. Raises UserError where they contradict each other."""
    others = after or at_step is not None or before is not None
    if clear and (others or now):
        raise UserError("--clear withdraws a request: give no condition with it")
    if now and others:
        raise UserError("--now acts at once: give no other condition with it")
    if after and at_step is not None:
        raise UserError(
            "give --after-checkpoint or --at-step, not both: --at-step asks for a checkpoint anyway"
        )
    asked = StopConditions(token=str(time.time_ns()), by=getpass.getuser())
    if clear:
        return asked
    before_s = None if before is None else at_time(before, time.time())
    at_once = not now and at_step is None and before is None
    return replace(asked, now=now, after_checkpoint=after or at_once, at_step=at_step, before_s=before_s)


def at_time(text: str, now_s: float) -> float:
    """The Unix time of `18:00`, `2026-12-24T18:00` (local clock) or `+2h`. Raises UserError."""
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


def _uses(run: Run, nodes: set[str]) -> bool:
    attempt = run.attempt
    if run.final or attempt is None or attempt.launch.end.state:
        return False
    return bool(nodes & set(attempt.reach))


# ---------------------------------------------------------------------- saying so


def _send_halt(found: Sequence[tuple[str, Run]], halt: StopConditions, *, wait: bool, json: bool) -> int:
    """Write the conditions to every run, and make sure that a supervisor handles them."""
    asked = [run_dir for run_dir, run in found if _applies(run, halt)]
    for run_dir in asked:
        _write(run_dir, halt)
        common.write_request(run_dir, halt.word if halt.wanted else "clear", halt=True)
    runs = [_wait_for_halt(run_dir, halt, wait=wait) if run_dir in asked else run for run_dir, run in found]
    return _print_results(
        runs,
        json,
        *(result_line(run, halt, asked=pair[0] in asked) for pair, run in zip(found, runs, strict=True)),
    )


def _applies(run: Run, halt: StopConditions) -> bool:
    """Whether the request applies to this run. Raises UserError where the command makes no sense for it."""
    if halt.wanted:
        return not run.final
    if run.paused:
        raise UserError(f"{run.id} is paused already: ftrun resume {run.id} continues it")
    return not run.final and bool(run.halt or run.wish)


def _write(run_dir: str, halt: StopConditions) -> None:
    try:
        flag_files.write_halt(run_dir, halt)
    except OSError as error:
        raise UserError(f"{run_dir}/{HALT_FILE} cannot be written: {error.strerror}", 1) from None


def _wait_for_halt(run_dir: str, halt: StopConditions, *, wait: bool) -> Run:
    def done(run: Run) -> bool:
        return run.final or (run.halt.get("token") == halt.token and not wait)

    require_supervisor(halt.word)
    return wait_until(run_dir, done, patience_s=None if wait and halt.wanted else WAIT_S)


def result_line(run: Run, halt: StopConditions, *, asked: bool) -> str:
    """The line printed for one run; `asked`: whether the request applied to it."""
    if run.final:
        word = "paused" if run.paused else f"{run.state.value}, {run.final_reason}"
        if asked:
            return f"{run.id}: {word}"
        if run.paused:
            return f"{run.id} is paused already: ftrun resume {run.id} continues it"
        return f"{run.id} is over already: {run.final_reason or run.state.value}"
    if not halt.wanted:
        if run.state is State.ENDING:
            return f"{run.id}: too late, its job is being ended"
        return f"{run.id}: goes on" if asked else f"{run.id}: nothing was asked of it"
    note = ""
    if halt.after_checkpoint and not run.settings.get("checkpoint"):
        note = "; no checkpoint setting: checkpoints are taken from the log's lines"
    step = run.attempt.last_step if run.attempt else None
    if halt.at_step is not None and step is not None and step >= halt.at_step:
        note = f"; it is at step {step}, so it leaves now"
    return f"{run.id}: {'pauses' if halt.pause else 'ends'} {view_run.conditions_text(halt)}{note}"


def _print_results(runs: Sequence[Run], json: bool, *texts: str) -> int:
    if json:
        facts: list[dict[str, Any]] = [run_facts(run) for run in runs]
        common.print_json(facts[0] if len(facts) == 1 else {"runs": facts})
    else:
        for text in texts:
            print(text)
    return 0


# ---------------------------------------------------------------------- prune

_HIDDEN = ".removing-"
NO_LATE_JOB_AFTER_S = (
    900.0  # until then a submission without an answer may still make a job, which must be cancelled
)


@dataclass(frozen=True, slots=True)
class Rules:
    """What to remove: runs that ended more than `older_than_s` ago, then the oldest until the final runs take
    no more than `size_bytes` (None: no cap). The `keep` newest always stay.
    """

    older_than_s: float
    keep: int = 0
    size_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Candidate:
    """A final run that may be removed."""

    run: str
    path: str
    state: str
    ended_at_s: float
    size_bytes: int
    jobs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Kept:
    """A run that prune does not touch, and why."""

    run: str
    why: str


def list_candidates(home: str, now_s: float) -> tuple[list[Candidate], list[Kept]]:
    """The final runs of a home, newest first, and the runs that are not touched."""
    found = [_candidate_or_kept(run_dir, now_s) for run_dir in store_run_dir.run_dirs(home)]
    over = [one for one in found if isinstance(one, Candidate)]
    kept = [one for one in found if isinstance(one, Kept)]
    over.sort(key=lambda one: (one.ended_at_s, one.run), reverse=True)
    return over, kept


def _candidate_or_kept(run_dir: str, now_s: float) -> Candidate | Kept:
    name = os.path.basename(run_dir)
    try:
        run = journal.load_run(run_dir)
    except (UnreadableRun, OSError) as error:
        return Kept(name, f"its journal cannot be read: {error}")
    if not run.final:
        return Kept(name, f"it is {run.state.value}")
    if run.paused:
        return Kept(name, "it is paused")
    if _has_request(run_dir):
        return Kept(name, "a request waits for it")
    attempt = run.attempt
    if (
        attempt
        and attempt.submission in {"unknown", "intended"}
        and now_s - run.last_at_s < NO_LATE_JOB_AFTER_S
    ):
        return Kept(name, "a late job of it may still appear in Slurm")
    return Candidate(
        name, run_dir, run.state.value, run.last_at_s, _size(run_dir), (*run.job_ids, *run.companion_ids)
    )


def _has_request(run_dir: str) -> bool:
    try:
        return any(name.endswith(".json") for name in os.listdir(os.path.join(run_dir, "requests")))
    except FileNotFoundError:
        return False


def _size(path: str) -> int:
    """Bytes on disk (allocated, as du counts)."""
    total = 0
    for folder, folders, files in os.walk(path):
        for name in (*folders, *files):
            with contextlib.suppress(FileNotFoundError):
                total += os.lstat(os.path.join(folder, name)).st_blocks * 512
    return total


def choose(over: Sequence[Candidate], rules: Rules, now_s: float) -> list[Candidate]:
    """The runs to remove, oldest first; `over` is newest first. (pure)"""
    used = sum(one.size_bytes for one in over)
    gone: list[Candidate] = []
    for one in reversed(over[rules.keep :]):
        old = now_s - one.ended_at_s > rules.older_than_s
        if old or (rules.size_bytes is not None and used > rules.size_bytes):
            gone.append(one)
            used -= one.size_bytes
    return gone


def remove(home: str, one: Candidate) -> bool:
    """Remove a run and its index links. False: a request came, so the run stays. Raises OSError."""
    hidden = os.path.join(home, "runs", f"{_HIDDEN}{one.run}")
    os.rename(one.path, hidden)
    if _has_request(hidden):
        os.rename(hidden, one.path)
        return False
    for job in one.jobs:
        link = os.path.join(home, "index", job)
        with contextlib.suppress(OSError):
            if os.path.basename(os.readlink(link)) == one.run:  # Slurm may have reused the id
                os.unlink(link)
    shutil.rmtree(hidden)
    return True


def remove_leftovers(home: str) -> None:
    """Remove the hidden folders that a crash left behind. Raises OSError."""
    for path in _half_removed(home):
        shutil.rmtree(path)


def _half_removed(home: str) -> Iterator[str]:
    runs = os.path.join(home, "runs")
    with contextlib.suppress(FileNotFoundError):
        yield from (os.path.join(runs, name) for name in os.listdir(runs) if name.startswith(_HIDDEN))


def prune(
    days: Annotated[
        float, option("--days", "Remove runs that ended more than this many days ago.", min=0)
    ] = 30.0,
    keep: Annotated[int, option("--keep", "Never remove the newest N runs.", "N", min=0)] = 0,
    size: Annotated[
        str,
        option(
            "--max-size",
            "Also remove the oldest runs until the rest take no more than this: 500M, 2G.",
            "SIZE",
        ),
    ] = "",
    dry_run: Annotated[bool, option("--dry-run", "Print what would be removed; remove nothing.")] = False,
    json: Json = False,
) -> int:
    """Remove runs that finished or stopped long ago, with their journals. Logs and checkpoints of the jobs
    stay.

    A run is never removed while it is open, while a request waits for it, or if its journal cannot be read.
    """
    home_dir = common.home()
    now = time.time()
    try:
        rules = Rules(days * DAY_S, keep, parse_bytes(size) if size else None)
    except ValueError:
        raise UserError(f"--max-size {size!r} is no size: write 500M or 2G") from None
    over, kept = list_candidates(home_dir, now)
    chosen = choose(over, rules, now)
    removed = chosen if dry_run else [one for one in chosen if _removed(home_dir, one)]
    if not dry_run:
        remove_leftovers(home_dir)
    freed = sum(one.size_bytes for one in removed)
    if json:
        facts = [asdict(one) for one in removed]
        common.print_json(
            {
                "dry_run": dry_run,
                "removed": facts,
                "freed_bytes": freed,
                "untouched": [asdict(one) for one in kept],
            }
        )
        return 0 if len(removed) == len(chosen) else 1
    if removed:
        rows = [
            [r.run, r.state, f"{(now - r.ended_at_s) / DAY_S:.0f} days ago", size_text(r.size_bytes)]
            for r in removed
        ]
        common.print_table(["RUN", "STATE", "ENDED", "SIZE"], rows)
    verb = "would be removed" if dry_run else "removed"
    print(
        f"{len(removed)} {'run' if len(removed) == 1 else 'runs'} {verb}, {size_text(freed)} freed; {len(over) - len(removed)} kept"
    )
    return 0 if len(removed) == len(chosen) else 1


def _removed(home_dir: str, one: Candidate) -> bool:
    try:
        if remove(home_dir, one):
            return True
        why = "a request for it has just come"
    except OSError as error:
        why = f"{error.filename}: {error.strerror}"
    print(f"ftrun: {one.run} was not removed: {why}", file=sys.stderr)
    return False
