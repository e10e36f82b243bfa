"""`stranger-load`: nobody computes on the node but Slurm's jobs. (I/O)

How it thinks. A process that outlived its job, or that somebody started over SSH, takes processors from the job, and one slow rank holds up all others. What
runs in the cgroup of a Slurm job has a right to be here (also that of another job: Slurm shared the node out). So what counts is the processor time
that users' processes outside any job use within a moment; that of the system's own accounts is a note when it is much. Where Slurm keeps jobs in no cgroups, the
job's own user is left out.

Thresholds: `cores` 1.0, more than that is degraded, a tenth of it is a note; `system_cores` 2.0, as much by the system's accounts is a note; `uid_min` 1000, users'
accounts begin there (login.defs); `user`, the job's uid ("": that of SLURM_JOB_UID, or our own); `window_s` 1.0.

Checked against: /proc of Linux 6.1 and 6.18 (a busy child of the test), cgroup paths of Slurm 22.05 and later.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ftrun.hooks import activity
from ftrun.hooks.findings import DEGRADED, NOTE, OK, UNKNOWN, Check, Finding
from ftrun.hooks.machine import Machine

__all__ = ["CHECK", "Busy", "Facts", "judge"]

NAME = "stranger-load"
FAULT = "node"
SHOWN = 5
NOBODY = 65534


class Busy(NamedTuple):
    """A process that used the processors, and how many of them; `job` is "" outside of Slurm's jobs."""

    pid: int
    uid: int
    name: str
    job: str
    cores: float


class Facts(NamedTuple):
    """Busy processes, the uid of the job's user (-1: no job), how many processes were seen, and the time between both looks."""

    busy: tuple[Busy, ...]
    user: int
    seen: int
    window_s: float


def probe(machine: Machine, thresholds: Mapping[str, Any]) -> Facts:
    """Look twice, and ask for the cgroup of what was busy in between."""
    began = time.monotonic()
    before = activity.glanced(machine, first=True)
    time.sleep(machine.left_s(thresholds["window_s"]))
    after = activity.again_all(machine, [one for one in before.values() if not one.is_kernel])
    window_s = max(time.monotonic() - began, 0.001)
    busy = []
    for pid, now in after.items():
        then = before.get(pid)
        ticks = now.ticks - then.ticks if then and then.began == now.began else 0
        one = None
        if ticks > 0 and pid != os.getpid():
            one = activity.known(machine, now)
        if one is not None:
            job = re.search(r"/job_(\d+)", machine.peek(f"/proc/{pid}/cgroup") or "")
            cores = ticks / activity.TICKS_PER_S / window_s
            busy.append(Busy(pid, one.uid, one.name, job[1] if job else "", cores))
    told = str(thresholds["user"]) or os.environ.get("SLURM_JOB_UID", "")
    return Facts(tuple(busy), int(told) if told.isdigit() else os.getuid() or -1, len(before), window_s)


def judge(facts: Facts, thresholds: Mapping[str, Any]) -> Sequence[Finding]:
    """Degraded when strangers take more than a core, a note for less."""
    if not facts.seen:
        return [Finding(NAME, UNKNOWN, "no process can be seen here")]
    outside = [one for one in facts.busy if not one.job and one.uid != facts.user]
    people = [one for one in outside if thresholds["uid_min"] <= one.uid < NOBODY]
    system = [one for one in outside if one not in people]
    cores, of_system = sum(one.cores for one in people), sum(one.cores for one in system)
    found = []
    if cores > thresholds["cores"] / 10:
        severity = DEGRADED if cores > thresholds["cores"] else NOTE
        message = f"users' processes outside of any job take {cores:.1f} core(s)"
        fault = FAULT if severity == DEGRADED else ""
        found.append(Finding(NAME, severity, message, fault, "", _lines(people), round(cores, 2), "cores"))
    if of_system > thresholds["system_cores"]:
        message = f"the system's own processes take {of_system:.1f} core(s)"
        found.append(Finding(NAME, NOTE, message, "", "", _lines(system), round(of_system, 2), "cores"))
    return found or [
        Finding(NAME, OK, f"strangers take {cores:.2f} core(s)", value=round(cores, 2), unit="cores")
    ]


def _lines(busy: Sequence[Busy]) -> tuple[str, ...]:
    top = sorted(busy, key=lambda one: -one.cores)[:SHOWN]
    return tuple(f"pid {one.pid} uid {one.uid} {one.name}: {one.cores:.1f} cores" for one in top)


CHECK = Check(
    name=NAME,
    title="Nobody computes on the node but Slurm's jobs",
    tier="fast",
    fault=FAULT,
    needs=("/proc/stat",),
    limit_s=6.0,
    thresholds={"cores": 1.0, "system_cores": 2.0, "uid_min": 1000, "user": "", "window_s": 1.0},
    probe=probe,
    judge=judge,
)
