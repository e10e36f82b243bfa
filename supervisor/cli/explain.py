"""`ftrun explain` and `ftrun logs`: why each decision was taken, and the output of the attempts. (I/O)

`explain` prints one line for each record of the journal; diagnoses and decisions take several.
`explain --what-if` prints the recovery path of a fault, from the settings alone.
"""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

from ftrun.hooks.runtime.formats import counted
from ftrun.slurm.client import nodeset
from ftrun.supervisor.cli import common
from ftrun.supervisor.cli.options import Json, Name, argument, option
from ftrun.supervisor.config import settings, sources
from ftrun.supervisor.config.recovery_order import rung_rules_from
from ftrun.supervisor.model import errors, events, states
from ftrun.supervisor.model.errors import UserError
from ftrun.supervisor.model.run import Run
from ftrun.supervisor.model.states import AGENT_KINDS
from ftrun.supervisor.model.types import Action, FaultClass, Opinion, cause_line
from ftrun.supervisor.policy.what_if import what_if
from ftrun.supervisor.reports import view_run
from ftrun.supervisor.store import attempt_dir as store_attempt_dir
from ftrun.supervisor.store import journal, submission_context
from ftrun.supervisor.store import run_dir as store_run_dir
from ftrun.supervisor.submission import in_allocation
from ftrun.supervisor.telemetry import log_watcher
from ftrun.supervisor.telemetry.tail import LogPath

FOLLOW_EVERY_S = 0.5
LINES_SHOWN = 10  # of the logs of one start
TASKS_SHOWN = 16  # of an array, in each attempt
FILES_SHOWN = 16  # of one start
TAIL_BYTES = 16 * 1024  # of a log that is not the job's own
_CHUNK_BYTES = 1 << 16


def _site_request_line(data: dict[str, Any]) -> str:
    """A request to the site's service: left, failed or answered; the intent is not shown."""
    favour = f"drain {data['node']}" if data["node"] else "put the waiting job ahead"
    if data["step"] == "left":
        return f"asked the site's service to {favour}"
    if data["step"] == "failed":
        return f"could not ask the site's service to {favour}: {data['why']}"
    about = f" on {data['node']}" if data["node"] else ""
    return (
        f"the site's service{about}: {data['verdict']}: {data['why']}" if data["step"] == "answered" else ""
    )


def _checkpoint_note(data: dict[str, Any]) -> str:
    """The checkpoint that a start loaded, and those that it passed over."""
    said = f" from {data['resume_from']}" if data.get("resume_from") else ""
    return said + (f"; passed over {data['passed']}" if data.get("passed") else "")


def _graceful_stop_line(data: dict[str, Any]) -> str:
    if data["occasion"] == "preempt":
        return f"preempted: Slurm takes the nodes in {data['wait_s']:.0f} s"
    if data["occasion"] == "drain":
        how = "a spare is to replace it" if data["by"] == "agent" else "the run leaves it after a checkpoint"
        return f"somebody else drained {nodeset.fold(data['nodes'])}: {how}"
    return ""


_LINE_OF_KIND = {
    "attempt.opened": lambda d: "opened" + (f" for {counted(d['size'], 'node')}" if d.get("size") else "") + (f", avoiding {nodeset.fold(d['excluded'])}" if d.get("excluded") else "")
    + (f"; quarantined: {nodeset.fold(d['quarantined'])}" if d.get("quarantined") else ""),
    "submit.done": lambda d: f"submitted as job {d['job']}" + (" (found by its token)" if d.get("found") else ""),
    "submit.refused": lambda d: f"sbatch refused: {d['message']}",
    "submit.unknown": lambda d: f"no clear answer from sbatch: {d['message']}",
    "submit.lost": lambda d: f"the submission did not take place: {d['why']}",
    **dict.fromkeys(("grow.stays", "grow.dropped"), lambda d: f"stays below its full size: {d['reason']}"),
    "grow.begun": lambda d: f"begins to grow {d['reason']}" + (f"; {d['missing']} from a companion" if d.get("missing") else ""),
    "job.started": lambda d: f"running on {nodeset.fold(d['nodes'])}",
    "tasks.failed": lambda d: f"tasks failed: {_listed(d['tasks'])}",
    "tasks.given-up": lambda d: f"tasks not tried again: {_listed(d['tasks'])}: {d['class']}: {d['title']}",
    "launch.seen": lambda d: "" if "active" in d else "script started" + _checkpoint_note(d),
    "evidence": lambda d: f"seen in the {d['source']}: {d['text']}  [{d['signature']} {d['file']}:{d['line']}]",
    "line.ignored": lambda d: f"not counted, since another job or node wrote it: {d['text']}  [{d['signature']} {d['file']}:{d['line']}]",
    "fault.suspected": lambda d: f"suspected: {d['title']}",
    "fault.survived": lambda d: f"suspicion withdrawn: {d['why']}",
    "end.intended": lambda d: f"ending the attempt: {d['reason']}",
    "job.ended": lambda d: f"job ended: {d['state']}" + (f", exit {d['exit_code']}" if d.get("exit_code") is not None else ""),
    "job.requeued": lambda d: "Slurm requeued the job" + (f": {d['reason']}" if d.get("reason", "None") not in ("", "None") else ""),
    "launch.kept": lambda d: "left in the queue: Slurm restarts it",
    "drain.done": lambda d: f"drained {d['node']}: {d['reason']}",
    "drain.refused": lambda d: f"could not drain {d['node']}: {d['message']}",
    "drain.asked": _site_request_line,
    "raise.asked": _site_request_line,
    "cancel.done": lambda d: f"cancelled {d['what']}",
    "queue.moved": lambda d: f"the run waits no longer: {d['decision']['reason']}",
    "resize.done": lambda d: f"made smaller in the queue, where it keeps its place: {d['reason']}",
    "resize.refused": lambda d: f"cannot be made smaller in the queue: {d['message']}",
    "exclude.done": lambda d: "" if "left" in d else f"waits, and must not use {nodeset.fold(d['nodes'])}: quarantined" if d["nodes"] else "found no nodes so: may use quarantined nodes again",
    "checkpoint.taken-back": lambda d: f"no longer set aside: {', '.join(d['paths'])}",
    "checkpoint.set-aside": lambda d: f"checkpoint set aside: {d['path']}",
    "checkpoint.poisoned": lambda d: f"diverged{'' if d['step'] is None else ' at step ' + str(d['step'])} [{d['signature']}]: {d['rule']}",
    "dependents.held": lambda d: f"jobs that wait for this one are held: {', '.join(d['jobs'])}",
    "dependents.moved": lambda d: (f"jobs {', '.join(d['jobs'])} " + (f"now wait for job {d['to']}" if d["to"] else "are released")) if d["jobs"] else "",
    "request.seen": lambda d: f"{d['want']} asked by {d['by'] or 'somebody'}",
    "halt.set": lambda d: view_run.request_text(d["halt"]),
    "halt.due": lambda d: f"the condition holds: {d['why']}" if d["why"] != "now" else "",
    "leave.intended": _graceful_stop_line,
    "leave.asked": lambda d: "the script is asked for a checkpoint",
    "leave.saved": lambda d: f"{d['why']} ({d['waited_s']:g} s)",
    "leave.dropped": lambda d: f"the request was withdrawn: {d['why']}",
    "start.stays": lambda d: f"{nodeset.fold(d['nodes'])} is not left: {d['why']}",
    "hook.ended": lambda d: f"{d['hook']}: " + (f"exit {d['code']}" if d["why"] in ("itself", "fenced") else f"ended by {d['why']}" if d["code"] is not None else d["why"]),
    "opinion.asked": lambda d: f"asks {d['by']} for a second opinion about {counted(d['lines'], 'line')} of its logs, redacted",
    "opinion.answered": lambda d: f"no second opinion: {d['error']}" if "error" in d else f"second opinion, a guess by {d['by']}: {Opinion.from_json(d).words}",
    "warned": lambda d: f"warning: {d['message']}",
    "observed": lambda d: f"observe: would {d['decision']['kind']}: {d['decision']['reason']}",
    "attempt.over": lambda d: "over for certain: nothing of it runs any more" + (f"; fenced: {', '.join(d['fenced'])}" if d.get("fenced") else ""),
    "agent.opened": lambda d: f"an agent runs on {d['host']}" + (f"; ladder off: {d['off']}" if d.get("off") else ""),
    "agent.absent": lambda d: f"nothing is restarted inside this job: {d['why']}",
    "slurm.unanswered": lambda d: f"warning: {d['message']}",
    "ladder.off": lambda d: f"nothing is restarted inside this job any more: {d['why']}",
    "start.begun": lambda d: f"script begins on {nodeset.fold(d['nodes'])}" + _checkpoint_note(d),
    "start.over": lambda d: "script ended: " + (f"signal {d['signal']}" if d.get("signal") else f"exit {d['code']}") + (f"; ftrun ended it: {d.get('why', 'see above')}" if d.get("by_us") else ""),
    "start.stopped": lambda d: "no process of it is left on the nodes",
    "start.placed": lambda d: f"next on {nodeset.fold(d['nodes'])}",
    "start.first-step": lambda d: f"first step since: {d['step']}",
    "hang.suspected": lambda d: (f"task {d['task']}: " if "task" in d else "") + f"no progress for {d['quiet_s']:.0f} s (" + (f"limit {d['threshold_s']:.0f} s)" if d["threshold_s"] is not None else "not confirmed so far)"),
    "tasks.end.done": lambda d: f"task {d['task']} is ended: it hangs",
    "hang.decided": lambda d: (f"task {d['task']}: " if "task" in d else "") + f"hang: no progress for {d['quiet_s']:.0f} s" + (f"; behind: {', '.join(map(str, d['behind']))}" if d.get("behind") else ""),
    "stacks.taken": lambda d: f"stacks of the ranks: {d['folder']}",
    "save.asked": lambda d: "the script is asked for a checkpoint before it is ended",
    "save.done": lambda d: "it saved a checkpoint",
    "save.missed": lambda d: "it saved no checkpoint in time",
    "straggler.seen": lambda d: f"{d['node']} is slow: {d['ratio']:.2f} x its peers",
    "rank.died": lambda d: f"rank {d['rank']} on {d['node']} died: " + (f"signal {d['signal']}" if d.get("signal") else f"exit {d['code']}"),
    "rank.again": lambda d: f"rank {d['rank']} is restarted on {d['node']}",
    "rank.left": lambda d: f"rank {d['rank']} is not restarted",
    "steps.cancel.done": lambda d: f"steps cancelled: {', '.join(map(str, d['steps']))}",
    "start.end.intended": lambda d: f"ftrun ends the script: {d['why']}",
    "script.end.done": lambda d: f"the script is sent SIG{d['signal']}",
    "release.done": lambda d: f"{nodeset.fold(d['gone'])} released {d.get('why', 'before Slurm ends the job for them')}",
    "release.refused": lambda d: f"no node could be released{' ' + d['why'] if 'why' in d else ''}: {d['message']}",
    "restore.done": lambda d: f"{d['set']} is resumed from the nodes' memory: {d['memory_bytes'] / 2**20:.0f} MiB there, {d['fetched_bytes'] / 2**20:.0f} of them from other nodes, in {d['seconds']:.1f} s",
    "restore.failed": lambda d: f"{d['set']} is not resumed from memory: {d['node']}: {d['why']}",
    "sweep.done": lambda d: "what earlier starts left on the nodes is ended" + (f"; no answer from {nodeset.fold(d['silent'])}" if d.get("silent") else ""),
    "nodes.checked": lambda d: f"nodes checked: {nodeset.fold(d['answered']) or 'none'}" + (f"; no report from {nodeset.fold(missing)}" if (missing := [n for n in d["asked"] if n not in d["answered"]]) else ""),
    "run.finished": lambda d: f"finished: {d['reason']}",
    "run.stopped": lambda d: f"stopped: {d['reason']}",
    "run.abandoned": lambda d: f"given up: {d['reason']}",
    "run.given-up": lambda d: f"is not resubmitted: {d['reason']}",
    "run.resumed": lambda d: "resumed by the user",
}  # fmt: skip


def _listed(tasks: list[int]) -> str:
    """Task numbers, joined by commas; of many only the first."""
    more = f" and {len(tasks) - TASKS_SHOWN} more" if len(tasks) > TASKS_SHOWN else ""
    return ",".join(map(str, tasks[:TASKS_SHOWN])) + more


def explain(
    name: Annotated[str, argument("[RUN|JOBID]", "A run id, or any job id of the run.")] = "",
    *,
    every: Annotated[
        bool, option("--all -a", "Print each line and each taking of stacks, not the first and last alone.")
    ] = False,
    json: Json = False,
    if_: Annotated[
        str, option("--what-if", "Print the recovery path of such a fault instead.", "CLASS|SIGNATURE")
    ] = "",
    ft: Annotated[
        list[str] | None,
        option("--ft", "A setting for --what-if, such as spares=2; may be repeated.", "KEY=VALUE"),
    ] = None,
) -> int:
    """Explain each decision: the evidence, the diagnosis, the rules and the budgets.

    With --what-if, print what ftrun would do about a fault: by the settings of the run, or by those in force
    here and --ft.
    """
    if if_:
        return show_what_if(if_, name, ft or (), json=json)
    if not name or ft:
        raise UserError(
            "a run is wanted (ftrun status --all lists them), or --what-if CLASS; --ft goes with the latter"
        )
    run_dir = common.find_run_dir(name)
    run_id = os.path.basename(run_dir)
    try:
        run = events.fold(run_id, records := journal.read_run(run_dir))
    except (journal.JournalDamaged, states.IllegalEvent, events.BadRecord) as error:
        return _explain_damaged(run_dir, str(error), json=json)
    except (journal.JournalTooNew, OSError):
        common.load_run(run_dir)  # says it in the words of every command
        raise
    if json:
        common.print_json(
            {
                "run": run.id,
                "records": records,
                "incidents": [view_run.incident_facts(i) for i in run.incidents],
            }
        )
        return 0
    shown = records if every else less_repeated(records)
    _print_records(shown)
    if hidden := len(records) - len(shown):
        told = "1 record more of the same kind" if hidden == 1 else f"{hidden} records more of the same kinds"
        print(f"({told}: ftrun explain {run.id} --all)")
    return 0


def less_repeated(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The records without what repeats: of each start the last stacks, and the first lines of its logs."""
    last: dict[tuple[object, ...], int] = {}
    seen: Counter[tuple[object, ...]] = Counter()
    shown: list[dict[str, Any]] = []
    for number, record in enumerate(records):
        if record["kind"] == "stacks.taken":
            last[_start_of(record)] = number
    for number, record in enumerate(records):
        start = _start_of(record)
        seen[start] += 1
        if record["kind"] == "stacks.taken":
            if last[start] == number:
                shown.append(record)
        elif record["kind"] not in ("evidence", "line.ignored") or seen[start] <= LINES_SHOWN:
            shown.append(record)
    return shown


def _start_of(record: Mapping[str, Any]) -> tuple[object, ...]:
    """The start of the script that a record is about, and its kind."""
    return record["kind"], record["attempt"], record["launch"], record["start"]


def _print_records(records: Sequence[dict[str, Any]], *, damaged: bool = False) -> None:
    for line in told_records(records, damaged=damaged):
        print(line)


def told_records(records: Sequence[dict[str, Any]], *, damaged: bool = False) -> Iterator[str]:
    """The lines of `explain` for the records of a run, from its first on."""
    start = records[0]["at"] if records else 0.0
    told: dict[str, dict[str, Any]] = {}  # incident -> its diagnosis so far
    # An agent's records are copied later than they were written.
    for record in sorted(records, key=_written_s):
        place = f"{record['attempt']}" + (f".{record['start']}" if record["kind"] in AGENT_KINDS else "")
        for line in _once_more(record, told) or _record_lines(record, damaged=damaged):
            yield f"{_written_s(record) - start:9.1f} s  attempt {place}  {line}"


def _once_more(record: dict[str, Any], told: dict[str, dict[str, Any]]) -> list[str]:
    """The lines for a diagnosis that the agent inside the job had printed already; [] for any other record."""
    if record["kind"] not in ("diagnosed", "start.diagnosed"):
        return []
    known, found = told.get(record["data"].get("incident", "")), record["data"].get("diagnosis")
    told[record["data"].get("incident", "")] = found
    if not known or not found or any(known.get(key) != found.get(key) for key in _SAME):
        return []
    also = [one for one in found.get("rests_on", ()) if one not in known.get("rests_on", ())]
    return ["diagnosed: the same as inside the job", *(f"    rests also on: {one}" for one in also)]


_SAME = ("class", "title", "nodes", "because", "advice")


def _written_s(record: Mapping[str, Any]) -> float:
    """When a record was written, by the clock of its writer (Unix time)."""
    at_s = record["data"].get("at_s") if record["kind"] in AGENT_KINDS else None
    return float(at_s if isinstance(at_s, (int, float)) else record["at"])


def _explain_damaged(run_dir: str, why: str, *, json: bool) -> int:
    """What a damaged journal still says, and the one way to go on: a new run, once no job of this one lives.

    Nothing repairs a journal: the record that is lost may be the one that says which job runs.
    """
    records, damage = journal.read_readable(run_dir)
    damage = damage or [why]
    jobs = sorted(
        {
            *store_run_dir.indexed_jobs(common.home(), run_dir),
            *(str(r["job"]) for r in records if r.get("job")),
        }
    )
    steps = [
        f"scancel {' '.join(jobs)}" if jobs else "scancel the job of this run, if squeue shows one",
        _submission_line(run_dir),
        f"rm -r {shlex.quote(run_dir)}",
    ]
    if json:
        common.print_json(
            {"run": os.path.basename(run_dir), "records": records, "damage": damage, "go_on": steps}
        )
        return 1
    _print_records(records, damaged=True)
    print(
        f"\nThe journal of {os.path.basename(run_dir)} is damaged, so ftrun leaves the run and its job alone:"
    )
    for line in damage:
        print(f"    {line}")
    print(f"Readable are {len(records)} records, printed above. To go on:")
    print(f"    {steps[0]}    # its jobs, so that no two write into one folder of checkpoints")
    print(f"    {steps[1]}    # a new run; it resumes from the newest complete checkpoint")
    print(f"    {steps[2]}    # when nobody needs this journal any more")
    return 1


def _submission_line(run_dir: str) -> str:
    """The `ftrun sbatch` of this run, with the settings that stood on its command line."""
    try:
        kept = submission_context.load(run_dir)
        typed = [key for key, layer in kept["settings_from"].items() if layer == sources.COMMAND_LINE]
        own = [f"--ft-{key}={settings.format_value(key, kept['settings'][key])}" for key in typed]
        return f"cd {shlex.quote(kept['cwd'])} && {shlex.join(['ftrun', 'sbatch', *own, *kept['argv']])}"
    except (submission_context.ContextError, KeyError, TypeError, AttributeError):
        return f"ftrun sbatch SCRIPT    # a copy of the script: {run_dir}/submit/script"


def _record_lines(record: dict[str, Any], *, damaged: bool = False) -> list[str]:
    """The lines for a record. An agent of another release may have left fields out, and so may the damage of a
    journal: then only the kind is printed.
    """
    try:
        return list(_lines(record))
    except (LookupError, TypeError, ValueError):
        if record["kind"] not in AGENT_KINDS and not damaged:
            raise
        return [str(record["kind"])]


def _lines(record: dict[str, Any]) -> Iterator[str]:
    kind, data = record["kind"], record["data"]
    if kind in ("diagnosed", "start.diagnosed"):
        yield from _diagnosis_lines(data["diagnosis"])
    elif kind == "decided":
        yield f"decided: {data['kind']}: {data['reason']}"
        yield from (f"    considered: {note}" for note in data.get("notes", ()))
        yield from _spent(data)
    elif kind == "start.decided":
        nodes = f" on {nodeset.fold(data['nodes'])}" if data["rung"] != "rank" else ""
        yield f"decided inside the allocation: {data['rung']}{nodes}: {data['reason']}"
        yield from _path(data)
        yield from _spent(data)
    elif kind == "start.left":
        yield f"not inside the allocation: {data['reason']}"
        yield from _path(data, said=data["reason"])
    elif kind in _LINE_OF_KIND:
        line = _LINE_OF_KIND[kind](data | {"job": record["job"]})  # type: ignore[no-untyped-call]
        if line:
            yield line
    elif kind in view_run.COMPANION_LINES:
        yield view_run.COMPANION_LINES[kind](data)


def _path(data: dict[str, Any], said: str = "") -> Iterator[str]:
    """One line for each rung that was considered: why it was or was not taken. What was `said` already is left out."""
    yield from (f"    {rung}: {why}" for rung, why in data.get("path", ()) if why not in said)


def _spent(data: dict[str, Any]) -> Iterator[str]:
    spent = ", ".join(f"{k} {v}" for k, v in data["spent"].items()) or "none"
    tried = ", ".join(f"{k} {counted(v, 'time')}" for k, v in data.get("used", {}).items() if ":" not in k)
    yield f"    budgets used since the last progress: {spent}" + (f"; tried: {tried}" if tried else "")
    yield f"    retries since the last net progress: {data['retries']}"


def _diagnosis_lines(diagnosis: dict[str, Any]) -> Iterator[str]:
    blamed = f"; blamed: {', '.join(diagnosis['nodes'])}" if diagnosis["nodes"] else ""
    yield f"diagnosed: {diagnosis['class']}: {diagnosis['title']} (confidence {diagnosis['confidence']:.2f}){blamed}"
    yield from (f"    proof: {p['file']}:{p['line']}: {p['text']}" for p in diagnosis["because"])
    if diagnosis.get("rests_on"):
        yield f"    rests on: {'; '.join(diagnosis['rests_on'])}"
    if diagnosis["consequences"] and not any("consequence" in one for one in diagnosis.get("rests_on", ())):
        yield f"    set aside as consequences: {counted(diagnosis['consequences'], 'line')}"
    if diagnosis["advice"]:
        yield f"    advice: {diagnosis['advice']}"


def logs(
    name: Name,
    follow: Annotated[
        bool, option("-f --follow", "Follow the output across attempts until the run is over.")
    ] = False,
) -> int:
    """Print the output of a run, with a line between its starts, and the logs of its steps."""
    run_dir, run = common.find_run(name)
    done: dict[_Start, dict[str, int]] = {}
    printed = _print_new(run_dir, run, done) or _print_tasks(run_dir, run)
    if not follow:
        if not printed:
            raise UserError(
                f"{run.id}: no log can be read yet (its job has not started, or the file is elsewhere)", 1
            )
        return 0
    while True:
        was_final = run.final
        _print_new(run_dir, run, done)
        if was_final:
            return 0
        time.sleep(FOLLOW_EVERY_S)
        run = common.load_run(run_dir)


_Start = tuple[int, int, int]  # attempt, launch, start


def _print_new(run_dir: str, run: Run, done: dict[_Start, dict[str, int]]) -> bool:
    """Print what is new in the logs of each start; `done`: the offsets reached. False: none was readable."""
    starts = [
        (a.number, launch, start)
        for a in run.attempts
        for launch in store_attempt_dir.launch_numbers(run_dir, a.number)
        for start in store_attempt_dir.start_numbers(run_dir, a.number, launch)
    ]
    for number, key in enumerate(starts):
        if starts[number + 1 : number + 2] and starts[number + 1] in done:
            continue  # printed to its end
        logs = [log for log in log_watcher.start_logs(run_dir, *key) if os.path.isfile(log.path)]
        record = store_attempt_dir.start_record(run_dir, *key) or store_attempt_dir.launch_record(
            run_dir, *key[:2]
        )
        if not logs or record is None:
            continue
        if key not in done:
            done[key] = {}
            before = [one for one in run.incidents if (one.attempt, one.launch, one.start) < key]
            why = cause_line(before[-1].diagnosis) if before else ""
            _rule(f"{run.id} {view_run.start_text(key, record)}" + (f", after {why}" if why else ""))
        _print_logs(logs, done[key])
    return bool(done)


def _print_logs(logs: Sequence[LogPath], reached: dict[str, int]) -> None:
    """Print what is new in the logs of one start: the job's own whole, of the others the end."""
    for number, log in enumerate(logs[:FILES_SHOWN]):
        size = os.path.getsize(log.path)
        if log.path not in reached:
            begin = log.start_offset_bytes if log.start_offset_bytes <= size else 0
            reached[log.path] = begin if number == 0 else max(begin, size - TAIL_BYTES)
        end = size if log.end_offset_bytes is None else min(size, log.end_offset_bytes)
        if number and reached[log.path] < end:
            whose = [f"rank {log.rank}"] if log.rank is not None else []
            whose += [f"on {log.node}"] if log.node else []
            _rule(log.path + (f" ({' '.join(whose)})" if whose else ""))
        reached[log.path] = _copy(log.path, reached[log.path], end)
    if len(logs) > FILES_SHOWN and "" not in reached:
        reached[""] = 0
        _rule(f"and {counted(len(logs) - FILES_SHOWN, 'file')} more, as {logs[-1].path}")


def _rule(text: str) -> None:
    print(f"----- {text} -----", flush=True)


def _print_tasks(run_dir: str, run: Run) -> bool:
    """The end of an array's logs: of each attempt the failed tasks', else its first tasks'."""
    readable = False
    for attempt in run.attempts:
        started = store_attempt_dir.tasks_started(run_dir, attempt.number)
        shown = [task for task in attempt.failed_tasks if task in started] or started
        for task, record in store_attempt_dir.task_records(
            run_dir, attempt.number, shown[:TASKS_SHOWN]
        ).items():
            if not os.path.isfile(record.stdout):
                continue
            readable = True
            where = nodeset.fold(record.nodes)
            _rule(f"{run.id} attempt {attempt.number} task {task}: job {record.job} on {where}")
            size = os.path.getsize(record.stdout)
            _copy(record.stdout, max(record.stdout_offset_bytes, size - TAIL_BYTES), size)
        if len(shown) > TASKS_SHOWN:
            _rule(f"and {counted(len(shown) - TASKS_SHOWN, 'task')} more")
    return readable


def _copy(path: str, start: int, end: int) -> int:
    """Print these bytes of a file; the offset reached."""
    with open(path, "rb") as stream:
        stream.seek(start)
        while start < end and (data := stream.read(min(_CHUNK_BYTES, end - start))):
            sys.stdout.buffer.write(data)
            start += len(data)
    sys.stdout.flush()
    return start


def show_what_if(what: str, run: str, own: Sequence[str], *, json: bool) -> int:
    """Print the recovery path of a class or signature, by the settings of a run or those in force here and
    `own` (KEY=VALUE).

    Raises UserError for what is no class, signature, run or setting.
    """
    fault, signature, retry, action = _parse_what_if(what)
    values = (
        _settings_of_run(run, own)
        if run
        else sources.load(os.getcwd(), dict(os.environ), own=common.parse_ft(own)).values
    )
    try:
        rung_rules_from(values, signatures=in_allocation.known_signatures)
        rows = what_if(values, fault, signature, retry=retry, action=action)
    except errors.SettingError as error:
        raise UserError(str(error)) from None
    if json:
        path = [{"rung": rung, "when": when} for rung, when in rows]
        common.print_json({"class": fault.value, "signature": signature, "run": run, "path": path})
        return 0
    if signature:
        print(f"{signature}: class {fault.value}")
    common.print_table(("rung", "when"), rows)
    return 0


def _parse_what_if(what: str) -> tuple[FaultClass, str, bool | None, Action | None]:
    """(class, signature or "", whether the signature permits a retry, the action it recommends)."""
    classes = [fault.value for fault in FaultClass if fault is not FaultClass.HEALTHY]
    if what in classes:
        return FaultClass(what), "", None, None
    known = in_allocation.known_signatures()
    found = known.get(what)
    if found is not None:
        return found.fault, what, found.retry, found.action
    near = errors.nearest_word(what, classes) or errors.nearest_word(what, known)
    hint = f"did you mean {near}?" if near else "`ftrun catalog list` names the signatures"
    raise UserError(f"--what-if: {what!r} is neither a fault class nor a known signature; {hint}")


def _settings_of_run(name: str, own: Sequence[str]) -> Mapping[str, Any]:
    if own:
        raise UserError("--ft: a run has its own settings; give a run or --ft, not both")
    _, run = common.find_run(name)
    return {**settings.defaults(), **run.settings}
