"""What a start's log says of divergence, and which of the run's checkpoints that spoils; noted by the supervisor. (I/O)"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ftrun.supervisor import context, divergence
from ftrun.supervisor.poisoned import poison_of
from ftrun.supervisor.usable import Usable, find, leave

if TYPE_CHECKING:
    from ftrun.supervisor.divergence import Sign
    from ftrun.supervisor.run_context import RunContext
    from ftrun.supervisor.world import ClusterSnapshot

__all__ = ["note", "usable"]


def note(ctx: RunContext, world: ClusterSnapshot) -> Sign | None:
    """Journal that the training of the last start had diverged, once; its agent may have done so. Returns the sign, None where it was healthy."""
    report, attempt = ctx.observations.report, ctx.attempt
    if report is None or attempt.submission != "done" or not ctx.settings.get("checkpoint"):
        return None
    found = divergence.sign(report.evidence, report.health)
    if found is None:
        return None
    name = f"{attempt.number}.{attempt.launch.number}.{attempt.launch.start.number}"
    if not any(one.name == name for one in ctx.run.poisoned):
        spoilt = poison_of(
            found,
            ctx.settings,
            ctx.run_dir,
            name=name,
            resumed_from=attempt.launch.start.resume_from,
            now_s=world.now_s,
        )
        ctx.record("checkpoint.poisoned", **divergence.facts(found, spoilt))
        leave(ctx.run_dir, ctx.run.poisoned)
    return found


def usable(ctx: RunContext) -> Usable:
    """What a start would load now."""
    if ctx.attempt.submission != "done":
        return Usable()
    cwd = context.cwd(ctx.run_dir)
    return find(ctx.settings, ctx.run, cwd, run_dir=ctx.run_dir)
