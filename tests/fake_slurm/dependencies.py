"""Job dependencies of a virtual Slurm. (pure)"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum

from ftrun.slurm.client.cluster import JobState
from ftrun.slurm.client.parse import depends_on
from tests.fake_slurm.records import Job

__all__ = ["Verdict", "is_dependency", "judge", "waiting_for"]


class Verdict(Enum):
    """What a dependency says now."""

    MET = "met"
    WAIT = "wait"
    NEVER = "never"


_TERM = re.compile(r"singleton|(after|afterany|afterok|afternotok)((?::\d+(?:\+\d+)?)+)")


def is_dependency(text: str) -> bool:
    """Whether Slurm would take this text."""
    return all(_TERM.fullmatch(term) for term in re.split(r"[,?]", text))


def judge(job: Job, known: Mapping[int, Job], final: Mapping[int, JobState]) -> tuple[Verdict, str]:
    """The verdict on a job's dependency, and what is left of its text: conditions that are met drop out, as in Slurm."""
    either = "?" in job.dependency
    verdicts: dict[str, Verdict] = {}
    for term in re.split(r"[,?]", job.dependency):
        for condition in _conditions(term):
            verdicts[condition] = _verdict(condition, job, known, final)
    found = set(verdicts.values())
    if either:
        verdict = next(v for v in (Verdict.MET, Verdict.WAIT, Verdict.NEVER) if v in found)
    else:
        verdict = next(v for v in (Verdict.NEVER, Verdict.WAIT, Verdict.MET) if v in found)
    if verdict is Verdict.MET:
        return verdict, ""
    return verdict, ("?" if either else ",").join(c for c, v in verdicts.items() if v is not Verdict.MET)


def waiting_for(
    job_id: str, user: str, jobs: Mapping[int, Job], final: Mapping[int, JobState]
) -> dict[str, str]:
    """Pending jobs of this user whose dependency names `job_id`, and what is left of it."""
    waiting = [job for job in jobs.values() if job.user == user and job.state is JobState.PENDING]
    left = {str(job.number): judge(job, jobs, final)[1] for job in waiting if job.dependency}
    return {number: text for number, text in left.items() if depends_on(text, job_id)}


def _conditions(term: str) -> list[str]:
    """`afterok:1:2` is two conditions."""
    kind, *names = term.split(":")
    return [f"{kind}:{name}" for name in names] or [kind]


def _verdict(condition: str, job: Job, known: Mapping[int, Job], final: Mapping[int, JobState]) -> Verdict:
    kind, _, name = condition.partition(":")
    if kind == "singleton":
        busy = any(
            other.name == job.name
            and other.user == job.user
            and other.number < job.number
            and not other.state.ended
            for other in known.values()
        )
        return Verdict.WAIT if busy else Verdict.MET
    number = int(name.split("+", 1)[0])
    other = known.get(number)
    if other is not None and not other.state.ended:
        return Verdict.MET if kind == "after" and other.start_s is not None else Verdict.WAIT
    state = other.state if other is not None else final.get(number)
    if state is None or kind in {"after", "afterany"}:  # an id that Slurm does not know holds nobody up
        return Verdict.MET
    good = state is JobState.COMPLETED
    return Verdict.MET if good == (kind == "afterok") else Verdict.NEVER
