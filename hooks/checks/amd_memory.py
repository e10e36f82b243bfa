"""`amd-memory`: the memory of the AMD GPUs is free before the job, and nobody else computes on them. (I/O)

How it thinks. A process that outlived its job keeps the memory of a GPU, and the next job dies of it. The kernel tells how much is in use on each card, and lists the
processes that have opened the compute driver; whose such a process is, is told by its cgroup. One of no job is left over or an administrator's; one of another job is at home only where
GPUs are shared. Memory in use is told with the processes that are there, as a note where the asking job itself may be using it.

Thresholds: `used_mib` (1,500, the driver keeps some hundred), `job`, the id of the asking job ("" for none), `shared` (false): other jobs may be on these GPUs; `devices` of the job, by number in
the order of /sys.

Files: the kernel's amdgpu documentation (mem_info_vram_used, mem_info_vram_total, bytes) and the tree of the compute driver, /sys/class/kfd/kfd/proc/<pid>.

Checked against: trees built after the kernel's documents; cgroup paths of Slurm 22.05; no AMD GPU was at hand.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Optional

from ftrun.hooks.findings import DEGRADED, NOTE, OK, SKIPPED, Check, Finding
from ftrun.hooks.machine import Machine
from ftrun.hooks.nvidia import tokens
from ftrun.hooks.processes import Owner, owner

__all__ = ["CHECK", "Facts", "judge"]

NAME = "amd-memory"
FAULT = "node"
DRM = "/sys/class/drm"
KFD = "/sys/class/kfd/kfd/proc"
AMD = "0x1002"
MIB = 1 << 20


class Facts(NamedTuple):
    """Memory in use and in all by card, in MiB, in the order of /sys; who has opened the compute driver (None: gone, or not to be seen)."""

    memory: tuple[tuple[str, float, float], ...]
    owners: Mapping[int, Optional[Owner]]


def probe(machine: Machine, _thresholds: Mapping[str, Any]) -> Facts:
    """Read both trees."""
    names = [name for name in machine.names(DRM) if re.fullmatch(r"card\d+", name)]
    mine = [name for name in names if (machine.peek(f"{DRM}/{name}/device/vendor") or "").strip() == AMD]
    memory = []
    for name in sorted(mine, key=lambda name: int(name[4:])):
        used, total = (_mib(machine, f"{DRM}/{name}/device/mem_info_vram_{one}") for one in ("used", "total"))
        if used is not None and total:
            memory.append((name, used, total))
    pids = [int(name) for name in machine.names(KFD) if name.isdigit()]
    return Facts(tuple(memory), {pid: owner(machine, pid) for pid in pids})


def judge(facts: Facts, thresholds: Mapping[str, Any]) -> Sequence[Finding]:
    """Degraded where strangers hold the driver, or memory is taken and no job is around; a note where the job itself may have taken it."""
    if not facts.memory:
        return [Finding(NAME, SKIPPED, "no AMD GPU tells of its memory here")]
    found = [_stranger(pid, one) for pid, one in facts.owners.items() if _is_stranger(one, thresholds)]
    places = [int(token) for token in tokens(thresholds) if token.isdigit()]
    mine = [facts.memory[place] for place in places if place < len(facts.memory)] or list(facts.memory)
    job = str(thresholds["job"])
    at_home = any(one and one.job and one.job == job for one in facts.owners.values())
    for name, used, total in mine:
        if used > thresholds["used_mib"]:
            severity, fault = (NOTE, "") if at_home or thresholds["shared"] else (DEGRADED, FAULT)
            message = f"{used:.0f} of {total:.0f} MiB are in use"
            found.append(Finding(NAME, severity, message, fault, name, (), round(used), "MiB"))
    return found or [Finding(NAME, OK, f"{len(mine)} GPU(s) with free memory")]


def _is_stranger(one: Optional[Owner], thresholds: Mapping[str, Any]) -> bool:
    job = str(thresholds["job"])
    if one is None or one.state == "Z":
        return False
    return not one.job or bool(job and one.job != job and not thresholds["shared"])


def _stranger(pid: int, one: Optional[Owner]) -> Finding:
    name, uid, whose = (
        (one.name, one.uid, f"of job {one.job}" if one.job else "of no job") if one else ("", -1, "")
    )
    message = f"process {pid} ({name}) {whose}, user {uid}, holds the compute driver"
    return Finding(NAME, DEGRADED, message, FAULT, f"pid {pid}")


def _mib(machine: Machine, name: str) -> Optional[float]:
    text = (machine.peek(name) or "").strip()
    return int(text) / MIB if text.isdigit() else None


CHECK = Check(
    name=NAME,
    title="The memory of the AMD GPUs is free before the job, and nobody else computes on them",
    tier="fast",
    fault=FAULT,
    needs=("/sys/class/kfd",),
    limit_s=5.0,
    thresholds={"used_mib": 1500, "job": "", "shared": False, "devices": ""},
    probe=probe,
    judge=judge,
)
