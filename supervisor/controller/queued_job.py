"""A job of a run in the queue: moved to another size, relieved of exclusions, or given up. (I/O)

The policy (`policy.queue`) decides what is to be done. If Slurm lets the owner do so, the waiting job itself
is made smaller and keeps its place: the change is announced, made and read back; a supervisor that finds an
announcement asks Slurm what became of it, and if the job has started meanwhile, its nodes show its size. Else
a smaller size is a new attempt: the move is journalled, the waiting job is taken out of the queue as a
requeued one would be (its end is announced, seen and proven, its attempt closed), and the next attempt is
submitted at that size. So there are never two startable jobs of a run, and a crash at any point is recovered.
If the job starts before it could be taken out, the run follows it and forgets the move.

Arrays and heterogeneous jobs are left alone, and so is a run that ftrun may only observe.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ftrun.slurm.client.cluster import JobRow, JobState
from ftrun.slurm.client.errors import OptionError, RefusedForGood
from ftrun.supervisor.config.node_counts import Sizes, sizes_of_settings
from ftrun.supervisor.config.settings import number_of, text_of
from ftrun.supervisor.context.cluster_view import cluster_view, newest_checkpoint
from ftrun.supervisor.context.run_context import RunContext
from ftrun.supervisor.controller import drain, finish
from ftrun.supervisor.model import job_rows
from ftrun.supervisor.model.errors import SubmitImpossible
from ftrun.supervisor.model.timers import Interval, Stopwatch
from ftrun.supervisor.model.types import Decision, FaultClass
from ftrun.supervisor.policy import queue
from ftrun.supervisor.policy.queue import PendingJob, QueueClock, WaitSettings
from ftrun.supervisor.store import submission_context
from ftrun.supervisor.submission import in_allocation, named_nodes, plan

LOOK_EVERY_S = 5.0


@dataclass
class _Wait:
    clock: QueueClock = field(default_factory=QueueClock)
    outages: int = 0  # that the clock has accounted for
    looked: Interval = field(default_factory=Interval)
    never_starts: Stopwatch = field(default_factory=Stopwatch)
    relaxed: Stopwatch = field(default_factory=Stopwatch)
    alive: Stopwatch = field(default_factory=Stopwatch)  # it runs although we cancelled it


def review_queued_job(ctx: RunContext, row: JobRow) -> None:
    """One pass over a job in the queue. Raises SlurmError if the pass is worth repeating."""
    alone = len(ctx.rows()) == 1 and row.job_id.isdigit()
    if ctx.watch_only or row.state is not JobState.PENDING or not alone:
        return
    first = not any(one.nodes for one in ctx.run.attempts)
    waited_s = _waited(ctx, first=first)
    if not _wait(ctx).looked.due(ctx.snapshot.mono_s, LOOK_EVERY_S):
        return
    if ctx.attempt.resizing:
        _resize_in_queue(ctx, ctx.attempt.resizing, "announced before")
        return
    if not first and row.reason in ("Priority", "Resources"):
        drain.request_priority(ctx)
    sizes, patience = _sizes(ctx), _patience(ctx)
    pending = _pending(ctx, row, waited_s, sizes, first=first)
    may_move = waited_s >= min(queue.spare_wait_s(pending, patience), patience.timeout_s) or pending.never_s
    if not may_move and not queue.cannot_start(row.reason):
        return  # the usual case costs Slurm no query
    ready = _ready(ctx, sizes) if sizes is not None and not pending.first else 0
    move = queue.decide_wait(pending, ready, sizes, patience)
    if move.kind == "notify":
        message = f"attempt {ctx.attempt.number}: {move.reason}"
        if message not in ctx.run.warnings:
            ctx.record("warned", message=message)
    elif move.kind == "relax":
        _readmit_nodes(ctx, move.nodes, move.reason)
    elif move.kind == "shrink" and not ctx.attempt.fixed and not ctx.settings.get("spares"):
        _resize_in_queue(ctx, move.size, move.reason)
    elif move.kind in ("shrink", "anew"):
        _move_to_new_attempt(ctx, move.size, move.reason)
    elif move.kind in ("stop", "hopeless") and _still_waits(ctx):
        _stop(ctx, move.reason)


def may_leave_queue(ctx: RunContext, row: JobRow) -> bool:
    """Whether a job that is to leave the queue may be cancelled, or has been ended by us.

    Else the job is what goes on, or a user has ended it (P5).
    """
    attempt = ctx.attempt
    if row.state.pending:
        return attempt.cancel_intended or _still_waits(ctx)
    if row.state is JobState.CANCELLED and attempt.cancel_intended:
        return True
    if row.state is JobState.CANCELLED and not row.nodes:
        finish.cancelled_in_queue(ctx)
        return False
    if row.state.ended and not row.nodes:
        return True
    if attempt.cancel_intended and not row.state.ended:
        alive_s = _wait(ctx).alive.held_s(ctx.snapshot.mono_s)
        if row.state is not JobState.RUNNING or alive_s < finish.ALIVE_FOR_S:
            return False  # our cancel may be under way
    finish.follow_launch(ctx, row)
    return False


def _wait(ctx: RunContext) -> _Wait:
    return ctx.observations.per_launch(_Wait)


def _sizes(ctx: RunContext) -> Sizes | None:
    sizes = sizes_of_settings(ctx.settings)
    return sizes.without(ctx.run.sizes_aside) if sizes is not None else None


def _patience(ctx: RunContext) -> WaitSettings:
    chosen = ctx.settings
    return WaitSettings(
        number_of(chosen, "resize-after"),
        number_of(chosen, "queue-timeout"),
        text_of(chosen, "on-queue-timeout"),
    )


def _waited(ctx: RunContext, *, first: bool) -> float:
    """How long the job has waited, under any supervisor.

    Journalled now and then if an earlier attempt ran.
    """
    wait, outages = _wait(ctx), ctx.observations.outages
    clock = wait.clock
    if wait.outages != outages:
        wait.outages = outages
        clock.stop()
    waited_s = clock.look(ctx.attempt.waited_s, ctx.snapshot.mono_s)
    if clock.due and not first:
        ctx.record("queue.waited", waited_s=round(waited_s, 1))
    return waited_s


def _pending(
    ctx: RunContext, row: JobRow, waited_s: float, sizes: Sizes | None, *, first: bool
) -> PendingJob:
    attempt, wait = ctx.attempt, _wait(ctx)
    if not queue.never_starts(row.reason):
        wait.never_starts.stop()
        never_s = 0.0
    else:
        never_s = wait.never_starts.held_s(ctx.snapshot.mono_s)
    relaxed, now_s = wait.relaxed.since_s, ctx.snapshot.now_s
    still = {*ctx.run.excluded_at(now_s), *ctx.services.ledger.quarantined(ctx.run, now_s)}
    expired = {one.node for one in ctx.run.excluded}.intersection(attempt.excluded) - still
    return PendingJob(
        reason=row.reason,
        waited_s=waited_s,
        size=attempt.size or (sizes.full if sizes is not None else row.node_count),
        spares=in_allocation.spares_of(ctx.settings, attempt),
        first=first,
        kept_off=queue.release_order(ctx.run, attempt.excluded, now_s),
        expired=tuple(sorted(expired)),
        relaxed_s=ctx.snapshot.mono_s - relaxed if relaxed is not None else float("inf"),
        never_s=never_s,
        sized_s=waited_s - attempt.sized_at_s,
        starts_in_s=row.start_time_s - ctx.snapshot.now_s if row.start_time_s is not None else None,
        resized=attempt.resized,
    )


def _ready(ctx: RunContext, sizes: Sizes) -> int:
    """How many idle, healthy nodes the waiting job could have now. Raises SlurmError."""
    if sum(row.state == "idle" for row in (ctx.snapshot.nodes or {}).values()) < sizes.all[0]:
        return 0  # on a full cluster no further query is needed
    view = queue.with_same_devices(cluster_view(ctx, ctx.snapshot), ctx.snapshot.nodes or {}, ctx.run)
    return queue.available_count(view, (), ctx.attempt.excluded)


def _still_waits(ctx: RunContext) -> bool:
    """Ask Slurm again just before a waiting job is ended: one that started meanwhile is left alone. Raises
    SlurmError.
    """
    families = job_rows.rows_by_submission(ctx.services.cluster.jobs((ctx.attempt.job,)))
    found = families.get(ctx.attempt.job, ())
    return bool(found) and all(row.state is JobState.PENDING for row in found)


def _resize_in_queue(ctx: RunContext, size: int, reason: str) -> None:
    """Make the waiting job itself smaller; if that is refused, the next pass starts a new attempt instead.
    Raises SlurmError: the next pass then asks what became of it.
    """
    cluster, attempt = ctx.services.cluster, ctx.attempt
    details = cluster.details(attempt.job)
    if details is None or details.state is not JobState.PENDING:
        return  # it has started or ended; the next snapshot shows it
    shape = queue.resized_shape(details.fields, size)
    if isinstance(shape, str):
        ctx.record("resize.refused", size=size, message=shape)
        return
    if not attempt.resizing:
        ctx.record("resize.intended", size=size, reason=reason, tasks=shape.tasks, cpus=shape.cpus)
    try:
        ctx.act(
            "resize",
            lambda: cluster.reshape(attempt.job, nodes=shape.nodes, tasks=shape.tasks, cpus=shape.cpus),
        )
    except RefusedForGood as error:
        ctx.record("resize.refused", size=size, message=error.message)
        return
    details = cluster.details(attempt.job)
    if (
        details is not None
        and details.state is JobState.PENDING
        and not queue.has_shape(details.fields, shape)
    ):
        ctx.record("resize.refused", size=size, message="Slurm shows other numbers than it was told")
        return
    waited_s = round(_wait(ctx).clock.waited_s, 1)
    ctx.record("resize.done", size=size, reason=reason, waited_s=waited_s)


def _move_to_new_attempt(ctx: RunContext, size: int, reason: str) -> None:
    ctx.fresh()
    if not _still_waits(ctx):
        return
    last = ctx.run.incidents[-1].fault if ctx.run.incidents else ""
    decision = {"kind": "resubmit", "reason": reason, "size": size, "queued": True, "class": last}
    ctx.record("queue.moved", decision=decision)


def _readmit_nodes(ctx: RunContext, nodes: Sequence[str], reason: str) -> None:
    """Take these nodes off the job's list of excluded ones, except those that its user put there."""
    cluster, attempt = ctx.services.cluster, ctx.attempt
    details = cluster.details(attempt.job)
    if details is None or details.state is not JobState.PENDING:
        return
    keep = set(details.excluded) - (set(nodes) - _users_own(ctx))
    left = sorted(set(attempt.excluded) - set(nodes))
    ctx.record("exclude.intended", nodes=left, before=list(details.excluded), reason=reason)
    try:
        ctx.act("exclude", lambda: cluster.exclude(attempt.job, sorted(keep)))
    except RefusedForGood as error:
        ctx.record("exclude.refused", message=error.message)
    else:
        ctx.record("exclude.done", nodes=left, left=left)
        ctx.record("warned", message=f"attempt {attempt.number}: {reason}")
    _wait(ctx).relaxed.restart(ctx.snapshot.mono_s)


def _users_own(ctx: RunContext) -> set[str]:
    try:
        kept, given = plan.load_options(ctx.run_dir)
        return set(named_nodes.excluded_nodes(given, kept.get("cwd", "")))
    except (submission_context.ContextError, OptionError, SubmitImpossible):
        return set()


def _stop(ctx: RunContext, reason: str) -> None:
    newest = newest_checkpoint(ctx)
    saved = f"the last good checkpoint is {newest}" if newest else "no complete checkpoint is known"
    data: dict[str, Any] = {"class": FaultClass.SCHEDULER.value, "signature": "slurm.queue"}
    advice = f"ftrun resume {ctx.run.id} goes on from there"
    finish.end_run(ctx, Decision("stop", f"{reason}; {saved}", advice=advice), data)
