"""Stops, pauses and time limits of a live attempt: it is asked for a checkpoint before it is left. (I/O)

How it thinks. What `leaving` decides is carried out here, one look at a time. Asking is an effect like any other: intent, act, fact.
Who takes over in between asks once more, which costs the script one more checkpoint at the worst; the time of the wait is by the
clock of who waits, so a takeover makes it longer and never shorter.

A time limit is left to Slurm: the script is asked in time, goes on with its work, and the limit itself ends it, for it may come to its own
end before. Where Slurm was told to send a signal, it asks, and it may do so a minute early: from then on a new checkpoint is the answer, and only
where there is none in time the script is asked by us as well. One kind of script is ended once it has answered: it tells its last step and
cannot reach it before the limit, and in all its time it has saved nothing unasked, so that all it makes from there on would be thrown away.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ftrun.supervisor import (
    checkpoints,
    drained,
    ending,
    expected,
    haltfile,
    leaving,
    preempted,
    savenow,
    submit,
)
from ftrun.supervisor.cluster_view import newest_checkpoint
from ftrun.supervisor.end_reasons import AT_LIMIT
from ftrun.supervisor.halts import FILE, BadHalt, Halt
from ftrun.supervisor.leaving import Occasion, Sight
from ftrun.supervisor.lifecycle import State
from ftrun.supervisor.save_request_io import SLURM, ask, asked, awaited, listens, save_wait_s, sight, unask
from ftrun.supervisor.timers import Intervals

if TYPE_CHECKING:
    from ftrun.slurm.client.cluster import JobRow
    from ftrun.supervisor.run_context import RunContext
    from ftrun.supervisor.world import ClusterSnapshot

__all__ = ["leave", "live", "look", "near_limit"]

_OVER = frozenset({State.SETTLING, State.RECOVERING})


@dataclass
class _Signal:
    """`warned.ahead_s` of one start, once it was asked for."""

    ahead_s: tuple[float | None] | None = None


@dataclass
class _Told:
    """What was said of `halt.json`."""

    errors: Intervals = field(default_factory=Intervals)


def look(ctx: RunContext, world: ClusterSnapshot) -> None:
    """Note what `halt.json` says, and that its condition holds. Raises OSError (journal)."""
    if ctx.run.final:
        return
    if ctx.run.state in _OVER:
        savenow.clear(ctx.run_dir)  # it was meant for a launch that is over
    halt = _read(ctx)
    if halt is not None and halt.token != ctx.run.halt.get("token", ""):
        ctx.record("halt.set", halt=halt.to_json())
        unask(ctx)
    known = Halt.from_json(ctx.run.halt)
    if not known.wanted or ctx.run.wish:
        return
    why = known.due(step=ctx.observations.step, now_s=world.now_s, save_wait_s=save_wait_s(ctx))
    if why:
        ctx.record("halt.due", want=known.word, by=known.by, why=why)


def live(ctx: RunContext, world: ClusterSnapshot, row: JobRow) -> None:
    """What a person, or the time limit, wants of a live attempt. Raises SlurmError."""
    drained.tidy(ctx)
    if ctx.run.wish == "cancel":
        ending.intend(ctx, f"cancel by {ctx.run.wish_by or 'request'}")
    elif ctx.run.wish:
        leave(ctx, world)
    elif not preempted.look(ctx, world, row):
        drained.look(ctx, world, row)
        if ctx.run.state is State.ENDING:
            return
        near_limit(ctx, world, row)


def leave(ctx: RunContext, world: ClusterSnapshot) -> None:
    """One look at a live attempt that a person wants to stop or pause: ask it, wait, end it."""
    run, report = ctx.run, ctx.observations.report
    if report is not None and report.behind:
        return  # what was saved long ago would look new
    halt = Halt.from_json(run.halt)
    if not halt.wanted:  # a request without conditions
        halt = Halt(after_checkpoint=True)
    occasion = Occasion.PAUSE if run.wish == "pause" else Occasion.STOP
    if not asked(ctx, occasion) or run.leaving.get("halt") != halt.token:
        wait_s = halt.wait_s(now_s=world.now_s, save_wait_s=save_wait_s(ctx), listens=listens(ctx))
        ask(ctx, world, occasion, wait_s, halt=halt.token)
        return
    verdict = awaited(ctx, world)
    if verdict.end:
        ending.intend(ctx, f"{run.wish} by {run.wish_by or 'request'}; {verdict.reason}")


def near_limit(ctx: RunContext, world: ClusterSnapshot, row: JobRow) -> None:
    """Have the script save when the time limit is near: Slurm asks it where it was told to, we do otherwise. Raises SlurmError."""
    limit_s, end_s = row.time_limit_s, row.limit_end_s
    if ctx.watch_only or limit_s is None or end_s is None:
        return
    left_s = end_s - world.now_s
    near = leaving.limit_is_near(limit_s, left_s, save_wait_s(ctx))
    if asked(ctx, Occasion.TIMELIMIT):
        _hear(ctx, world, left_s, near=near)
        return
    if not (ctx.settings.get("checkpoint") or listens(ctx)):
        return
    signal = ctx.observations.per_start(_Signal)
    if signal.ahead_s is None:
        signal.ahead_s = (submit.warning_ahead_s(ctx.run_dir),)
    (ahead_s,) = signal.ahead_s
    slurms = bool(ahead_s) and leaving.warning_is_due(ahead_s or 0.0, left_s)
    if not near and not slurms:
        return
    known = sight(ctx, world)
    written_s = checkpoints.written_s(known.path) if known.path else None
    by_itself = known.logged is not None or (written_s or 0.0) > (ctx.attempt.launch.started_at_s or 0.0)
    if slurms and written_s is not None and leaving.warning_is_due(ahead_s or 0.0, end_s - written_s):
        known = Sight()  # the answer to Slurm is there already
    ask(
        ctx,
        world,
        Occasion.TIMELIMIT,
        max(left_s, 0.0),
        by_signal=ahead_s is None,
        known=known.to_json(),
        unasked=by_itself,
        by=SLURM if slurms else "",
    )


def _hear(ctx: RunContext, world: ClusterSnapshot, left_s: float, *, near: bool) -> None:
    """What becomes of a script that was asked to save before its time limit."""
    told = ctx.run.leaving
    if told["stage"] == "missed":
        return
    verdict = awaited(ctx, world)
    if not verdict.end and near and told.get("by") == SLURM:
        if not leaving.new(Sight.from_json(told["known"]), sight(ctx, world)):
            more = {"known": told["known"], "unasked": told["unasked"]}
            ask(ctx, world, Occasion.TIMELIMIT, max(left_s, 0.0), by_signal=False, **more)
        return
    ends = expected.of_run(ctx.run, world.now_s)
    work_s = (ends.target - ends.step) * ends.step_s if ends is not None else None
    vain = leaving.in_vain(work_s=work_s, left_s=left_s, unasked=bool(told.get("unasked", True)))
    if verdict.saved and vain and newest_checkpoint(ctx) and ctx.run.state is State.RUNNING:
        ending.intend(ctx, f"{AT_LIMIT}; {verdict.reason}")


# ---------------------------------------------------------------------- the effects


# ---------------------------------------------------------------------- what is known


def _read(ctx: RunContext) -> Halt | None:
    """What `halt.json` says now; None where there is none that can be obeyed. One that makes no sense is told once."""
    try:
        return haltfile.read(ctx.run_dir)
    except BadHalt as error:
        if ctx.observations.per_launch(_Told).errors[str(error)].first():
            ctx.record("warned", message=f"{ctx.run_dir}/{FILE} is not obeyed: {error}")
        return None
