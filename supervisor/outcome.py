"""What became of a submission that gave no clear answer. (I/O)

How it thinks. sbatch can fail to answer although the job was made, so the token is looked up for a while. Before an attempt counts as lost it is closed, and
who has its claim by then is the answer (P4): what starts claims first, so there is no better witness of a start.

Where Slurm had the time to forget the job before the first look for it, an unclaimed attempt may as well have been cancelled in the queue by a
person, and a person's cancel is never undone (P5): the run stops, and a person decides. While Slurm answers nobody it takes no cancel either: where
the process that announced the sbatch lives on, only the time counts in which it was answered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ftrun.slurm.client.parse import bears
from ftrun.supervisor import ends, recover, store
from ftrun.supervisor.model import Decision

if TYPE_CHECKING:
    from ftrun.supervisor.keeper import Keeper
    from ftrun.supervisor.office import World

__all__ = ["LOOKUP_FOR_S", "look"]

LOOKUP_FOR_S = 30.0  # a submission whose outcome is unknown is looked up for so long


def look(keeper: Keeper, world: World) -> None:
    """One look at an attempt that is opened and not known to be submitted. Raises SlurmError, OSError (journal)."""
    attempt = keeper.attempt
    if attempt.submission == "opened":
        _not_submitted(keeper, world, "sbatch was not called")
        return
    found = [row for row in keeper.office.cluster.find(attempt.token) if bears(row.comment, attempt.token)]
    if found:
        _found(keeper, found[0].raw_job_id or found[0].job_id, seen=True)
    elif _looked_for_s(keeper, world) >= LOOKUP_FOR_S:
        _not_submitted(keeper, world, "no job bears its token")


def _found(keeper: Keeper, job: str, *, seen: bool) -> None:
    keeper.record("submit.done", job_id=job, cluster=keeper.office.facts().name, found=True, seen=seen)
    store.index(keeper.office.home, job, keeper.run.id)


def _looked_for_s(keeper: Keeper, world: World) -> float:
    """Since the first look of this process that Slurm answered."""
    return keeper.memory.for_how_long(f"lookup:{keeper.attempt.token}", world.mono_s)


def _not_submitted(keeper: Keeper, world: World, why: str) -> None:
    """Close the attempt before it counts as lost: a job of it that comes after all does not start (P4)."""
    taken = recover.close(keeper, started=False)
    if taken is not None and taken.job:
        _found(keeper, taken.job, seen=False)  # by its claim: Slurm may have forgotten it long ago
    elif keeper.attempt.number == 1 and not keeper.run.incidents:
        reason = f"the submission did not come about: {why}"
        keeper.record("run.abandoned", reason=reason, **{"class": "scheduler"})
    elif _maybe_cancelled(keeper, world):
        reason = f"nobody looked for the job of attempt {keeper.attempt.number} until Slurm could have forgotten it: a person may have cancelled it"
        advice = f"If nobody cancelled it, ftrun resume {keeper.run.id} goes on with the run."
        signature = {"class": "cancelled", "signature": "slurm.unseen-submission"}
        recover.finish(keeper, world, Decision("stop", reason, advice=advice), signature)
    else:
        last = keeper.run.incidents[-1].decision if keeper.run.incidents else {}
        decision = {"kind": "resubmit", "reason": why, "exclude": [], "class": last.get("class", "")}
        keeper.record("submit.lost", why=why, decision=decision | {"avoid": list(last.get("avoid", ()))})


def _maybe_cancelled(keeper: Keeper, world: World) -> bool:
    """sbatch was announced, and the first look came so late that its job could be cancelled and forgotten by then."""
    if keeper.attempt.submission == "opened" or keeper.run.wish:
        return False
    if keeper.attempt.token in keeper.office.uncalled:  # nobody else calls sbatch for it
        return False
    age_s, looked_for_s = keeper.office.facts().min_job_age_s, _looked_for_s(keeper, world)
    if keeper.memory.attempt == keeper.attempt.number:  # it was opened by this very process
        return keeper.memory.answered_s - looked_for_s >= age_s
    return ends.forgettable(keeper.attempt.intended_at_s, world.now_s - looked_for_s, age_s)
