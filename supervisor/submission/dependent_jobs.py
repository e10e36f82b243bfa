"""Jobs that depend on a job of the run: which may be held, and which are still the same jobs. (I/O)

An id alone does not identify a job: one with another submit time is a different job and is left alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from ftrun.supervisor.model.job_rows import base_job_id

if TYPE_CHECKING:
    from ftrun.slurm.client.cluster import Cluster, JobRow


def holdable(cluster: Cluster, job: str) -> tuple[dict[str, str], dict[str, float]]:
    """Jobs that depend on this one and may be held -> their dependency; their submit times. SlurmError."""
    waiting = dict(cluster.dependents(job))
    shown = cluster.jobs(waiting) if waiting else {}
    for row in shown.values():
        if "JobHeld" in row.reason:  # held by a person, who alone may release it
            waiting.pop(row.raw_job_id, None)
            waiting.pop(row.job_id, None)
    since = _submitted(shown.values())
    return waiting, {job: since[job] for job in waiting if job in since}


def still_same(cluster: Cluster, jobs: Iterable[str], since: Mapping[str, float]) -> list[str]:
    """Those of the jobs whose submit time is that in `since`, where both are known.

    A job that Slurm does not show stays in the list: Slurm answers for it. Raises SlurmError.
    """
    jobs = list(jobs)
    known = [job for job in jobs if job in since]
    shown = _submitted(cluster.jobs(known).values()) if known else {}
    return [job for job in jobs if job not in since or shown.get(job, since[job]) == since[job]]


def _submitted(shown: Iterable[JobRow]) -> dict[str, float]:
    """Id -> submit time, under every name of a job. (pure)"""
    names: dict[str, float] = {}
    for row in shown:
        if row.submit_time_s is not None:
            names |= dict.fromkeys((row.job_id, row.raw_job_id, base_job_id(row.job_id)), row.submit_time_s)
    return names
