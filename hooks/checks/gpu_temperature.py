"""`gpu-temperature`: no GPU and none of its memory is near the heat at which it slows down or stops. (I/O)

How it thinks. Each GPU tells its own limits, so they are taken and not a number of ours. Since Hopper it tells the distance
instead: degrees that are left until the slowdown ("T.Limit"), with limits that are zero or below. The hottest of several alike, far
above the others, has a fan, a cold plate or paste to be looked at.

Thresholds: `margin_c` (3): a note when fewer degrees are left; `gpu_c` (90) and `memory_c` (105) where a GPU tells no
limit; `above_others_c` (25) over the median of the node; `devices` of the job.

Checked against: XML documents v12 (limits) and v13 (`gpu_temp_tlimit`) in Telegraf's test data; nvidia-smi's manual.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ftrun.hooks import nvidia
from ftrun.hooks.findings import BAD, DEGRADED, NOTE, Check, Finding

__all__ = ["CHECK", "judge"]

NAME = "gpu-temperature"
FAULT = "hardware-gpu"


def judge(answer: nvidia.Answer, thresholds: Mapping[str, Any]) -> Sequence[Finding]:
    """Bad at the heat of a shutdown, degraded at that of a slowdown, a note when close to it or far above the others."""
    told = [one for one in (gpu.number("temperature/gpu_temp") for gpu in answer.gpus) if one is not None]
    import statistics  # where there are GPUs

    median = statistics.median(told) if len(told) > 2 else None
    return nvidia.judged(
        NAME,
        answer,
        thresholds,
        lambda gpu: _looked(gpu, thresholds, median),
        lambda gpu: gpu.word("temperature/gpu_temp") or "not told",
    )


def _looked(gpu: nvidia.Gpu, thresholds: Mapping[str, Any], median: float | None) -> list[Finding]:
    found = [*_core(gpu, thresholds), *_memory(gpu, thresholds)]
    now = gpu.number("temperature/gpu_temp")
    if not found and now is not None and median is not None and now > median + thresholds["above_others_c"]:
        message = f"{now:.0f} C, while half of the GPUs here are below {median:.0f} C"
        found.append(Finding(NAME, NOTE, message, "", gpu.device, (), now, "C"))
    return found


def _core(gpu: nvidia.Gpu, thresholds: Mapping[str, Any]) -> list[Finding]:
    now = gpu.number("temperature/gpu_temp")
    left = gpu.number("temperature/gpu_temp_tlimit")
    if left is not None:
        stop = gpu.number("temperature/gpu_temp_max_tlimit_threshold")
        slow = gpu.number("temperature/gpu_temp_slow_tlimit_threshold")
        to_stop = None if stop is None else left - stop
        to_slow = left - (slow or 0)
    elif now is not None:
        stop = gpu.number("temperature/gpu_temp_max_threshold")
        slow = gpu.number("temperature/gpu_temp_slow_threshold")
        to_stop = None if stop is None else stop - now
        to_slow = (thresholds["gpu_c"] if slow is None else slow) - now
    else:
        return []
    told = "" if now is None else f"{now:.0f} C: "
    if to_stop is not None and to_stop <= 0:
        return [Finding(NAME, BAD, f"{told}the heat at which it shuts down", FAULT, gpu.device, (), now, "C")]
    if to_slow <= 0:
        return [
            Finding(NAME, DEGRADED, f"{told}the heat at which it slows down", FAULT, gpu.device, (), now, "C")
        ]
    if to_slow <= thresholds["margin_c"]:
        message = f"{told}{to_slow:.0f} degrees are left until it slows down"
        return [Finding(NAME, NOTE, message, "", gpu.device, (), now, "C")]
    return []


def _memory(gpu: nvidia.Gpu, thresholds: Mapping[str, Any]) -> list[Finding]:
    now = gpu.number("temperature/memory_temp")
    own = gpu.number("temperature/gpu_temp_max_mem_threshold")
    limit = thresholds["memory_c"] if own is None else own
    if now is None or now < limit:
        return []
    message = f"its memory has {now:.0f} C, the limit is {limit:.0f} C"
    return [Finding(NAME, DEGRADED, message, FAULT, gpu.device, (), now, "C")]


CHECK = Check(
    name=NAME,
    title="No GPU is near the heat at which it slows down or stops",
    tier="fast",
    fault=FAULT,
    needs=("nvidia-smi",),
    limit_s=nvidia.CHECK_LIMIT_S,
    thresholds={"margin_c": 3, "gpu_c": 90, "memory_c": 105, "above_others_c": 25, "devices": ""},
    probe=nvidia.probe,
    judge=judge,
)
