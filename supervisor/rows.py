"""Many rows of one submission seen as one: the tasks of an array, the components of a heterogeneous job. (pure)

A submission is alive while any of its rows is, and over when all are. It failed when one did; a task that a person cancelled
is not counted among the failed, and a submission of which nothing but cancelled tasks is left was cancelled.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from ftrun.slurm.client import JobRow, JobState
from ftrun.slurm.parse import bears

__all__ = ["base_id", "combined", "failed_tasks", "families", "own"]

# Which end of a row speaks for all: the first that occurs.
_WORST = (
    JobState.NODE_FAIL,
    JobState.BOOT_FAIL,
    JobState.OUT_OF_MEMORY,
    JobState.FAILED,
    JobState.TIMEOUT,
    JobState.DEADLINE,
    JobState.PREEMPTED,
    JobState.REVOKED,
)


def base_id(job_id: str) -> str:
    """ "123" for "123", "123_4" and "123+1"."""
    return job_id.split("_", 1)[0].split("+", 1)[0]


def families(jobs: Mapping[str, JobRow]) -> Mapping[str, tuple[JobRow, ...]]:
    """The rows of each submission by its id."""
    found: dict[str, list[JobRow]] = defaultdict(list)
    for row in jobs.values():
        found[base_id(row.job_id)].append(row)
    return {key: tuple(rows) for key, rows in found.items()}


def own(
    family: Iterable[JobRow], token: str, known_as: tuple[str, ...], started_at_s: float | None
) -> tuple[JobRow, ...]:
    """The rows that are really this attempt's: a controller that crashed gives ids out again (P1).

    A comment without any token may be a site's doing, or that of somebody who wrote another comment. Once the job has shown
    its token, though, a row without it is ours only under the same user and name (`known_as`), or with the same start.
    """

    def is_ours(row: JobRow) -> bool:
        if "ftrun:" in row.comment:
            return bears(row.comment, token)
        same_start = started_at_s is not None and row.start_time_s == started_at_s
        return not known_as or same_start or (row.user, row.name) == known_as

    return tuple(row for row in family if is_ours(row))


def combined(rows: Sequence[JobRow]) -> JobRow | None:
    """One row that stands for all; None for none. Its `raw_job_id` is that of the row that decides."""
    if len(rows) < 2:
        return rows[0] if rows else None
    leader = _leader(rows)
    nodes = tuple(sorted({node for row in rows for node in row.nodes}))
    starts = [row.start_time_s for row in rows if row.start_time_s is not None]
    restarts = [row.restarts for row in rows if row.restarts is not None]
    return replace(
        leader,
        job_id=base_id(leader.job_id),
        raw_job_id=leader.raw_job_id or leader.job_id,
        nodes=nodes,
        node_count=max(row.node_count for row in rows),
        start_time_s=min(starts, default=None),
        restarts=max(restarts, default=None),
    )


def _leader(rows: Sequence[JobRow]) -> JobRow:
    for wanted in (JobState.RUNNING, *JobState):
        for row in rows:
            if row.state is wanted and row.state.live:
                return row
    for row in rows:
        if row.state.pending:
            return row
    for wanted in (*_WORST, JobState.COMPLETED):
        for row in rows:
            if row.state is wanted:
                return row
    return rows[0]


def failed_tasks(rows: Iterable[JobRow]) -> dict[int, str]:
    """The array tasks that ended badly and not by a person's scancel, each with its state; empty for what is no array."""
    bad = [
        row for row in rows if row.state.ended and row.state not in (JobState.COMPLETED, JobState.CANCELLED)
    ]
    numbers = [(row.job_id.partition("_")[2], row.state.value) for row in bad]
    return {int(number): state for number, state in numbers if number.isdigit()}
