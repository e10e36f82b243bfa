"""The Slurm job and step that the cgroup of a process names. (pure)

Slurm names the cgroup of a job `job_<id>`, below `/slurm/uid_<uid>` in version 1 and below `slurmstepd.scope` in
version 2. From 26.05 on version 2 names it by the job's SLUID, `s4ADM82P719R00`, unless cgroup.conf has
`CgroupJobIdPaths=yes`. A SLUID does not tell the job id; that of a job is in the environment of its prolog, epilog
and tasks as SLURM_JOB_SLUID, and in the path of their own cgroup. So `own_sluid` learns the SLUID of the one job
that a caller belongs to, and `job_and_step` gives it that job's id. Another job keeps its SLUID for a name.

Checked against: SLURM_JOB_SLUID of 26.05.5; cgroup paths of 22.05; those of 26.05 by cgroup.conf(5).
"""

from __future__ import annotations

import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


# `s` and 64 bits in Crockford's base 32.
_NAMED = re.compile(
    r"/(?:job_(?P<job>\d+)|(?P<sluid>s[0-9A-HJKMNP-TV-Z]{13}))(?:/step_(?P<step>[^/\n]+))?(?=/|$)", re.M
)


class OwnJob:
    """The job of the calling process: its id and its SLUID, "" where either is not known."""

    __slots__ = ("job", "sluid")

    def __init__(self, job: str, sluid: str) -> None:
        self.job, self.sluid = job, sluid


NO_JOB = OwnJob("", "")


def own_job(env: Mapping[str, str], cgroup: str = "") -> OwnJob:
    """The job of this environment; `cgroup` is the text of /proc/self/cgroup, which names the SLUID where the environment does not."""
    job, sluid = env.get("SLURM_JOB_ID", ""), env.get("SLURM_JOB_SLUID", "")
    if job and not sluid:
        found = _NAMED.search(cgroup)
        sluid = (found["sluid"] or "") if found else ""
    return OwnJob(job, sluid)


def job_and_step(cgroup: str, own: OwnJob = NO_JOB) -> tuple[str, str]:
    """(job, step) in the text of /proc/PID/cgroup, "" for none. The job is its id, or a SLUID that is not that of `own`."""
    job = step = ""
    for found in _NAMED.finditer(cgroup):
        job = found["job"] or (own.job if found["sluid"] == own.sluid and own.job else found["sluid"])
        step = found["step"] or ""
        if step:
            break
    return job, step
