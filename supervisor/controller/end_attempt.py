"""We end a live attempt: announce it, carry it out, and repeat the cancel until Slurm shows the end. (I/O)"""

from __future__ import annotations

from ftrun.slurm.client.cluster import JobState
from ftrun.slurm.records import replace
from ftrun.supervisor.context.run_context import RunContext
from ftrun.supervisor.controller import dependents, observe
from ftrun.supervisor.model import job_rows

AGAIN_AFTER_S = 30.0


def announce_end(ctx: RunContext, reason: str) -> None:
    """Announce the end of this attempt.

    `cancel_job` does it. For a run that ftrun may only observe, just record it.
    """
    if ctx.watch_only:
        if ctx.observations.intervals["end observed"].first():
            ctx.record("observed", decision={"kind": "end", "reason": reason})
        return
    ctx.observations.stopwatches["cancelled"].stop()
    ctx.record("end.intended", reason=reason)


def cancel_job(ctx: RunContext) -> None:
    """Carry out an announced end: hold the dependents, then cancel the job. Raises SlurmError.

    Slurm is asked once more just before: a job that is already ending is left alone, and a user's cancel that
    came between our announcement and our act must count as the user's (P5).
    """
    dependents.hold(ctx)
    if not ctx.attempt.cancel_intended:
        families = job_rows.rows_by_submission(ctx.services.cluster.jobs((ctx.attempt.job,)))
        row = ctx.row(replace(ctx.snapshot, families=families))
        if row is None or row.state.ended or row.state is JobState.COMPLETING:
            return  # its end shows who ended it; an id that Slurm has reused is left alone
        ctx.record("cancel.intended", what=f"job {ctx.attempt.job}", own=True, logs=observe.log_sizes(ctx))
    ctx.act("cancel", lambda: ctx.services.cluster.cancel(ctx.attempt.job))
    ctx.record("end.done")


def repeat_cancel(ctx: RunContext) -> None:
    """Cancel the job again if it has not ended for `AGAIN_AFTER_S`. Raises SlurmError."""
    cancelled = ctx.observations.stopwatches["cancelled"]
    if cancelled.held_s(ctx.snapshot.mono_s) > AGAIN_AFTER_S:
        cancelled.restart(ctx.snapshot.mono_s)
        ctx.act("cancel", lambda: ctx.services.cluster.cancel(ctx.attempt.job))
