"""The facts of a run's launches, gathered in one place for the rules of the diagnosis. (I/O)

Everything that a rule may use is read here, once, and judged nowhere here. The last lines of the logs are
read only if the rules find no cause without them: that costs more than all the rest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ftrun.slurm.records import replace
from ftrun.supervisor.controller import checkpoint_request, node_evidence, observe
from ftrun.supervisor.diagnosis import resumable, suspicions, unknown_cause
from ftrun.supervisor.diagnosis.class_defaults import Ended
from ftrun.supervisor.diagnosis.facts import Facts, LostCompanion, SbatchRefusal
from ftrun.supervisor.model.types import UNKNOWN_TO_SLURM, FaultClass, Topology
from ftrun.supervisor.policy.save_request import Occasion
from ftrun.supervisor.store import attempt_dir
from ftrun.supervisor.submission import in_allocation, plan
from ftrun.supervisor.telemetry import log_watcher

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ftrun.supervisor.context.cluster_snapshot import ClusterSnapshot
    from ftrun.supervisor.context.run_context import RunContext
    from ftrun.supervisor.model.run import Attempt
    from ftrun.supervisor.model.types import Diagnosis, Proof
    from ftrun.supervisor.store.attempt_dir import LaunchRecord
    from ftrun.supervisor.telemetry.log_watcher import WatchReport

__all__ = ["facts_of_end", "facts_of_live", "facts_of_task", "with_last_lines"]

HEALTHY_MAX = 4  # earlier launches whose logs show what is normal


def facts_of_end(
    ctx: RunContext,
    snapshot: ClusterSnapshot,
    attempt: Attempt,
    incident: str,
    *,
    topology: Topology,
    lost: Sequence[str],
) -> Facts:
    """The facts of a launch that is over; `attempt` is the attempt as its last start alone made it.

    `lost` are the nodes that Slurm had given up by then. Raises OSError.
    """
    run, run_dir, seen, end = ctx.run, ctx.run_dir, ctx.observations, attempt.launch.end
    place = run_dir, attempt.number, attempt.launch.number
    found = Facts(
        evidence=seen.evidence,
        topology=topology,
        catalog=ctx.services.catalog(),
        ended=_ended(ctx, attempt, lost),
        attempt=attempt,
        wish=run.wish,
        end_offsets=attempt.end_offsets,
        forgotten=(end.state, end.reason) == ("GONE", UNKNOWN_TO_SLURM),
        now_s=snapshot.now_s,
    )
    if attempt.submission == "refused":
        return replace(found, refusal=_refusal(ctx))
    if attempt.launch.end.state in ("FAILED", "GONE"):
        held = attempt_dir.prelaunch_hold(*place, attempt.nodes)
        found = replace(found, held=held, held_file=attempt_dir.prelaunch_path(*place))
    if attempt.launch.end.state == "FAILED" and attempt.launch.start.number <= 1:
        found = replace(found, unloadable=attempt_dir.why_no_checkpoint(*place))
    if found.held is not None or found.unloadable:
        return found  # the script was not started: there is nothing else to read
    if attempt.launch.end.state == "COMPLETED":
        found = replace(found, given_up=run.given_up)
    suspicion, rank_ended = suspicions.recorded_hang(attempt)
    return replace(
        found,
        evidence=(*seen.evidence, *observe.attached_evidence(ctx)),
        progress=seen.report.progress if seen.report is not None else None,
        resumed=resumable.resumed_checkpoint(
            ctx.settings, run, run_dir, attempt.launch.start.resume_from, incident
        ),
        requeues=plan.is_requeued(run_dir, otherwise=ctx.services.facts().requeue_default),
        near_limit=checkpoint_request.was_requested(ctx, Occasion.TIMELIMIT),
        nodes=node_evidence.of_end(ctx, snapshot, lost),
        gone=_gone(attempt),
        suspicion=suspicion,
        rank_ended=rank_ended,
        told_inside=next((one.diagnosis for one in run.incidents if one.id == incident), {}),
    )


def with_last_lines(ctx: RunContext, facts: Facts, found: Diagnosis) -> Facts:
    """The same facts, with new or odd lines among the last ones if the rules found no cause without them."""
    if found.fault is not FaultClass.UNKNOWN:
        return facts
    return replace(facts, last_words=_last_words(ctx, facts.topology))


def facts_of_task(
    facts: Facts, attempt: Attempt, task: int, run_dir: str, launch: LaunchRecord | None
) -> Facts | None:
    """The facts of one failed task of an array, taken from those of all; None if nothing is known of it
    alone.

    Raises OSError.
    """
    state = attempt.task_states.get(task, "FAILED")
    written = attempt_dir.task_exit(run_dir, attempt.number, task)
    if launch is None and written is None and state == "FAILED":
        return None
    logs = {launch.stdout, launch.stderr} if launch is not None else set()
    nodes = launch.nodes if launch is not None else ()
    by_us = task in attempt.ended_tasks
    ended = Ended(
        state=state,
        exit_code=written.code if written is not None else None,
        exit_signal=written.signal if written is not None else None,
        by_us=by_us,
        nodes_down=tuple(node for node in facts.ended.nodes_down if node in nodes) if facts.ended else (),
    )
    hung = attempt.hung_tasks.get(task) if by_us else None
    return Facts(
        evidence=tuple(line for line in facts.evidence if line.file in logs),
        topology=Topology(nodes=nodes),
        catalog=facts.catalog,
        ended=ended,
        end_offsets=facts.end_offsets if by_us else {},
        suspicion=suspicions.hang_suspicion(hung.verdict, nodes) if hung is not None else None,
        rank_ended=hung is not None and hung.verdict.rank_ended,
    )


def facts_of_live(
    ctx: RunContext, snapshot: ClusterSnapshot, report: WatchReport, topology: Topology
) -> Facts:
    """The facts of a live launch so far."""
    return Facts(
        evidence=report.evidence,
        topology=topology,
        catalog=ctx.services.catalog(),
        progress=report.progress,
        nodes=node_evidence.of_live(ctx, snapshot).survived(ctx.observations.survived),
        now_s=snapshot.now_s,
    )


def _ended(ctx: RunContext, attempt: Attempt, lost: Sequence[str]) -> Ended:
    written = attempt_dir.exit_record(ctx.run_dir, attempt.number, attempt.launch.number)
    code, signal = attempt.launch.end.exit_code, attempt.launch.end.exit_signal
    return Ended(
        state=attempt.launch.end.state,
        reason=attempt.launch.end.reason,
        exit_code=written.code if code is None and written is not None else code,
        exit_signal=written.signal if signal is None and written is not None else signal,
        derived_exit_code=attempt.launch.end.derived_exit_code,
        by_us=attempt.ended_by_us,
        nodes_down=tuple(lost),
        requeued=attempt.launch.requeued,
        unused=len(ctx.attempt.nodes) > len(attempt.nodes),
    )


def _refusal(ctx: RunContext) -> SbatchRefusal:
    """Why sbatch refused. If ftrun's own exclusions or spares may be the reason, the refusal is not final."""
    ours = ctx.attempt.excluded or in_allocation.spares_of(ctx.settings, ctx.attempt)
    for_good = ctx.attempt.launch.end.state == "REFUSED" and not ours
    return SbatchRefusal(ctx.attempt.refusal, for_good, ctx.run.id)


def _gone(attempt: Attempt) -> tuple[LostCompanion, ...]:
    """The companions that this start used and that were lost."""
    lost = (one for one in attempt.companions if one.launch == attempt.launch.number and one.lost)
    return tuple(
        LostCompanion(
            one.nodes, f"Slurm: companion job {one.job} on {','.join(one.nodes)} is {one.end_state}"
        )
        for one in lost
        if set(one.nodes) & set(attempt.used)
    )


def _last_words(ctx: RunContext, topology: Topology) -> tuple[Proof, ...]:
    attempt, report = ctx.attempt, ctx.observations.report
    progress = report.progress if report is not None else None
    place = ctx.run_dir, attempt.number, attempt.launch.number
    explained = [
        (incident.attempt, incident.launch, incident.start)
        for incident in ctx.run.incidents
        if incident.fault != FaultClass.UNKNOWN
    ]
    healthy = (log for one in explained[-HEALTHY_MAX:] for log in log_watcher.start_logs(ctx.run_dir, *one))
    return unknown_cause.suspicious_lines(
        log_watcher.launch_logs(*place) + observe.extra_logs(ctx),
        topology,
        step_offset_bytes=progress.offset_bytes if progress is not None else 0,
        healthy=list(healthy),
        ours=log_watcher.known_owners(*place).having(*attempt.family),
    )
