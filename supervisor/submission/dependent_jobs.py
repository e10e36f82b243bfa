"""Jobs that wait for a job of ours, as Slurm shows them: which may be held, and which are still the same ones. (I/O)

An id alone is no identity: a job that has another time of submission by now is another job and is left alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from ftrun.supervisor.model.job_rows import base_id

if TYPE_CHECKING:
    from ftrun.slurm.client.cluster import Cluster, JobRow

__all__ = ["still_same", "to_hold"]


def to_hold(cluster: Cluster, job: str) -> tuple[dict[str, str], dict[str, float]]:
    """What waits for this job and may be held: job -> the whole of what it waits for; and since when each is submitted. Raises SlurmError."""
    waiting = dict(cluster.dependents(job))
    shown = cluster.jobs(waiting) if waiting else {}
    for row in shown.values():
        if "JobHeld" in row.reason:  # by a person, who alone may release it; nothing sets it off
            waiting.pop(row.raw_job_id, None)
            waiting.pop(row.job_id, None)
    since = _submitted(shown.values())
    return waiting, {job: since[job] for job in waiting if job in since}


def still_same(cluster: Cluster, jobs: Iterable[str], since: Mapping[str, float]) -> list[str]:
    """Those of the jobs that were submitted when `since` says, as far as it does. What Slurm does not show is left to it. Raises SlurmError."""
    jobs = list(jobs)
    known = [job for job in jobs if job in since]
    shown = _submitted(cluster.jobs(known).values()) if known else {}
    return [job for job in jobs if job not in since or shown.get(job, since[job]) == since[job]]


def _submitted(shown: Iterable[JobRow]) -> dict[str, float]:
    """Id -> time of submission, under every name that a job goes by. (pure)"""
    names: dict[str, float] = {}
    for row in shown:
        if row.submit_time_s is not None:
            names |= dict.fromkeys((row.job_id, row.raw_job_id, base_id(row.job_id)), row.submit_time_s)
    return names
