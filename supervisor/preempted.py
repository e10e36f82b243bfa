"""Slurm wants the nodes of a live job for another one: its time of grace is used to save. (I/O)

How it thinks. From the first moment of GraceTime Slurm shows the end of the job nearer than its limit, in the one query that is made for all
jobs; that it is a preemption, and no reservation that ends, is asked for once then. Slurm sends TERM to the tasks of the steps, or the signal of
`--signal` where the site has it so, and nothing at all to a script without steps [tried on 22.05]. So the script is asked for a checkpoint
as before any other end; Slurm ends the job itself.

Who leaves in the time of grace does so as COMPLETED or FAILED, and slurmstepd calls its steps cancelled, as if by a person [tried]: it was preempted
all the same, unless it had come to its last step, or exits 0 and nothing had told it to leave.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ftrun.supervisor import halting, submit
from ftrun.supervisor.leaving import Occasion

if TYPE_CHECKING:
    from ftrun.slurm.client.cluster import JobRow
    from ftrun.supervisor.keeper import Keeper
    from ftrun.supervisor.office import World
    from ftrun.supervisor.run_types import Attempt

__all__ = ["as_preempted", "look", "seen_through"]

STEPS_CANCELLED = "slurm-cancelled"  # what slurmstepd writes when the tasks get their TERM


def look(keeper: Keeper, world: World, row: JobRow) -> bool:
    """Have a preempted script save, once in a launch. True where the job is in its time of grace. Raises SlurmError, OSError (journal)."""
    if keeper.watch_only or len(keeper.rows(world)) > 1 or not row.is_cut_short:
        return False
    if halting.asked(keeper, Occasion.PREEMPT):
        halting.awaited(keeper, world)
        return True
    doubted = f"cut-short:{row.planned_end_s}"
    if doubted in keeper.memory.since:
        return False
    details = keeper.office.cluster.details(keeper.attempt.job)
    keeper.memory.since[doubted] = (
        world.mono_s
    )  # asked once for each new end: many jobs may share a reservation
    if details is None or not details.is_preempted:
        return False
    left_s = max((row.planned_end_s or world.now_s) - world.now_s, 0.0)
    by_slurm = keeper.office.facts().preemption_signals and submit.warning_ahead_s(keeper.run_dir) is not None
    halting.ask(keeper, world, Occasion.PREEMPT, round(left_s, 1), by_signal=not by_slurm)
    return True


def seen_through(keeper: Keeper, attempt: Attempt) -> Attempt:
    """`attempt` as it ended, seen with what is known of its preemption."""
    asked = halting.asked(keeper, Occasion.PREEMPT)
    return as_preempted(attempt, keeper.memory.step, told=_told_to_leave(keeper), asked=asked)


def _told_to_leave(keeper: Keeper) -> bool:
    """The script of a preempted job was told so, be it by Slurm's TERM to its steps or by us, with a signal or with a file that it obeyed."""
    if any(one.signature == STEPS_CANCELLED for one in keeper.memory.evidence):
        return True
    asked = keeper.run.leaving
    return halting.asked(keeper, Occasion.PREEMPT) and bool(
        asked.get("signal") or asked.get("stage") == "saved"
    )


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
