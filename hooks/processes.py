"""Whose a process is: its user, its Slurm job, its state. (I/O)

Checked against: /proc of Linux 6.1; the cgroup paths of Slurm 22.05 and later, `.../job_<id>/step_<id>/...` in both hierarchies.
"""

from __future__ import annotations

import re
from typing import NamedTuple, Optional

from ftrun.hooks.machine import Machine

__all__ = ["Owner", "owner", "owner_from"]


class Owner(NamedTuple):
    """`job` is "" for a process that no Slurm job holds; `state` is the letter of /proc (R, S, D, Z ...)."""

    pid: int
    uid: int
    job: str
    state: str
    name: str


def owner(machine: Machine, pid: int) -> Optional[Owner]:
    """Who owns a process; None where it is gone or hidden from this user."""
    status = machine.read(f"/proc/{pid}/status")
    return owner_from(pid, status, machine.read(f"/proc/{pid}/cgroup") or "") if status else None


def owner_from(pid: int, status: str, cgroup: str) -> Optional[Owner]:
    """The same from the text of both files."""
    uid = re.search(r"^Uid:\s+(\d+)", status, re.MULTILINE)
    if not uid:
        return None
    state = re.search(r"^State:\s+(\S)", status, re.MULTILINE)
    name = re.search(r"^Name:\s+(.*)$", status, re.MULTILINE)
    job = re.search(r"/job_(\d+)", cgroup)
    return Owner(
        pid,
        int(uid.group(1)),
        job.group(1) if job else "",
        state.group(1) if state else "",
        name.group(1) if name else "",
    )
