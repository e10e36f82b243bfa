"""`gpu-memory`: the memory of the GPUs is whole, and free before the job. (I/O)

How it thinks. Memory that is in use while no process is on the GPU belongs to a process that is dying or that the kernel holds, and
the job would run out of memory by no fault of its own. Where a process is on the GPU, gpu-processes says whose. A GPU with less memory
in all than its equals has lost a part of it.

Thresholds: `used_mib` (1,500) that drivers and daemons may take; `missing_percent` (2) of the memory of its equals; `devices` of the job.

Checked against: XML documents v12 and v13 in Telegraf's test data, where an idle A100 has 50 MiB in use (12 for each MIG instance);
"used" leaves out what the driver reserves since driver 510.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ftrun.hooks import nvidia
from ftrun.hooks.findings import DEGRADED, Check, Finding

__all__ = ["CHECK", "judge"]

NAME = "gpu-memory"
TOTAL = "fb_memory_usage/total"
USED = "fb_memory_usage/used"


def judge(answer: nvidia.Answer, thresholds: Mapping[str, Any]) -> Sequence[Finding]:
    """Degraded when memory is in use by nobody, or a part of it is missing."""
    return nvidia.judged(
        NAME,
        answer,
        thresholds,
        lambda gpu: _looked(gpu, answer.gpus, thresholds),
        lambda gpu: f"{gpu.word(USED) or '?'} of {gpu.word(TOTAL) or '?'} in use",
    )


def _looked(gpu: nvidia.Gpu, gpus: Sequence[nvidia.Gpu], thresholds: Mapping[str, Any]) -> list[Finding]:
    total, used = gpu.number(TOTAL), gpu.number(USED)
    equals = [
        one.number(TOTAL) or 0 for one in gpus if one.product == gpu.product and one.has_mig == gpu.has_mig
    ]
    most = max(equals, default=0)
    if total is not None and total < most * (1 - thresholds["missing_percent"] / 100):
        message = f"{total:.0f} MiB of memory, its equals have {most:.0f}"
        return [Finding(NAME, DEGRADED, message, "hardware-gpu", gpu.device, (), total, "MiB")]
    if (
        used is not None
        and used > thresholds["used_mib"]
        and not gpu.processes
        and not gpu.has_mig
        and not gpu.is_busy
    ):
        message = f"{used:.0f} MiB are in use and no process is on it"
        return [Finding(NAME, DEGRADED, message, "node", gpu.device, (), used, "MiB")]
    return []


CHECK = Check(
    name=NAME,
    title="The memory of the GPUs is whole, and free before the job",
    tier="fast",
    fault="node",
    needs=("nvidia-smi",),
    limit_s=nvidia.CHECK_LIMIT_S,
    thresholds={"used_mib": 1500, "missing_percent": 2, "devices": ""},
    probe=nvidia.probe,
    judge=judge,
)
