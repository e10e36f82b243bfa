"""Jobs that bear a run's token and are not its present attempt: find and cancel them (P4). (I/O)

sbatch may have made two jobs of one token, one of them late; and a controller that lost its memory may bring
back what was over. Where claims can be seen, such a job exits by itself as soon as it starts. Where they
cannot, it trains beside the attempt, and in the queue it holds the run's place. So each run looks its token
up before a submission and at its end, and while attempts live, one query now and then serves all runs.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING

from ftrun.slurm.client.cluster import JobState
from ftrun.slurm.client.parse import has_token
from ftrun.supervisor.model.job_rows import base_job_id
from ftrun.supervisor.model.states import State
from ftrun.supervisor.store import attempt_dir

if TYPE_CHECKING:
    from ftrun.slurm.client.cluster import JobRow
    from ftrun.supervisor.context.cluster_snapshot import ClusterSnapshot
    from ftrun.supervisor.context.run_context import RunContext

__all__ = ["LIVE_STATES", "SEARCH_EVERY_S", "TOKEN_PREFIX", "cancel", "cancel_all", "cancel_seen"]

SEARCH_EVERY_S = 30.0  # how often orphans of all runs are looked for while one of them lives
TOKEN_PREFIX = "ftrun"  # the head of every token
LIVE_STATES = frozenset({State.QUEUED, State.RUNNING, State.SUSPECT, State.ENDING})


def cancel_all(ctx: RunContext, snapshot: ClusterSnapshot) -> bool:
    """Cancel every live job that bears the run's token. True if there was one. Raises SlurmError, Stale."""
    living = [row for row in ctx.services.cluster.find(ctx.run.token) if not row.state.ended]
    cancel(ctx, snapshot, living)
    return bool(living)


def cancel_seen(ctx: RunContext, snapshot: ClusterSnapshot) -> None:
    """Cancel the orphans that this snapshot shows beside the present attempt. Raises SlurmError, Stale."""
    if ctx.run.state not in LIVE_STATES or ctx.watch_only or not ctx.attempt.job:
        return
    cancel(ctx, snapshot, [row for row in snapshot.tokens if _is_orphan(ctx, row)])


def cancel(ctx: RunContext, snapshot: ClusterSnapshot, rows: Iterable[JobRow]) -> None:
    """Cancel these jobs of the run, each announced and recorded."""
    for row in rows:
        job = row.raw_job_id or row.job_id
        own = job == ctx.attempt.job  # then its end counts as ours, too
        ctx.record("cancel.intended", what=f"stray job {job} ({row.comment})", own=own)
        ctx.services.act("cancel", snapshot, partial(ctx.services.cluster.cancel, job))
        ctx.record("cancel.done", what=f"stray job {job}")


def _is_orphan(ctx: RunContext, row: JobRow) -> bool:
    attempt = ctx.attempt
    token = ctx.run.token
    if row.state.ended or row.state is JobState.COMPLETING or token not in row.comment:
        return False  # a cheap test first: with very many runs, most rows are others'
    if not has_token(row.comment, token):
        return False
    if base_job_id(row.job_id) == attempt.job or row.raw_job_id == attempt.job:
        return False
    if not has_token(row.comment, attempt.token):
        return True
    # Of two jobs of one submission the holder of the claim is the attempt; it may not be known yet.
    owner = attempt_dir.claim_of_launch(ctx.run_dir, attempt.number, attempt.launch.number)
    return owner is not None and owner.job == attempt.job
