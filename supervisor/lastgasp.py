"""A live attempt is to be ended for a fault, and most of it is alive: it is asked for a last checkpoint first. (I/O)

How it thinks. Where an agent lives it does this itself, inside its allocation; here it is for jobs without one. The end is announced already, and comes
in any case: at once where nobody listens, else when a new checkpoint is complete or `gasp-wait` is over. A start that hangs reads no file, so only
a signal reaches it. What a person wants, and ends for which a checkpoint was made already, are not held up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ftrun.slurm.client.cluster import JobState
from ftrun.supervisor import beside, halting, leaving, savenow, sense, store
from ftrun.supervisor.end_reasons import AT_LIMIT, AWAY
from ftrun.supervisor.leaving import Occasion
from ftrun.supervisor.model import FaultClass

if TYPE_CHECKING:
    from ftrun.slurm.client.cluster import JobRow
    from ftrun.supervisor.keeper import Keeper
    from ftrun.supervisor.office import World

__all__ = ["holds"]


def holds(keeper: Keeper, world: World, row: JobRow) -> bool:
    """Whether the announced end waits for a last checkpoint. Raises SlurmError, OSError (journal)."""
    if keeper.run.wish or row.state is not JobState.RUNNING or len(keeper.rows(world)) > 1:
        return False
    if halting.asked(keeper, Occasion.GASP):
        sense.watch(keeper, world)  # it may say that it has saved
        return not halting.awaited(keeper, world).end
    if not _wanted(keeper, world):
        return False
    wait_s = float(keeper.settings.get("gasp-wait", 30.0))
    halting.ask(keeper, world, Occasion.GASP, wait_s)
    return True


def _wanted(keeper: Keeper, world: World) -> bool:
    attempt, found = keeper.attempt, keeper.memory.provisional
    why = attempt.end_intended
    if attempt.cancel_intended or beside.WITHOUT_SCRIPT in why:
        return False
    if why.startswith((AT_LIMIT, AWAY)):
        return False
    rows = world.nodes or {}
    blamed = found.nodes if found is not None else ()
    gone = [n for n in attempt.used if n in blamed or (n in rows and not rows[n].responding)]
    hangs = attempt.hung is not None or found is None or found.fault is FaultClass.HANG
    place = store.attempt_dir(keeper.run_dir, attempt.number)
    reads = not hangs and savenow.is_read(place, f"{attempt.launch}.{attempt.start}")
    wanted, _ = leaving.gasp(
        total=len(attempt.used),
        alive=len(attempt.used) - len(gone),
        listens=halting.listens(keeper) or reads,
        asked=False,
        gasp_wait_s=float(keeper.settings.get("gasp-wait", 30.0)),
    )
    return wanted
