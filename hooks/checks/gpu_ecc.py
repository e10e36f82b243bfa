"""`gpu-ecc`: the memory of the GPUs is sound. (I/O)

How it thinks. Uncorrectable errors since the driver was loaded mean that data were lost on this GPU in this life of it. A row whose
replacement failed, or SRAM errors beyond NVIDIA's own limit, is a GPU to be replaced. A row that waits for the next reset still
works. Errors of former lives were dealt with by a reset and are a note; corrected ones count only in great number.

Thresholds: `uncorrectable` (0) errors since the driver was loaded; `sram_corrected` (10,000) and `dram_corrected` (20,000,000), which
are the limits that Azure's node health checks use on H100; `devices` of the job.

Checked against: XML documents of schemas v11 to v13 in Telegraf's test data (the SRAM field is one number up to driver 535, then
parity and SEC-DED); NVIDIA's memory error guide for what a pending or failed remap means.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ftrun.hooks import nvidia
from ftrun.hooks.findings import BAD, DEGRADED, NOTE, Check, Finding

__all__ = ["CHECK", "judge"]

NAME = "gpu-ecc"
FAULT = "hardware-gpu"
UNCORRECTABLE = (
    "sram_uncorrectable",
    "sram_uncorrectable_parity",
    "sram_uncorrectable_secded",
    "dram_uncorrectable",
)
OLD_UNCORRECTABLE = "double_bit/total"  # schema of Volta and older

# Field -> (word that speaks, severity, what it means).
FLAGS = (
    ("remapped_rows/remapped_row_failure", BAD, "a row of memory could not be replaced"),
    ("ecc_errors/aggregate/sram_threshold_exceeded", BAD, "more SRAM errors than NVIDIA allows"),
    ("ecc_errors/unrepairable_memory", BAD, "memory that cannot be repaired"),
    ("remapped_rows/remapped_row_pending", DEGRADED, "a row of memory waits for a reset to be replaced"),
    ("retired_pages/pending_retirement", DEGRADED, "a page of memory waits for a reset to be retired"),
    ("ecc_errors/channel_repair_pending", DEGRADED, "a memory channel waits for a reset to be repaired"),
    ("ecc_errors/tpc_repair_pending", DEGRADED, "a processor cluster waits for a reset to be repaired"),
)


def judge(answer: nvidia.Answer, thresholds: Mapping[str, Any]) -> Sequence[Finding]:
    """Bad for fresh uncorrectable errors and memory beyond repair; degraded for what waits for a reset."""
    return nvidia.judged(NAME, answer, thresholds, lambda gpu: _looked(gpu, thresholds), _well)


def _looked(gpu: nvidia.Gpu, thresholds: Mapping[str, Any]) -> list[Finding]:
    found = []
    fresh = _uncorrectable(gpu, "volatile")
    if fresh > thresholds["uncorrectable"]:
        message = f"{fresh:.0f} uncorrectable memory errors since the driver was loaded"
        found.append(Finding(NAME, BAD, message, FAULT, gpu.device, _evidence(gpu), fresh, "errors"))
    for field, severity, message in FLAGS:
        if gpu.word(field).lower() in ("yes", "true", "1"):
            evidence = (f"{field} {gpu.word(field)}",)
            found.append(Finding(NAME, severity, message, FAULT, gpu.device, evidence))
    spent = gpu.number("remapped_rows/row_remapper_histogram/row_remapper_histogram_none") or 0
    if spent > 0:
        message = f"{spent:.0f} memory bank(s) have no spare row left"
        found.append(Finding(NAME, DEGRADED, message, FAULT, gpu.device, (), spent, "banks"))
    for kind in ("sram", "dram"):
        corrected = gpu.number(f"ecc_errors/volatile/{kind}_correctable") or 0
        if corrected > thresholds[f"{kind}_corrected"]:
            message = f"{corrected:.0f} corrected {kind.upper()} errors since the driver was loaded"
            found.append(Finding(NAME, DEGRADED, message, FAULT, gpu.device, (), corrected, "errors"))
    former = _uncorrectable(gpu, "aggregate")
    if former > 0 and not found:
        message = (
            f"{former:.0f} uncorrectable memory errors in its whole life, none since the driver was loaded"
        )
        found.append(Finding(NAME, NOTE, message, "", gpu.device, (), former, "errors"))
    return found


def _uncorrectable(gpu: nvidia.Gpu, when: str) -> float:
    counts = [gpu.number(f"ecc_errors/{when}/{kind}") for kind in UNCORRECTABLE]
    if all(count is None for count in counts):
        counts = [gpu.number(f"ecc_errors/{when}/{OLD_UNCORRECTABLE}")]
    return sum(count or 0 for count in counts)


def _evidence(gpu: nvidia.Gpu) -> tuple[str, ...]:
    told = [(kind, gpu.number(f"ecc_errors/volatile/{kind}")) for kind in UNCORRECTABLE]
    return tuple(f"volatile {kind} {count:.0f}" for kind, count in told if count)


def _well(gpu: nvidia.Gpu) -> str:
    mode = gpu.word("ecc_mode/current_ecc")
    return "no errors" if mode == "Enabled" else "ECC is off" if mode == "Disabled" else "no ECC"


CHECK = Check(
    name=NAME,
    title="The memory of the GPUs is sound: ECC, row remapping, retired pages",
    tier="fast",
    fault=FAULT,
    needs=("nvidia-smi",),
    limit_s=nvidia.CHECK_LIMIT_S,
    thresholds={"uncorrectable": 0, "sram_corrected": 10_000, "dram_corrected": 20_000_000, "devices": ""},
    probe=nvidia.probe,
    judge=judge,
)
