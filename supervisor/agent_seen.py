"""All that is known of a start at its end, gathered for the judges. (I/O)"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from ftrun.supervisor import (
    agent_case,
    checkpoints,
    context,
    divergence,
    grounds,
    ledger,
    loading,
    nodestory,
    poisoned,
    usable,
)
from ftrun.supervisor.agent_desk import Desk
from ftrun.supervisor.agent_eye import Eye, Suspicion
from ftrun.supervisor.agent_reach import Reach
from ftrun.supervisor.agent_talk import Over, Started
from ftrun.supervisor.model import Diagnosis
from ftrun.supervisor.nodefacts import NodeFacts
from ftrun.supervisor.run_types import Run

__all__ = ["begun", "failed_checkpoint", "incident_of", "note", "seen_of", "too_late"]

WORTH_S = 30.0
"""Less time than this is left to no start, nor less than the last one took to its first step."""


def begun(started: Started) -> dict[str, Any]:
    """What the journal says of a start that began."""
    launch = started.launch
    return {
        "nodes": list(started.nodes),
        "token": started.token,
        "resume_from": launch.resume_from,
        "passed": launch.passed,
        "pid": started.pid,
    }


def seen_of(
    desk: Desk,
    settings: Mapping[str, Any],
    run: Run,
    eye: Eye,
    *,
    over: Over,
    suspicion: Suspicion | None,
    reach: Reach,
) -> agent_case.Seen:
    """What `eye` saw, how the start ended, who answers, and whether there is a new checkpoint."""
    started = eye.started
    report, resumed = eye.memory.report, started.launch.resume_from
    spoilt = None
    found = (
        divergence.sign(report.evidence, report.health)
        if report is not None and settings.get("checkpoint")
        else None
    )
    if found is not None:
        name = incident_of(desk, started)
        now_s = desk.clock.now_s()
        spoilt = poisoned.poison_of(
            found, settings, desk.where.run_dir, name=name, resumed_from=resumed, now_s=now_s
        )
    loads = usable.find(
        settings,
        run,
        context.cwd(desk.where.run_dir),
        more=[spoilt] if spoilt is not None else [],
        run_dir=desk.where.run_dir,
    )
    newest = loads.path
    before = run.best_checkpoint or resumed
    since_s = started.launch.started_s or 0.0
    return agent_case.Seen(
        number=started.number,
        nodes=started.nodes,
        resume_from=started.launch.resume_from,
        code=over.code,
        signal=over.signal,
        now_s=desk.clock.now_s(),
        evidence=eye.evidence(over=True),
        topology=eye.topology(),
        progress=report.progress if report is not None else None,
        facts=_facts(desk, run, eye),
        silent=tuple(node for node in started.nodes if node in reach.silent),
        gone=tuple(node for node in started.nodes if node in reach.gone),
        suspicion=suspicion.diagnosis if suspicion is not None else None,
        rank_ended=suspicion is not None and suspicion.rank_ended,
        step=eye.memory.step if found is None or found.step is None else found.step,
        diverged=found,
        spoilt=spoilt,
        loads=loads,
        resumed=usable.resumed(settings, run, desk.where.run_dir, resumed, incident_of(desk, started)),
        checkpoint=newest if newest and checkpoints.newer(newest, before, since_s) else "",
    )


def _facts(desk: Desk, run: Run, eye: Eye) -> NodeFacts:
    """What the nodes say of themselves, less what was there before; the ledger is asked only where something is left."""
    facts, where, now_s = eye.facts().survived(eye.memory.survived), desk.where, desk.clock.now_s()
    if not facts.odd(now_s):
        return facts
    launch = nodestory.entry_prefix(run, where.attempt, where.launch)
    return facts.noted_before(ledger.read(where.home), run.id, launch, now_s)


def note(desk: Desk, eye: Eye, seen: agent_case.Seen, incident: str, diagnosis: Diagnosis) -> None:
    """Journal what was found of a start that is over, and, once, that its training had diverged. Raises OSError, BookClosed."""
    desk.book.record(
        "start.diagnosed",
        incident=incident,
        diagnosis=diagnosis.to_json(),
        step=seen.step,
        first_evidence_at_s=eye.first_evidence_s.get(diagnosis.signature),
    )
    spoilt, found = seen.spoilt, seen.diverged
    if spoilt is None or found is None:
        return
    if not any(one.name == spoilt.name for one in desk.book.run().poisoned):
        desk.book.record("checkpoint.poisoned", **divergence.facts(found, spoilt))
        usable.leave(desk.where.run_dir, [spoilt])


def failed_checkpoint(desk: Desk, eye: Eye, case: grounds.Case, *, older: bool) -> list[tuple[str, str]]:
    """The checkpoint that this start could not load, with its stamp; no later start loads it unless it is written anew."""
    path = eye.started.launch.resume_from
    path = os.path.normpath(os.path.join(context.cwd(desk.where.run_dir), path)) if path else ""
    if not path or path in checkpoints.still_aside(case.run.set_aside):
        return []
    found = case.diagnosis.loading
    told = eye.memory.step is None and loading.cannot_load(eye.evidence(), desk.catalog(), path)
    told = told and (found is None or found.verdict != loading.PROGRAM)
    return [(path, checkpoints.stamp(path))] if older or told or loading.is_aside(case.diagnosis) else []


def incident_of(desk: Desk, started: Started) -> str:
    """What the journal calls the end of a start."""
    return f"{desk.where.attempt}.{desk.where.launch}.{started.number}"


def too_late(desk: Desk, eye: Eye, reach: Reach) -> str:
    """Why another start in what is left of the job's time would not get far; "" where it would."""
    if reach.end_s is None:
        return ""
    left_s = reach.end_s - desk.clock.now_s()
    needed_s = max(WORTH_S, eye.to_first_step_s or 0.0)
    return f"only {left_s:.0f} s are left of the job's time" if left_s < needed_s else ""
