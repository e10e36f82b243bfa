"""A live attempt is to be ended for a fault, and most of it is alive: it is asked for a last checkpoint first. (I/O)

How it thinks. Where an agent lives it does this itself, inside its allocation; here it is for jobs without one. The end is announced already, and comes
in any case: at once where nobody listens, else when a new checkpoint is complete or `gasp-wait` is over. A start that hangs reads no file, so only
a signal reaches it. What a person wants, and ends for which a checkpoint was made already, are not held up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ftrun.slurm.client.cluster import JobState
from ftrun.supervisor import leaving, savenow, sense, store
from ftrun.supervisor.end_reasons import AT_LIMIT, AWAY, WITHOUT_SCRIPT
from ftrun.supervisor.leaving import Occasion
from ftrun.supervisor.model import FaultClass
from ftrun.supervisor.save_request_io import ask, asked, awaited, listens

if TYPE_CHECKING:
    from ftrun.slurm.client.cluster import JobRow
    from ftrun.supervisor.run_context import RunContext
    from ftrun.supervisor.world import ClusterSnapshot

__all__ = ["waits_for_checkpoint"]


def waits_for_checkpoint(ctx: RunContext, world: ClusterSnapshot, row: JobRow) -> bool:
    """Whether the announced end waits for a last checkpoint. Raises SlurmError, OSError (journal)."""
    if ctx.run.wish or row.state is not JobState.RUNNING or len(ctx.rows(world)) > 1:
        return False
    if asked(ctx, Occasion.GASP):
        sense.watch(ctx, world)  # it may say that it has saved
        return not awaited(ctx, world).end
    if not _wanted(ctx, world):
        return False
    wait_s = float(ctx.settings.get("gasp-wait", 30.0))
    ask(ctx, world, Occasion.GASP, wait_s)
    return True


def _wanted(ctx: RunContext, world: ClusterSnapshot) -> bool:
    attempt, found = ctx.attempt, ctx.observations.provisional
    why = attempt.end_intended
    if attempt.cancel_intended or WITHOUT_SCRIPT in why:
        return False
    if why.startswith((AT_LIMIT, AWAY)):
        return False
    rows = world.nodes or {}
    blamed = found.nodes if found is not None else ()
    gone = [n for n in attempt.used if n in blamed or (n in rows and not rows[n].responding)]
    hangs = attempt.hung is not None or found is None or found.fault is FaultClass.HANG
    place = store.attempt_dir(ctx.run_dir, attempt.number)
    reads = not hangs and savenow.is_read(place, f"{attempt.launch.number}.{attempt.launch.start.number}")
    wanted, _ = leaving.gasp(
        total=len(attempt.used),
        alive=len(attempt.used) - len(gone),
        listens=listens(ctx) or reads,
        asked=False,
        gasp_wait_s=float(ctx.settings.get("gasp-wait", 30.0)),
    )
    return wanted
