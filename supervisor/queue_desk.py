"""A job of a run that waits in the queue: looked at, moved to another size, relieved of what keeps it there, or given up. (I/O)

How it thinks. What is to be done is `queueing`'s to say. Where Slurm lets its owner, the waiting job itself is made smaller and keeps its place: that is
announced, done, and read back; who comes after an announcement asks Slurm what became of it, and where the job has started meanwhile, its nodes tell. Else a smaller size is a new attempt: the move is journalled, the waiting job is taken out of the
queue as a requeued one would be (its end is announced, seen and proven, its attempt closed), and the next attempt is
submitted at that size. So there are never two jobs of a run that could start, and whoever dies in between goes on where it was. A job that
started before it could be taken out is the run: it is followed, and the move is forgotten.

Arrays and heterogeneous jobs are left alone, and so is a run that ftrun may only watch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ftrun.slurm.client.cluster import JobState
from ftrun.slurm.client.errors import RefusedForGood
from ftrun.slurm.client.options import OptionError
from ftrun.supervisor import (
    asking,
    context,
    growing,
    inside,
    nodelists,
    queueing,
    recover,
    reshaping,
    rows,
    settle,
    submit,
)
from ftrun.supervisor.errors import SubmitImpossible
from ftrun.supervisor.model import Decision, FaultClass
from ftrun.supervisor.queueing import Patience, Pending
from ftrun.supervisor.sizes import sizes_of_settings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ftrun.slurm.client.cluster import JobRow
    from ftrun.supervisor.grounds import ClusterView
    from ftrun.supervisor.keeper import Keeper
    from ftrun.supervisor.office import World
    from ftrun.supervisor.sizes import Sizes

__all__ = ["look", "may_be_taken_out", "shape_of_next"]

LOOK_EVERY_S = 5.0


def look(keeper: Keeper, world: World, row: JobRow) -> None:
    """One look at a job in the queue. Raises SlurmError where it is worth another look."""
    alone = len(keeper.rows(world)) == 1 and row.job_id.isdigit()
    if keeper.watch_only or row.state is not JobState.PENDING or not alone:
        return
    first = not any(one.nodes for one in keeper.run.attempts)
    waited_s = _waited(keeper, world, first=first)
    if not keeper.memory.due("queue-look", world.mono_s, LOOK_EVERY_S):
        return
    if keeper.attempt.resizing:
        _reshape(keeper, world, keeper.attempt.resizing, "announced before")
        return
    if not first and row.reason in ("Priority", "Resources"):
        asking.ahead(keeper, world)
    sizes, patience = _sizes(keeper), _patience(keeper)
    pending = _pending(keeper, world, row, waited_s, sizes, first=first)
    may_move = (
        waited_s >= min(queueing.spare_wait_s(pending, patience), patience.timeout_s) or pending.never_s
    )
    if not may_move and not queueing.cannot_start(row.reason):
        return  # the usual case costs Slurm no question
    ready = _ready(keeper, world, sizes) if sizes is not None and not pending.first else 0
    move = queueing.look(pending, ready, sizes, patience)
    if move.kind == "notify":
        message = f"attempt {keeper.attempt.number}: {move.reason}"
        if message not in keeper.run.warnings:
            keeper.record("warned", message=message)
    elif move.kind == "relax":
        _give_back(keeper, world, move.nodes, move.reason)
    elif move.kind == "shrink" and not keeper.attempt.fixed and not keeper.settings.get("spares"):
        _reshape(keeper, world, move.size, move.reason)
    elif move.kind in ("shrink", "anew"):
        _move(keeper, world, move.size, move.reason)
    elif move.kind in ("stop", "hopeless") and _still_waits(keeper):
        _stop(keeper, world, move.reason)


def shape_of_next(
    keeper: Keeper, world: World, view: ClusterView, exclude: Sequence[str]
) -> tuple[int, int | None]:
    """(how many nodes the next attempt uses, 0 for a run that has but one size; its spares, None for a run that has none)."""
    sizes, attempt = _sizes(keeper), keeper.attempt
    size = int(keeper.run.decision.get("size", 0))
    if sizes is None:
        return 0, inside.spares_now(keeper.settings, attempt, view, exclude)
    view = queueing.alike(view, world.nodes or {}, keeper.run)
    if size not in sizes.all:
        now = queueing.present(keeper.run, sizes)
        worth = growing.usable(sizes, keeper.run.sizes_aside)
        size = queueing.next_size(worth, now, view, attempt.nodes, exclude)
    spares = inside.spares_now(keeper.settings, attempt, view, exclude, size)
    if spares and view.partition:  # a spare is not worth waiting for
        spares = max(0, min(spares, queueing.ready(view, attempt.nodes, exclude) - size))
    return size, spares


def may_be_taken_out(keeper: Keeper, world: World, row: JobRow) -> bool:
    """Whether a job that is to wait no longer may be ended, or is over, by us. Else it is what goes on, or a person has ended it (P5)."""
    attempt = keeper.attempt
    if row.state.pending:
        return attempt.cancel_intended or _still_waits(keeper)
    if row.state is JobState.CANCELLED and attempt.cancel_intended:
        return True
    if row.state is JobState.CANCELLED and not row.nodes:
        recover.cancelled_in_queue(keeper, world)
        return False
    if row.state.ended and not row.nodes:
        return True
    if attempt.cancel_intended and not row.state.ended:
        alive_s = keeper.memory.for_how_long("moved-alive", world.mono_s)
        if row.state is not JobState.RUNNING or alive_s < recover.ALIVE_FOR_S:
            return False  # our cancel may be on its way
    recover.follow(keeper, row)
    return False


def _sizes(keeper: Keeper) -> Sizes | None:
    sizes = sizes_of_settings(keeper.settings)
    return sizes.without(keeper.run.sizes_aside) if sizes is not None else None


def _patience(keeper: Keeper) -> Patience:
    chosen = keeper.settings
    return Patience(
        float(chosen.get("spare-wait", 270.0)),
        float(chosen.get("queue-timeout", 1800.0)),
        str(chosen.get("on-queue-timeout", "")),
    )


def _waited(keeper: Keeper, world: World, *, first: bool) -> float:
    """How long the job has waited, by whoever looked after it; noted now and then where it matters to somebody."""
    clock = keeper.memory.queued
    waited_s = clock.look(keeper.attempt.waited_s, world.mono_s)
    if clock.due and not first:
        keeper.record("queue.waited", waited_s=round(waited_s, 1))
    return waited_s


def _pending(
    keeper: Keeper, world: World, row: JobRow, waited_s: float, sizes: Sizes | None, *, first: bool
) -> Pending:
    attempt, memory = keeper.attempt, keeper.memory
    if not queueing.never_starts(row.reason):
        memory.since.pop("queue-never", None)
        never_s = 0.0
    else:
        never_s = memory.for_how_long("queue-never", world.mono_s)
    relaxed = memory.since.get("queue-relaxed")
    return Pending(
        reason=row.reason,
        waited_s=waited_s,
        size=attempt.size or (sizes.full if sizes is not None else row.node_count),
        spares=inside.spares_of(keeper.settings, attempt),
        first=first,
        kept_off=queueing.tiers(keeper.run, attempt.excluded, world.now_s),
        relaxed_s=world.mono_s - relaxed if relaxed is not None else float("inf"),
        never_s=never_s,
        sized_s=waited_s - attempt.sized_at_s,
        starts_in_s=row.start_time_s - world.now_s if row.start_time_s is not None else None,
        resized=attempt.resized,
    )


def _ready(keeper: Keeper, world: World, sizes: Sizes) -> int:
    """How many idle, healthy nodes the waiting job could have now. Raises SlurmError."""
    if sum(row.state == "idle" for row in (world.nodes or {}).values()) < sizes.all[0]:
        return 0  # a full cluster is not asked about anything more
    view = queueing.alike(settle.cluster_view(keeper, world), world.nodes or {}, keeper.run)
    return queueing.ready(view, (), keeper.attempt.excluded)


def _still_waits(keeper: Keeper) -> bool:
    """Slurm is asked once more just before a waiting job is ended: what started meanwhile is left alone. Raises SlurmError."""
    families = rows.families(keeper.office.cluster.jobs((keeper.attempt.job,)))
    found = families.get(keeper.attempt.job, ())
    return bool(found) and all(row.state is JobState.PENDING for row in found)


def _reshape(keeper: Keeper, world: World, size: int, reason: str) -> None:
    """Make the waiting job itself smaller; where that cannot be, the next look goes the other way. Raises SlurmError: the next look asks what became of it."""
    cluster, attempt = keeper.office.cluster, keeper.attempt
    details = cluster.details(attempt.job)
    if details is None or details.state is not JobState.PENDING:
        return  # it has started, or it is over: that is seen at the next look
    shape = reshaping.reshaped(details.fields, size)
    if isinstance(shape, str):
        keeper.record("resize.refused", size=size, message=shape)
        return
    if not attempt.resizing:
        keeper.record("resize.intended", size=size, reason=reason, tasks=shape.tasks, cpus=shape.cpus)
    try:
        keeper.office.act(
            "resize",
            world,
            lambda: cluster.reshape(attempt.job, nodes=shape.nodes, tasks=shape.tasks, cpus=shape.cpus),
        )
    except RefusedForGood as error:
        keeper.record("resize.refused", size=size, message=error.message)
        return
    details = cluster.details(attempt.job)
    if (
        details is not None
        and details.state is JobState.PENDING
        and not reshaping.applied(details.fields, shape)
    ):
        keeper.record("resize.refused", size=size, message="Slurm shows other numbers than it was told")
        return
    waited_s = round(keeper.memory.queued.waited_s, 1)
    keeper.record("resize.done", size=size, reason=reason, waited_s=waited_s)


def _move(keeper: Keeper, world: World, size: int, reason: str) -> None:
    keeper.office.fresh(world)
    if not _still_waits(keeper):
        return
    last = keeper.run.incidents[-1].fault if keeper.run.incidents else ""
    decision = {"kind": "resubmit", "reason": reason, "size": size, "queued": True, "class": last}
    keeper.record("queue.moved", decision=decision)


def _give_back(keeper: Keeper, world: World, nodes: Sequence[str], reason: str) -> None:
    """Take these nodes off the job's list, less those that its user put there."""
    cluster, attempt = keeper.office.cluster, keeper.attempt
    details = cluster.details(attempt.job)
    if details is None or details.state is not JobState.PENDING:
        return
    keep = set(details.excluded) - (set(nodes) - _users_own(keeper))
    left = sorted(set(attempt.excluded) - set(nodes))
    keeper.record("exclude.intended", nodes=left, before=list(details.excluded), reason=reason)
    try:
        keeper.office.act("exclude", world, lambda: cluster.exclude(attempt.job, sorted(keep)))
    except RefusedForGood as error:
        keeper.record("exclude.refused", message=error.message)
    else:
        keeper.record("exclude.done", nodes=left, left=left)
        keeper.record("warned", message=f"attempt {attempt.number}: {reason}")
    keeper.memory.since["queue-relaxed"] = world.mono_s


def _users_own(keeper: Keeper) -> set[str]:
    try:
        kept = context.load(keeper.run_dir)
        line, head = submit.split_kept(kept), submit.directive_lines(context.script(keeper.run_dir), kept)
        return set(nodelists.excluded(line, head, kept.get("cwd", "")))
    except (context.ContextError, OptionError, SubmitImpossible):
        return set()


def _stop(keeper: Keeper, world: World, reason: str) -> None:
    newest = settle.newest_checkpoint(keeper)
    saved = f"the last good checkpoint is {newest}" if newest else "no complete checkpoint is known"
    data: dict[str, Any] = {"class": FaultClass.SCHEDULER.value, "signature": "slurm.queue"}
    advice = f"ftrun resume {keeper.run.id} goes on from there"
    recover.finish(keeper, world, Decision("stop", f"{reason}; {saved}", advice=advice), data)
