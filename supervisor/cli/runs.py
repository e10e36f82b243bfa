"""`ftrun status`, `show` and `history`: the state and the past of runs. (I/O)"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from ftrun.hooks.runtime.formats import duration_text, plain
from ftrun.slurm.client import nodeset
from ftrun.supervisor.cli import common
from ftrun.supervisor.cli.options import Json, Name, argument, option
from ftrun.supervisor.config import sources
from ftrun.supervisor.model.errors import UserError
from ftrun.supervisor.model.run import Run
from ftrun.supervisor.model.states import FINAL_STATES
from ftrun.supervisor.reports import view_run
from ftrun.supervisor.store import live_steps
from ftrun.supervisor.store import run_dir as store_run_dir

if TYPE_CHECKING:
    from ftrun.supervisor.board.reading import HomeReader, SeenRun, Told, Watch

ASKED_SHOWN_S = 86_400.0
STEPS_EVERY_S = 60.0  # by `status --watch`, where nothing else changes
RESTART_EVERY_S = 60.0  # so often a supervisor is started by those who go on looking
EXPLAINED = 5000  # records, the newest of a run

Every = Annotated[bool, option("--all -a", "Also show runs that are over.")]


def status(
    names: Annotated[
        list[str] | None, argument("RUN|JOBID...", "Only these runs, also where they are over.")
    ] = None,
    *,
    every: Every = False,
    watch: Annotated[
        bool, option("--watch -w", "Go on: a line for each change, until Ctrl-C or the named runs are over.")
    ] = False,
    json: Json = False,
) -> int:
    """Show the runs under supervision, and who supervises them.

    With --watch, a change of the step alone is told once a minute.
    """
    home_dir = common.home()
    if watch:
        return _print_changes(home_dir, names or (), every=every, json=json)
    named = [common.find_run(name) for name in dict.fromkeys(names or ())]
    found = named or common.all_runs(home_dir, over=every)
    runs = [run for _, run in found]
    shown = [run for run in runs if names or every or not run.final or run.paused]
    state = common.supervisor_state(home_dir)
    open_runs = sum(not run.final for run in runs)
    restarted = bool(open_runs) and not state.watched and common.ensure_supervisor(home_dir)
    now = time.time()
    folders = {run.id: folder for folder, run in found}
    steps = view_run.LiveSteps(live_steps.read_steps(home_dir))
    shown = [
        view_run.at_step(_with_answers(run, now), steps.progress(folders[run.id], run, now), now)
        for run in shown
    ]
    rows = [view_run.run_row(run, now) | {"staged": _staged(folders[run.id], run)} for run in shown]
    if json:
        facts = {
            "watched": state.watched,
            "by": state.by,
            "not_since": state.since_s,
            "slurm_unseen_since": state.blind_since_s,
            "set_aside": dict(state.set_aside),
            "slurm_client": dict(state.asks),
            "not_published": dict(state.not_published),
        }
        common.print_json({"supervisor": facts | {"started_now": restarted}, "runs": rows})
        return 0
    if rows:
        common.print_table(
            [
                "RUN",
                "STATE",
                "JOB",
                "TRY",
                "NODES",
                "STEP",
                "ENDS",
                "RETRIES",
                "EXCLUDED",
                "LAST FAULT",
                "WHY",
            ],
            [_cells(row) for row in rows],
        )
    else:
        over = not every and bool(store_run_dir.run_dirs(home_dir))
        print("no run is under supervision" + ("; runs that are over: ftrun status --all" if over else ""))
    for row in rows:
        _say_asked(row, now)
    _say_watch(state, open_runs, restarted, now)
    return 0


def _with_answers(run: Run, now_s: float) -> Run:
    """The run with what the site's service has answered by now."""
    if not run.asked:
        return run
    from ftrun.supervisor.nodes import spool  # few runs ask it

    return spool.with_answers(run, now_s)


def _staged(folder: str, run: Run) -> dict[str, Any] | None:
    """The run's checkpoints in node memory; None where it has none."""
    if not run.settings.get("stage"):
        return None
    from ftrun.supervisor.reports import (
        view_checkpoints,
    )  # it inspects checkpoints, which costs a tenth of `status`

    return view_checkpoints.staged_facts(folder, run)


def _cells(row: dict[str, Any]) -> list[object]:
    end = row["expected_end"]
    return [
        row["run"],
        view_run.state_text(row),
        row["job"] or None,
        row["attempt"],
        _nodes(row),
        row["step"],
        _moment(end["at"]) if end else None,
        row["retries_left"],
        nodeset.fold(row["excluded"]) or None,
        row["last_fault"] or None,
        _why(row) or None,
    ]


def _why(row: dict[str, Any]) -> str:
    trouble = _staging_problem(row["staged"]) if row["staged"] else ""
    staged = f"checkpoints in memory: {trouble}" if trouble else ""
    caps = "" if row["state"] in {one.value for one in FINAL_STATES} else view_run.caps_text(row)
    return "; ".join(filter(None, (view_run.why_text(row), staged, caps)))


def _staging_problem(staged: dict[str, Any]) -> str:
    from ftrun.supervisor.reports import view_checkpoints

    return view_checkpoints.staging_problem(staged)


def _companions(row: dict[str, Any]) -> str:
    return view_run.companions_text(row["companions"])


def _nodes(row: dict[str, Any]) -> str | None:
    """The nodes that the script uses, and how many spares the job has."""
    inside = row["inside"]
    spares = f" +{len(inside['spares'])}" if inside["spares"] else ""
    return nodeset.fold(inside["active"] or row["nodes"]) + spares or None


def _say_watch(watch: common.SupervisorState, open_runs: int, restarted: bool, now: float) -> None:
    """Print who supervises the runs, on stderr: stdout has only the table."""
    for line in watch_lines(watch, open_runs, restarted, now):
        print(line, file=sys.stderr)


def watch_lines(watch: common.SupervisorState, open_runs: int, restarted: bool, now: float) -> Iterator[str]:
    """Who supervises the runs, and what is in the way."""
    if watch.watched:
        yield f"watched from {watch.by}"
        yield from (f"{run} is not supervised: {why}" for run, why in watch.set_aside.items())
        if watch.asks.get("why"):
            yield f"Slurm is asked by its commands, not by pyslurm: {watch.asks['why']}"
        yield from (f"not published: {name}: {why}" for name, why in watch.not_published.items())
        if watch.blind_since_s is not None:
            silent = duration_text(now - watch.blind_since_s)
            yield f"Slurm has not answered for {silent}: ftrun does nothing until it does"
    elif open_runs:
        since = f" for {duration_text(now - watch.since_s)}" if watch.since_s is not None else ""
        then = "a supervisor was started" if restarted else "start one: ftrun supervise"
        yield f"nobody was watching{since}; {then}"


def _say_asked(row: dict[str, Any], now: float) -> None:
    """Print what the run asked of the site's service lately, and the answers."""
    words = {"left": "no answer yet", "intended": "not left yet", "failed": "could not be asked"}
    for asked in row["asked"]:
        if now - asked["at_s"] < ASKED_SHOWN_S:
            what = asked["verdict"] or words.get(asked["step"], asked["step"])
            why = f": {asked['why']}" if asked["why"] else ""
            favour = f"drain {asked['node']}" if asked["node"] else f"put job {asked['job']} ahead"
            print(f"{row['run']}: the site's service was asked to {favour}: {what}{why}")


class _Watcher:
    """Who supervises the runs, for those who go on looking; it starts a supervisor as `status` does, at most once a minute."""

    def __init__(self, home_dir: str) -> None:
        self._home = home_dir
        self._started_s = float("-inf")

    def __call__(self, open_runs: int) -> Watch:
        from ftrun.supervisor.board.reading import Watch

        state, now = common.supervisor_state(self._home), time.monotonic()
        restarted = False
        if open_runs and not state.watched and now - self._started_s > RESTART_EVERY_S:
            self._started_s = now
            restarted = common.ensure_supervisor(self._home)
        told = tuple(watch_lines(state, open_runs, restarted, time.time()))
        watched = state.watched or not open_runs
        return Watch(watched, told, state.set_aside, blind=state.watched and state.blind_since_s is not None)


def _print_changes(home_dir: str, names: Sequence[str], *, every: bool, json: bool) -> int:
    """Print a line for each run, then one for each change, until all named runs are over."""
    from ftrun.supervisor.board.reading import HomeReader, Watch

    reader = HomeReader(home_dir, [common.find_run_dir(name) for name in dict.fromkeys(names)])
    watcher, watched, look_s = _Watcher(home_dir), Watch(), float("-inf")
    told: dict[str, tuple[dict[str, str], float]] = {}
    while True:
        for seen in reader.round():
            if seen.why:
                print(f"ftrun: {seen.why}", file=sys.stderr)
            elif seen.folder in told or names or every or not seen.over:
                told[seen.folder] = _print_change(seen, reader, told.get(seen.folder), json=json)
        if reader.why:
            raise UserError(f"the runs cannot be read: {reader.why}", 1)
        runs = [one for one in reader.runs.values() if one.run is not None]
        if names and all(one.over for one in runs):
            return 0
        if time.monotonic() - look_s > RESTART_EVERY_S / 4:
            look_s, before = time.monotonic(), watched
            watched = watcher(sum(not one.over for one in runs))
            if watched.lines[:1] != before.lines[:1]:
                for line in watched.lines:
                    print(line, file=sys.stderr)
        if not told and not json and not reader.runs:
            print("no run so far; waiting for one", file=sys.stderr)
        time.sleep(reader.rest_s())


def _print_change(
    seen: SeenRun, reader: HomeReader, before: tuple[dict[str, str], float] | None, *, json: bool
) -> tuple[dict[str, str], float]:
    """Print a run if it changed, its step alone once a minute; what was told of it last, and when."""
    from ftrun.supervisor.board import lines

    now_s = time.time()
    run, loss = reader.present(seen, now_s)
    assert run is not None
    row = view_run.run_row(run, now_s) | {"staged": _staged(seen.folder, run)}
    texts = lines.cells(row, seen.points, loss, now_s, watched=True) | {"WHY": plain(_why(row))}
    lasting = {name: texts[name] for name in ("STATE", "JOB", "NODES", "LAST FAULT", "WHY")}
    if before is not None and (lasting == before[0] and now_s - before[1] < STEPS_EVERY_S):
        return before
    if json:
        common.print_json(row | {"at": now_s, "loss": loss})
    else:
        labels = {
            "JOB": "job ",
            "NODES": "on ",
            "STEP": "step ",
            "LOSS": "loss ",
            "TIME LEFT": "left ",
            "LAST FAULT": "last fault ",
        }
        words = [f"{label}{texts[name]}" for name, label in labels.items() if texts[name]]
        why = f"; {texts['WHY']}" if texts["WHY"] else ""
        print(f"{_moment(now_s)}  {texts['RUN']}  {texts['STATE']}  {', '.join(words)}{why}")
    sys.stdout.flush()
    return lasting, now_s


def top(*, every: Every = False) -> int:
    """Show the runs on one screen, kept up to date: state, step, loss, time left, last fault.

    Enter opens a run with its faults, decisions and logs; keys stop, pause, resume or cancel it, after a question;
    ? names them all. It reads what the supervisor writes and asks Slurm nothing.
    """
    instead = "lines instead: ftrun status --watch"
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UserError(f"top needs a terminal; {instead}")
    if os.environ.get("TERM", "dumb") in ("dumb", "unknown", ""):
        raise UserError(f"top cannot draw on this terminal (TERM={os.environ.get('TERM', '')}); {instead}")
    home_dir = common.home()
    try:
        from ftrun.supervisor.board.screen import run_board
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "textual":
            raise
        raise UserError(f"top needs textual: {sys.executable} -m pip install textual; {instead}") from None
    run_board(told_by(home_dir), every=every)
    return 0


def told_by(home_dir: str) -> Told:
    """What commands tell the board of this home."""
    from ftrun.supervisor.board.reading import Told
    from ftrun.supervisor.cli import explain, nodes

    ledger = nodes.LedgerView(home_dir, sources.load(os.getcwd(), dict(os.environ)))
    return Told(
        home=home_dir,
        watch=_Watcher(home_dir),
        explain=lambda records: [*explain.told_records(explain.less_repeated(records[-EXPLAINED:]))],
        nodes=ledger.rows,
        command=lambda words: [sys.executable, "-P", "-m", "ftrun.supervisor", *words],
    )


def show(name: Name, json: Json = False) -> int:
    """Show one run in full: attempts, faults, budgets, exclusions."""
    from ftrun.supervisor.reports import view_checkpoints

    run_dir, run = common.find_run(name)
    now = time.time()
    run = view_run.with_present_step(run_dir, _with_answers(run, now), now)
    staged = view_checkpoints.staged_facts(run_dir, run)
    facts = view_run.run_facts(run, now) | {
        "folder": run_dir,
        "staged": staged,
        "read": view_checkpoints.verified_facts(run_dir),
    }
    if not run.final and not common.supervisor_state(common.home()).watched:
        common.ensure_supervisor(common.home())
    if json:
        common.print_json(facts)
        return 0
    state = "paused" if run.paused else run.state.value
    print(f"{run.id}: {state}" + (f", {facts['why']}" if facts["why"] else ""))
    used, left = facts["retries_used"], facts["retries_left"]
    print(f"folder {run_dir}; retries {used} used since the last net progress, {left} left")
    inside = facts["inside"]
    unused = "" if facts["attempts"] and facts["attempts"][-1]["end_state"] else _beside_words(inside)
    for text in filter(
        None,
        (
            view_run.caps_text(facts),
            view_run.inside_text(inside),
            unused,
            _companions(facts),
            view_run.growth_text(facts),
        ),
    ):
        print(text)
    if staged is not None:
        print(f"checkpoints in memory: {view_checkpoints.staged_text(staged)}")
    for row in view_checkpoints.shown_rows(facts["read"]):
        print(f"read to its end: {view_checkpoints.verified_line(row)}")
    for text in (*view_run.end_lines(facts), *view_run.outlook_lines(facts)):
        print(text)
    lacking = view_checkpoints.lack_of_checkpoints(run_dir, run)
    for text in (*facts["warnings"], *([lacking] if lacking else [])):
        print(f"warning: {text}")
    _say_asked(facts, now)
    print()
    _attempts(facts)
    _starts(facts)
    _loaded(facts)
    _held(facts)
    _tasks(facts)
    _incidents(run)
    if facts["exclusions"]:
        print("\nexcluded")
        rows = [[e["node"], _moment(e["until"]), e["why"]] for e in facts["exclusions"]]
        common.print_table(["NODE", "UNTIL", "WHY"], rows)
    used = [[fault, row["used"], row["of"]] for fault, row in facts["budgets"].items() if row["used"]]
    if used:
        print("\nbudgets used since the last progress")
        common.print_table(["CLASS", "USED", "OF"], used)
    return 0


def _attempts(facts: dict[str, Any]) -> None:
    rows = [
        [
            a["attempt"],
            a["job"] or None,
            nodeset.fold(a["nodes"]) or None,
            _moment(a["slurm_started_at"] or a["started_at"]),
            _moment(a["slurm_ended_at"] or a["ended_at"]),
            _end_word(a),
            f"signal {a['exit_signal']}" if a["exit_signal"] and not a["exit_code"] else a["exit_code"],
            a["last_step"],
            a["resumed_from"].rpartition("/")[2] or None,
        ]
        for a in facts["attempts"]
    ]
    common.print_table(
        ["TRY", "JOB", "NODES", "STARTED", "ENDED", "END", "EXIT", "STEP", "RESUMED FROM"], rows
    )


def _end_word(attempt: Mapping[str, Any]) -> str | None:
    """How an attempt ended, by Slurm's word: COMPLETING is that of a job on its way back into the queue."""
    if attempt["end_state"] == "COMPLETING":
        return "REQUEUED"
    return attempt["end_state"] or (attempt["submission"] if attempt["submission"] != "done" else None)


def _beside_words(inside: dict[str, Any]) -> str:
    """The nodes of the job that the script does not use; "" if it uses all."""
    waiting, aside = nodeset.fold(inside["spares"]), nodeset.fold(inside["aside"])
    told = [f"spare: {waiting}"] if waiting else []
    return "; ".join(told + ([f"set aside: {aside}"] if aside else []))


def _starts(facts: dict[str, Any]) -> None:
    rows = [
        [
            f"{a['attempt']}.{s['start']}",
            nodeset.fold(s["nodes"]) or None,
            _moment(s["begun_at"]),
            _moment(s["ended_at"]),
            f"signal {s['signal']}" if s["signal"] else s["code"],
            s["resumed_from"].rpartition("/")[2] or None,
        ]
        for a in facts["attempts"]
        if len(a["starts"]) > 1
        for s in a["starts"]
    ]
    if rows:
        print("\nstarts inside the allocation")
        common.print_table(["TRY.START", "NODES", "BEGAN", "ENDED", "EXIT", "RESUMED FROM"], rows)


def _loaded(facts: dict[str, Any]) -> None:
    for a in facts["attempts"]:
        starts = [(f"{a['attempt']}.{s['start']}", s["passed_over"]) for s in a["starts"]]
        for name, passed in starts or [(a["attempt"], a["passed_over"])]:
            if passed:
                print(f"attempt {name} passed over {passed}")
    for one in facts["divergences"]:
        bound = (
            "the last minutes before its end"
            if one["step"] is None
            else f"checkpoints from step {one['step']} on"
        )
        print(f"start {one['name']} diverged: {bound} are not loaded unless written anew")


def _held(facts: dict[str, Any]) -> None:
    rows = [
        [
            a["attempt"],
            one["job"] or None,
            nodeset.fold(one["nodes"]) or one["nodes_asked"],
            _moment(one["since"]),
            _moment(one["ended_at"]),
            one["end_state"] or one["state"],
            one["reason"] or None,
        ]
        for a in facts["attempts"]
        for one in a["companions"]
    ]
    if rows:
        print("\ncompanions")
        common.print_table(["TRY", "JOB", "NODES", "SINCE", "GONE", "STATE", "WHY"], rows)


def _tasks(facts: dict[str, Any]) -> None:
    """Print the failed tasks of an array, in the form of `--array`."""
    for attempt in facts["attempts"]:
        if attempt["failed_tasks"]:
            print(f"attempt {attempt['attempt']}: failed tasks {','.join(map(str, attempt['failed_tasks']))}")
    for lot in facts["tasks_given_up"]:
        print(f"not tried again: tasks {','.join(map(str, lot['tasks']))}: {lot['class']}: {lot['title']}")


def _incidents(run: Run) -> None:
    if not run.incidents:
        return
    print("\nfaults")
    rows = [
        [
            _try(incident),
            incident["class"],
            incident["title"],
            nodeset.fold(incident["nodes"]) or None,
            incident["action"] or None,
            view_run.reason_text(incident) or None,
            _back_after_s(incident["seconds"]),
        ]
        for incident in map(view_run.incident_facts, run.incidents)
    ]
    common.print_table(["TRY", "CLASS", "WHAT", "BLAMED", "ACTION", "WHY", "BACK AFTER s"], rows)


def _try(incident: dict[str, Any]) -> str:
    """The attempt, and the start of the script inside it if there were several."""
    return f"{incident['attempt']}" + (f".{incident['start']}" if incident["inside"] else "")


def _back_after_s(phases: dict[str, float | None]) -> float | None:
    """Seconds from the end of the script until it ran again; None while it does not."""
    back = [phases[key] for key in ("end_to_diagnosis", "diagnosis_to_decision", "decision_to_running")]
    return round(sum(s for s in back if s is not None), 1) if back[-1] is not None else None


def history(
    number: Annotated[int, option("-n", "Number of faults, newest last.", min=1)] = 50, json: Json = False
) -> int:
    """List the faults of all runs, oldest first."""
    found: list[dict[str, Any]] = [
        {"at": i.diagnosed_at_s, "run": run.id} | view_run.incident_facts(i)
        for _, run in common.all_runs(common.home())
        for i in run.incidents
    ]
    found.sort(key=lambda row: row["at"])
    found = found[-number:]
    if json:
        common.print_json({"incidents": found})
        return 0
    if not found:
        print("no faults so far")
        return 0
    common.print_table(
        ["WHEN", "RUN", "TRY", "CLASS", "WHAT", "BLAMED", "ACTION", "WHY", "BACK AFTER s"],
        [
            [
                _moment(r["at"]),
                r["run"],
                _try(r),
                r["class"],
                r["title"],
                nodeset.fold(r["nodes"]) or None,
                r["action"],
                view_run.reason_text(r) or None,
                _back_after_s(r["seconds"]),
            ]
            for r in found
        ],
    )
    return 0


def _moment(at_s: float | None) -> str | None:
    """A moment of this year."""
    return view_run.zoned_clock_text(at_s, begin=5)
