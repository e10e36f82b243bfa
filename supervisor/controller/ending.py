"""The end of a live attempt by us: announced, carried out, and asked for again until Slurm shows it. (I/O)"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ftrun.slurm.client.cluster import JobState
from ftrun.slurm.records import replace
from ftrun.supervisor.controller import dependents
from ftrun.supervisor.model import job_rows
from ftrun.supervisor.model.timers import Interval, Stopwatch

if TYPE_CHECKING:
    from ftrun.supervisor.context.cluster_snapshot import ClusterSnapshot
    from ftrun.supervisor.context.run_context import RunContext

__all__ = ["carry_out", "intend", "repeat"]

AGAIN_AFTER_S = 30.0


@dataclass
class _Clocks:
    told: Interval = field(default_factory=Interval)  # what would be ended, of a run that is only watched
    cancelled: Stopwatch = field(default_factory=Stopwatch)


def intend(ctx: RunContext, reason: str) -> None:
    """Announce that this attempt is to be ended; `carry_out` does it. Where ftrun may only watch, it is shown."""
    clocks = ctx.observations.per_launch(_Clocks)
    if ctx.watch_only:
        if clocks.told.first():
            ctx.record("observed", decision={"kind": "end", "reason": reason})
        return
    clocks.cancelled.stop()
    ctx.record("end.intended", reason=reason)


def carry_out(ctx: RunContext, snapshot: ClusterSnapshot) -> None:
    """Carry out an announced end: dependents are held first, then the job is cancelled.

    It is looked at once more just before: what somebody ends already is not ended by us, and a person's cancel that came
    between the announcement and ours must count as that (P5). Raises SlurmError.
    """
    dependents.hold(ctx, snapshot)
    if not ctx.attempt.cancel_intended:
        families = job_rows.families(ctx.services.cluster.jobs((ctx.attempt.job,)))
        row = ctx.row(replace(snapshot, families=families))
        if row is None or row.state.ended or row.state is JobState.COMPLETING:
            return  # how it ends tells who ended it; an id that is another job's by now is left alone
        ctx.record("cancel.intended", what=f"job {ctx.attempt.job}", own=True)
    ctx.services.act("cancel", snapshot, lambda: ctx.services.cluster.cancel(ctx.attempt.job))
    ctx.record("end.done")


def repeat(ctx: RunContext, snapshot: ClusterSnapshot) -> None:
    """Cancel the job once more where it has not ended for long. Raises SlurmError."""
    cancelled = ctx.observations.per_launch(_Clocks).cancelled
    if cancelled.held_s(snapshot.mono_s) > AGAIN_AFTER_S:
        cancelled.restart(snapshot.mono_s)
        ctx.services.act("cancel", snapshot, lambda: ctx.services.cluster.cancel(ctx.attempt.job))
