"""Fold what the agent of a live allocation wrote into the run. (pure)

The supervisor copies the agent's records into the run's journal one by one, in order, each with its number.
A record that is known already changes nothing, so a record may be copied twice. The agent's decisions spend
the run's budgets as the supervisor's do. A copy that comes after the supervisor has judged the launch (a
file system that showed it late) does not overwrite budgets: it counts as one more retry, unless that
incident was counted before.

All times inside an allocation come from the clock of the agent's node, so the phases of an incident can be
compared.

Two processes write about a companion: the agent that asked for it, and, once the agent is gone or the
launch is over, the supervisor that cleans it up. A record of the agent may arrive late. So the state of a
companion only goes forward, and a late record adds what was unknown (its job, its nodes) and takes nothing
back.

A companion is identified by its launch and its number in it. Its job comment has a mark with the random
part of the run's token, because two homes of one user may each have a run of the same name. The mark is not
the token itself: a job that has the token and is no attempt is cancelled as a stray.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from ftrun.hooks.checkpoints.diverged import Divergence
from ftrun.slurm.records import replace
from ftrun.supervisor.model.run import (
    Attempt,
    Companion,
    HangDecision,
    Incident,
    Record,
    Run,
    Start,
    StartNote,
    max_step,
    progress_after,
)
from ftrun.supervisor.model.states import COMPANION_STATES, CompanionState, State
from ftrun.supervisor.model.types import hang_verdict_from_json

_NAME = re.compile(r"[0-9.]{1,64}")

GROW_RUNG = "grow"
"""The rung of a start that was ended for one with more nodes."""

COMPANION_JOB_KEY = "companion_job"


def apply_agent_record(run: Run, record: Record) -> Run:
    """Return the run after one record of a kind that agents write, copied or read from the agent's own
    journal. A supervisor writes some of these kinds, too.
    """
    seq = record["data"].get("agent_seq")
    if seq is not None:
        owner = _owner(run, record)
        if owner is None or seq < owner.copied.get(record["launch"], 0):
            return run
        copied = {**owner.copied, record["launch"]: seq + 1}
        run = _with_owner(run, record, copied=copied, launch=replace(owner.launch, no_agent=""))
    feature = _APPLY.get(str(record["kind"]))
    return feature(run, record) if feature else run


def without_last_decision(run: Run, incident_id: str) -> Run:
    """Return the run without the decision about this incident that the agent took, or that kept a job which is lost: the
    supervisor decides it anew, and it counts once.

    Only the very last decision can be taken back; later decisions rest on earlier ones.
    """
    last = run.incidents[-1] if run.incidents else None
    if last is None or last.id != incident_id or last.before is None:
        return run
    known = last.before
    return replace(
        run,
        spent=known.spent,
        retries=known.retries,
        progress_at_s=known.progress_at_s,
        best_step=known.best_step,
        best_checkpoint=known.best_checkpoint,
    )


# ---------------------------------------------------------------------- whose record it is


def _owner(run: Run, record: Record) -> Attempt | None:
    return next((one for one in run.attempts if one.number == record["attempt"]), None)


def _with_owner(run: Run, record: Record, **changes: Any) -> Run:
    attempts = (replace(one, **changes) if one.number == record["attempt"] else one for one in run.attempts)
    return replace(run, attempts=tuple(attempts))


def _of_present(run: Run, record: Record) -> bool:
    """Whether a record is about the present launch: nodes and starts of an earlier launch are over."""
    attempt = run.attempt
    return attempt is not None and (record["attempt"], record["launch"]) == (
        attempt.number,
        attempt.launch.number,
    )


def _at_s(record: Record) -> float:
    return float(record["data"].get("at_s", record["at"]))


# ---------------------------------------------------------------------- starts


def _opened(run: Run, record: Record) -> Run:
    if not _of_present(run, record):
        return run
    data = record["data"]
    run = run.with_start(nodes=tuple(data.get("active", ())))
    return run.with_launch(inside=True, ladder_off=data.get("off", ""))


def _off(run: Run, record: Record) -> Run:
    return run.with_launch(ladder_off=record["data"]["why"]) if _of_present(run, record) else run


def _begun(run: Run, record: Record) -> Run:
    data, owner = record["data"], _owner(run, record)
    if owner is None:
        return run
    nodes, resume_from = tuple(data.get("nodes", ())), data.get("resume_from", "")
    passed = data.get("passed", "")
    start = StartNote(
        record["launch"], record["start"], nodes, _at_s(record), resume_from, passed_over=passed
    )
    known = tuple(one for one in owner.begun if (one.launch, one.number) != (start.launch, start.number))
    run = _with_owner(run, record, begun=(*known, start))
    if _of_present(run, record):
        aside = tuple(n for n in owner.launch.aside if n not in nodes)  # it may be back by a companion
        run = run.with_launch(
            inside=True, aside=aside, start=Start(start.number, nodes, resume_from, passed_over=passed)
        )
    last = run.incidents[-1] if run.incidents else None
    follows = last is not None and (last.attempt, last.launch, last.start + 1) == (
        record["attempt"],
        start.launch,
        start.number,
    )
    return _with_phase(run, last.id, "running_again_at_s", start.begun_at_s) if last and follows else run


def _ending(run: Run, record: Record) -> Run:
    """The agent is about to end this start: it may die first, and the script may report success."""
    note = _note(run, record)
    if note is None or note.over_at_s is not None:
        return run
    return _noted(run, record, by_us=True, end_offsets=note.end_offsets or record["data"].get("logs", {}))


def _hung(run: Run, record: Record) -> Run:
    """Note why the present start is to be ended; the process that decided it may die before it acts."""
    if run.attempt is None or not _of_present(run, record):
        return run
    data = record["data"]
    task, verdict = data.get("task"), hang_verdict_from_json(data)
    if task is None:
        return run.with_attempt(hung=HangDecision(record["launch"], record["start"], verdict))
    found = HangDecision(int(data["task_launch"]), 1, verdict)
    return run.with_attempt(hung_tasks={**run.attempt.hung_tasks, int(task): found})


def _over(run: Run, record: Record) -> Run:
    data = record["data"]
    code, signal, by_us = data.get("code"), data.get("signal"), bool(data.get("by_us"))
    return _noted(run, record, over_at_s=_at_s(record), code=code, signal=signal, by_us=by_us)


def _note(run: Run, record: Record) -> StartNote | None:
    owner, place = _owner(run, record), (record["launch"], record["start"])
    begun = owner.begun if owner is not None else ()
    return next((one for one in begun if (one.launch, one.number) == place), None)


def _noted(run: Run, record: Record, **changes: Any) -> Run:
    owner, note = _owner(run, record), _note(run, record)
    if owner is None or note is None:
        return run
    begun = (replace(one, **changes) if one is note else one for one in owner.begun)
    return _with_owner(run, record, begun=tuple(begun))


# ---------------------------------------------------------------------- incidents


def _diagnosed(run: Run, record: Record) -> Run:
    data, owner = record["data"], _owner(run, record)
    if owner is None or any(one.id == data["incident"] for one in run.incidents):
        return run
    start = _note(run, record)
    incident = Incident.of(
        record,
        start=record["start"],
        attempt_nodes=start.nodes if start is not None and start.nodes else owner.used,
        ended_at_s=start.over_at_s if start is not None else None,
        diagnosed_at_s=_at_s(record),
    )
    # A copy may arrive late.
    ordered = sorted((*run.incidents, incident), key=lambda one: (one.attempt, one.launch, one.start))
    return replace(run, incidents=tuple(ordered))


def _decided(run: Run, record: Record) -> Run:
    data = record["data"]
    if data["rung"] == GROW_RUNG:  # nothing had failed
        return _growth(run, record)
    known = next((one for one in run.incidents if one.id == data["incident"]), None)
    late = _judged_by_us(run, record)
    if late and known is not None and known.decision:
        return run
    before = run.budgets
    spent, retries = dict(data["spent"]), data["retries"]
    late_or_unaware = late or _unaware(run, data, known)
    if given_back := _given_back(run):
        spent, retries = dict(run.spent), run.retries
    elif late_or_unaware:
        spent, retries = dict(run.spent), run.retries + 1
        if data.get("class") in data["spent"]:
            spent[data["class"]] = spent.get(data["class"], 0) + 1
    run = replace(
        run,
        spent=spent,
        retries=retries,
        progress_at_s=run.progress_at_s
        if late_or_unaware or given_back
        else data.get("progress_at_s", run.progress_at_s),
        rungs=run.rungs if late or given_back else dict(data.get("used", {})),
        **progress_after(run.best_step, run.best_checkpoint, data),
        excluded=run.excluded_after(record),
        set_aside=_set_aside(run, data),
        sizes_aside=tuple(dict.fromkeys((*run.sizes_aside, *data.get("sizes_aside", ())))),
    )
    if run.attempt is not None and _of_present(run, record):
        aside = (*run.attempt.launch.aside, *data.get("aside", ()))
        run = run.with_launch(aside=tuple(dict.fromkeys(aside)))
    decision = {**data, "kind": data["rung"]}
    run = _left(run, record)
    at_s = _at_s(record)
    if (
        known is not None and known.before is not None
    ):  # a companion did not come: decided once more, of one and the same fault
        before, at_s = known.before, known.decided_at_s or at_s
    return _changed(run, data["incident"], decision=decision, decided_at_s=at_s, before=before)


def _unaware(run: Run, data: Mapping[str, Any], known: Incident | None) -> bool:
    """Whether the agent decided before the supervisor judged an earlier launch: it knows of no progress, and the run has some.

    Its count of retries then lacks that judgement. A decision that is taken once more begins from the budgets before the first one.
    """
    again = known is not None and known.before is not None
    return not again and run.progress_at_s is not None and data.get("progress_at_s", 0.0) is None


def _given_back(run: Run) -> bool:
    """Whether a person resumed the run, and no start of it began since: the agent decided before, and that spends nothing any more."""
    return run.state is State.RECOVERING and bool(run.decision.get("resumed"))


def _growth(run: Run, record: Record) -> Run:
    """Apply what the agent says about growing: the run goes on, or has more nodes soon. It is no incident,
    spends nothing and blames no node. The progress of the start that is ended for it counts; otherwise a
    fault of the next start would count as one without progress.
    """
    data, owner = record["data"], _owner(run, record)
    if owner is None:
        return run
    failed = (*owner.growth_failed, _at_s(record)) if data.get("failed") else owner.growth_failed
    run = _with_owner(run, record, growth=str(data["reason"]), growth_failed=failed)
    if "rung" not in data or run.attempt is None or not _of_present(run, record):
        return run
    run = _noted(run, record, grown=True).with_launch(aside=tuple(data.get("aside", ())))
    if _judged_by_us(run, record):
        return run
    return replace(
        run,
        spent=dict(data.get("spent", run.spent)),
        retries=data.get("retries", run.retries),
        progress_at_s=data.get("progress_at_s", run.progress_at_s),
        rungs=dict(data.get("used", run.rungs)),
        best_step=max_step(run.best_step, data.get("step")),
        best_checkpoint=data.get("checkpoint") or run.best_checkpoint,
    )


def _poisoned(run: Run, record: Record) -> Run:
    """Note that the training of a start diverged; a second record of the same start adds nothing."""
    data = record["data"]
    name, step, since_s = data["name"], data["before_step"], data["since_s"]
    if not _NAME.fullmatch(name):  # it names a file
        raise ValueError(name)
    if any(one.name == name for one in run.poisoned):
        return run
    since_s = None if since_s is None else float(since_s)
    known = Divergence(name, None if step is None else int(step), since_s, float(data["until_s"]))
    return replace(run, poisoned=(*run.poisoned, known))


def _set_aside(run: Run, data: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Return (path, stamp) of the checkpoints that no start loads after this decision: the one that the
    failed start could not load is added, those not to blame are removed.
    """
    back = {str(path) for path in data.get("taken_back", ())}
    more = ((str(path), str(stamp)) for path, stamp in data.get("set_aside", ()))
    return tuple(one for one in dict.fromkeys((*run.set_aside, *more)) if one[0] not in back)


def _left(run: Run, record: Record) -> Run:
    """Note why each rung was not taken; the agent's last record counts."""
    path = tuple((str(rung), str(why)) for rung, why in record["data"].get("path", ()))
    return _changed(run, record["data"]["incident"], path=path) if path else run


def _judged_by_us(run: Run, record: Record) -> bool:
    """Whether the supervisor has decided about this launch, or a later one."""
    owner = _owner(run, record)
    return owner is None or owner is not run.attempt or owner.judged >= record["launch"]


def _changed(run: Run, incident_id: str, **changes: Any) -> Run:
    incidents = (replace(one, **changes) if one.id == incident_id else one for one in run.incidents)
    return replace(run, incidents=tuple(incidents))


def _with_phase(run: Run, incident_id: str, name: str, at_s: float) -> Run:
    incidents = (one.with_phase(name, at_s) if one.id == incident_id else one for one in run.incidents)
    return replace(run, incidents=tuple(incidents))


def _phase(name: str) -> Callable[[Run, Record], Run]:
    """Note the time of a phase of an incident; only its first record counts."""

    def apply(run: Run, record: Record) -> Run:
        wanted = record["data"].get("incident", "")
        if any(one.id == wanted and getattr(one, name) is None for one in run.incidents):
            return _with_phase(run, wanted, name, _at_s(record))
        return run

    return apply


def _first_step(run: Run, record: Record) -> Run:
    """Note when the next start made its first step, and which one that was."""
    wanted = record["data"].get("incident", "")
    known = next((one for one in run.incidents if one.id == wanted), None)
    if known is None or known.first_step_at_s is not None:
        return run
    run = _changed(run, wanted, first_step=record["data"].get("step"))
    return _with_phase(run, wanted, "first_step_at_s", _at_s(record))


def _stays(run: Run, record: Record) -> Run:
    """The agent was asked to leave nodes and cannot: nothing was saved, or no other nodes are free."""
    data = record["data"]
    if data.get("token") != run.leaving.get("token"):
        return run
    return replace(
        run, leaving={**run.leaving, "stage": "stays" if data["saved"] else "missed", "why": data["why"]}
    )


# ---------------------------------------------------------------------- companions


def companion_mark(run_token: str, attempt: int, launch: int, number: int) -> str:
    """The mark in a companion's comment, such as `train-0001:0badcafe:companion:1.0.1`."""
    return f"{run_token.removeprefix('ftrun:')}:companion:{attempt}.{launch}.{number}"


def _companion_intended(run: Run, record: Record) -> Run:
    data, owner = record["data"], _owner(run, record)
    if owner is None or _known(owner, record) is not None:
        return run
    asked = Companion(
        record["launch"],
        int(data["number"]),
        int(data["nodes"]),
        str(data["mark"]),
        _at_s(record),
        pool=str(data.get("pool", "")),
    )
    return _with_companions(run, owner, (*owner.companions, asked))


def _companion(state: CompanionState) -> Callable[[Run, Record], Run]:
    """Move the companion to this state. If it is further already, only add what was unknown of it."""

    def apply(run: Run, record: Record) -> Run:
        owner = _owner(run, record)
        known = _known(owner, record) if owner is not None else None
        return (
            run
            if owner is None or known is None
            else _with_companions(run, owner, _companion_moved(owner, known, state, record))
        )

    return apply


def _companion_moved(
    owner: Attempt, known: Companion, state: CompanionState, record: Record
) -> tuple[Companion, ...]:
    data = record["data"]
    further = COMPANION_STATES.index(state) > COMPANION_STATES.index(known.state)
    changed = replace(
        known,
        job=known.job or companion_job_of(data),
        nodes=known.nodes or tuple(str(node) for node in data.get("nodes", ())),
        state=state if further else known.state,
        reason=str(data.get("reason", "")) or known.reason if further else known.reason,
        here_at_s=_at_s(record) if state == "here" and known.here_at_s is None else known.here_at_s,
        gone_at_s=_at_s(record) if state == "gone" and known.gone_at_s is None else known.gone_at_s,
        end_state=str(data.get("state", "")) if state == "gone" else known.end_state,
        by_us=known.by_us or state in ("ending", "ended"),
        unanswered=known.unanswered or bool(data.get("unanswered")),
    )
    return tuple(changed if one is known else one for one in owner.companions)


def companion_job_of(data: Mapping[str, Any]) -> str:
    """Return the companion's own job id in a record's data: `job` as the agent writes it, `companion_job` in
    the run's journal, where `job` is the main job.
    """
    return str(data.get(COMPANION_JOB_KEY) or data.get("job") or "")


def _known(owner: Attempt, record: Record) -> Companion | None:
    place = (record["launch"], int(record["data"]["number"]))
    return next((one for one in owner.companions if (one.launch, one.number) == place), None)


def _with_companions(run: Run, owner: Attempt, companions: tuple[Companion, ...]) -> Run:
    changed = replace(owner, companions=companions)
    return replace(run, attempts=tuple(changed if one is owner else one for one in run.attempts))


_APPLY: Mapping[str, Callable[[Run, Record], Run]] = {
    "agent.opened": _opened,
    "ladder.off": _off,
    "slurm.unanswered": lambda run, record: replace(run, warnings=(*run.warnings, record["data"]["message"])),
    "start.begun": _begun,
    "start.over": _over,
    "hang.decided": _hung,
    "start.end.intended": _ending,
    "steps.cancel.intended": _ending,
    "script.end.intended": _ending,
    "checkpoint.poisoned": _poisoned,
    "start.diagnosed": _diagnosed,
    "start.decided": _decided,
    "start.left": _left,
    "start.stays": _stays,
    "grow.stays": _growth,
    "grow.begun": _growth,
    "grow.dropped": _growth,
    "dependents.held": lambda run, record: run.with_attempt(
        dependents_held=record["data"].get("waits", {}), dependents_since=record["data"].get("since", {})
    ),
    "start.stopped": _phase("stopped_at_s"),
    "start.placed": _phase("placed_at_s"),
    "rank.again": _phase("running_again_at_s"),
    "start.first-step": _first_step,
    "companion.intended": _companion_intended,
    "companion.submitted": _companion("submitted"),
    "companion.here": _companion("here"),
    "companion.failed": _companion("failed"),
    "companion.ended.intended": _companion("ending"),
    "companion.ended": _companion("ended"),
    "companion.gone": _companion("gone"),
}
