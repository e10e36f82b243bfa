"""What became of a submission that gave no clear answer. (I/O)

How it thinks. sbatch can fail to answer although the job was made, so the token is looked up for a while. Before an attempt counts as lost it is closed, and
who has its claim by then is the answer (P4).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ftrun.slurm.parse import bears
from ftrun.supervisor import recover, store

if TYPE_CHECKING:
    from ftrun.supervisor.keeper import Keeper
    from ftrun.supervisor.office import World

__all__ = ["LOOKUP_FOR_S", "look"]

LOOKUP_FOR_S = 30.0  # a submission whose outcome is unknown is looked up for so long


def look(keeper: Keeper, world: World) -> None:
    """One look at an attempt that is opened and not known to be submitted. Raises SlurmError, OSError (journal)."""
    attempt = keeper.attempt
    if attempt.submission == "opened":
        _not_submitted(keeper, "sbatch was not called")
        return
    found = [row for row in keeper.office.cluster.find(attempt.token) if bears(row.comment, attempt.token)]
    if found:
        _found(keeper, found[0].raw_job_id or found[0].job_id, seen=True)
    elif keeper.memory.for_how_long(f"lookup:{attempt.token}", world.mono_s) >= LOOKUP_FOR_S:
        _not_submitted(keeper, "no job bears its token")


def _found(keeper: Keeper, job: str, *, seen: bool) -> None:
    keeper.record("submit.done", job_id=job, cluster=keeper.office.facts().name, found=True, seen=seen)
    store.index(keeper.office.home, job, keeper.run.id)


def _not_submitted(keeper: Keeper, why: str) -> None:
    """Close the attempt before it counts as lost: a job of it that comes after all does not start (P4)."""
    taken = recover.close(keeper, started=False)
    if taken is not None and taken.job:
        _found(keeper, taken.job, seen=False)  # by its claim: Slurm may have forgotten it long ago
    elif keeper.attempt.number == 1 and not keeper.run.incidents:
        reason = f"the submission did not come about: {why}"
        keeper.record("run.abandoned", reason=reason, **{"class": "scheduler"})
    else:
        last = keeper.run.incidents[-1].decision if keeper.run.incidents else {}
        decision = {"kind": "resubmit", "reason": why, "exclude": [], "class": last.get("class", "")}
        keeper.record("submit.lost", why=why, decision=decision | {"avoid": list(last.get("avoid", ()))})
