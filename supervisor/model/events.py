"""Fold the records of a journal into a `Run`. (pure)

`fold(records)` is the only way from a journal to a `Run`; `apply(run, record)` returns the next one. All
that the supervisor has to remember beyond one round is in the run, so a new supervisor goes on from the
same value. `agent_events` folds what the agent inside a live allocation wrote.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ftrun.slurm.records import replace
from ftrun.supervisor.model import agent_events
from ftrun.supervisor.model.errors import UnreadableRun
from ftrun.supervisor.model.renamed_settings import rename_settings
from ftrun.supervisor.model.run import (
    Attempt,
    Budgets,
    GivenUpTasks,
    Incident,
    Launch,
    LaunchEnd,
    Record,
    Run,
    progress_after,
)
from ftrun.supervisor.model.states import AGENT_KINDS, SaveStage, next_state


class BadRecord(UnreadableRun):
    """A journal record without a field that its kind needs: no ftrun wrote it."""


def apply(run: Run, record: Record) -> Run:
    """Return the run after one record. Raises IllegalEvent for a record that cannot follow."""
    kind = str(record["kind"])
    state = next_state(run.state, kind)
    run = replace(run, state=state, last_at_s=float(record["at"]))
    if kind in AGENT_KINDS:
        return agent_events.apply_agent_record(run, record)
    feature = _APPLY.get(kind)
    return feature(run, record) if feature else run


def fold(run_id: str, records: Iterable[Record], onto: Run | None = None) -> Run:
    """The run that these records make; `onto`: what the records before them made. Raises IllegalEvent, BadRecord."""
    run = Run(run_id) if onto is None else onto
    for record in records:
        try:
            run = apply(run, record)
        except UnreadableRun:
            raise
        except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError, AssertionError) as error:
            kind = record.get("kind", "a record without a kind")
            raise BadRecord(
                f"{kind!r:.80} makes no sense in the journal: {type(error).__name__}: {error!s:.300}"
            ) from error
    return run


# ---------------------------------------------------------------------- submissions and launches


def _created(run: Run, record: Record) -> Run:
    data = record["data"]
    return replace(
        run,
        name=data.get("name", ""),
        token=data.get("token", ""),
        settings=rename_settings(data.get("settings", {})),
        submitter=data.get("submitter", {}),
        created_at_s=record["at"],
    )


def _opened(run: Run, record: Record) -> Run:
    data = record["data"]
    attempt = Attempt(
        record["attempt"],
        record["at"],
        excluded=tuple(data.get("excluded", ())),
        tasks=tuple(data.get("tasks", ())),
        spares_asked=data.get("spares"),
        size=int(data.get("size", 0)),
        launch=Launch(log_sizes=data.get("log_sizes", {})),
    )
    return replace(run, attempts=(*run.attempts, attempt), decision={}, final_reason="", final_class="")


def _submit_done(run: Run, record: Record) -> Run:
    data = record["data"]
    return run.with_attempt(
        submission="done",
        job=record["job"] or data.get("job", ""),
        cluster=data.get("cluster", ""),
        submitted_at_s=record["at"] if data.get("seen", True) else None,
    )


def _submit_refused(run: Run, record: Record) -> Run:
    data = record["data"]
    end_state = "REFUSED" if data.get("for_good") else "REFUSED_FOR_NOW"
    return run.with_attempt(
        submission="refused",
        refusal=data["message"],
        launch=Launch(end=LaunchEnd(end_state, at_s=record["at"]), over=True),
    )


def _submit_lost(run: Run, record: Record) -> Run:
    run = run.with_launch(over=True).with_attempt(submission="lost")
    return replace(run, decision=record["data"].get("decision", {}))


def _started(run: Run, record: Record) -> Run:
    data = record["data"]
    before = run.attempt
    run = _at_launch(run, record["launch"])
    # Intents to end were about the launch before. A cancel that was sent may have met one that is over by now.
    met = data.get("over") and before is not None and (before.end_done or before.cancel_intended)
    if before is not None and (before.launch.end.state or data.get("stays")) and not met:
        run = run.with_attempt(end_intended="", end_done=False, cancel_intended=False, cancel_offsets={})
    resizing = run.attempt.resizing if run.attempt is not None else 0
    if resizing:  # it started while it was being made smaller: its nodes tell whether that came first
        done = len(data["nodes"]) == resizing
        run = run.with_attempt(resizing=0, **({"size": resizing, "resized": True} if done else {}))
    started = data.get("started_at_s")
    starts = {} if started is None else {record["launch"]: started}
    attempt = run.attempts[-1]
    run = run.with_attempt(
        starts=starts | dict(attempt.starts),
        nodes=tuple(data["nodes"]),
        partition=data.get("partition", "") or attempt.partition,
        known_as=tuple(data.get("known_as", ())) or attempt.known_as,
        submitted_s=data.get("submitted_s") or attempt.submitted_s,
        moved=False,
        waited_s=0.0,
        sized_at_s=0.0,
    ).with_launch(
        started_at_s=started,
        limit_s=data.get("limit_s"),
        running_seen_at_s=record["at"],
        requeued=False,
        over=False,
        end=replace(attempt.launch.end, state="", at_s=None),
    )
    last = run.incidents[-1] if run.incidents else None
    if last is not None and last.running_again_at_s is None and last.awaits_launch:
        incident = last.with_phase("running_again_at_s", record["at"])
        run = replace(run, incidents=(*run.incidents[:-1], incident))
    return run


def _at_launch(run: Run, number: int) -> Run:
    """Move the present attempt to this launch; what an earlier one recorded does not count for it."""
    if run.attempt is None:
        return run
    launch = run.attempt.launch
    same = number == launch.number and not launch.requeued
    return run if same else run.with_attempt(launch=launch.next(number))


def _kept(run: Run, record: Record) -> Run:
    """The requeued job may start again by itself."""
    launch = run.attempts[-1].launch.next(record["launch"])
    return run.with_attempt(launch=replace(launch, end=replace(launch.end, state="")))


def _adopted(run: Run, record: Record) -> Run:
    """Another job is the attempt's; what Slurm said of the times of the one before it does not count for it."""
    run = run.with_attempt(job=record["job"], starts={}, submitted_s=None)
    return run if record["launch"] == run.attempts[-1].launch.number else _at_launch(run, record["launch"])


def _launch_seen(run: Run, record: Record) -> Run:
    data = record["data"]
    run = run.with_launch(number=record["launch"], claim_seen=True)
    if data.get("nodes"):
        run = run.with_attempt(nodes=tuple(data["nodes"]))
    if "resume_from" in data:
        run = run.with_start(resume_from=data["resume_from"], passed_over=data.get("passed", ""))
    if "active" in data:  # a later start inside the same launch
        run = run.with_launch(start_seen=record["start"], log_sizes=data.get("sizes", {}))
        run = run.with_start(number=record["start"], nodes=tuple(data["active"]))
    return run


def _ended(run: Run, record: Record) -> Run:
    data = record["data"]
    end = LaunchEnd(
        data["state"],
        data.get("reason", ""),
        data.get("exit_code"),
        data.get("exit_signal"),
        data.get("derived_exit_code", 0),
        at_s=record["at"],
        slurm_at_s=data.get("slurm_end_s"),
        slurm_started_at_s=data.get("slurm_start_s"),
        preempted=bool(data.get("preempted")),
    )
    run = _at_launch(run, record["launch"]).with_launch(
        end=end, requeued=record["kind"] == "job.requeued", over=False
    )
    known, told = set(run.attempts[-1].nodes), data.get("nodes")
    if told and not set(told) < known:  # Slurm takes lost nodes out of a job that goes on
        run = run.with_attempt(nodes=tuple(told))
    return run.with_attempt(partition=data["partition"]) if data.get("partition") else run


def _moved(run: Run, record: Record) -> Run:
    first = run.attempt is not None and not run.attempt.nodes
    return replace(run.with_attempt(moved=first), decision=record["data"]["decision"])


def _resized(run: Run, record: Record) -> Run:
    data = record["data"]
    waited_s = float(data["waited_s"])
    return run.with_attempt(
        size=int(data["size"]), resizing=0, resized=True, waited_s=waited_s, sized_at_s=waited_s
    )


def _cancel_intended(run: Run, record: Record) -> Run:
    data = record["data"]
    if not data.get("own"):
        return run
    logs = data.get("logs", run.attempts[-1].cancel_offsets)
    return run.with_attempt(cancel_intended=True, cancel_offsets=logs)


def _progress(run: Run, record: Record) -> Run:
    data = record["data"]
    run = run.with_attempt(**_progressed(record))
    last = run.incidents[-1] if run.incidents else None
    if data.get("first_step") and last is not None and last.first_step_at_s is None and last.awaits_launch:
        incident = replace(last.with_phase("first_step_at_s", record["at"]), first_step=data.get("step"))
        run = replace(run, incidents=(*run.incidents[:-1], incident))
    return run


def _dependents_moved(run: Run, record: Record) -> Run:
    attempts = tuple(replace(attempt, dependents_held={}) for attempt in run.attempts)
    return replace(run, attempts=attempts).with_attempt(dependents_moved=bool(record["data"]["to"]))


def _progressed(record: Mapping[str, Any]) -> dict[str, Any]:
    data = record["data"]
    return {
        "last_step": data.get("step"),
        "total_steps": data.get("total"),
        "step_s": data.get("step_s"),
        "stepped_at_s": record["at"],
    }


def _hooked(hooks: Mapping[str, str], data: Mapping[str, Any]) -> Mapping[str, str]:
    """Return the user's commands after a record of one: "" while it runs, then how it ended."""
    return {**hooks, data["key"]: data.get("why", "")}


def _asked(
    before: Mapping[str, Mapping[str, Any]], record: Mapping[str, Any]
) -> Mapping[str, Mapping[str, Any]]:
    """Return the requests to `ftrun site` after one more record: id -> node ("" for a request about `job`),
    incident, step (intended, left, failed, answered), verdict, why.
    """
    data = record["data"]
    first = {"node": data["node"], "incident": "", "at_s": record["at"], "verdict": "", "why": ""}
    known = before.get(data["id"], first if data["node"] else {**first, "job": record["job"]})
    return {**before, data["id"]: {**known, **data}}


# ---------------------------------------------------------------------- what a person wants


def _tasks_failed(run: Run, record: Record) -> Run:
    data, attempt = record["data"], run.attempts[-1]
    states = {int(task): state for task, state in data.get("states", {}).items()}
    return run.with_attempt(
        failed_tasks=tuple(sorted({*attempt.failed_tasks, *data["tasks"]})),
        task_states={**attempt.task_states, **states},
    )


def _task_ending(run: Run, record: Record) -> Run:
    """ftrun is about to end a task that hangs: that scancel is no person's."""
    task, last = int(record["data"]["task"]), run.attempts[-1]
    return run.with_attempt(
        ended_tasks=tuple(sorted({*last.ended_tasks, task})),
        cancel_offsets={**last.cancel_offsets, **record["data"].get("logs", {})},
    )


def _tasks_given_up(run: Run, record: Record) -> Run:
    """Tasks of an array are not tried again, unless a person resumes the run."""
    data = record["data"]
    lot = GivenUpTasks(tuple(data["tasks"]), data["class"], data["signature"], data["title"])
    return replace(run, given_up=(*run.given_up, lot))


def _resumed(run: Run, record: Record) -> Run:
    """A person resumed: budgets are fresh, given-up tasks are tried again; budgets stay after a pause."""
    decision = record["data"]["decision"]
    run = replace(run, wish="", wish_by="", halt={}, leaving={}, decision=decision, final_reason="")
    if decision.get("paused"):
        return run
    if run.given_up and run.attempts:
        again = {task for lot in run.given_up for task in lot.tasks}
        run = run.with_attempt(failed_tasks=tuple(sorted({*run.attempts[-1].failed_tasks, *again})))
    return replace(run, given_up=(), spent={}, rungs={}, retries=0, resumed_at_s=float(record["at"]))


def _given_up(run: Run, record: Record) -> Run:
    """A person does not want a paused run to come back: treat it as if they had asked for the end at once."""
    data = record["data"]
    return replace(
        run, wish=data["want"], wish_by=data["by"], halt={}, leaving={}, final_reason=data["reason"]
    )


def _request(run: Run, record: Record) -> Run:
    """Apply a user request; one that ends the run stands until it is taken back.

    A request that points at `halt.json` is none by itself: that file holds conditions.
    """
    data = record["data"]
    seen = (*run.requests_seen, data["name"])
    wants = data["want"] in ("cancel", "stop") and run.wish != "cancel"  # who cancels does not take less
    if wants and not run.final and not data.get("halt"):
        return replace(run, requests_seen=seen, wish=data["want"], wish_by=data.get("by", ""))
    return replace(run, requests_seen=seen)


def _halt_set(run: Run, record: Record) -> Run:
    """Replace the stop conditions; a condition that came true and is taken back no longer counts."""
    kept = run.wish == "cancel"
    wish, by = (run.wish, run.wish_by) if kept else ("", "")
    return replace(run, halt=record["data"]["halt"], wish=wish, wish_by=by)


def _halt_due(run: Run, record: Record) -> Run:
    data = record["data"]
    if run.wish == "cancel" or run.final:
        return run
    return replace(run, wish=data["want"], wish_by=data.get("by", ""))


def _leaving(stage: SaveStage) -> Callable[[Run, Record], Run]:
    """Return a handler that moves the request for a checkpoint to this stage."""

    def apply(run: Run, record: Record) -> Run:
        data = record["data"]
        place = {"attempt": record["attempt"], "launch": record["launch"], "stage": stage}
        if stage == "intended":
            return replace(run, leaving={**data, **place, "asked_at_s": record["at"]})
        return replace(run, leaving={**run.leaving, **data, **place})

    return apply


# ---------------------------------------------------------------------- what was found and decided


def _diagnosed(run: Run, record: Record) -> Run:
    """Add the incident of a judged launch; one that is judged anew keeps what it cost before."""
    data = record["data"]
    attempt = run.attempt
    assert attempt is not None
    known = next((i for i in run.incidents if i.id == data["incident"]), None)
    incident = Incident.of(
        record,
        attempt_nodes=attempt.used,
        ended_at_s=attempt.launch.end.at_s,
        diagnosed_at_s=record["at"],
        start=attempt.launch.start.number,
        path=known.path if known is not None else (),
        before=known.before if known is not None else None,
    )
    earlier = tuple(i for i in run.incidents if i.id != incident.id)
    return replace(run, incidents=(*earlier, incident))


def _decided(run: Run, record: Record) -> Run:
    """Apply a decision: what is done, and the budgets and exclusions from now on."""
    data = record["data"]
    spent = dict(data["spent"])  # the budgets after this decision, written out: the fold needs no policy
    # A job that is kept may be lost before its next launch: that is decided anew, and counts once.
    before = run.budgets if data.get("kind") == "keep" else None
    run = replace(
        run,
        decision=data,
        spent=spent,
        retries=data["retries"],
        progress_at_s=data.get("progress_at_s", run.progress_at_s),
        rungs=data.get("used", run.rungs),
        **progress_after(run.best_step, run.best_checkpoint, data),
        excluded=run.excluded_after(record),
        sizes_aside=(*run.sizes_aside, data["aside"]) if data.get("aside") else run.sizes_aside,
        more={**run.more, **data.get("more", {})},
    )
    if run.attempts:
        run = run.with_attempt(judged=record["launch"])
    return _incident_decided(_at_step(run, data), record, before)


def _at_step(run: Run, data: Mapping[str, Any]) -> Run:
    return run if data.get("step") is None or not run.attempts else run.with_attempt(last_step=data["step"])


def _incident_decided(run: Run, record: Record, before: Budgets | None = None) -> Run:
    data = record["data"]
    if not run.incidents or run.incidents[-1].id != data.get("incident"):
        return run
    last = run.incidents[-1]
    incident = replace(last, decision=data, decided_at_s=record["at"], before=last.before or before)
    return replace(run, incidents=(*run.incidents[:-1], incident))


def _final(run: Run, record: Record) -> Run:
    data = record["data"]
    run = replace(
        run,
        final_reason=data["reason"],
        final_class=data.get("class", ""),
        exit_code=data.get("exit_code"),
        decision={},
    )
    return _incident_decided(_at_step(run, data), record)


_OF_ATTEMPTS: Mapping[str, Callable[[Run, Record], Run]] = {
    "agent.absent": lambda run, record: run.with_launch(no_agent=record["data"]["why"]),
    "run.created": _created,
    "attempt.opened": _opened,
    "submit.intended": lambda run, record: run.with_attempt(
        submission="intended",
        token=record["data"].get("token", ""),
        intended_at_s=record["at"],
        adopted=bool(record["data"].get("adopts")),
    ),
    "submit.unknown": lambda run, record: run.with_attempt(submission="unknown"),
    "submit.done": _submit_done,
    "submit.refused": _submit_refused,
    "submit.lost": _submit_lost,
    "job.started": _started,
    "launch.seen": _launch_seen,
    "job.adopted": _adopted,
    "launch.kept": _kept,
    "job.ended": _ended,
    "job.requeued": _ended,
    "queue.moved": _moved,
    "queue.waited": lambda run, record: run.with_attempt(waited_s=float(record["data"]["waited_s"])),
    "resize.intended": lambda run, record: run.with_attempt(resizing=int(record["data"]["size"])),
    "resize.done": _resized,
    "resize.refused": lambda run, record: run.with_attempt(resizing=0, fixed=True),
    "exclude.done": lambda run, record: (
        run.with_attempt(excluded=tuple(record["data"]["left"])) if "left" in record["data"] else run
    ),
    "end.intended": lambda run, record: run.with_attempt(
        end_intended=record["data"]["reason"], end_done=False
    ),
    "cancel.intended": _cancel_intended,
    "end.done": lambda run, record: run.with_attempt(end_done=True),
    "dependents.moved": _dependents_moved,
    "tasks.failed": _tasks_failed,
    "tasks.end.intended": _task_ending,
    **dict.fromkeys(
        ("evidence", "line.ignored"),
        lambda run, record: replace(run, evidence_seen=run.evidence_seen | {record["data"]["key"]}),
    ),
    "launch.progress": _progress,
    "attempt.over": lambda run, record: run.with_launch(over=True),
    "attempt.closed": lambda run, record: run.with_attempt(closed=True),
}

_OF_PERSONS: Mapping[str, Callable[[Run, Record], Run]] = {
    "request.seen": _request,
    "halt.set": _halt_set,
    "halt.due": _halt_due,
    "leave.intended": _leaving("intended"),
    "leave.asked": _leaving("asked"),
    "leave.saved": _leaving("saved"),
    "leave.missed": _leaving("missed"),
    "leave.dropped": _leaving("dropped"),
    "run.resumed": _resumed,
    "run.given-up": _given_up,
    "hook.intended": lambda run, record: replace(run, hooks=_hooked(run.hooks, record["data"])),
    "hook.ended": lambda run, record: replace(run, hooks=_hooked(run.hooks, record["data"])),
    "warned": lambda run, record: replace(run, warnings=(*run.warnings, record["data"]["message"])),
}


def _opinion(run: Run, record: Record) -> Run:
    """A second opinion was asked for, or came: each incident has one question."""
    data = record["data"]
    over = record["kind"] == "opinion.answered"
    return replace(run, opinions={**run.opinions, data["incident"]: {**data, "over": over}})


_OF_DECISIONS: Mapping[str, Callable[[Run, Record], Run]] = {
    "tasks.given-up": _tasks_given_up,
    "opinion.asked": _opinion,
    "opinion.answered": _opinion,
    "diagnosed": _diagnosed,
    "decided": _decided,
    "drain.done": lambda run, record: replace(run, drained=(*run.drained, record["data"]["node"])),
    "drain.refused": lambda run, record: replace(
        run, undrained=(*run.undrained, (record["data"].get("incident", ""), record["data"]["node"]))
    ),
    "drain.asked": lambda run, record: replace(run, asked=_asked(run.asked, record)),
    "raise.asked": lambda run, record: replace(run, asked=_asked(run.asked, record)),
    "checkpoint.taken-back": lambda run, record: replace(
        run, set_aside=tuple(one for one in run.set_aside if one[0] not in record["data"]["paths"])
    ),
    "checkpoint.set-aside": lambda run, record: replace(
        run, set_aside=(*run.set_aside, (record["data"]["path"], record["data"].get("stamp", "")))
    ),
    "run.finished": _final,
    "run.stopped": _final,
    "run.abandoned": _final,
}

_APPLY: Mapping[str, Callable[[Run, Record], Run]] = {**_OF_ATTEMPTS, **_OF_PERSONS, **_OF_DECISIONS}
