"""Processes that a job left behind on this node. (I/O)

Another job of the same user may run here, and the user may be logged in. So a process belongs to a job only
if its cgroup or its initial environment names this very job. Reading the environment of a hung process may
hang, so a child reads it that can be abandoned. Our own ancestors have the job's id in their environment as
well, because Slurm sets it for the epilog.

Checked against: processes that outlived `setsid` jobs under proctrack/linuxproc of 22.05; cgroup paths as in
start_processes.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Sequence
from typing import Optional

from ftrun.hooks.runtime import procfs
from ftrun.hooks.runtime.finding import DEGRADED, OK, UNKNOWN, Finding
from ftrun.hooks.runtime.host import Machine, NoAnswer
from ftrun.hooks.runtime.procfs import Process
from ftrun.hooks.runtime.start_processes import NO_JOB, OwnJob, job_and_step, own_job

NAME = "leftovers"
READ_S = 2.0
SHOWN_MAX = 8


def is_of_job(job: str, cluster: str, environment: str, cgroup: str, own: OwnJob = NO_JOB) -> bool:
    """Whether a process with this environment (NUL-separated) and cgroup belongs to the job, and is no hook
    of Slurm. `own` is the job that the caller was started for.
    """
    if job_and_step(cgroup, own)[0] == job:
        return True
    told = dict(word.partition("=")[::2] for word in environment.split("\0"))
    if told.get("SLURM_JOB_ID") != job or "SLURM_SCRIPT_CONTEXT" in told:
        return False
    return not cluster or told.get("SLURM_CLUSTER_NAME", cluster) == cluster


def job_processes(machine: Machine, job: str, uid: int, cluster: str = "") -> Optional[list[Process]]:
    """The living processes of a job; None if they could not be read in time."""
    if not job.isdigit():
        return []
    spared, own = _ancestors(machine), own_job(os.environ)
    mine = {
        pid: one
        for pid, one in procfs.all_processes(machine).items()
        if one.uid == uid and not one.is_kernel and one.state != "Z" and pid not in spared
    }

    def named() -> bytes:
        told = [
            pid
            for pid in mine
            if is_of_job(job, cluster, _text(machine, pid, "environ"), _text(machine, pid, "cgroup"), own)
        ]
        return json.dumps(told).encode()

    try:
        pids = json.loads(machine.ask(named, READ_S, "the environment of processes") or b"[]")
    except NoAnswer:
        return None
    return [mine[pid] for pid in pids]


def leftover_finding(processes: Optional[Sequence[Process]], job: str) -> Finding:
    """One finding: degraded if any process is left."""
    if processes is None:
        return Finding(NAME, UNKNOWN, "the processes of the job's user could not be read in time")
    if not processes:
        return Finding(NAME, OK, "the job left no process behind")
    stuck = [one for one in processes if one.state == "D"]
    told = f"{len(processes)} process(es) of job {job} outlived it" + (
        f", {len(stuck)} cannot be ended" if stuck else ""
    )
    shown = tuple(f"{one.pid} {one.name} {one.state}" for one in processes[:SHOWN_MAX])
    return Finding(NAME, DEGRADED, told, "node", "", shown, float(len(processes)), "processes")


def kill_processes(machine: Machine, processes: Sequence[Process]) -> list[int]:
    """Kill processes, except root's and those whose pid was reused. Returns the pids that got the signal."""
    living, ended = procfs.all_processes(machine), []
    for one in processes:
        now = living.get(one.pid)
        if one.uid > 0 and now is not None and (now.uid, now.began) == (one.uid, one.began):
            with contextlib.suppress(OSError):
                os.kill(one.pid, signal.SIGKILL)
                ended.append(one.pid)
    return ended


def _ancestors(machine: Machine) -> set[int]:
    """This process and its ancestors."""
    pid, found = os.getpid(), set()
    while pid > 0 and pid not in found:
        found.add(pid)
        fields = (machine.peek(f"/proc/{pid}/stat") or "").rpartition(")")[2].split()
        pid = int(fields[1]) if len(fields) > 1 else 0
    return found


def _text(machine: Machine, pid: int, name: str) -> str:
    return machine.peek(f"/proc/{pid}/{name}") or ""
