"""Which start of which run a process belongs to, from its environment and its relatives. (pure)

Every start of a user's script has a token, `<launch>.<start>`; both numbers only grow. Its processes carry
the token and the attempt's folder in their environment. A process belongs to an earlier start only if its
token is lower than the present one. A job submitted from inside a run inherits that run's variables, so the
Slurm job id must match as well. A network file system may show a reader the start *before* its own for a
minute; so only a later token, or the word that the attempt is closed, proves that a start is over.

A process without its environment (`env -i`, a title) belongs to the start of its nearest ancestor that has
one, else to that of the rest of its process group or Slurm step, if they agree. A group whose leader lives and
has no token may be the batch script's own, and the batch step holds all starts: neither decides anything.

Slurm names the cgroup of a job `job_<id>`, below `/slurm/uid_<uid>` in version 1 and below `slurmstepd.scope` in
version 2. From 26.05 on version 2 names it by the job's SLUID, `s4ADM82P719R00`, unless cgroup.conf has
`CgroupJobIdPaths=yes`. A SLUID does not tell the job id; that of a job is in the environment of its prolog, epilog
and tasks as SLURM_JOB_SLUID, and in the path of their own cgroup. So `own_job` learns the SLUID of the one job
that a caller belongs to, and `job_and_step` gives it that job's id. Another job keeps its SLUID for a name.

Checked against: SLURM_JOB_SLUID of 26.05.5; cgroup paths of 22.05; those of 26.05 by cgroup.conf(5).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Callable, NamedTuple, Optional

CLOSED = "closed"
"""Content of `current` in an attempt that is closed: nothing of it may run any more."""
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


def token_of(text: str) -> Optional[tuple[int, int]]:
    """`<launch>.<start>` as numbers, None for any other text."""
    launch, dot, start = text.strip().partition(".")
    return (int(launch), int(start)) if dot and _is_number(launch) and _is_number(start) else None


def is_over(token: str, current: str) -> bool:
    """Whether a start is over, given the attempt's `current` one; text that is no token proves nothing."""
    own, now = token_of(token), token_of(current)
    if own is None:
        return False
    return current == CLOSED or (now is not None and now > own)


class Process(NamedTuple):
    """One process of a node from /proc; `began` (ticks since boot) and the pid together are its identity."""

    pid: int
    parent: int
    group: int
    state: str
    began: int
    name: str
    ticks: int = 0


class Start(NamedTuple):
    """The start in a process's environment; `token`: (launch, start); `hook`: name of the user's hook."""

    run: str
    attempt: int
    token: tuple[int, int]
    job: str
    cluster: str = ""
    hook: str = ""


class PresentStart:
    """The present start; `runs`: spellings of the run's folder; `token` None: the attempt is closed."""

    __slots__ = ("attempt", "cluster", "job", "runs", "token")

    def __init__(
        self, runs: Iterable[str], attempt: int, token: Optional[tuple[int, int]], job: str, cluster: str = ""
    ) -> None:
        self.runs, self.attempt, self.token = frozenset(runs), attempt, token
        self.job, self.cluster = job, cluster

    def is_mine(self, one: Start) -> bool:
        """Whether a process belongs to this attempt's job and the user's script, in any start."""
        if not self.job or one.run not in self.runs or one.attempt != self.attempt or one.job != self.job:
            return False
        return not one.hook and (not one.cluster or not self.cluster or one.cluster == self.cluster)

    def is_present(self, one: Start) -> bool:
        """Whether a process belongs to the present start."""
        return self.is_mine(one) and one.token == self.token

    def is_earlier(self, one: Start, jobs_of: Callable[[int], Iterable[str]]) -> bool:
        """Whether it is of an earlier start. `jobs_of`: Slurm jobs that claimed an earlier attempt."""
        if one.attempt == self.attempt:
            return self.is_mine(one) and (self.token is None or one.token < self.token)
        if one.hook or one.run not in self.runs or one.attempt > self.attempt:
            return False
        return one.job in jobs_of(one.attempt)


def parse_environment(environment: str) -> dict[str, str]:
    """The NUL-separated text of /proc/PID/environ as a table."""
    return {
        name: value for name, sign, value in (word.partition("=") for word in environment.split("\0")) if sign
    }


def start_of(told: Mapping[str, str]) -> Optional[Start]:
    """The start that these variables name; None without one, as for a task of an array, which has no starts."""
    place, token = (
        run_and_attempt_of(told.get("FTRUN_ATTEMPT_DIR", "")),
        token_of(told.get("FTRUN_START_TOKEN", "")),
    )
    job = told.get("SLURM_JOB_ID", "")
    if place is None or token is None or not job:
        return None
    return Start(*place, token, job, told.get("SLURM_CLUSTER_NAME", ""), told.get("FTRUN_HOOK", ""))


def run_and_attempt_of(folder: str) -> Optional[tuple[str, int]]:
    """Run folder and number of the attempt, from the path of an attempt's folder."""
    run, found, number = folder.rstrip("/").rpartition("/attempts/")
    return (run, int(number)) if found and run and _is_number(number) else None


def job_of_claim(content: str) -> str:
    """The Slurm job in a claim, `<cluster>.<job>.<restart>.<token>`; "" for a closed one or any other text."""
    words = content.rsplit(".", 3)
    return words[1] if len(words) == 4 and _is_number(words[1]) and words[0] != CLOSED else ""


def step_of(cgroup: str, job: str, own: OwnJob = NO_JOB) -> str:
    """The numbered step of this job in a process's cgroup, "" for none. `own` is the caller's job."""
    named, step = job_and_step(cgroup, own)
    return step if named == job and _is_number(step) else ""


def starts_by_relatives(
    processes: Mapping[int, Process], told: Mapping[int, Optional[Start]], steps: Mapping[int, str]
) -> dict[int, Start]:
    """The start of each process by its environment or relatives. `steps`: pid -> Slurm's step or ""."""
    found = {pid: one for pid, one in told.items() if one is not None}
    led = [pid for pid in found if pid in processes and _is_led(processes[pid].group, processes, told)]
    groups = _agreed((processes[pid].group, found[pid]) for pid in led)
    by_step = _agreed((steps.get(pid, ""), one) for pid, one in found.items())
    for pid, process in processes.items():
        if pid in found:
            continue
        one = _ancestors_word(process, processes, told) or groups.get(process.group)
        one = one or (by_step.get(steps[pid]) if steps.get(pid) else None)
        if one is not None:
            found[pid] = one
    return found


def _ancestors_word(
    process: Process, processes: Mapping[int, Process], told: Mapping[int, Optional[Start]]
) -> Optional[Start]:
    seen: set[int] = set()
    above = processes.get(process.parent)
    while above is not None and above.pid not in seen:
        one = told.get(above.pid)
        if one is not None:
            return one
        seen.add(above.pid)
        above = processes.get(above.parent)
    return None


def _is_led(group: int, processes: Mapping[int, Process], told: Mapping[int, Optional[Start]]) -> bool:
    """Whether a group's leader is gone or belongs to a start itself."""
    return group not in processes or told.get(group) is not None


def _agreed(words: Iterable[tuple[object, Start]]) -> dict[object, Start]:
    """Key -> start, for the keys whose members all agree."""
    found: dict[object, Start] = {}
    torn = set()
    for key, one in words:
        other = found.setdefault(key, one)
        if other != one:
            torn.add(key)
    return {key: one for key, one in found.items() if key not in torn}


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()
