"""From a decision to the next attempt, each step an effect that may be cut anywhere. (I/O)

    set aside -> drain -> take the requeued job out of the queue -> prove the attempt over (P6) -> wait ->
    close its claim (P4) -> look for strays -> open attempt n+1 -> sbatch -> move dependents

Every step asks first whether it is done already, so a supervisor that died between two of them goes on where it was.
Two startable jobs of one run must never exist: nothing is submitted before the old job is proven over, its claim is ours,
and no other job bears the run's token.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ftrun.slurm.client.cluster import JobState
from ftrun.slurm.client.errors import OutcomeUnknown, RefusedForGood, RefusedForNow, Unreachable
from ftrun.supervisor.context.cluster_view import cluster_view
from ftrun.supervisor.controller import (
    accounting,
    arrays,
    dependents,
    drain,
    exit_status,
    fencing,
    finish,
    missing_jobs,
    node_history,
    orphan_jobs,
    queue,
)
from ftrun.supervisor.diagnosis import known_ends, resumable
from ftrun.supervisor.diagnosis.known_ends import LEFT
from ftrun.supervisor.model import errors
from ftrun.supervisor.model.timers import Stopwatch, Stopwatches
from ftrun.supervisor.model.types import Decision
from ftrun.supervisor.policy import decide, node_placement, policy_input
from ftrun.supervisor.store import run_dir, submission_context
from ftrun.supervisor.submission import in_allocation, node_names, plan

if TYPE_CHECKING:
    from ftrun.slurm.client.cluster import JobRow
    from ftrun.supervisor.context.cluster_snapshot import ClusterSnapshot
    from ftrun.supervisor.context.run_context import RunContext

__all__ = ["recover"]

PARTITION_WITHIN_S = 60.0
CANCEL_AGAIN_S = 15.0


@dataclass
class _Clocks:
    """Of one launch."""

    cancelled: Stopwatch = field(default_factory=Stopwatch)
    resumed_alive: Stopwatch = field(default_factory=Stopwatch)
    no_partition: Stopwatch = field(default_factory=Stopwatch)
    delayed: Stopwatches = field(default_factory=Stopwatches)  # attempt


def recover(ctx: RunContext, world: ClusterSnapshot) -> None:
    """One look at a run whose next step is decided."""
    if (wish := decide.withdrawn(ctx.run)) is not None:
        finish.end_run(ctx, world, wish, {"class": "cancelled"})
        return
    kind = ctx.run.decision.get("kind", "resubmit")
    if kind == "keep":
        _keep(ctx)
        return
    if ctx.attempt.submission == "done":
        if ctx.run.decision.get("older_checkpoint"):
            finish.set_aside(ctx)
        drain.drain_decided(ctx, world)
        if not _out_of_the_queue(ctx, world) or not fencing.is_fenced(ctx, world):
            return
    if not _waited(ctx, world) or not _closed(ctx):
        return
    _next_attempt(ctx, world)


def _keep(ctx: RunContext) -> None:
    """Slurm starts the requeued job itself: follow it as the next launch of the same attempt."""
    ctx.record("launch.kept", launch=ctx.attempt.launch.number + 1)
    ctx.begin_launch(ctx.attempt.launch.number)


def _out_of_the_queue(ctx: RunContext, world: ClusterSnapshot) -> bool:
    """True when the job cannot start (again) by itself."""
    row = ctx.row(world)
    if row is None:
        return _gone(ctx, world)
    missing_jobs.note_seen(ctx, world, row)
    if ctx.run.decision.get("resumed") and _resumed_alive(ctx, world, row):
        return False
    if ctx.run.decision.get("queued") and not queue.may_be_taken_out(ctx, world, row):
        return False
    if row.state.ended:
        return not ctx.attempt.launch.requeued or _requeued_ended(ctx, world, row)
    if row.state.pending:
        cancelled = ctx.observations.per_launch(_Clocks).cancelled
        if not cancelled.runs or cancelled.held_s(world.mono_s) > CANCEL_AGAIN_S:
            cancelled.restart(world.mono_s)
            dependents.hold(ctx, world)
            ctx.services.fresh(world)  # an intent that is not carried out takes a person's cancel for ours
            what = f"{'waiting' if ctx.run.decision.get('queued') else 'requeued'} job {row.job_id}"
            ctx.record("cancel.intended", what=what, own=True)
            ctx.services.act("cancel", world, lambda: ctx.services.cluster.cancel(ctx.attempt.job))
            ctx.record("cancel.done", what=what)
        return False
    if ctx.attempt.launch.requeued and row.state is JobState.RUNNING and ctx.started_again(row):
        finish.follow_launch(ctx, row)
    return False


def _resumed_alive(ctx: RunContext, world: ClusterSnapshot, row: JobRow) -> bool:
    """A person resumed a run whose job had not ended when it was stopped. True where that job is what goes on, or came
    to its end: it is followed, unless a cancel on its way ends it in the next moments."""
    attempt = ctx.attempt
    if attempt.launch.end.state and not attempt.launch.requeued:
        return False
    if row.state is JobState.COMPLETED:
        job = row.raw_job_id or row.job_id
        launch = row.restarts if row.restarts is not None else missing_jobs.latest_launch(ctx)
        data = exit_status.launch_exit(ctx, row.state.value, row.reason, row.nodes, job=job, launch=launch)
        if data["state"] == "COMPLETED":
            finish.end_run(ctx, world, Decision("finish", "the script exited 0"), {"class": "healthy"})
            return True
    elif row.state is JobState.RUNNING:
        if ctx.observations.per_launch(_Clocks).resumed_alive.held_s(world.mono_s) >= finish.ALIVE_FOR_S:
            finish.follow_launch(ctx, row)
        return True
    return False


def _gone(ctx: RunContext, world: ClusterSnapshot) -> bool:
    """Slurm does not show the job. True = go on; what a person cancelled in the queue while nobody watched is not brought back (P5)."""
    missing_jobs.note_missing(ctx, world)
    if ctx.run.decision.get("resumed") or not missing_jobs.left_the_queue(ctx):
        return True
    told = accounting.verdict(ctx) if missing_jobs.is_gone(ctx, world) else accounting.ASKED
    if told == accounting.NOTHING:
        decision = Decision("stop", f"the job was {LEFT.title}", advice=LEFT.advice)
        finish.end_run(ctx, world, decision, {"class": "cancelled", "signature": LEFT.signature})
    return told == accounting.LOST


def _requeued_ended(ctx: RunContext, world: ClusterSnapshot, row: JobRow) -> bool:
    """The requeued job is over: by us, by a person in the queue, or after a launch that nobody watched. True = go on."""
    if row.state is JobState.CANCELLED and ctx.attempt.cancel_intended:
        return True  # our cancel, be it that it came when the job had just started again
    if row.state is JobState.CANCELLED and ctx.run.decision.get("resumed"):
        return True  # who resumes the run takes the cancel back
    if row.state is JobState.CANCELLED and not row.nodes:
        finish.cancelled_in_queue(ctx, world)
        return False
    if row.nodes and ctx.started_again(row):
        finish.follow_launch(ctx, row)
        return False
    return True


def _waited(ctx: RunContext, world: ClusterSnapshot) -> bool:
    decision = ctx.run.decision
    delay_s = float(decision.get("delay_s", 0.0))
    delayed = ctx.observations.per_launch(_Clocks).delayed[ctx.attempt.number]
    return delay_s <= 0 or delayed.held_s(world.mono_s) >= delay_s


def _closed(ctx: RunContext) -> bool:
    """Take the attempt's next claim. False when a launch of it got there first: it is watched instead."""
    if ctx.attempt.closed:
        return True
    taken = finish.close_attempt(ctx)
    if taken is not None:
        if not taken.closed:
            ctx.record(
                "warned",
                message=f"launch {taken.launch} of attempt {ctx.attempt.number} claimed while it was being closed",
            )
        return False
    ctx.record("attempt.closed")
    return True


def _next_attempt(ctx: RunContext, world: ClusterSnapshot) -> None:
    if orphan_jobs.cancel_all(ctx, world):
        return
    number = run_dir.latest_attempt(ctx.run_dir) + 1
    decision = ctx.run.decision
    view = cluster_view(ctx, world)
    unseen = ctx.observations.per_launch(_Clocks).no_partition
    if not view.partition and unseen.held_s(world.mono_s) < PARTITION_WITHIN_S:
        return  # Slurm did not tell how many nodes there are: nobody knows how many may be left out
    # Where no attempt ever had nodes, how many the job needs is not known, nor how many others it can do without.
    placed = any(attempt.nodes for attempt in ctx.run.attempts)
    quarantined = node_history.quarantined(ctx, world.now_s) if placed else ()
    cap = policy_input.limits_from(ctx.settings).exclude_cap
    exclude = node_placement.left_out(
        view,
        node_placement.within_cap(view, node_history.excluded(ctx, world.now_s), cap),
        decision.get("avoid", ()),
        fencing.silent_nodes(ctx, world),
        quarantined=quarantined,
        cap=cap,
    )
    tasks = arrays.wanted(ctx.run_dir, ctx.run, ctx.attempt)
    if ctx.services.act("open", world, lambda: run_dir.open_attempt(ctx.run_dir, number)) is None:
        return  # somebody else made it: only its maker may submit it (P4)
    more: dict[str, Any] = {"tasks": list(tasks)} if tasks else {}
    more |= {"quarantined": known} if (known := sorted({*exclude} & {*quarantined})) else {}
    size, spares = queue.shape_of_next(ctx, world, view, exclude)
    more |= {"size": size} if size else {}
    more |= {"spares": spares} if spares is not None else {}
    ctx.record("attempt.opened", attempt=number, job_id="", launch=0, excluded=list(exclude), **more)
    if spares is not None and spares < ctx.settings["spares"]:
        ctx.record("warned", message=in_allocation.fewer(spares, ctx.settings["spares"]))
    idle = tuple(sorted(view.available - set(exclude)))
    ctx.begin_launch(0)
    token = f"{ctx.run.token}:{number}"
    try:
        spec = plan.AttemptSpec(
            number,
            token=token,
            exclude=exclude,
            restart=sum(one.starts_made for one in ctx.run.attempts if one.number < number),
            last_fault=str(decision.get("class", "")),
            **resumable.told(ctx.run_dir, ctx.run),
            fresh=bool(decision.get("fresh")),
            idle=idle,
            array=_narrowed(ctx, tasks),
            anyway=known_ends.starts_anyway(decision, ctx.run.spent),
            spares=spares,
            size=size,
        )
        request = plan.request_for(ctx.run_dir, spec)
    except errors.SubmitImpossible as error:
        ctx.record("submit.refused", message=str(error), for_good=True)
        return
    ctx.services.uncalled.add(token)
    ctx.record("submit.intended", token=token)
    _submit(ctx, world, request)
    if ctx.attempt.submission == "done":
        dependents.move(ctx, world)


def _narrowed(ctx: RunContext, tasks: tuple[int, ...]) -> str:
    """The --array of the next attempt, with the user's own %limit; "" for what is no array."""
    spec = str(submission_context.load(ctx.run_dir).get("array", "")) if tasks else ""
    return node_names.narrowed(spec, tasks) if spec else ""


def _submit(ctx: RunContext, world: ClusterSnapshot, request: Any) -> None:
    try:
        answer = ctx.services.act("submit", world, lambda: ctx.services.submit(request))
    except (RefusedForGood, RefusedForNow, Unreachable) as error:
        ctx.record("submit.refused", message=error.message, for_good=isinstance(error, RefusedForGood))
    except OutcomeUnknown as error:
        ctx.record("submit.unknown", message=error.message)
    else:
        cluster = answer.cluster or ctx.services.facts().name
        ctx.record("submit.done", job_id=answer.job_id, cluster=cluster)
        run_dir.index(ctx.services.home, answer.job_id, ctx.run.id)
