"""`gpu-processes`: no process of somebody else computes on the GPUs of the job. (I/O)

How it thinks. A process that outlived its job keeps memory and time of a GPU, and the next job dies of it without a fault of its own.
Whose it is, is told by its cgroup: a process of the asking job is at home; one of another job is at home only where GPUs are shared
(shards, MPS, several jobs on a node); one of no job is left over, or an administrator's.

Thresholds: `job`, the id of the asking job ("" for none), `shared` (false): other jobs may be on these GPUs; `allow`: names of
processes that belong to the node; `devices` of the job.

Checked against: the process list of nvidia-smi's XML in Telegraf's test data (types C, G and M+C); cgroup paths of Slurm 22.05.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Optional

from ftrun.hooks import nvidia, processes
from ftrun.hooks.findings import DEGRADED, NOTE, Check, Finding
from ftrun.hooks.machine import Machine

__all__ = ["CHECK", "Facts", "judge"]

NAME = "gpu-processes"
FAULT = "node"


class Facts(NamedTuple):
    """What nvidia-smi answered, and who owns the processes that it lists, where that can be seen."""

    answer: nvidia.Answer
    owners: Mapping[int, Optional[processes.Owner]]


def probe(machine: Machine, thresholds: Mapping[str, Any]) -> Facts:
    """List the processes of all GPUs and ask /proc whose each is."""
    answer = nvidia.probe(machine, thresholds)
    pids = {one.pid for gpu in answer.gpus for one in gpu.processes}
    return Facts(answer, {pid: processes.owner(machine, pid) for pid in sorted(pids)})


def judge(facts: Facts, thresholds: Mapping[str, Any]) -> Sequence[Finding]:
    """Degraded for each process that has no business on a GPU of the job."""
    return nvidia.judged(
        NAME,
        facts.answer,
        thresholds,
        lambda gpu: [found for one in gpu.processes for found in _looked(gpu, one, facts, thresholds)],
        lambda gpu: f"{len(gpu.processes)} process(es) at home",
    )


def _looked(
    gpu: nvidia.Gpu, one: nvidia.Process, facts: Facts, thresholds: Mapping[str, Any]
) -> list[Finding]:
    owner = facts.owners.get(one.pid)
    if one.kind == "G" or _name(one) in thresholds["allow"]:
        return []
    told = f"process {one.pid} ({_name(one)})"
    memory = "" if one.used_mib is None else f", {one.used_mib:.0f} MiB"
    if owner is None:
        return [Finding(NAME, NOTE, f"{told} is on it{memory}, and cannot be seen from here", "", gpu.device)]
    job = str(thresholds["job"])
    if owner.job and (owner.job == job or thresholds["shared"] or not job):
        return []
    whose = f"of job {owner.job}" if owner.job else "of no job"
    message = f"{told} {whose}, user {owner.uid}, is on it{memory}"
    evidence = (f"pid {one.pid} uid {owner.uid} state {owner.state} type {one.kind}",)
    return [Finding(NAME, DEGRADED, message, FAULT, gpu.device, evidence, one.used_mib, "MiB")]


def _name(one: nvidia.Process) -> str:
    return one.name.rsplit("/", 1)[-1]


CHECK = Check(
    name=NAME,
    title="No process of somebody else computes on the GPUs of the job",
    tier="fast",
    fault=FAULT,
    needs=("nvidia-smi",),
    limit_s=nvidia.CHECK_LIMIT_S,
    thresholds={
        "job": "",
        "shared": False,
        "allow": (
            "nvidia-cuda-mps-server",
            "nvidia-cuda-mps-control",
            "nvidia-persistenced",
            "nv-hostengine",
            "Xorg",
        ),
        "devices": "",
    },
    probe=probe,
    judge=judge,
)
