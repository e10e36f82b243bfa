"""Thresholds that the job around a check implies: which devices are its own, and whether it shares them. (pure)

How it thinks. A check that is started inside a job, by its step or by Slurm's prolog, judges the accelerators of that job. Where Slurm hands out shares of a GPU (gres
`shard` and `mps`) other jobs' processes on it are at home, too. What the site sets goes before. A device of a maker whose tool is not on the node is not missed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ftrun.hooks.slurmjob import job_of

__all__ = ["DRIVERS", "around"]

DRIVERS = ("nvidia-smi", "rocm-smi", "amd-smi", "npu-smi")
"""Without any of them the devices of a job are of a maker that the checks do not know."""
SHARES = ("SLURM_SHARDS_ON_NODE", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE")


def around(env: Mapping[str, str], *, has_driver: bool) -> dict[str, Any]:
    """Values for the thresholds `devices`, `job` and `shared`, as far as this environment tells them."""
    job = job_of(env)
    if not job.id:
        return {}
    found: dict[str, Any] = {"job": job.id, "shared": any(env.get(name) for name in SHARES)}
    if job.devices and has_driver:
        found["devices"] = job.devices
    return found
