"""A job of a run that waits in the queue: looked at, moved to another size, relieved of what keeps it there, or given up. (I/O)

How it thinks. What is to be done is `queueing`'s to say. Where Slurm lets its owner, the waiting job itself is made smaller and keeps its place: that is
announced, done, and read back; who comes after an announcement asks Slurm what became of it, and where the job has started meanwhile, its nodes tell. Else a smaller size is a new attempt: the move is journalled, the waiting job is taken out of the
queue as a requeued one would be (its end is announced, seen and proven, its attempt closed), and the next attempt is
submitted at that size. So there are never two jobs of a run that could start, and whoever dies in between goes on where it was. A job that
started before it could be taken out is the run: it is followed, and the move is forgotten.

Arrays and heterogeneous jobs are left alone, and so is a run that ftrun may only watch.

A first attempt that waits in the queue is kept off the nodes that are held against.
How it thinks. `ftrun sbatch` asks neither ledger nor Slurm, so the first job of a run knows nothing of other runs' nodes. While it waits,
the quarantined nodes are added to its list of excluded ones, once, under the rules of every later attempt (`placing.left_out`). A job that starts
at once starts where it starts. What the user requires is not excluded, and neither is a node of a reservation, which people chose.

Nothing of this may keep a job from running. Slurm shows a job that cannot be placed any more as BadConstraints, or as one whose nodes
are not available; then our nodes are taken off the list again, and Slurm goes on with the job. The list is read anew before each change, and only
our own nodes are put on it or taken off, so that what the user changes meanwhile stands. They are in the journal, so whoever comes next can do that, too.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ftrun.slurm import records
from ftrun.slurm.client.cluster import JobState
from ftrun.slurm.client.errors import RefusedForGood
from ftrun.slurm.client.options import OptionError
from ftrun.slurm.records import replace
from ftrun.supervisor.config.node_counts import sizes_of_settings
from ftrun.supervisor.context.cluster_view import cluster_view, newest_checkpoint
from ftrun.supervisor.controller import drain, finish, node_history
from ftrun.supervisor.model import job_rows
from ftrun.supervisor.model.errors import SubmitImpossible
from ftrun.supervisor.model.timers import Interval, Stopwatch
from ftrun.supervisor.model.types import Decision, FaultClass
from ftrun.supervisor.policy import elastic, node_placement, policy_input, queue
from ftrun.supervisor.policy.queue import Patience, Pending, QueueClock
from ftrun.supervisor.store import journal, submission_context
from ftrun.supervisor.submission import in_allocation, node_names, plan

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ftrun.slurm.client.cluster import JobRow
    from ftrun.supervisor.config.node_counts import Sizes
    from ftrun.supervisor.context.cluster_snapshot import ClusterSnapshot
    from ftrun.supervisor.context.run_context import RunContext
    from ftrun.supervisor.context.services import Services
    from ftrun.supervisor.policy.policy_input import ClusterView

__all__ = ["PendingExclusion", "forget", "keep_off_quarantined", "look", "may_be_taken_out", "shape_of_next"]


LOOK_EVERY_S = 5.0


@dataclass
class _Wait:
    """Of one job in the queue."""

    clock: QueueClock = field(default_factory=QueueClock)
    outages: int = 0  # that the clock knows of
    looked: Interval = field(default_factory=Interval)
    never_starts: Stopwatch = field(default_factory=Stopwatch)
    relaxed: Stopwatch = field(default_factory=Stopwatch)
    alive: Stopwatch = field(default_factory=Stopwatch)  # though it was to be taken out


def look(ctx: RunContext, world: ClusterSnapshot, row: JobRow) -> None:
    """One look at a job in the queue. Raises SlurmError where it is worth another look."""
    alone = len(ctx.rows(world)) == 1 and row.job_id.isdigit()
    if ctx.watch_only or row.state is not JobState.PENDING or not alone:
        return
    first = not any(one.nodes for one in ctx.run.attempts)
    waited_s = _waited(ctx, world, first=first)
    if not _wait(ctx).looked.due(world.mono_s, LOOK_EVERY_S):
        return
    if ctx.attempt.resizing:
        _reshape(ctx, world, ctx.attempt.resizing, "announced before")
        return
    if not first and row.reason in ("Priority", "Resources"):
        drain.request_priority(ctx, world)
    sizes, patience = _sizes(ctx), _patience(ctx)
    pending = _pending(ctx, world, row, waited_s, sizes, first=first)
    may_move = waited_s >= min(queue.spare_wait_s(pending, patience), patience.timeout_s) or pending.never_s
    if not may_move and not queue.cannot_start(row.reason):
        return  # the usual case costs Slurm no question
    ready = _ready(ctx, world, sizes) if sizes is not None and not pending.first else 0
    move = queue.look(pending, ready, sizes, patience)
    if move.kind == "notify":
        message = f"attempt {ctx.attempt.number}: {move.reason}"
        if message not in ctx.run.warnings:
            ctx.record("warned", message=message)
    elif move.kind == "relax":
        _give_back(ctx, world, move.nodes, move.reason)
    elif move.kind == "shrink" and not ctx.attempt.fixed and not ctx.settings.get("spares"):
        _reshape(ctx, world, move.size, move.reason)
    elif move.kind in ("shrink", "anew"):
        _move(ctx, world, move.size, move.reason)
    elif move.kind in ("stop", "hopeless") and _still_waits(ctx):
        _stop(ctx, world, move.reason)


def shape_of_next(
    ctx: RunContext, world: ClusterSnapshot, view: ClusterView, exclude: Sequence[str]
) -> tuple[int, int | None]:
    """(how many nodes the next attempt uses, 0 for a run that has but one size; its spares, None for a run that has none)."""
    sizes, attempt = _sizes(ctx), ctx.attempt
    size = int(ctx.run.decision.get("size", 0))
    if sizes is None:
        return 0, in_allocation.spares_now(ctx.settings, attempt, view, exclude)
    view = queue.alike(view, world.nodes or {}, ctx.run)
    if size not in sizes.all:
        now = queue.present(ctx.run, sizes)
        worth = elastic.usable(sizes, ctx.run.sizes_aside)
        size = queue.next_size(worth, now, view, attempt.nodes, exclude)
    spares = in_allocation.spares_now(ctx.settings, attempt, view, exclude, size)
    if spares and view.partition:  # a spare is not worth waiting for
        spares = max(0, min(spares, queue.ready(view, attempt.nodes, exclude) - size))
    return size, spares


def may_be_taken_out(ctx: RunContext, world: ClusterSnapshot, row: JobRow) -> bool:
    """Whether a job that is to wait no longer may be ended, or is over, by us. Else it is what goes on, or a person has ended it (P5)."""
    attempt = ctx.attempt
    if row.state.pending:
        return attempt.cancel_intended or _still_waits(ctx)
    if row.state is JobState.CANCELLED and attempt.cancel_intended:
        return True
    if row.state is JobState.CANCELLED and not row.nodes:
        finish.cancelled_in_queue(ctx, world)
        return False
    if row.state.ended and not row.nodes:
        return True
    if attempt.cancel_intended and not row.state.ended:
        alive_s = _wait(ctx).alive.held_s(world.mono_s)
        if row.state is not JobState.RUNNING or alive_s < finish.ALIVE_FOR_S:
            return False  # our cancel may be on its way
    finish.follow_launch(ctx, row)
    return False


def _wait(ctx: RunContext) -> _Wait:
    return ctx.observations.per_launch(_Wait)


def _sizes(ctx: RunContext) -> Sizes | None:
    sizes = sizes_of_settings(ctx.settings)
    return sizes.without(ctx.run.sizes_aside) if sizes is not None else None


def _patience(ctx: RunContext) -> Patience:
    chosen = ctx.settings
    return Patience(
        float(chosen.get("resize-after", 270.0)),
        float(chosen.get("queue-timeout", 1800.0)),
        str(chosen.get("on-queue-timeout", "")),
    )


def _waited(ctx: RunContext, world: ClusterSnapshot, *, first: bool) -> float:
    """How long the job has waited, by whoever looked after it; noted now and then where it matters to somebody."""
    wait, outages = _wait(ctx), ctx.observations.outages
    clock = wait.clock
    if wait.outages != outages:
        wait.outages = outages
        clock.stop()
    waited_s = clock.look(ctx.attempt.waited_s, world.mono_s)
    if clock.due and not first:
        ctx.record("queue.waited", waited_s=round(waited_s, 1))
    return waited_s


def _pending(
    ctx: RunContext, world: ClusterSnapshot, row: JobRow, waited_s: float, sizes: Sizes | None, *, first: bool
) -> Pending:
    attempt, wait = ctx.attempt, _wait(ctx)
    if not queue.never_starts(row.reason):
        wait.never_starts.stop()
        never_s = 0.0
    else:
        never_s = wait.never_starts.held_s(world.mono_s)
    relaxed = wait.relaxed.since_s
    return Pending(
        reason=row.reason,
        waited_s=waited_s,
        size=attempt.size or (sizes.full if sizes is not None else row.node_count),
        spares=in_allocation.spares_of(ctx.settings, attempt),
        first=first,
        kept_off=queue.tiers(ctx.run, attempt.excluded, world.now_s),
        relaxed_s=world.mono_s - relaxed if relaxed is not None else float("inf"),
        never_s=never_s,
        sized_s=waited_s - attempt.sized_at_s,
        starts_in_s=row.start_time_s - world.now_s if row.start_time_s is not None else None,
        resized=attempt.resized,
    )


def _ready(ctx: RunContext, world: ClusterSnapshot, sizes: Sizes) -> int:
    """How many idle, healthy nodes the waiting job could have now. Raises SlurmError."""
    if sum(row.state == "idle" for row in (world.nodes or {}).values()) < sizes.all[0]:
        return 0  # a full cluster is not asked about anything more
    view = queue.alike(cluster_view(ctx, world), world.nodes or {}, ctx.run)
    return queue.ready(view, (), ctx.attempt.excluded)


def _still_waits(ctx: RunContext) -> bool:
    """Slurm is asked once more just before a waiting job is ended: what started meanwhile is left alone. Raises SlurmError."""
    families = job_rows.families(ctx.services.cluster.jobs((ctx.attempt.job,)))
    found = families.get(ctx.attempt.job, ())
    return bool(found) and all(row.state is JobState.PENDING for row in found)


def _reshape(ctx: RunContext, world: ClusterSnapshot, size: int, reason: str) -> None:
    """Make the waiting job itself smaller; where that cannot be, the next look goes the other way. Raises SlurmError: the next look asks what became of it."""
    cluster, attempt = ctx.services.cluster, ctx.attempt
    details = cluster.details(attempt.job)
    if details is None or details.state is not JobState.PENDING:
        return  # it has started, or it is over: that is seen at the next look
    shape = queue.reshaped(details.fields, size)
    if isinstance(shape, str):
        ctx.record("resize.refused", size=size, message=shape)
        return
    if not attempt.resizing:
        ctx.record("resize.intended", size=size, reason=reason, tasks=shape.tasks, cpus=shape.cpus)
    try:
        ctx.services.act(
            "resize",
            world,
            lambda: cluster.reshape(attempt.job, nodes=shape.nodes, tasks=shape.tasks, cpus=shape.cpus),
        )
    except RefusedForGood as error:
        ctx.record("resize.refused", size=size, message=error.message)
        return
    details = cluster.details(attempt.job)
    if details is not None and details.state is JobState.PENDING and not queue.applied(details.fields, shape):
        ctx.record("resize.refused", size=size, message="Slurm shows other numbers than it was told")
        return
    waited_s = round(_wait(ctx).clock.waited_s, 1)
    ctx.record("resize.done", size=size, reason=reason, waited_s=waited_s)


def _move(ctx: RunContext, world: ClusterSnapshot, size: int, reason: str) -> None:
    ctx.services.fresh(world)
    if not _still_waits(ctx):
        return
    last = ctx.run.incidents[-1].fault if ctx.run.incidents else ""
    decision = {"kind": "resubmit", "reason": reason, "size": size, "queued": True, "class": last}
    ctx.record("queue.moved", decision=decision)


def _give_back(ctx: RunContext, world: ClusterSnapshot, nodes: Sequence[str], reason: str) -> None:
    """Take these nodes off the job's list, less those that its user put there."""
    cluster, attempt = ctx.services.cluster, ctx.attempt
    details = cluster.details(attempt.job)
    if details is None or details.state is not JobState.PENDING:
        return
    keep = set(details.excluded) - (set(nodes) - _users_own(ctx))
    left = sorted(set(attempt.excluded) - set(nodes))
    ctx.record("exclude.intended", nodes=left, before=list(details.excluded), reason=reason)
    try:
        ctx.services.act("exclude", world, lambda: cluster.exclude(attempt.job, sorted(keep)))
    except RefusedForGood as error:
        ctx.record("exclude.refused", message=error.message)
    else:
        ctx.record("exclude.done", nodes=left, left=left)
        ctx.record("warned", message=f"attempt {attempt.number}: {reason}")
    _wait(ctx).relaxed.restart(world.mono_s)


def _users_own(ctx: RunContext) -> set[str]:
    try:
        kept, given = plan.load(ctx.run_dir)
        return set(node_names.excluded(given, kept.get("cwd", "")))
    except (submission_context.ContextError, OptionError, SubmitImpossible):
        return set()


def _stop(ctx: RunContext, world: ClusterSnapshot, reason: str) -> None:
    newest = newest_checkpoint(ctx)
    saved = f"the last good checkpoint is {newest}" if newest else "no complete checkpoint is known"
    data: dict[str, Any] = {"class": FaultClass.SCHEDULER.value, "signature": "slurm.queue"}
    advice = f"ftrun resume {ctx.run.id} goes on from there"
    finish.end_run(ctx, world, Decision("stop", f"{reason}; {saved}", advice=advice), data)


CANNOT_START = ("badconstraints", "reqnodenotavail", "nodesrequiredforjobaredown")


@records.dataclass(frozen=True, slots=True)
class PendingExclusion:
    """What was done about a waiting job: the list before, what came on top of it, what is taken off it, whether Slurm has it so."""

    before: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    back: tuple[str, ...] = ()
    done: bool = True


@records.dataclass
class _FirstJobs:
    """Of all runs: token -> what was done about the first job in the queue."""

    done: dict[str, PendingExclusion] = field(default_factory=dict)


def forget(services: Services) -> None:
    """Another supervisor may change the lists of waiting jobs: the journals are read again."""
    services.shared(_FirstJobs).done.clear()


def keep_off_quarantined(ctx: RunContext, world: ClusterSnapshot, row: JobRow) -> None:
    """One look at a job in the queue. Raises SlurmError where it is worth another look."""
    attempt, known = ctx.attempt, ctx.services.shared(_FirstJobs).done
    first = attempt.number == 1 and not attempt.launch.number and attempt.launch.running_seen_at_s is None
    if not first or ctx.watch_only or row.state is not JobState.PENDING or _in_parts(ctx, world, row):
        return
    told = known.get(ctx.run.token) or _from_journal(ctx)
    if told is None:
        told = _chosen(ctx, world, row)
        if told.nodes:
            _announce(ctx, told)
    elif told.done and told.nodes and _cannot_start(row):
        told = replace(told, nodes=(), back=told.nodes, done=False)
        _announce(ctx, told)
    if not told.done:
        _carry_out(ctx, world, told)
        told = replace(told, done=True)
    known[ctx.run.token] = told


def _cannot_start(row: JobRow) -> bool:
    """Slurm says that the nodes of this job are too few, and not only busy."""
    reason = row.reason.lower().replace(" ", "").replace("_", "")
    return any(words in reason for words in CANNOT_START)


def _in_parts(ctx: RunContext, world: ClusterSnapshot, row: JobRow) -> bool:
    """Tasks of an array and components of a heterogeneous job have lists of their own: they are left alone."""
    return len(ctx.rows(world)) > 1 or not row.job_id.isdigit()


def _chosen(ctx: RunContext, world: ClusterSnapshot, row: JobRow) -> PendingExclusion:
    """Whom this job is to be kept off; nobody, in most cases, and then Slurm is not asked."""
    quarantined = node_history.quarantined(ctx, world.now_s)
    if not quarantined:
        return PendingExclusion()
    view = cluster_view(ctx, world)
    details = ctx.services.cluster.details(ctx.attempt.job)
    if details is None or details.state is not JobState.PENDING or len(view.partition) == 0:
        return PendingExclusion()
    if details.fields.get("Reservation", "(null)") not in ("", "(null)"):
        return PendingExclusion()
    cap = policy_input.limits_from(ctx.settings).exclude_cap
    free = [node for node in quarantined if node not in (*details.required, *details.excluded)]
    view = replace(view, nodes_needed=max(view.nodes_needed, row.node_count, len(details.required)))
    own = [node for node in details.excluded if node in view.partition]
    view = replace(view, partition=tuple(node for node in view.partition if node not in own))
    view = replace(view, available=view.available - set(own), lost=view.lost - set(own))
    nodes = node_placement.left_out(view, (), (), (), quarantined=free, cap=cap)
    return PendingExclusion(details.excluded, nodes, done=not nodes)


def _announce(ctx: RunContext, told: PendingExclusion) -> None:
    ctx.record("exclude.intended", nodes=list(told.nodes), before=list(told.before))


def _carry_out(ctx: RunContext, world: ClusterSnapshot, told: PendingExclusion) -> None:
    """Change the list. A job that has started meanwhile keeps its place."""
    cluster, job = ctx.services.cluster, ctx.attempt.job
    details = cluster.details(job)
    now, required = (details.excluded, details.required) if details is not None else (told.before, ())
    names = sorted({*now, *(set(told.nodes) - set(required))} - set(told.back))
    try:
        if names != sorted(now):
            ctx.services.act("exclude", world, lambda: cluster.exclude(job, names))
    except RefusedForGood as error:
        ctx.record("exclude.refused", message=error.message)
    else:
        ctx.record("exclude.done", nodes=list(told.nodes))


def _from_journal(ctx: RunContext) -> PendingExclusion | None:
    """What an earlier supervisor did; None where none did anything."""
    told: PendingExclusion | None = None
    for record in journal.read_run(ctx.run_dir):
        data = record["data"]
        if record["kind"] == "exclude.intended":
            nodes, added = tuple(data["nodes"]), told.nodes if told is not None else ()
            told = PendingExclusion(tuple(data["before"]), nodes, () if nodes else added, done=False)
        elif record["kind"] in ("exclude.done", "exclude.refused") and told is not None:
            told = replace(told, done=True)
    return told
