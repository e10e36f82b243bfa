"""What waits for a job that its agent leaves to the supervisor: held first, so that the end sets nobody off (P5). (I/O)

How it thinks. The agent stands between the end of the script and the end of the job, so it is the last that can do this. What it held
stands in its journal before it is held; the supervisor lets it wait for the next attempt, or go where there is none. Where Slurm does not
answer, or refuses, the job ends all the same: what waits meets that end as it would without ftrun.
"""

from __future__ import annotations

from functools import partial

from ftrun.slurm.client.errors import SlurmError
from ftrun.supervisor import dependent_jobs
from ftrun.supervisor.agent_desk import Desk, say

__all__ = ["hold"]


def hold(desk: Desk) -> None:
    """Hold the dependents of the job. Raises OSError (journal), GivenUp."""
    try:
        waiting, since = dependent_jobs.to_hold(desk.cluster, desk.where.job)
    except SlurmError as error:
        say(f"what waits for this job is not known: {error.message}")
        return
    if not waiting:
        return
    desk.book.record("dependents.held", jobs=sorted(waiting), waits=waiting, since=since)
    for job in sorted(waiting):
        try:
            desk.book.act("hold", partial(desk.cluster.hold, job))
        except SlurmError as error:
            say(f"job {job}, which waits for this one, could not be held: {error.message}")
