"""`ftrun status`, `show` and `history`: the state and the past of runs. (I/O)"""

from __future__ import annotations

import sys
import time
from typing import Annotated, Any

from ftrun.hooks.runtime.formats import duration_text
from ftrun.slurm.client import nodeset
from ftrun.supervisor.cli import common
from ftrun.supervisor.cli.options import Json, Name, argument, option
from ftrun.supervisor.controller import drain
from ftrun.supervisor.model.run import Run
from ftrun.supervisor.model.states import FINAL_STATES
from ftrun.supervisor.reports import view_checkpoints, view_run

ASKED_SHOWN_S = 86_400.0


def status(
    names: Annotated[
        list[str] | None, argument("RUN|JOBID...", "Only these runs, also where they are over.")
    ] = None,
    *,
    every: Annotated[bool, option("--all -a", "Also show runs that are over.")] = False,
    json: Json = False,
) -> int:
    """Show the runs under supervision, and who supervises them."""
    home_dir = common.home()
    named = [common.find_run(name) for name in dict.fromkeys(names or ())]
    found = named or common.all_runs(home_dir)
    runs = [run for _, run in found]
    shown = [run for run in runs if names or every or not run.final or run.paused]
    watch = common.supervisor_state(home_dir)
    open_runs = sum(not run.final for run in runs)
    restarted = bool(open_runs) and not watch.watched and common.ensure_supervisor(home_dir)
    now = time.time()
    folders = {run.id: folder for folder, run in found}
    shown = [view_run.with_present_step(folders[run.id], drain.with_answers(run, now), now) for run in shown]
    rows = [
        view_run.run_row(run, now) | {"staged": view_checkpoints.staged_facts(folders[run.id], run)}
        for run in shown
    ]
    if json:
        facts = {
            "watched": watch.watched,
            "by": watch.by,
            "not_since": watch.since_s,
            "slurm_unseen_since": watch.blind_since_s,
            "set_aside": dict(watch.set_aside),
            "slurm_client": dict(watch.asks),
            "not_published": dict(watch.not_published),
        }
        common.print_json({"supervisor": facts | {"started_now": restarted}, "runs": rows})
        return 0
    if rows:
        common.print_table(
            ["RUN", "STATE", "JOB", "TRY", "NODES", "STEP", "ENDS", "LEFT", "EXCLUDED", "LAST FAULT", "WHY"],
            [_cells(row) for row in rows],
        )
    else:
        over = any(run.final for run in runs) and not every
        print("no run is under supervision" + ("; runs that are over: ftrun status --all" if over else ""))
    for row in rows:
        _say_asked(row, now)
    _say_watch(watch, open_runs, restarted, now)
    return 0


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
    inside = view_run.inside_text(row["inside"])
    trouble = view_checkpoints.staging_problem(row["staged"]) if row["staged"] else ""
    staged = f"checkpoints in memory: {trouble}" if trouble else ""
    caps = "" if row["state"] in {one.value for one in FINAL_STATES} else view_run.caps_text(row)
    return "; ".join(
        filter(None, (row["why"], inside, _companions(row), view_run.growth_text(row), staged, caps))
    )


def _companions(row: dict[str, Any]) -> str:
    return view_run.companions_text(row["companions"])


def _nodes(row: dict[str, Any]) -> str | None:
    """The nodes that the script uses, and how many spares the job has."""
    inside = row["inside"]
    spares = f" +{len(inside['spares'])}" if inside["spares"] else ""
    return nodeset.fold(inside["active"] or row["nodes"]) + spares or None


def _say_watch(watch: common.SupervisorState, open_runs: int, restarted: bool, now: float) -> None:
    """Print who supervises the runs, on stderr: stdout has only the table."""
    if watch.watched:
        print(f"watched from {watch.by}", file=sys.stderr)
        for run, why in watch.set_aside.items():
            print(f"{run} is not supervised: {why}", file=sys.stderr)
        if watch.asks.get("why"):
            print(f"Slurm is asked by its commands, not by pyslurm: {watch.asks['why']}", file=sys.stderr)
        for name, why in watch.not_published.items():
            print(f"not published: {name}: {why}", file=sys.stderr)
    if watch.blind_since_s is not None and watch.watched:
        print(
            f"Slurm has not answered for {duration_text(now - watch.blind_since_s)}: ftrun does nothing until it does",
            file=sys.stderr,
        )
    if not open_runs or watch.watched:
        return
    since = f" for {duration_text(now - watch.since_s)}" if watch.since_s is not None else ""
    then = "a supervisor was started" if restarted else "start one: ftrun supervise"
    print(f"nobody was watching{since}; {then}", file=sys.stderr)


def _say_asked(row: dict[str, Any], now: float) -> None:
    """Print what the run asked of the site's service lately, and the answers."""
    words = {"left": "no answer yet", "intended": "not left yet", "failed": "could not be asked"}
    for asked in row["asked"]:
        if now - asked["at_s"] < ASKED_SHOWN_S:
            what = asked["verdict"] or words.get(asked["step"], asked["step"])
            why = f": {asked['why']}" if asked["why"] else ""
            favour = f"drain {asked['node']}" if asked["node"] else f"put job {asked['job']} ahead"
            print(f"{row['run']}: the site's service was asked to {favour}: {what}{why}")


def show(name: Name, json: Json = False) -> int:
    """Show one run in full: attempts, faults, budgets, exclusions."""
    run_dir, run = common.find_run(name)
    now = time.time()
    run = view_run.with_present_step(run_dir, drain.with_answers(run, now), now)
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
    for text in view_run.outlook_lines(facts):
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
            a["end_state"] or (a["submission"] if a["submission"] != "done" else None),
            a["exit_code"],
            a["last_step"],
            a["resumed_from"].rpartition("/")[2] or None,
        ]
        for a in facts["attempts"]
    ]
    common.print_table(
        ["TRY", "JOB", "NODES", "STARTED", "ENDED", "END", "EXIT", "STEP", "RESUMED FROM"], rows
    )


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
            incident["reason"] or None,
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
                r["reason"],
                _back_after_s(r["seconds"]),
            ]
            for r in found
        ],
    )
    return 0


def _moment(at_s: float | None) -> str | None:
    """A moment of this year."""
    clock = view_run.clock_text(at_s)
    return clock and clock[5:]
