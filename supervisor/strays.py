"""Jobs that bear a run's token and are not its present attempt: found, and cancelled (P4). (I/O)

How it thinks. sbatch may have made two jobs of one token, one of them late; and a controller that lost its memory may bring
back what was over. Where claims can be seen such a job leaves by itself as soon as it starts. Where they cannot it trains
beside the attempt, and in the queue it holds the run's place. So before a submission and at the end each run is asked for by
its token, and while attempts live one question now and then serves all runs.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ftrun.slurm.client.cluster import JobState
from ftrun.slurm.client.parse import bears
from ftrun.supervisor import attempts
from ftrun.supervisor.lifecycle import State
from ftrun.supervisor.rows import base_id

if TYPE_CHECKING:
    from ftrun.slurm.client.cluster import JobRow
    from ftrun.supervisor.keeper import Keeper
    from ftrun.supervisor.office import World

__all__ = ["EVERY_S", "LIVE", "TOKENS", "beside", "cancel", "everywhere"]

EVERY_S = 30.0  # so often the jobs of all runs are looked through while one of them lives
TOKENS = "ftrun"  # the head of every token
LIVE = frozenset({State.QUEUED, State.RUNNING, State.SUSPECT, State.ENDING})


def everywhere(keeper: Keeper, world: World) -> bool:
    """Cancel every job that bears the run's token and is not over. True when there was one. Raises SlurmError, Stale."""
    living = [row for row in keeper.office.cluster.find(keeper.run.token) if not row.state.ended]
    cancel(keeper, world, living)
    return bool(living)


def beside(keeper: Keeper, world: World) -> None:
    """Cancel what lives beside the present attempt, as far as this look has brought it. Raises SlurmError, Stale."""
    if keeper.run.state not in LIVE or keeper.watch_only or not keeper.attempt.job:
        return
    cancel(keeper, world, [row for row in world.tokens if _is_stray(keeper, row)])


def cancel(keeper: Keeper, world: World, rows: Iterable[JobRow]) -> None:
    """Cancel these jobs of the run, each announced and noted."""
    for row in rows:
        job = row.raw_job_id or row.job_id
        own = job == keeper.attempt.job  # then its end, too, is ours and nobody else's
        keeper.record("cancel.intended", what=f"stray job {job} ({row.comment})", own=own)
        keeper.office.act("cancel", world, lambda j=job: keeper.office.cluster.cancel(j))  # type: ignore[misc]
        keeper.record("cancel.done", what=f"stray job {job}")


def _is_stray(keeper: Keeper, row: JobRow) -> bool:
    attempt = keeper.attempt
    token = keeper.run.token
    if row.state.ended or row.state is JobState.COMPLETING or token not in row.comment:
        return False  # with very many runs, most rows are others'
    if not bears(row.comment, token):
        return False
    if base_id(row.job_id) == attempt.job or row.raw_job_id == attempt.job:
        return False
    if not bears(row.comment, attempt.token):
        return True
    # Of two jobs of one submission the one that holds the claim is the attempt; which that is may not be known yet.
    owner = attempts.owner(keeper.run_dir, attempt.number, attempt.launch.number)
    return owner is not None and owner.job == attempt.job
