"""From a decision to the next attempt; each step is an effect that a crash may interrupt. (I/O)

    exclude checkpoint -> drain -> take the requeued job out of the queue -> prove the attempt over (P6)
    -> wait -> close its claim (P4) -> look for orphan jobs -> open attempt n+1 -> sbatch -> move dependents

Every step first checks whether it is already done, so a new supervisor continues where the last one died. Two
startable jobs of one run must never exist: nothing is submitted before the old job is proven over, its claim
is ours, and no other job bears the run's token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ftrun.slurm.client.cluster import JobRow, JobState
from ftrun.slurm.client.errors import OutcomeUnknown, RefusedForGood, RefusedForNow, Unreachable
from ftrun.supervisor.config.node_counts import sizes_of_settings
from ftrun.supervisor.context.cluster_view import cluster_view
from ftrun.supervisor.context.run_context import RunContext
from ftrun.supervisor.controller import (
    accounting,
    agent_link,
    arrays,
    dependents,
    drain,
    exit_status,
    fencing,
    finish,
    missing_jobs,
    queued_job,
)
from ftrun.supervisor.diagnosis import inputs, resumable
from ftrun.supervisor.diagnosis.known_ends import LEFT_QUEUE
from ftrun.supervisor.model import errors
from ftrun.supervisor.model.types import Decision, cause_line
from ftrun.supervisor.policy import decide, elastic, node_placement, policy_input, queue
from ftrun.supervisor.policy.policy_input import ClusterView
from ftrun.supervisor.store import attempt_dir, checkpoints, run_dir
from ftrun.supervisor.submission import array_spec, in_allocation, plan
from ftrun.supervisor.telemetry.log_watcher import file_size
from ftrun.supervisor.telemetry.step_logs import Place, find_step_logs

PARTITION_WITHIN_S = 60.0
CANCEL_AGAIN_S = 15.0


def recover(ctx: RunContext) -> None:
    """One pass over a run whose next step is decided."""
    if (wish := decide.requested_stop(ctx.run)) is not None:
        finish.end_run(ctx, wish, {"class": "cancelled"})
        return
    kind = ctx.run.decision.get("kind", "resubmit")
    if kind == "keep":
        _follow_requeue(ctx)
        return
    if ctx.attempt.submission == "done":
        if ctx.run.decision.get("older_checkpoint"):
            finish.exclude_checkpoint(ctx)
        drain.drain_decided(ctx)
        if not _out_of_the_queue(ctx) or not fencing.is_fenced(ctx):
            return
    if not _waited(ctx) or not fencing.is_closed(ctx) or fencing.cancel_all(ctx):
        return
    _next_attempt(ctx)


def _follow_requeue(ctx: RunContext) -> None:
    """Slurm starts the requeued job itself: follow it as the next launch of the same attempt."""
    ctx.record("launch.kept", launch=ctx.attempt.launch.number + 1)
    ctx.begin_launch(ctx.attempt.launch.number)


def _out_of_the_queue(ctx: RunContext) -> bool:
    """Whether the job can no longer start (again) by itself."""
    row = ctx.row()
    if row is None:
        return _job_stays_gone(ctx)
    missing_jobs.note_seen(ctx, row)
    if ctx.run.decision.get("resumed") and _resumed_alive(ctx, row):
        return False
    if ctx.run.decision.get("queued") and not queued_job.may_leave_queue(ctx, row):
        return False
    if row.state.ended:
        if _user_cancelled_while_missing(ctx, row):
            finish.end_run(ctx, Decision("stop", "the job was cancelled by a person"), {"class": "cancelled"})
            return False
        return not ctx.attempt.launch.requeued or _requeued_ended(ctx, row)
    if row.state.pending:
        cancelled = ctx.observations.stopwatches["requeued, cancelled"]
        if not cancelled.runs or cancelled.held_s(ctx.snapshot.mono_s) > CANCEL_AGAIN_S:
            cancelled.restart(ctx.snapshot.mono_s)
            dependents.hold(ctx)
            # An intent without its act would make a user's cancel look like ours.
            ctx.fresh()
            what = f"{'waiting' if ctx.run.decision.get('queued') else 'requeued'} job {row.job_id}"
            ctx.record("cancel.intended", what=what, own=True)
            ctx.act("cancel", lambda: ctx.services.cluster.cancel(ctx.attempt.job))
            ctx.record("cancel.done", what=what)
        return False
    if ctx.attempt.launch.requeued and row.state is JobState.RUNNING and ctx.started_again(row):
        finish.follow_launch(ctx, row)
    return False


def _user_cancelled_while_missing(ctx: RunContext, row: JobRow) -> bool:
    """Whether Slurm shows again a job that its answers lacked, and a user had cancelled it (P5)."""
    attempt, forgotten = ctx.attempt, ctx.attempt.launch.end.state == "GONE"
    ours = attempt.ended_by_us or attempt.cancel_intended or ctx.run.decision.get("resumed")
    return row.state is JobState.CANCELLED and forgotten and not ours


def _resumed_alive(ctx: RunContext, row: JobRow) -> bool:
    """A user resumed a run whose job had not ended when it was stopped. True if that job goes on or has
    completed.

    A running job is followed, unless a cancel under way ends it in the next moments.
    """
    attempt = ctx.attempt
    if attempt.launch.end.state and not attempt.launch.requeued:
        return False
    if row.state is JobState.COMPLETED:
        job = row.raw_job_id or row.job_id
        launch = (
            row.restarts
            if row.restarts is not None
            else attempt_dir.latest_claimed_launch(ctx.run_dir, ctx.attempt)
        )
        data = exit_status.launch_exit(ctx, row.state.value, row.reason, row.nodes, job=job, launch=launch)
        if data["state"] == "COMPLETED":
            finish.end_run(ctx, Decision("finish", "the script exited 0"), {"class": "healthy"})
            return True
    elif row.state is JobState.RUNNING:
        if ctx.observations.stopwatches["resumed, alive"].held_s(ctx.snapshot.mono_s) >= finish.ALIVE_FOR_S:
            finish.follow_launch(ctx, row)
        return True
    return False


def _job_stays_gone(ctx: RunContext) -> bool:
    """Slurm does not show the job. True = go on.

    A job that a user cancelled in the queue while no supervisor watched is not submitted again (P5).
    """
    missing_jobs.note_missing(ctx)
    if ctx.run.decision.get("resumed") or not missing_jobs.left_the_queue(ctx):
        return True
    answer = accounting.verdict(ctx) if missing_jobs.is_gone(ctx) else accounting.PENDING
    if answer == accounting.UNKNOWN:
        decision = Decision("stop", f"the job was {LEFT_QUEUE.title}", advice=LEFT_QUEUE.advice)
        finish.end_run(ctx, decision, {"class": "cancelled", "signature": LEFT_QUEUE.signature})
    return answer == accounting.LOST


def _requeued_ended(ctx: RunContext, row: JobRow) -> bool:
    """The requeued job is over.

    By us, by a user in the queue, or after a launch that no supervisor saw. True = go on.
    """
    if row.state is JobState.CANCELLED and ctx.attempt.cancel_intended:
        return True  # our cancel, even if the job had just started again
    if row.state is JobState.CANCELLED and ctx.run.decision.get("resumed"):
        return True  # the user who resumed the run took the cancel back
    if row.state is JobState.CANCELLED and not row.nodes:
        finish.cancelled_in_queue(ctx)
        return False
    if row.nodes and ctx.started_again(row):
        finish.follow_launch(ctx, row)
        return False
    return True


def _waited(ctx: RunContext) -> bool:
    decision = ctx.run.decision
    delay_s = float(decision.get("delay_s", 0.0))
    delayed = ctx.observations.stopwatches["delayed"]
    return delay_s <= 0 or delayed.held_s(ctx.snapshot.mono_s) >= delay_s


def _next_attempt(ctx: RunContext) -> None:
    number, decision = run_dir.latest_attempt_number(ctx.run_dir) + 1, ctx.run.decision
    view = cluster_view(ctx, ctx.snapshot)
    unseen = ctx.observations.stopwatches["no partition"]
    if not view.partition and unseen.held_s(ctx.snapshot.mono_s) < PARTITION_WITHIN_S:
        return  # without the size of the partition it is unknown how many nodes may be excluded
    agent_link.copy_later_journals(ctx)
    exclude, quarantined = _exclusions(ctx, view)
    tasks = arrays.tasks_to_repeat(ctx) if ctx.submission.get("array") else ()
    if ctx.act("open", lambda: run_dir.open_attempt(ctx.run_dir, number)) is None:
        return  # another process made it: only its maker may submit it (P4)
    more: dict[str, Any] = {"tasks": list(tasks)} if tasks else {}
    more |= {"quarantined": quarantined} if quarantined else {}
    size, spares = next_size_and_spares(ctx, view, exclude)
    more |= {"size": size} if size else {}
    more |= {"spares": spares} if spares is not None else {}
    sizes = inputs.extra_log_sizes(ctx.settings, ctx.cwd)  # what earlier attempts wrote is not this one's
    launch = ctx.attempt.launch
    place = Place(ctx.run_dir, ctx.attempt.number, launch.number, launch.start.number)
    sizes |= {log.path: file_size(log.path) for log in find_step_logs(place, ctx.attempt.used)}
    more |= {"log_sizes": sizes} if sizes else {}
    ctx.record("attempt.opened", attempt=number, job_id="", launch=0, excluded=list(exclude), **more)
    if spares is not None and spares < ctx.settings["spares"]:
        ctx.record("warned", message=in_allocation.fewer_spares_message(spares, ctx.settings["spares"]))
    ctx.begin_launch(0)
    try:
        spec = _spec(ctx, decision, view, exclude, tasks, size=size, spares=spares)
        request = plan.request_for(ctx.run_dir, spec, ctx.submission)
    except errors.SubmitImpossible as error:
        ctx.record("submit.refused", message=str(error), for_good=True)
        return
    ctx.services.uncalled.add(spec.token)
    ctx.record("submit.intended", token=spec.token)
    _submit(ctx, request)
    if ctx.attempt.submission == "done":
        dependents.move(ctx)


def _exclusions(ctx: RunContext, view: ClusterView) -> tuple[tuple[str, ...], list[str]]:
    """The nodes that the next attempt excludes, and which of them only for what the ledger says."""
    # If no attempt ever had nodes, it is unknown how many the job needs and how many it can do without.
    placed = any(attempt.nodes for attempt in ctx.run.attempts)
    quarantined = ctx.services.ledger.quarantined(ctx.run, ctx.snapshot.now_s) if placed else ()
    cap = policy_input.limits_from(ctx.settings).exclude_cap
    exclude = node_placement.nodes_to_exclude(
        view,
        node_placement.within_cap(view, ctx.services.ledger.excluded(ctx.run, ctx.snapshot.now_s), cap),
        ctx.run.decision.get("avoid", ()),
        fencing.silent_nodes(ctx),
        quarantined=quarantined,
        cap=cap,
    )
    return exclude, sorted({*exclude} & {*quarantined})


def next_size_and_spares(
    ctx: RunContext, view: ClusterView, exclude: Sequence[str]
) -> tuple[int, int | None]:
    """(nodes of the next attempt, 0 if the run has only one size; its spares, None if the run has none)."""
    sizes, attempt = sizes_of_settings(ctx.settings), ctx.attempt
    size = int(ctx.run.decision.get("size", 0))
    if sizes is None:
        return 0, in_allocation.spares_for_next(ctx.settings, attempt, view, exclude)
    sizes = sizes.without(ctx.run.sizes_aside)
    view = queue.with_same_devices(view, ctx.snapshot.nodes or {}, ctx.run)
    if size not in sizes.all:
        now = queue.run_size(ctx.run, sizes)
        worth = elastic.usable_sizes(sizes, ctx.run.sizes_aside)
        size = queue.next_size(worth, now, view, attempt.nodes, exclude)
    spares = in_allocation.spares_for_next(ctx.settings, attempt, view, exclude, size)
    if spares and view.partition:  # a spare is not worth waiting for
        spares = max(0, min(spares, queue.available_count(view, attempt.nodes, exclude) - size))
    return size, spares


def _spec(
    ctx: RunContext,
    decision: Mapping[str, Any],
    view: ClusterView,
    exclude: tuple[str, ...],
    tasks: tuple[int, ...],
    *,
    size: int,
    spares: int | None,
) -> plan.AttemptSpec:
    """What ftrun decided about the attempt that was just opened: its record took the `decision` from the run.
    Raises OSError.
    """
    run = ctx.run
    number = ctx.attempt.number
    resumable.write_divergence_files(ctx.run_dir, run.poisoned)
    return plan.AttemptSpec(
        number,
        token=f"{run.token}:{number}",
        exclude=exclude,
        restart=sum(one.starts_made for one in run.attempts if one.number < number),
        last_fault=str(decision.get("class", "")),
        last_words=cause_line(run.incidents[-1].diagnosis) if run.incidents else "",
        set_aside=checkpoints.unchanged_since_set_aside(run.set_aside),
        poisoned=run.poisoned,
        had=resumable.has_had_checkpoint(run),
        fresh=bool(decision.get("fresh")),
        idle=tuple(sorted(view.available - set(exclude))),
        array=_narrowed(ctx, tasks),
        anyway=decide.are_checks_waived(decision, run.spent),
        spares=spares,
        size=size,
        more=run.more,
    )


def _narrowed(ctx: RunContext, tasks: tuple[int, ...]) -> str:
    """The --array of the next attempt, with the user's own %limit; "" if the job is no array."""
    spec = str(ctx.submission.get("array", "")) if tasks else ""
    return array_spec.narrowed_array(spec, tasks) if spec else ""


def _submit(ctx: RunContext, request: Any) -> None:
    try:
        answer = ctx.act("submit", lambda: ctx.services.submit(request))
    except (RefusedForGood, RefusedForNow, Unreachable) as error:
        ctx.record("submit.refused", message=error.message, for_good=isinstance(error, RefusedForGood))
    except OutcomeUnknown as error:
        ctx.record("submit.unknown", message=error.message)
    else:
        cluster = answer.cluster or ctx.services.facts().name
        ctx.record("submit.done", job_id=answer.job_id, cluster=cluster)
        run_dir.index_job(ctx.services.home, answer.job_id, ctx.run.id)
