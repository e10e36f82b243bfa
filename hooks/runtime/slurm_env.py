"""The job of a prolog or epilog, and the name of a node, from the environment that Slurm sets. (I/O)

A job may be failed for a device only if it uses that device. A job without devices is never failed for one; a
job with some of the node's devices is checked for these. Unique names (UUIDs) come before numbers, since
Slurm numbers devices by its own list and a tool may number them otherwise.

Checked against: the environment of Prolog and Epilog on Slurm 22.05 (SLURM_JOB_GPUS, CUDA_VISIBLE_DEVICES,
ROCR_VISIBLE_DEVICES, ZE_AFFINITY_MASK are all set for a job with a GPU, none for a job without);
slurm.conf(5), "PROLOG AND EPILOG SCRIPTS".
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


DEVICES = (
    "SLURM_JOB_GPUS",
    "CUDA_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "ASCEND_RT_VISIBLE_DEVICES",
    "ZE_AFFINITY_MASK",
)
NO_DEVICE = frozenset({"", "NoDevFiles", "none", "None", "-1", "void"})


class Job:
    """A Slurm job. `id` is "" outside a job, `uid` -1 if unknown, `devices` in the form of
    CUDA_VISIBLE_DEVICES, "" for none. No NamedTuple: every job of the node would wait for the import of
    typing.
    """

    __slots__ = ("cluster", "devices", "id", "uid")

    def __init__(self, job: str, uid: int, cluster: str, devices: str) -> None:
        self.id = job
        self.uid = uid
        self.cluster = cluster
        self.devices = devices


def job_of(env: Mapping[str, str]) -> Job:
    """The job that this environment belongs to."""
    uid = env.get("SLURM_JOB_UID", "")
    return Job(
        env.get("SLURM_JOB_ID", ""),
        int(uid) if uid.isdigit() else -1,
        env.get("SLURM_CLUSTER_NAME", ""),
        _devices(env),
    )


def _devices(env: Mapping[str, str]) -> str:
    told = [_listed(env.get(name, "").strip()) for name in DEVICES]
    named = [text for text in told if text.lower().startswith(("mig-", "gpu-"))]
    return next((text for text in [*named, *told] if text not in NO_DEVICE), "")


def _listed(text: str) -> str:
    """`0-2,5` as `0,1,2,5`: some releases write ranges."""
    parts = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if dash and first.isdigit() and last.isdigit() and int(last) - int(first) < 1024:
            parts += [str(number) for number in range(int(first), int(last) + 1)]
        else:
            parts.append(part.strip())
    return ",".join(parts)


def node_name(told: str = "") -> str:
    """The name `told`; without one Slurm's name of this node, else the host's without its domain."""
    return told or os.environ.get("SLURMD_NODENAME") or os.uname().nodename.partition(".")[0]
