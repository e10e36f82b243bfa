"""`gpu-recovery`: no GPU asks for a reset or a reboot. (I/O)

How it thinks. The driver sums up what it knows of a device in one field: what has to be done before it can be trusted. It is the
best single word on a GPU, and it outlives the kernel log. A GPU that waits for a reset takes no new job.

Thresholds: `devices` of the job.

Checked against: XML documents v12 (`gpu_reset_status`) and v13 (`gpu_recovery_action`) in Telegraf's test data, a document with
"Drain and Reset" in a public test, and the names that Xid 154 prints (GPU Reset Required, Node Reboot Required, Drain P2P,
Drain and Reset).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ftrun.hooks import nvidia
from ftrun.hooks.findings import BAD, DEGRADED, NOTE, Check, Finding

__all__ = ["CHECK", "judge"]

NAME = "gpu-recovery"
FAULT = "hardware-gpu"

# Part of the action, in small letters -> (severity, what it means).  The first that fits counts.
ACTIONS = (
    ("reboot", BAD, "the node must be rebooted"),
    ("drain p2p", DEGRADED, "its traffic to other GPUs must come to rest first"),
    ("reset", BAD, "it must be reset"),
)


def judge(answer: nvidia.Answer, thresholds: Mapping[str, Any]) -> Sequence[Finding]:
    """Bad when the driver asks for a reset or a reboot."""
    return nvidia.judged(
        NAME, answer, thresholds, _looked, lambda gpu: gpu.word("gpu_recovery_action") or "nothing asked"
    )


def _looked(gpu: nvidia.Gpu) -> list[Finding]:
    action = gpu.word("gpu_recovery_action")
    if action and action != "None":
        told = (f"GPU Recovery Action: {action}",)
        for part, severity, message in ACTIONS:
            if part in action.lower():
                return [Finding(NAME, severity, message, FAULT, gpu.device, told)]
        return [Finding(NAME, NOTE, f"the driver recommends: {action}", "", gpu.device, told)]
    if gpu.word("gpu_reset_status/reset_required") == "Yes":
        return [Finding(NAME, BAD, "it must be reset", FAULT, gpu.device, ("Reset Required: Yes",))]
    if gpu.word("gpu_reset_status/drain_and_reset_recommended") == "Yes":
        told = ("Drain and Reset Recommended: Yes",)
        return [Finding(NAME, DEGRADED, "it should be reset when its work is done", FAULT, gpu.device, told)]
    return []


CHECK = Check(
    name=NAME,
    title="No GPU asks for a reset or a reboot",
    tier="fast",
    fault=FAULT,
    needs=("nvidia-smi",),
    limit_s=nvidia.CHECK_LIMIT_S,
    thresholds={"devices": ""},
    probe=nvidia.probe,
    judge=judge,
)
