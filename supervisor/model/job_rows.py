"""Combine the rows of one submission: tasks of an array, components of a heterogeneous job. (pure)

A submission is alive while any of its rows is, and over when all are. It failed when one row failed. A task
that a person cancelled is not counted as failed; a submission that has only cancelled tasks was cancelled.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from ftrun.slurm.client.cluster import JobRow, JobState
from ftrun.slurm.client.parse import has_token
from ftrun.slurm.records import replace

if TYPE_CHECKING:
    from ftrun.supervisor.model.run import Attempt

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


def base_job_id(job_id: str) -> str:
    """ "123" for "123", "123_4" and "123+1"."""
    return job_id.split("_", 1)[0].split("+", 1)[0]


def rows_by_submission(jobs: Mapping[str, JobRow]) -> Mapping[str, tuple[JobRow, ...]]:
    """The rows of each submission by its id."""
    found: dict[str, list[JobRow]] = defaultdict(list)
    for row in jobs.values():
        found[base_job_id(row.job_id)].append(row)
    return {key: tuple(rows) for key, rows in found.items()}


def rows_of_attempt(
    family: Iterable[JobRow],
    attempt: Attempt,
    known_as: tuple[str, ...] = (),
    submitted_s: float | None = None,
    *,
    user: str = "",
) -> tuple[JobRow, ...]:
    """Return the rows that really belong to this attempt: a controller that crashed hands out ids again (P1).

    A comment without any token may be the work of a site or a user who changed it. Once the job has shown its
    token, a row without it is ours only with the same user and name (`known_as`), or with the same start
    time; and not if its submit time differs from the one that Slurm showed before (`submitted_s`). Name and
    submit time come from the journal if this process has not seen them. A job that never showed its token
    must at least be its submitter's (`user`; root submits for others).
    """
    known_as, submitted_s = known_as or attempt.known_as, submitted_s or attempt.submitted_s

    def is_ours(row: JobRow) -> bool:
        if "ftrun:" in row.comment:
            return has_token(row.comment, attempt.token)
        if attempt.launch.started_at_s is not None and row.start_time_s == attempt.launch.started_at_s:
            return True
        if not known_as:
            return user in ("", "root", row.user)
        return (row.user, row.name) == known_as and not _submitted_anew(row, submitted_s)

    return tuple(row for row in family if is_ours(row))


def _submitted_anew(row: JobRow, submitted_s: float | None) -> bool:
    """Whether the submit time shows another job. Slurm changes it at a restart only. A restarted job without
    our token may be anybody's, because a job whose predecessor still sits on its node is restarted at once;
    if it was ours, its claim keeps it from running. Tasks of an array are restarted one by one.
    """
    return submitted_s is not None and row.job_id.isdigit() and row.submit_time_s != submitted_s


def combine_rows(rows: Sequence[JobRow]) -> JobRow | None:
    """Return one row that stands for all; None for none. Its `raw_job_id` is that of the row that decides."""
    if len(rows) < 2:
        return rows[0] if rows else None
    leader = _leader(rows)
    nodes = tuple(sorted({node for row in rows for node in row.nodes}))
    starts = [row.start_time_s for row in rows if row.start_time_s is not None]
    restarts = [row.restarts for row in rows if row.restarts is not None]
    return replace(
        leader,
        job_id=base_job_id(leader.job_id),
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


def failed_tasks(rows: Iterable[JobRow], ours: Collection[int] = ()) -> dict[int, str]:
    """Return the array tasks that failed, each with its state, without those that a person cancelled; empty
    for what is no array.

    `ours` are tasks that ftrun ended: their scancel was no person's.
    """
    return {
        number: row.state.value
        for row in rows
        if row.state.ended
        and row.state is not JobState.COMPLETED
        and (number := task_number(row)) is not None
        and (row.state is not JobState.CANCELLED or number in ours)
    }


def task_number(row: JobRow) -> int | None:
    """The number of the array task that a row is of; None for what is none, or stands for several."""
    number = row.job_id.partition("_")[2]
    return int(number) if number.isdigit() else None


def cancelled_by_others(rows: Iterable[JobRow], ours: Collection[int]) -> bool:
    """Whether a person cancelled any of these rows; `ours` are tasks that ftrun ended."""
    return any(row.state is JobState.CANCELLED and task_number(row) not in ours for row in rows)
