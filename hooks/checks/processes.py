"""The checks of processes: those that hang, strangers, control groups and limits. (I/O)"""

from __future__ import annotations

import os
import re
import resource
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ftrun.hooks.runtime import procfs
from ftrun.hooks.runtime.finding import Finding, Thresholds, bad, degraded, note, ok, skipped, unknown
from ftrun.hooks.runtime.host import Machine
from ftrun.hooks.runtime.procfs import Process
from ftrun.hooks.runtime.start_processes import job_and_step

# --- processes

SHOWN = 5
PAUSE_S = 0.2


class ProcessesFacts(NamedTuple):
    """The processes in D at the first look and all at the last one, by pid, threads in all, and the largest number that the kernel gives out (0: not told)."""

    before: Mapping[int, Process]
    after: Mapping[int, Process]
    threads: int
    threads_max: int


def probe_processes(machine: Machine, thresholds: Thresholds) -> ProcessesFacts:
    """Look, and look again at what waits in the kernel, as long as any of it does."""
    after = procfs.quick_processes(machine, first=True)
    asleep = [procfs.with_status(machine, one) for one in after.values() if one.state == "D"]
    before = {one.pid: one for one in asleep if one is not None}
    give_up = time.monotonic() + machine.left_s(thresholds["window_s"])
    waiting = list(before.values())
    while waiting and (left_s := give_up - time.monotonic()) > 0:
        time.sleep(min(left_s, PAUSE_S))
        waiting = [one for one in waiting if _hangs(one, procfs.reread(machine, one))]
    if before:
        after = procfs.quick_processes(machine)
    shown = [
        procfs.with_status(machine, one) for pid, one in after.items() if pid in before or one.state == "Z"
    ]
    after.update({one.pid: one for one in shown if one is not None})
    words = (machine.peek("/proc/loadavg") or "").split()
    threads = words[3].partition("/")[2] if len(words) > 3 else ""
    limits = [machine.number(f"/proc/sys/kernel/{name}") for name in ("pid_max", "threads-max")]
    known = [limit for limit in limits if limit is not None]
    return ProcessesFacts(before, after, int(threads) if threads.isdigit() else 0, min(known, default=0))


def judge_processes(facts: ProcessesFacts, thresholds: Thresholds) -> Sequence[Finding]:
    """Degraded for processes that hang, many zombies, or few numbers left."""
    if not facts.after:
        return [unknown("no process can be seen here")]
    hanging = [now for pid, now in facts.after.items() if _hangs(facts.before.get(pid), now)]
    found = _stuck([one for one in hanging if not one.is_kernel], thresholds)
    kernel = [one for one in hanging if one.is_kernel]
    if kernel:
        message = f"{len(kernel)} kernel thread(s) wait in state D"
        found.append(note(message, value=len(kernel), unit="processes", evidence=_process_lines(kernel)))
    found += _zombies([one for one in facts.after.values() if one.state == "Z"], thresholds)
    if facts.threads_max and facts.threads > facts.threads_max * thresholds["percent"] / 100:
        message = f"{facts.threads} of {facts.threads_max} process numbers are taken"
        found.append(degraded(message, value=facts.threads, unit="threads"))
    return found or [ok(f"none of {len(facts.after)} processes hangs")]


def _hangs(then: Process | None, now: Process | None) -> bool:
    """In D at both looks, the same process, and not once awake in between."""
    if then is None or now is None or then.began != now.began or then.state != "D" or now.state != "D":
        return False
    return then.switches == now.switches and then.ticks == now.ticks


def _stuck(hanging: Sequence[Process], thresholds: Thresholds) -> list[Finding]:
    if not hanging:
        return []
    grade = degraded if len(hanging) > thresholds["stuck"] else note
    message = f"{len(hanging)} process(es) hang in the kernel"
    return [grade(message, value=len(hanging), unit="processes", evidence=_process_lines(hanging))]


def _zombies(dead: Sequence[Process], thresholds: Thresholds) -> list[Finding]:
    if not dead:
        return []
    (parent, of_parent), *_ = Counter(one.parent for one in dead).most_common(1)
    message = f"{len(dead)} zombie(s), {of_parent} of them of process {parent}"
    if len(dead) > thresholds["zombies"]:
        return [degraded(message, value=len(dead), unit="processes", evidence=_process_lines(dead))]
    return [note(message, value=len(dead), unit="processes", evidence=_process_lines(dead))]


def _process_lines(found: Sequence[Process]) -> tuple[str, ...]:
    return tuple(f"pid {one.pid} uid {one.uid} {one.state} {one.name}" for one in found[:SHOWN])


# --- stranger-load

NOBODY = 65534


class Busy(NamedTuple):
    """A process that used the processors, and how many of them; `job` (an id or a SLUID) is "" outside of Slurm's jobs."""

    pid: int
    uid: int
    name: str
    job: str
    cores: float


class StrangersFacts(NamedTuple):
    """Busy processes, the uid of the job's user (-1: no job), how many processes were seen, and the time between both looks."""

    busy: tuple[Busy, ...]
    user: int
    seen: int
    window_s: float


def probe_strangers(machine: Machine, thresholds: Thresholds) -> StrangersFacts:
    """Look twice, and ask for the cgroup of what was busy in between."""
    began = time.monotonic()
    before = procfs.quick_processes(machine, first=True)
    time.sleep(machine.left_s(thresholds["window_s"]))
    after = procfs.quick_reread(machine, [one for one in before.values() if not one.is_kernel])
    window_s = max(time.monotonic() - began, 0.001)
    busy = []
    for pid, now in after.items():
        then = before.get(pid)
        ticks = now.ticks - then.ticks if then and then.began == now.began else 0
        one = None
        if ticks > 0 and pid != os.getpid():
            one = procfs.with_status(machine, now)
        if one is not None:
            job, _ = job_and_step(machine.peek(f"/proc/{pid}/cgroup") or "")
            cores = ticks / procfs.TICKS_PER_S / window_s
            busy.append(Busy(pid, one.uid, one.name, job, cores))
    told = str(thresholds["user"]) or os.environ.get("SLURM_JOB_UID", "")
    return StrangersFacts(
        tuple(busy), int(told) if told.isdigit() else os.getuid() or -1, len(before), window_s
    )


def judge_strangers(facts: StrangersFacts, thresholds: Thresholds) -> Sequence[Finding]:
    """Degraded when strangers take more than a core, a note for less."""
    if not facts.seen:
        return [unknown("no process can be seen here")]
    outside = [one for one in facts.busy if not one.job and one.uid != facts.user]
    people = [one for one in outside if thresholds["uid_min"] <= one.uid < NOBODY]
    system = [one for one in outside if one not in people]
    cores, of_system = sum(one.cores for one in people), sum(one.cores for one in system)
    found = []
    if cores > thresholds["cores"] / 10:
        grade = degraded if cores > thresholds["cores"] else note
        message = f"users' processes outside of any job take {cores:.1f} core(s)"
        found.append(grade(message, value=round(cores, 2), unit="cores", evidence=_busy_lines(people)))
    if of_system > thresholds["system_cores"]:
        message = f"the system's own processes take {of_system:.1f} core(s)"
        found.append(note(message, value=round(of_system, 2), unit="cores", evidence=_busy_lines(system)))
    return found or [ok(f"strangers take {cores:.2f} core(s)", value=round(cores, 2), unit="cores")]


def _busy_lines(busy: Sequence[Busy]) -> tuple[str, ...]:
    top = sorted(busy, key=lambda one: -one.cores)[:SHOWN]
    return tuple(f"pid {one.pid} uid {one.uid} {one.name}: {one.cores:.1f} cores" for one in top)


# --- cgroups

CGROUPS = "/sys/fs/cgroup"
USUAL_CONF = "/etc/slurm/cgroup.conf"
MEMORY_GROUPS_MAX = 65_535
# What cgroup.conf calls it, and the controller behind it. Devices have no controller in version 2.
NEEDED = {"constraincores": "cpuset", "constrainramspace": "memory", "constrainswapspace": "memory", "constraindevices": "devices"}  # fmt: skip


class CgroupsFacts(NamedTuple):
    """The hierarchy's version, its controllers, groups that count against the limit, the limit, and the text of cgroup.conf."""

    version: int
    controllers: tuple[str, ...]
    groups: int
    groups_max: int
    conf: str


def probe_cgroups(machine: Machine, thresholds: Thresholds) -> CgroupsFacts:
    """Version 2 where its root has controllers, else version 1."""
    conf = machine.read(thresholds["conf"] or USUAL_CONF) or ""
    unified = machine.peek(f"{CGROUPS}/cgroup.controllers")
    if unified is not None:
        counts = dict(
            re.findall(r"^(nr_\w+) (\d+)", machine.peek(f"{CGROUPS}/cgroup.stat") or "", re.MULTILINE)
        )
        groups = int(counts.get("nr_descendants", 0)) + int(counts.get("nr_dying_descendants", 0))
        told = machine.number(f"{CGROUPS}/cgroup.max.descendants")
        limit = MEMORY_GROUPS_MAX if told is None else min(told, MEMORY_GROUPS_MAX)
        return CgroupsFacts(2, tuple(unified.split()), groups, limit, conf)
    rows = [line.split() for line in (machine.peek("/proc/cgroups") or "").splitlines() if line[:1] != "#"]
    # subsystem, hierarchy (0: not mounted), number of groups, enabled
    mounted = {row[0]: int(row[2]) for row in rows if len(row) == 4 and row[1] != "0" and row[3] == "1"}
    return CgroupsFacts(
        1 if mounted else 0, tuple(mounted), mounted.get("memory", 0), MEMORY_GROUPS_MAX, conf
    )


def judge_cgroups(facts: CgroupsFacts, thresholds: Thresholds) -> Sequence[Finding]:
    """Degraded for a controller that is missing, or when most groups are used up; bad when all are."""
    expected = tuple(thresholds["expected"]) or _asked_for(facts)
    if not facts.version and not expected:
        return [skipped("no control groups are mounted here, and none are asked for")]
    found = [
        degraded(f"there is no {name} controller, and Slurm is to use it", name)
        for name in expected
        if name not in facts.controllers
    ]
    share = 100 * facts.groups / facts.groups_max if facts.groups_max else 0.0
    message = f"version {facts.version}, {facts.groups} of {facts.groups_max} groups"
    for grade, percent in ((bad, thresholds["bad_percent"]), (degraded, thresholds["percent"])):
        if share > percent:
            found.append(grade(message, "groups", facts.groups, "groups"))
            break
    told = f"{message}, controllers {' '.join(sorted(facts.controllers)) or 'none'}"
    return found or [ok(told, value=facts.groups, unit="groups")]


def _asked_for(facts: CgroupsFacts) -> tuple[str, ...]:
    """The controllers that the lines of cgroup.conf need."""
    lines = re.findall(r"^\s*(\w+)\s*=\s*(\w+)", facts.conf, re.MULTILINE)
    asked = {NEEDED[key.lower()] for key, value in lines if value.lower() == "yes" and key.lower() in NEEDED}
    return tuple(sorted(asked - ({"devices"} if facts.version == 2 else set())))


# --- ulimit

LIMITS = {
    "memlock_kib": (resource.RLIMIT_MEMLOCK, 1024),
    "open_files": (resource.RLIMIT_NOFILE, 1),
    "stack_kib": (resource.RLIMIT_STACK, 1024),
    "processes": (resource.RLIMIT_NPROC, 1),
}


class Limits(NamedTuple):
    """Soft limits in their units (-1 = unlimited), and whether the node has InfiniBand."""

    soft: Mapping[str, int]
    has_rdma: bool


def probe_ulimit(machine: Machine, _thresholds: Thresholds) -> Limits:
    """The limits that this process was given."""
    soft = {}
    for kind, (number, unit) in LIMITS.items():
        value = resource.getrlimit(number)[0]
        soft[kind] = -1 if value == resource.RLIM_INFINITY else value // unit
    return Limits(soft, bool(machine.names("/sys/class/infiniband")))


def judge_ulimit(limits: Limits, thresholds: Thresholds) -> Sequence[Finding]:
    """Each limit that is not above its mark; memlock counts with InfiniBand only."""
    marks = {kind: thresholds[kind] for kind in limits.soft if kind != "memlock_kib" or limits.has_rdma}
    low = {kind: limits.soft[kind] for kind, mark in marks.items() if -1 < limits.soft[kind] <= mark}
    if not low:
        return [ok(", ".join(f"{kind} {_limit(value)}" for kind, value in limits.soft.items()))]
    grade = bad if thresholds["enforce"] else degraded
    return [grade(f"{kind} is {value}, not above {marks[kind]}", kind, value) for kind, value in low.items()]


def _limit(value: int) -> str:
    return "unlimited" if value < 0 else str(value)


FUNCTIONS = {
    "processes": (probe_processes, judge_processes),
    "stranger-load": (probe_strangers, judge_strangers),
    "cgroups": (probe_cgroups, judge_cgroups),
    "ulimit": (probe_ulimit, judge_ulimit),
}
