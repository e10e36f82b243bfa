"""`gpu-pcie`: every GPU has its PCIe lanes and their speed. (I/O)

How it thinks. An idle GPU lowers the speed of its link, not its width, so a low speed counts only while it works, or where an equal
GPU beside it, as idle, keeps full speed in the same performance state. Missing lanes count where an equal GPU has more, or the
site says how many there are: then a card sits badly, or a riser or retimer is bad. Where all are alike the board may have no more
(virtual machines with half of the lanes are sold as such), and it is a note.

Thresholds: `lanes` of every GPU (0: as its equals); `replays` (10,000) of the link since the driver was loaded: a note; `devices`
of the job.

Checked against: XML documents v11 to v13 in Telegraf's test data, among them idle cards at generation 1 of 4, and healthy T4 and A10G
of a cloud with 8 of 16 lanes; nvidia-smi's manual ("may be reduced when the GPU is not in use").
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ftrun.hooks import nvidia
from ftrun.hooks.findings import DEGRADED, NOTE, Check, Finding

__all__ = ["CHECK", "judge"]

NAME = "gpu-pcie"
FAULT = "hardware-gpu"
LINK = "pci/pci_gpu_link_info/"


def judge(answer: nvidia.Answer, thresholds: Mapping[str, Any]) -> Sequence[Finding]:
    """Degraded when lanes are missing, or a working link is slower than it can be."""
    fast = {
        (gpu.product, gpu.word("performance_state"))
        for gpu in answer.gpus
        if _generations(gpu)[0] >= _generations(gpu)[1]
    }
    usual: dict[str, float] = {}
    for gpu in answer.gpus:
        usual[gpu.product] = max(usual.get(gpu.product, 0.0), _width(gpu))

    def looked(gpu: nvidia.Gpu) -> list[Finding]:
        return _looked(gpu, thresholds, fast, usual[gpu.product])

    return nvidia.judged(NAME, answer, thresholds, looked, _link)


def _looked(
    gpu: nvidia.Gpu, thresholds: Mapping[str, Any], fast: set[tuple[str, str]], usual: float
) -> list[Finding]:
    width, most_lanes = _width(gpu), gpu.number(f"{LINK}link_widths/max_link_width") or 0.0
    if 0 < width < (thresholds["lanes"] or usual):
        message = f"{width:.0f} of {thresholds['lanes'] or usual:.0f} PCIe lanes"
        return [Finding(NAME, DEGRADED, message, FAULT, gpu.device, (_link(gpu),), width, "lanes")]
    if 0 < width < most_lanes and not thresholds["lanes"]:
        message = f"{width:.0f} of {most_lanes:.0f} PCIe lanes, as its equals: the board may have no more"
        return [Finding(NAME, NOTE, message, "", gpu.device, (_link(gpu),), width, "lanes")]
    now, most = _generations(gpu)
    if 0 < now < most:
        alike = (gpu.product, gpu.word("performance_state")) in fast and gpu.word("performance_state") == "P0"
        if gpu.is_busy or alike:
            why = "while it works" if gpu.is_busy else "while its equals have full speed"
            message = f"PCIe generation {now:.0f} of {most:.0f} {why}"
            return [Finding(NAME, DEGRADED, message, FAULT, gpu.device, (_link(gpu),), now, "generation")]
    replays = gpu.number("pci/replay_counter") or 0
    if replays > thresholds["replays"]:
        message = f"{replays:.0f} replays on its PCIe link since the driver was loaded"
        return [Finding(NAME, NOTE, message, "", gpu.device, (), replays, "replays")]
    return []


def _width(gpu: nvidia.Gpu) -> float:
    """Lanes now; 0 where it is not told."""
    return gpu.number(f"{LINK}link_widths/current_link_width") or 0.0


def _generations(gpu: nvidia.Gpu) -> tuple[float, float]:
    """PCIe generation now and at most; 0 where it is not told."""
    now, most = gpu.number(f"{LINK}pcie_gen/current_link_gen"), gpu.number(f"{LINK}pcie_gen/max_link_gen")
    return now or 0.0, most or 0.0


def _link(gpu: nvidia.Gpu) -> str:
    now, most = _generations(gpu)
    rest = " at rest" if 0 < now < most else ""
    return f"gen {now:.0f} of {most:.0f}{rest}, {gpu.word(f'{LINK}link_widths/current_link_width') or '?'}"


CHECK = Check(
    name=NAME,
    title="Every GPU has its PCIe lanes and their speed",
    tier="fast",
    fault=FAULT,
    needs=("nvidia-smi",),
    limit_s=nvidia.CHECK_LIMIT_S,
    thresholds={"lanes": 0, "replays": 10_000, "devices": ""},
    probe=nvidia.probe,
    judge=judge,
)
