"""`edac`: the memory controllers have met no errors. (I/O)

How it thinks. An uncorrected error means that data were lost: bad, until a reboot clears the counter and the memory is proven. Corrected ones are
the daily bread of a large machine; at a high rate they slow the node down and foretell worse, so the rate counts and not the number. The
module is named where the driver knows it.

Thresholds: `corrected_per_hour` 100 over the time since the counters were reset, at least `corrected` 1,000 in all (a burst once is no rate);
`uncorrected` 0.

Files: Documentation/admin-guide/RAS of the kernel: mc*/ue_count, ce_count, seconds_since_reset; dimm*/dimm_label, dimm_ce_count, dimm_ue_count
(older drivers: rank*/ with the same names).

Checked against: trees built after the kernel's documents; no machine with these files was at hand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Optional

from ftrun.hooks.findings import BAD, DEGRADED, NOTE, OK, SKIPPED, Check, Finding
from ftrun.hooks.machine import Machine

__all__ = ["CHECK", "Controller", "judge"]

NAME = "edac"
FAULT = "hardware-other"
FOLDER = "/sys/devices/system/edac/mc"


class Controller(NamedTuple):
    """One memory controller: uncorrected and corrected errors, seconds that they were counted, and both by module's label."""

    name: str
    uncorrected: int
    corrected: int
    counted_s: float
    modules: Mapping[str, tuple[int, int]]


def probe(machine: Machine, _thresholds: Mapping[str, Any]) -> tuple[Controller, ...]:
    """All controllers; one whose counters cannot be read is left out."""
    found = (_controller(machine, name) for name in machine.names(FOLDER) if name.startswith("mc"))
    return tuple(one for one in found if one is not None)


def _controller(machine: Machine, name: str) -> Optional[Controller]:
    folder = f"{FOLDER}/{name}"
    uncorrected, corrected = _count(machine, f"{folder}/ue_count"), _count(machine, f"{folder}/ce_count")
    if uncorrected is None or corrected is None:
        return None
    modules = {}
    for module in machine.names(folder):
        if module.startswith(("dimm", "rank")):
            label = (machine.peek(f"{folder}/{module}/dimm_label") or "").strip() or f"{name}/{module}"
            lost = _count(machine, f"{folder}/{module}/dimm_ue_count") or 0
            modules[label] = (lost, _count(machine, f"{folder}/{module}/dimm_ce_count") or 0)
    return Controller(
        name, uncorrected, corrected, _count(machine, f"{folder}/seconds_since_reset") or 0, modules
    )


def _count(machine: Machine, name: str) -> Optional[int]:
    text = (machine.peek(name) or "").strip()
    return int(text) if text.isdigit() else None


def judge(controllers: Sequence[Controller], thresholds: Mapping[str, Any]) -> Sequence[Finding]:
    """Bad for uncorrected errors, degraded for many corrected ones, a note for a few."""
    if not controllers:
        return [Finding(NAME, SKIPPED, "no memory controller tells of errors here")]
    found = [one for controller in controllers for one in _looked(controller, thresholds)]
    return found or [Finding(NAME, OK, f"{len(controllers)} memory controller(s) without errors")]


def _looked(one: Controller, thresholds: Mapping[str, Any]) -> list[Finding]:
    place, evidence = _place(one)
    found = []
    if one.uncorrected > thresholds["uncorrected"]:
        message = f"{one.uncorrected} uncorrected memory error(s) at {place} since boot"
        found.append(Finding(NAME, BAD, message, FAULT, place, evidence, one.uncorrected, "errors"))
    # Within the first hour a rate would be a guess from few minutes.
    rate = one.corrected / max(one.counted_s / 3600, 1.0)
    if rate > thresholds["corrected_per_hour"] and one.corrected > thresholds["corrected"]:
        message = f"{one.corrected} corrected memory errors at {place}, {rate:.0f} an hour"
        found.append(Finding(NAME, DEGRADED, message, FAULT, place, evidence, round(rate, 1), "errors/h"))
    if one.corrected and not found:
        message = f"{one.corrected} corrected memory error(s) at {place}"
        found.append(Finding(NAME, NOTE, message, "", place, evidence, one.corrected, "errors"))
    return found


def _place(one: Controller) -> tuple[str, tuple[str, ...]]:
    """The module with most errors, and the counters of all that have some."""
    ill = {label: counts for label, counts in one.modules.items() if any(counts)}
    evidence = tuple(
        f"{label}: {lost} uncorrected, {mended} corrected" for label, (lost, mended) in ill.items()
    )
    return max(ill, key=lambda label: ill[label], default=one.name), evidence[:8]


CHECK = Check(
    name=NAME,
    title="The memory controllers have met no errors",
    tier="fast",
    fault=FAULT,
    needs=(FOLDER,),
    limit_s=5.0,
    thresholds={"uncorrected": 0, "corrected_per_hour": 100, "corrected": 1000},
    probe=probe,
    judge=judge,
)
