"""`gpu-mode`: all GPUs of the job run in the same, usable mode: compute mode, MIG, ECC, persistence. (I/O)

How it thinks. A mode is right or wrong by comparison: one GPU of eight with ECC off or in another compute mode is a mistake of whoever
set the others. Two states are wrong alone: "Prohibited" lets no program in, and MIG without an instance has nothing to compute
on. A change that waits for a reset (pending differs from current) will surprise the next job.

Thresholds: `compute_mode`, `mig`, `ecc`, `persistence`: what the site expects ("" for any); `devices` of the job.

Checked against: XML documents v12 and v13 in Telegraf's test data; compute modes in nvidia-smi's manual. MPS runs in mode Default
or Exclusive_Process, so neither is a fault.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ftrun.hooks import nvidia
from ftrun.hooks.findings import BAD, DEGRADED, NOTE, Check, Finding

__all__ = ["CHECK", "judge"]

NAME = "gpu-mode"
FAULT = "node"

MODES = {
    "compute_mode": "compute_mode",
    "mig": "mig_mode/current_mig",
    "ecc": "ecc_mode/current_ecc",
    "persistence": "persistence_mode",
}
PENDING = {
    "MIG": ("mig_mode/current_mig", "mig_mode/pending_mig"),
    "ECC": ("ecc_mode/current_ecc", "ecc_mode/pending_ecc"),
}


def judge(answer: nvidia.Answer, thresholds: Mapping[str, Any]) -> Sequence[Finding]:
    """Bad where no program is let in; degraded where a mode is not the expected one, or not that of the other GPUs."""
    mine = nvidia.chosen(answer.gpus, nvidia.tokens(thresholds))
    usual = {mode: str(thresholds[mode]) or _usual(mine, field) for mode, field in MODES.items()}
    return nvidia.judged(
        NAME,
        answer,
        thresholds,
        lambda gpu: _looked(gpu, usual),
        lambda gpu: gpu.word("compute_mode") or "mode not told",
    )


def _usual(gpus: Sequence[nvidia.Gpu], field: str) -> str:
    """The mode of most GPUs; "" where there is no majority."""
    told = [gpu.word(field) for gpu in gpus if gpu.word(field)]
    top = max(sorted(set(told)), key=told.count, default="")
    return top if told.count(top) * 2 > len(told) else ""


def _looked(gpu: nvidia.Gpu, usual: Mapping[str, str]) -> list[Finding]:
    if gpu.word("compute_mode") == "Prohibited":
        told = ("compute_mode Prohibited",)
        return [Finding(NAME, BAD, "its compute mode lets no program in", FAULT, gpu.device, told)]
    if gpu.has_mig and not gpu.mig_instances:
        message = "MIG is on and there is no instance to compute on"
        return [Finding(NAME, DEGRADED, message, FAULT, gpu.device)]
    found = []
    for mode, field in MODES.items():
        now = gpu.word(field)
        if now and usual[mode] and now != usual[mode]:
            # Without the persistence daemon a GPU only takes longer to wake.
            severity, fault = (NOTE, "") if mode == "persistence" else (DEGRADED, FAULT)
            found.append(
                Finding(NAME, severity, f"{mode} is {now} instead of {usual[mode]}", fault, gpu.device)
            )
    for title, (now_field, then_field) in PENDING.items():
        now, then = gpu.word(now_field), gpu.word(then_field)
        if now and then and now != then:
            found.append(Finding(NAME, NOTE, f"{title} will be {then} after the next reset", "", gpu.device))
    return found


CHECK = Check(
    name=NAME,
    title="All GPUs run in the same, usable mode: compute mode, MIG, ECC, persistence",
    tier="fast",
    fault=FAULT,
    needs=("nvidia-smi",),
    limit_s=nvidia.CHECK_LIMIT_S,
    thresholds={"compute_mode": "", "mig": "", "ecc": "", "persistence": "", "devices": ""},
    probe=nvidia.probe,
    judge=judge,
)
