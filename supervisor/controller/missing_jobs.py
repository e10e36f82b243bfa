"""A job that Slurm's answers lack: unknown at first, over if it stays away, and then how it ended. (I/O)

A missing row is no end (P6): two answers far enough apart must lack it while the controller is up, and no job
may bear its token. Then the run folder alone shows what the job did last: the newest launch that it claimed
is the one that ended, even if no snapshot ever showed it. If the cluster has accounting, it is asked once,
and its answer stands in for the row (see `accounting`).

A job that claimed no start since it was queued never started. Slurm forgets a job only MinJobAge after its
end: if the job was there a moment ago, the controller has lost it, and ftrun submits it again. If no
supervisor looked for that long, a user may have cancelled it in the queue, and a user's cancel is never
undone (P5).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ftrun.slurm.client.cluster import JobRow
from ftrun.slurm.client.parse import has_token
from ftrun.supervisor.context.run_context import RunContext
from ftrun.supervisor.controller import accounting, exit_status, observe
from ftrun.supervisor.model import job_rows, types
from ftrun.supervisor.model.timers import Stopwatch
from ftrun.supervisor.store import attempt_dir

ABSENT_FOR_S = 60.0  # two answers that lack a job must be this far apart


@dataclass
class _Absence:
    """Of one launch."""

    lacking: Stopwatch = field(default_factory=Stopwatch)
    unwatched: bool = False  # Slurm had the time to forget the job before we noticed


@dataclass
class _EndedRows:
    """Of all runs: run -> its attempt and launch, and the end that Slurm showed of it, which is not recorded yet. A
    supervisor that loses its lease and leads again still knows it.
    """

    of_run: dict[str, tuple[tuple[int, int], JobRow]] = field(default_factory=dict)


def note_seen(ctx: RunContext, row: JobRow) -> None:
    """Slurm shows the job."""
    ctx.observations.partition = row.partition or ctx.observations.partition
    ctx.observations.seen_s = ctx.snapshot.mono_s
    absence = ctx.observations.per_launch(_Absence)
    absence.lacking.stop()
    ended = ctx.services.shared(_EndedRows).of_run
    if row.state.ended and not ctx.started_again(row):
        ended[ctx.run.id] = (_place(ctx), row)
    else:
        ended.pop(ctx.run.id, None)


def _place(ctx: RunContext) -> tuple[int, int]:
    return ctx.attempt.number, ctx.attempt.launch.number


def handle_missing_job(ctx: RunContext) -> None:
    """The job's row is missing: wait, and record its end once it is really gone. Raises SlurmError."""
    note_missing(ctx)
    if observe.adopt_claim_holder(ctx, None):
        return
    if not is_gone(ctx):
        _adopt_another(ctx)
        return
    answer = accounting.verdict(ctx)
    if answer in (accounting.PENDING, accounting.ENDED):
        return
    reason = (
        types.UNWATCHED
        if ctx.observations.per_launch(_Absence).unwatched and answer != accounting.LOST
        else types.UNKNOWN_TO_SLURM
    )
    if left_the_queue(ctx) and answer != accounting.LOST:
        reason = types.LEFT_THE_QUEUE
    # A launch that Slurm announced and no job claimed is over itself, and not the one before it once more.
    claimed = attempt_dir.latest_claimed_launch(ctx.run_dir, ctx.attempt)
    launch = max(claimed, ctx.attempt.launch.number)
    if launch != ctx.attempt.launch.number:
        ctx.begin_launch(launch)  # its log begins elsewhere
    exit_status.record_end(ctx, "job.ended", "GONE", reason, accounting.nodes_of(ctx), launch=launch)


def forgotten_end(ctx: RunContext) -> JobRow | None:
    """The row of an end that Slurm showed and then forgot, before its exit could be asked for; None while the job may come back.

    What it showed still counts: a user's cancel is never undone (P5). Raises SlurmError.
    """
    note_missing(ctx)
    place, row = ctx.services.shared(_EndedRows).of_run.get(ctx.run.id, ((0, 0), None))
    # Another job may have been adopted.
    is_ours = row is not None and job_rows.base_job_id(row.job_id) == ctx.attempt.job
    return row if is_ours and place == _place(ctx) and is_gone(ctx) else None


def note_missing(ctx: RunContext) -> None:
    """Slurm does not show the job: note since when, and whether a supervisor could have seen why."""
    absence = ctx.observations.per_launch(_Absence)
    if not absence.lacking.runs:
        absence.lacking.restart(ctx.snapshot.mono_s)
        absence.unwatched = _unwatched(ctx)


def is_missing(ctx: RunContext) -> bool:
    """Whether the last snapshot lacked the job."""
    return ctx.observations.per_launch(_Absence).lacking.runs


def is_gone(ctx: RunContext) -> bool:
    """Whether two answers far enough apart lack the job and its token finds nothing alive. Raises SlurmError."""
    cluster = ctx.services.cluster
    if not _due(ctx) or not cluster.ping():
        return False
    return all(row.state.ended for row in cluster.find(ctx.attempt.token))


def _adopt_another(ctx: RunContext) -> None:
    """If Slurm has lost the known job but shows another with its token (sbatch made two), adopt that one."""
    if not _due(ctx):
        return
    rows = [row for row in ctx.services.cluster.find(ctx.attempt.token) if not row.state.ended]
    jobs = sorted(
        {job_rows.base_job_id(row.job_id) for row in rows if has_token(row.comment, ctx.attempt.token)}
    )
    if jobs and ctx.attempt.job not in jobs:
        observe.adopt_job(ctx, jobs[0], ctx.attempt.launch.number)


def _due(ctx: RunContext) -> bool:
    lacking = ctx.observations.per_launch(_Absence).lacking
    return lacking.runs and lacking.held_s(ctx.snapshot.mono_s) >= ABSENT_FOR_S


def left_the_queue(ctx: RunContext) -> bool:
    """Whether the job left the queue unstarted, not by us, and no supervisor saw it."""
    return (
        ctx.observations.per_launch(_Absence).unwatched
        and not ctx.attempt.launch.over
        and _never_started(ctx)
    )


def _never_started(ctx: RunContext) -> bool:
    """Whether no start was claimed since the job was queued, and none of its ends is ours."""
    attempt, run_dir = ctx.attempt, ctx.run_dir
    if attempt.ended_by_us or attempt.cancel_intended or attempt_dir.has_tasks(run_dir, attempt.number):
        return False
    if attempt.launch.end.state:  # of the launch before: it must have been requeued since
        return (
            attempt.launch.requeued
            and attempt_dir.latest_claimed_launch(ctx.run_dir, ctx.attempt) <= attempt.launch.number
        )
    return attempt_dir.claim_of_launch(run_dir, attempt.number, attempt.launch.number) is None


def _unwatched(ctx: RunContext) -> bool:
    """Whether Slurm had the time to forget the job since a supervisor (this one, or by the journal
    another) saw it.
    """
    attempt, age_s = ctx.attempt, ctx.services.facts().min_job_age_s
    if ctx.observations.seen_s is not None:
        return ctx.snapshot.mono_s - ctx.observations.seen_s >= age_s
    times_s = (attempt.submitted_at_s, attempt.launch.running_seen_at_s, attempt.launch.end.at_s)
    return exit_status.may_be_forgotten(
        max((at for at in times_s if at is not None), default=None), ctx.snapshot.now_s, age_s
    )
