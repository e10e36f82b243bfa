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
    afterwards,
    agent_events,
    arrays,
    attempts,
    beside,
    divergence,
    divergences,
    ends,
    finish,
    grounds,
    halting,
    held,
    hung,
    inside,
    last_line,
    loading,
    nodebook,
    nodelook,
    policy,
    preempted,
    sense,
    submit,
    usable,
)
from ftrun.supervisor.cluster_view import cluster_view, lost_by_then, newer_checkpoint, topology
from ftrun.supervisor.diagnose import Ended, diagnose
from ftrun.supervisor.end_reasons import WITHOUT_SCRIPT
from ftrun.supervisor.model import Action, Diagnosis, FaultClass, Source
from ftrun.supervisor.timers import Stopwatch

if TYPE_CHECKING:
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
    diagnosis = _refusal(ctx) if attempt.submission == "refused" else _diagnose(ctx, world, attempt, incident)
    diagnosis = beside.said(ctx.run, incident, diagnosis)
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
    )
    if attempt.submission == "done":
        case = arrays.judged(ctx, case, lost_by_then(ctx, world))
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


def _unseen_for_long(ctx: RunContext, world: ClusterSnapshot) -> bool:
    if ctx.observations.per_launch(_Clocks).requeued_unseen.held_s(world.mono_s) < absent.ABSENT_FOR_S:
        return False
    return all(row.state.ended for row in ctx.services.cluster.find(ctx.attempt.token))


def _running_again(ctx: RunContext, world: ClusterSnapshot) -> bool:
    """Slurm has started the job that it requeued."""
    row = ctx.row(world)
    return (
        ctx.attempt.launch.requeued and row is not None and row.state is JobState.RUNNING and ctx.started_again(row)
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
    if decision.kind in ("resubmit", "keep") and ctx.settings.get("observe"):
        ctx.record("observed", decision=data)
        if decision.kind == "resubmit":
            last_line.record_stopped(ctx, data | {"reason": f"observe: would resubmit: {decision.reason}"})
            return
    if decision.kind == "resubmit" and _unseen(ctx):
        reason = f"{decision.reason}; not resubmitted: {ctx.run_dir} was never seen from the nodes"
        finish.end_run(ctx, world, decision, data | {"kind": "stop", "reason": reason})
        return
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


def _diagnose(ctx: RunContext, world: ClusterSnapshot, attempt: Attempt, incident: str) -> Diagnosis:
    if (told := ends.told(attempt)) is not None:
        return told
    before = attempts.held_record(ctx.run_dir, attempt.number, attempt.launch.number, attempt.nodes)
    if before is not None and attempt.launch.end.state in ("FAILED", "GONE"):
        return held.diagnosis(before, attempts.held_path(ctx.run_dir, attempt.number, attempt.launch.number))
    if (refused := divergences.nothing_loaded(ctx, attempt)) is not None:
        return refused
    if attempt.launch.end.state == "COMPLETED" and (remaining := arrays.given_up(ctx.run)) is not None:
        return remaining
    down = lost_by_then(ctx, world)
    written = attempts.exit_record(ctx.run_dir, attempt.number, attempt.launch.number)
    ended = Ended(
        state=attempt.launch.end.state,
        reason=attempt.launch.end.reason,
        exit_code=attempt.launch.end.exit_code
        if attempt.launch.end.exit_code is not None
        else (written.code if written else None),
        exit_signal=attempt.launch.end.exit_signal
        if attempt.launch.end.exit_signal is not None
        else (written.signal if written else None),
        derived_exit_code=attempt.launch.end.derived_exit_code,
        by_us=attempt.ended_by_us,
        nodes_down=down,
        requeued=attempt.launch.requeued,
        unused=len(ctx.attempt.nodes) > len(attempt.nodes),
    )
    progress = ctx.observations.report.progress if ctx.observations.report is not None else None
    seats = topology(ctx)
    found = diagnose(
        (*ctx.observations.evidence, *afterwards.attached(ctx)),
        seats,
        ended=ended,
        catalog=ctx.services.catalog(),
        progress=progress,
        resumed=usable.resumed(ctx.settings, ctx.run, ctx.run_dir, attempt.launch.start.resume_from, incident),
    )
    requeues = submit.requeues(ctx.run_dir, otherwise=ctx.services.facts().requeue_default)
    found = ends.as_requeued(attempt, found, ctx.observations.evidence, requeues=requeues)
    found = ends.with_companions(attempt, found)
    found = halting.left_in_time(ctx, nodelook.judged(ctx, world, found, down))
    found = hung.judged(attempt, found)
    return afterwards.with_last_words(ctx, found, seats)


def _refusal(ctx: RunContext) -> Diagnosis:
    """sbatch refused this attempt: the cause is in its answer, unless what ftrun keeps out, or adds, may be why: then without it."""
    ours = ctx.attempt.excluded or inside.spares_of(ctx.settings, ctx.attempt)
    for_good = ctx.attempt.launch.end.state == "REFUSED" and not ours
    return Diagnosis(
        fault=FaultClass.SCHEDULER,
        retry=not for_good,
        action=Action.STOP if for_good else Action.WAIT,
        nodes=(),
        exclude=False,
        confidence=0.9,
        signature="slurm.refused-for-good" if for_good else "slurm.refused-for-now",
        title=f"sbatch refused: {ctx.attempt.refusal}",
        advice="Mend what sbatch complains about, then: ftrun resume " + ctx.run.id if for_good else "",
        sources=(Source.SLURM,),
    )


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
