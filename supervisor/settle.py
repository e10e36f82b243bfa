"""A launch is over: wait for late lines, find the cause, decide what comes next. (I/O)

Late lines of other ranks decide who was first, so nothing is judged before the log has been quiet for `settle`
seconds (at most `settle-max`). Then evidence becomes a diagnosis (`diagnose`) and the diagnosis a ruling (`policy`); both are
journalled before anything is done about them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ftrun.slurm.client.cluster import JobState
from ftrun.supervisor import (
    absent,
    agent_events,
    arrays,
    beside,
    diagnosis_inputs,
    divergence,
    divergences,
    ends,
    finish,
    grounds,
    loading,
    nodebook,
    nodelook,
    policy,
    preempted,
    sense,
)
from ftrun.supervisor.cluster_view import cluster_view, lost_by_then, newer_checkpoint, topology
from ftrun.supervisor.diagnosis_rules import diagnose
from ftrun.supervisor.end_reasons import WITHOUT_SCRIPT
from ftrun.supervisor.model import Diagnosis, FaultClass
from ftrun.supervisor.timers import Stopwatch

if TYPE_CHECKING:
    from ftrun.supervisor.diagnosis_facts import Facts
    from ftrun.supervisor.run_context import RunContext
    from ftrun.supervisor.run_types import Attempt
    from ftrun.supervisor.world import ClusterSnapshot

__all__ = ["settle"]


@dataclass
class _Clocks:
    """Of one launch."""

    requeued_unseen: Stopwatch = field(default_factory=Stopwatch)


def settle(ctx: RunContext, world: ClusterSnapshot) -> None:
    """One look at a launch that is over. Decides once the log is quiet."""
    beside.copy_journal(ctx)  # what an agent decided comes first
    attempt = ctx.attempt
    if attempt.submission != "refused" and not _quiet(ctx, world):
        return
    if attempt.launch.requeued and ctx.row(world) is None and not _unseen_for_long(ctx, world):
        return  # whether Slurm has started it again decides what may be done
    if not nodelook.visit_is_over(ctx, world):
        return
    attempt = ends.of_last_start(ctx.attempt)
    attempt = preempted.seen_through(ctx, ends.as_logged(attempt, ctx.observations.evidence))
    incident = ends.incident_id(attempt)
    facts = _facts(ctx, world, attempt, incident)
    diagnosis = diagnose(facts)
    _note_loading(ctx, diagnosis)
    found, loads = divergences.note(ctx, world), divergences.usable(ctx)
    checkpoint = newer_checkpoint(ctx, loads.path)
    case = grounds.Case(
        run=agent_events.uncounted(ctx.run, incident),
        attempt=attempt,
        diagnosis=diagnosis,
        cluster=cluster_view(ctx, world),
        limits=grounds.limits_from(ctx.settings),
        now_s=world.now_s,
        step=ctx.observations.step if found is None or found.step is None else found.step,
        checkpoint=checkpoint,
        diverged=divergence.words(found),
        older=loads.back,
        stuck=loads.stuck,
        own=loads.own,
        running_again=_running_again(ctx, world),
        common=nodebook.common_cause(ctx, diagnosis, world.now_s),
        unseen=ctx.run_dir if _unseen(ctx) else "",
    )
    if attempt.submission == "done":
        case = arrays.judged(ctx, case, facts)
        diagnosis = case.diagnosis
    if diagnosis.fault is not FaultClass.HEALTHY:
        told = [e.at_s for e in ctx.observations.evidence if e.signature == diagnosis.signature]
        told += nodelook.first_seen_s(ctx, diagnosis.signature)
        first = min((at for at in told if at is not None), default=None)
        ctx.record(
            "diagnosed",
            incident=incident,
            diagnosis=diagnosis.to_json(),
            step=case.step,
            first_evidence_at_s=first,
        )
    ruling = policy.decide(case)
    _carry(ctx, world, case, ruling, incident)


def _facts(ctx: RunContext, world: ClusterSnapshot, attempt: Attempt, incident: str) -> Facts:
    """All that is known of the end; of one whose cause stays unknown, with the last lines of its logs."""
    lost = lost_by_then(ctx, world) if attempt.submission == "done" else ()
    facts = diagnosis_inputs.of_end(ctx, world, attempt, incident, topology=topology(ctx), lost=lost)
    return diagnosis_inputs.with_last_words(ctx, facts, diagnose(facts))


def _unseen_for_long(ctx: RunContext, world: ClusterSnapshot) -> bool:
    if ctx.observations.per_launch(_Clocks).requeued_unseen.held_s(world.mono_s) < absent.ABSENT_FOR_S:
        return False
    return all(row.state.ended for row in ctx.services.cluster.find(ctx.attempt.token))


def _running_again(ctx: RunContext, world: ClusterSnapshot) -> bool:
    """Slurm has started the job that it requeued."""
    row = ctx.row(world)
    return (
        ctx.attempt.launch.requeued
        and row is not None
        and row.state is JobState.RUNNING
        and ctx.started_again(row)
    )


def _carry(
    ctx: RunContext, world: ClusterSnapshot, case: grounds.Case, ruling: grounds.Ruling, incident: str
) -> None:
    """Journal the ruling: the record itself moves the run to recovering, finished or stopped."""
    decision = ruling.decision
    wished = bool(ctx.run.wish) and decision.kind == "stop"
    data = decision.to_json() | {
        "incident": incident,
        "class": (FaultClass.CANCELLED if wished else case.diagnosis.fault).value,
        "signature": case.diagnosis.signature,
        "spent": dict(ruling.spent),
        "retries": ruling.retries,
        "step": case.step,
        "checkpoint": case.checkpoint,
        "used": {} if case.progressed else dict(case.run.rungs),
        "exclude_until_s": case.exclude_until_s,
    }
    if ruling.would is not None and case.limits.observe:
        data["kind"] = ruling.would.kind  # what a user's hook is told would be done
        ctx.record("observed", decision=data | ruling.would.to_json())
    if decision.kind in ("resubmit", "keep"):
        ctx.record("decided", **data)
        return
    finish.end_run(ctx, world, decision, data)


def _unseen(ctx: RunContext) -> bool:
    """The run began, ran for a good while and left no record (P10): exit and progress cannot be known."""
    attempt = ctx.attempt
    if attempt.number > 1 or attempt.launch.number:  # batch.sh starts no later one where it cannot claim it
        return False
    if (
        attempt.launch.claim_seen
        or attempt.launch.running_seen_at_s is None
        or attempt.launch.end.at_s is None
    ):
        return False
    if WITHOUT_SCRIPT in attempt.end_intended:  # its node was lost before it had written anything
        return False
    return attempt.launch.end.at_s - attempt.launch.running_seen_at_s > 60.0


def _quiet(ctx: RunContext, world: ClusterSnapshot) -> bool:
    sense.note_launch(ctx, world)
    seen, settings = ctx.observations, ctx.settings
    waited = seen.per_start(sense.EndedScript).log_quiet.held_s(world.mono_s)
    report = sense.watch(ctx, world, fresh=True)
    if waited >= float(settings.get("settle-max", 10.0)):
        return True
    quiet_since = seen.growth_seen_s if seen.growth_seen_s is not None else world.mono_s - waited
    quiet_for = min(waited, world.mono_s - quiet_since)
    if report is None:  # no log to wait for: only Slurm and the exit record speak
        quiet_for = waited
    return quiet_for >= float(settings.get("settle", 2.0))


def _note_loading(ctx: RunContext, diagnosis: Diagnosis) -> None:
    """Set the checkpoint aside that could not be loaded, be it that something else ended the launch or is blamed first; take back those that are not to blame."""
    told = ctx.observations.step is None and loading.cannot_load(
        ctx.observations.evidence, ctx.services.catalog(), ctx.attempt.launch.start.resume_from
    )
    is_program = diagnosis.loading is not None and diagnosis.loading.verdict == loading.PROGRAM
    if loading.is_aside(diagnosis) or (told and not is_program):
        finish.set_aside(ctx)
    back = diagnosis.loading.back if diagnosis.loading is not None else ()
    known = {path for path, _ in ctx.run.set_aside}
    if any(path in known for path in back):
        ctx.record("checkpoint.taken-back", paths=[path for path in back if path in known])
