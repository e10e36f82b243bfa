"""Whether the site raises the priority of a waiting job, the successor of one lost to a fault. (pure)

A run that lost its job to a broken node queues behind everybody who came meanwhile, although it had its nodes
by right. The site may let the drain service restore that order. The proof is Slurm's own memory of two jobs
of the signer: one waits; the other one had nodes for a good while, ended without success a short time ago,
and had the same run's token with a lower number. Slurm must also confirm a fault of the cluster: it
attributes the end to the node, or a node of that job is down or drained now. No user can cause that, and a
node that is only powered down or reserved does not count. The waiting job must be a single job (an array is
one id for thousands of jobs) and must ask for no more than the lost one had (nodes, CPUs, memory, GPUs,
time), in the same partition, account and QOS. So nobody gains more than they had been given before, and caps
bound the number of tries.

Each refusal is a sentence for the user who asked.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

from ftrun.hooks.runtime.formats import HOUR_S, counted
from ftrun.slurm.client.cluster import JobDetails, JobState, NodeRow, NodeUsage
from ftrun.slurm.records import dataclass

NO_LIMIT_S = 365 * 86_400.0  # what Slurm sets for no limit when a job starts [tried on 22.05]
BY_THE_NODE = frozenset({JobState.NODE_FAIL, JobState.BOOT_FAIL})
BY_THE_WAY = frozenset({JobState.FAILED, JobState.OUT_OF_MEMORY, JobState.CANCELLED})  # ftrun ends what hangs
_TOKEN = re.compile(r"(?<![\w.:-])(ftrun:[\w.-]+:[0-9a-f]+):(\d+)(?![\w.:-])")
_RULE = re.compile(r"(nice):-(\d{1,9})|(priority):(\d{1,10})|(qos):([\w.-]{1,64})")


class BadRule(ValueError):
    """A `site-priority` setting that cannot be understood; one line."""


@dataclass(frozen=True, slots=True)
class BoostRule:
    """What the site allows.

    `how` is nice, priority or qos with its `value`; "" = nothing is raised. At most `per_hour` jobs,
    `per_user` of each user; the lost job must have run for `ran_s` and have ended at most `ended_s` ago.
    """

    how: str = ""
    value: str = ""
    per_hour: int = 10
    per_user: int = 2
    ran_s: float = 300.0
    ended_s: float = HOUR_S

    @property
    def update(self) -> str:
        """The argument of `scontrol update`."""
        return {"nice": "Nice=-", "priority": "Priority=", "qos": "QOS="}[self.how] + self.value


@dataclass(frozen=True, slots=True)
class BoostedJob:
    """One job that was raised, or was about to be."""

    uid: int
    job: str
    at_s: float


NO_RULE = BoostRule()


def parse_rule(said: str, **limits: float) -> BoostRule:
    """Parse `site-priority`. Raises BadRule."""
    if not said:
        return NO_RULE
    found = _RULE.fullmatch(said)
    if found is None:
        raise BadRule(f"site-priority: {said!r} wants nice:-N, priority:N or qos:NAME")
    how, value = (part for part in found.groups() if part is not None)
    return BoostRule(
        how,
        value,
        per_hour=int(limits.get("per_hour", 10)),
        per_user=int(limits.get("per_user", 2)),
        ran_s=limits.get("ran_s", 300.0),
    )


@dataclass(frozen=True, slots=True)
class LostJob:
    """The lost job as Slurm still knows it: its record, its last allocation, and its nodes as they are now."""

    job: JobDetails | None
    stay: NodeUsage | None
    nodes: Mapping[str, NodeRow]


def claim_refusal(
    uid: int, run: str, waits: JobDetails | None, lost: LostJob, *, now_s: float, rule: BoostRule
) -> str:
    """Why this waiting job of the signer has no claim; "" if it has one."""
    for job in (waits, lost.job):
        if job is not None and job.doubtful:
            return f"the name or another text of job {job.job_id} could be read as Slurm's words ({', '.join(sorted(job.doubtful))})"
    if waits is None or _uid(waits) != uid:
        return "Slurm knows no such job of yours (any more)"
    if waits.state is not JobState.PENDING:
        return f"job {waits.job_id} waits no longer"
    if waits.reason.startswith("JobHeld") or waits.fields.get("Priority") == "0":
        return f"job {waits.job_id} is held"  # by its user or an administrator
    if lost.job is None or _uid(lost.job) != uid:
        return "Slurm does not remember the job that was lost, or it was none of yours"
    if lost.stay is None:  # Slurm requeued it before it was cancelled, so its record has no nodes
        return f"Slurm does not remember where job {lost.job.job_id} ran: of a job that was requeued only accounting keeps the earlier launch"
    mine, before = _token(waits, run), _token(lost.job, run)
    if mine is None or before is None or mine[0] != before[0] or before[1] >= mine[1]:
        return f"job {waits.job_id} bears no token that makes it the successor of job {lost.job.job_id}"
    return (
        _refused_fault(lost.job, lost.stay, lost.nodes)
        or _refused_share(waits, lost.job, lost.stay)
        or _refused_time(lost.job, lost.stay, now_s, rule)
    )


def cap_refusal(uid: int, job: str, before: Collection[BoostedJob], now_s: float, rule: BoostRule) -> str:
    """Why no further job is raised now; "" if one may be."""
    late = [one for one in before if now_s - one.at_s < HOUR_S]
    if any(one.job == job and one.uid == uid for one in late):
        return f"job {job} was raised before"
    if sum(one.uid == uid for one in late) >= rule.per_user:
        return f"{rule.per_user} of your jobs were raised within the last hour, which is the most"
    if len(late) >= rule.per_hour:
        return f"{counted(rule.per_hour, 'job')} raised within the last hour, which is the most"
    return ""


def is_already_boosted(job: JobDetails, rule: BoostRule) -> bool:
    """Whether the job already has the priority of the rule, or a better one: no job is lowered."""
    if rule.how == "qos":
        return job.fields.get("QOS", "") == rule.value
    if rule.how == "nice":
        return _number(job.fields.get("Nice", "")) <= -int(rule.value)
    return _number(job.fields.get("Priority", "")) >= int(rule.value)


def _refused_fault(job: JobDetails, stay: NodeUsage, nodes: Mapping[str, NodeRow]) -> str:
    if job.state in BY_THE_NODE:
        return ""
    if job.state not in BY_THE_WAY:
        return f"job {job.job_id} was not lost to a fault: it is {job.state.value}"
    if any(node in nodes and _is_broken(nodes[node]) for node in stay.nodes):
        return ""
    return f"job {job.job_id} is {job.state.value}, and each of its nodes is in service"


def _is_broken(row: NodeRow) -> bool:
    return not row.responding or row.drained


def _refused_share(waits: JobDetails, lost: JobDetails, stay: NodeUsage) -> str:
    if any(name in waits.fields for name in ("ArrayJobId", "HetJobId")):
        return f"job {waits.job_id} is not one job alone"
    if _number(waits.fields.get("NumNodes", "").split("-")[-1]) > len(stay.nodes):
        return f"job {waits.job_id} asks for more nodes than job {lost.job_id} had"
    had = _counts(lost, "AllocTRES", "ReqTRES", "TRES")
    for name, count in _counts(waits, "ReqTRES", "TRES").items():
        unknown = name == "billing" or (
            name == "mem" and name not in had
        )  # unreliable where Slurm does not allocate it
        if count > had.get(name, 0.0) and not unknown:
            return f"job {waits.job_id} asks for more {name} than job {lost.job_id} had"
    if _limit_s(waits) > _limit_s(lost):
        return f"job {waits.job_id} asks for more time than job {lost.job_id} did"
    for name in ("Account", "QOS", "OverSubscribe"):
        if waits.fields.get(name) != lost.fields.get(name):
            return f"job {waits.job_id} has another {name} than job {lost.job_id} had"
    if lost.fields.get("Partition", "") not in waits.fields.get("Partition", "").split(","):
        return f"job {waits.job_id} is in another partition than job {lost.job_id} was"
    return ""


def _refused_time(lost: JobDetails, stay: NodeUsage, now_s: float, rule: BoostRule) -> str:
    end_s = now_s if stay.end_s is None else stay.end_s
    if end_s - stay.start_s < rule.ran_s:
        return (
            f"job {lost.job_id} had run for {end_s - stay.start_s:.0f} s only; {rule.ran_s:.0f} s are wanted"
        )
    if now_s - end_s > rule.ended_s:
        return f"job {lost.job_id} ended too long ago"
    return ""


def _token(job: JobDetails, run: str) -> tuple[str, int] | None:
    """(the run's token, number of the attempt) from the comment of a job of that run. The last one counts,
    because ftrun writes it there.
    """
    found: Sequence[tuple[str, str]] = _TOKEN.findall(job.comment)
    own = [(token, int(number)) for token, number in found if token.split(":")[1] == run]
    return own[-1] if own else None


def _uid(job: JobDetails) -> int:
    """The number in `UserId=ann(1000)`; -1 if Slurm does not show it."""
    found = re.search(r"\((\d+)\)$", job.fields.get("UserId", ""))
    return int(found[1]) if found else -1


def _counts(job: JobDetails, *names: str) -> dict[str, float]:
    """The trackable resources of a job, such as `cpu=4,mem=1.50G,gres/gpu=8`; the largest value of several
    fields.
    """
    found: dict[str, float] = {}
    for part in ",".join(job.fields.get(name, "") for name in names).split(","):
        name, _, count = part.partition("=")
        if told := re.fullmatch(r"(\d+(?:\.\d+)?)([KMGTP]?)", count):
            found[name] = max(found.get(name, 0.0), float(told[1]) * 1024.0 ** " KMGTP".index(told[2] or " "))
    return found


def _limit_s(job: JobDetails) -> float:
    return NO_LIMIT_S if job.time_limit_s is None else min(job.time_limit_s, NO_LIMIT_S)


def _number(text: str) -> int:
    return int(text) if re.fullmatch(r"-?[0-9]{1,18}", text) else 0
