"""Slurm wants the nodes of a live job for another one: its time of grace is used to save. (I/O)

How it thinks. From the first moment of GraceTime Slurm shows the end of the job nearer than its limit, in the one query that is made for all
jobs; that it is a preemption, and no reservation that ends, is asked for once then. Slurm sends TERM to the tasks of the steps, or the signal of
`--signal` where the site has it so, and nothing at all to a script without steps [tried on 22.05]. So the script is asked for a checkpoint
as before any other end; Slurm ends the job itself.

Who leaves in the time of grace does so as COMPLETED or FAILED, and slurmstepd calls its steps cancelled, as if by a person [tried]: it was preempted
all the same, unless it had come to its last step, or exits 0 and nothing had told it to leave.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ftrun.supervisor import submit
from ftrun.supervisor.leaving import STEPS_CANCELLED, Occasion
from ftrun.supervisor.save_request_io import ask, asked, awaited

if TYPE_CHECKING:
    from ftrun.slurm.client.cluster import JobRow
    from ftrun.supervisor.run_context import RunContext
    from ftrun.supervisor.run_types import Attempt
    from ftrun.supervisor.world import ClusterSnapshot

__all__ = ["as_preempted", "look", "seen_through"]


@dataclass
class _Ends:
    """Planned ends of which Slurm was asked whether they are a preemption."""

    asked_for: set[float | None] = field(default_factory=set)


def look(ctx: RunContext, world: ClusterSnapshot, row: JobRow) -> bool:
    """Have a preempted script save, once in a launch. True where the job is in its time of grace. Raises SlurmError, OSError (journal)."""
    if ctx.watch_only or len(ctx.rows(world)) > 1 or not row.is_cut_short:
        return False
    if asked(ctx, Occasion.PREEMPT):
        awaited(ctx, world)
        return True
    asked_for = ctx.observations.per_launch(_Ends).asked_for
    if row.planned_end_s in asked_for:
        return False
    details = ctx.services.cluster.details(ctx.attempt.job)
    asked_for.add(row.planned_end_s)  # once for each new end: many jobs may share a reservation
    if details is None or not details.is_preempted:
        return False
    left_s = max((row.planned_end_s or world.now_s) - world.now_s, 0.0)
    by_slurm = ctx.services.facts().preemption_signals and submit.warning_ahead_s(ctx.run_dir) is not None
    ask(ctx, world, Occasion.PREEMPT, round(left_s, 1), by_signal=not by_slurm)
    return True


def seen_through(ctx: RunContext, attempt: Attempt) -> Attempt:
    """`attempt` as it ended, seen with what is known of its preemption."""
    was_asked = asked(ctx, Occasion.PREEMPT)
    return as_preempted(attempt, ctx.observations.step, told=_told_to_leave(ctx), asked=was_asked)


def _told_to_leave(ctx: RunContext) -> bool:
    """The script of a preempted job was told so, be it by Slurm's TERM to its steps or by us, with a signal or with a file that it obeyed."""
    if any(one.signature == STEPS_CANCELLED for one in ctx.observations.evidence):
        return True
    request = ctx.run.leaving
    return asked(ctx, Occasion.PREEMPT) and bool(request.get("signal") or request.get("stage") == "saved")


def as_preempted(attempt: Attempt, step: int | None, *, told: bool, asked: bool) -> Attempt:
    """`attempt`, as PREEMPTED where it left by itself since Slurm wanted its nodes. (pure)

    `step` is its last one, `told` whether the script was told to leave; `asked` whether it was asked to save for this, where Slurm has
    forgotten the job.
    """
    if attempt.ended_by_us or attempt.launch.requeued or not (attempt.launch.end.preempted or asked):
        return attempt
    if attempt.launch.end.state == "COMPLETED":
        known = step is not None and attempt.total_steps is not None
        if not told or (known and (step or 0) >= (attempt.total_steps or 0)):
            return attempt
    elif attempt.launch.end.state not in ("FAILED", "GONE"):
        return attempt
    return attempt.ended_as(state="PREEMPTED")
