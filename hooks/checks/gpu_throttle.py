"""`gpu-throttle`: no GPU is slowed down by heat, by power, or by a clock that somebody set. (I/O)

How it thinks. A GPU that the hardware slows down makes every other GPU of the job wait. Heat and the power brake are faults of
the machine, be it of its cooling or of its supply. The power cap of the software is the ordinary end of full load: a note only where
the cap was lowered below its default.

Thresholds: `clock_percent` (60): a busy GPU whose clock is below this share of its largest, without a reason that it tells;
`power_percent` (95): a power limit below this share of the default; `devices` of the job.

Checked against: XML documents v12 and v13 (`clocks_event_reasons`) and v11 (`clocks_throttle_reasons`) in Telegraf's test data;
the list of reasons in NVML's reference.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ftrun.hooks import nvidia
from ftrun.hooks.findings import DEGRADED, NOTE, Check, Finding

__all__ = ["CHECK", "judge"]

NAME = "gpu-throttle"
FAULT = "hardware-gpu"

# Reason -> what it means; all of them are the machine's.
REASONS = {
    "hw_thermal_slowdown": "the hardware slows it down for heat",
    "hw_power_brake_slowdown": "the power supply has put the brake on",
    "sw_thermal_slowdown": "the driver slows it down for heat",
    "hw_slowdown": "the hardware slows it down",
}


def judge(answer: nvidia.Answer, thresholds: Mapping[str, Any]) -> Sequence[Finding]:
    """Degraded when the machine slows a GPU down, or a busy one runs far below its clock for no told reason."""
    return nvidia.judged(NAME, answer, thresholds, lambda gpu: _looked(gpu, thresholds), _clock)


def _looked(gpu: nvidia.Gpu, thresholds: Mapping[str, Any]) -> list[Finding]:
    active = [reason for reason in REASONS if _is_active(gpu, reason)]
    if active:
        evidence = tuple(f"{reason} Active" for reason in active)
        message = f"{REASONS[active[0]]} ({_clock(gpu)})"
        return [Finding(NAME, DEGRADED, message, FAULT, gpu.device, evidence)]
    now, most = gpu.number("clocks/sm_clock"), gpu.number("max_clocks/sm_clock")
    rests = any(_is_active(gpu, reason) for reason in ("gpu_idle", "sw_power_cap"))
    if (
        now is not None
        and most
        and gpu.is_busy
        and not rests
        and now < most * thresholds["clock_percent"] / 100
    ):
        message = f"it works at {now:.0f} of {most:.0f} MHz and tells no reason"
        return [Finding(NAME, DEGRADED, message, FAULT, gpu.device, (), now, "MHz")]
    limit, usual = (
        _power(gpu, "current_power_limit", "enforced_power_limit"),
        _power(gpu, "default_power_limit"),
    )
    if limit is not None and usual and limit < usual * thresholds["power_percent"] / 100:
        message = f"its power is limited to {limit:.0f} W instead of {usual:.0f} W"
        return [Finding(NAME, NOTE, message, "", gpu.device, (), limit, "W")]
    return []


def _is_active(gpu: nvidia.Gpu, reason: str) -> bool:
    names = (
        f"clocks_event_reasons/clocks_event_reason_{reason}",
        f"clocks_throttle_reasons/clocks_throttle_reason_{reason}",
    )
    return any(gpu.word(name) == "Active" for name in names)


def _power(gpu: nvidia.Gpu, *names: str) -> float | None:
    """A power in W; the group was called power_readings before driver 525."""
    told = [
        gpu.number(f"{group}/{name}") for name in names for group in ("gpu_power_readings", "power_readings")
    ]
    return next((one for one in told if one is not None), None)


def _clock(gpu: nvidia.Gpu) -> str:
    return f"{gpu.word('clocks/sm_clock') or 'clock not told'} of {gpu.word('max_clocks/sm_clock') or '?'}"


CHECK = Check(
    name=NAME,
    title="No GPU is slowed down by heat, by power or by its clock",
    tier="fast",
    fault=FAULT,
    needs=("nvidia-smi",),
    limit_s=nvidia.CHECK_LIMIT_S,
    thresholds={"clock_percent": 60, "power_percent": 95, "devices": ""},
    probe=nvidia.probe,
    judge=judge,
)
