"""`pcie-aer`: the PCI Express devices have met no errors. (I/O)

How it thinks. A fatal error means that a link was lost and retrained, with whatever was in flight: bad. Non-fatal ones lost a transaction and
are degraded. Corrected ones were repeated by the link itself; thousands an hour mean a bad slot, riser or cable, which a GPU or an adapter
pays for with bandwidth. Devices of the job are judged like all others: what hangs on the same bridge is shared.

Thresholds: `fatal` 0, `nonfatal` 0, `corrected_per_hour` 1,000 over the time since boot and at least `corrected` 10,000 in all. Advisory
errors (`NonFatalErr`) and unsupported requests are not counted: a kernel that looks for devices causes them.

Files: sysfs-bus-pci-devices-aer_stats of the kernel (4.19 and later): lines "name count", the last one the total.

Checked against: trees built after the kernel's ABI page; no machine with these files was at hand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ftrun.hooks.findings import BAD, DEGRADED, NOTE, OK, SKIPPED, Check, Finding
from ftrun.hooks.machine import Machine

__all__ = ["CHECK", "Facts", "counts", "judge"]

NAME = "pcie-aer"
FAULT = "hardware-other"
FOLDER = "/sys/bus/pci/devices"
KINDS = ("fatal", "nonfatal", "correctable")
ADVISORY = {"NonFatalErr", "Advisory Non-Fatal", "UnsupReq", "Unsupported Request"}


class Facts(NamedTuple):
    """By PCI address and kind ("fatal", ...) the text of its counters, and seconds since boot."""

    texts: Mapping[str, Mapping[str, str]]
    uptime_s: float


def probe(machine: Machine, _thresholds: Mapping[str, Any]) -> Facts:
    """The counters of every device that has them."""
    texts: dict[str, dict[str, str]] = {}
    for device in machine.names(FOLDER):
        found = {kind: machine.peek(f"{FOLDER}/{device}/aer_dev_{kind}") for kind in KINDS}
        told = {kind: text for kind, text in found.items() if text}
        if told:
            texts[device] = told
    words = (machine.peek("/proc/uptime") or "").split()
    return Facts(texts, float(words[0]) if words else 0.0)


def counts(text: str) -> dict[str, int]:
    """Names and counts of one file, without the total and what is zero; lines of another form are left out."""
    rows = (line.rsplit(None, 1) for line in text.splitlines())
    pairs = ((row[0], int(row[1])) for row in rows if len(row) == 2 and row[1].isdigit())
    return {name: count for name, count in pairs if count and not name.startswith("TOTAL_")}


def judge(facts: Facts, thresholds: Mapping[str, Any]) -> Sequence[Finding]:
    """Bad for fatal errors, degraded for non-fatal and for many corrected ones."""
    if not facts.texts:
        return [Finding(NAME, SKIPPED, "no device counts its errors here")]
    hours = max(facts.uptime_s / 3600, 1.0)
    found = [
        one for device, texts in facts.texts.items() for one in _looked(device, texts, hours, thresholds)
    ]
    return found or [Finding(NAME, OK, f"{len(facts.texts)} device(s) without errors")]


def _looked(
    device: str, texts: Mapping[str, str], hours: float, thresholds: Mapping[str, Any]
) -> list[Finding]:
    found = []
    for kind, severity in (("fatal", BAD), ("nonfatal", DEGRADED)):
        errors = counts(texts.get(kind, ""))
        total = _sum(errors)
        if total > thresholds[kind]:
            message = f"{device}: {total} {kind} PCI Express error(s) since boot"
            found.append(Finding(NAME, severity, message, FAULT, device, _evidence(errors), total, "errors"))
    mended = counts(texts.get("correctable", ""))
    total = _sum(mended)
    rate = total / hours
    if rate > thresholds["corrected_per_hour"] and total > thresholds["corrected"]:
        message = f"{device}: {total} corrected PCI Express errors, {rate:.0f} an hour"
        found.append(
            Finding(NAME, DEGRADED, message, FAULT, device, _evidence(mended), round(rate, 1), "errors/h")
        )
    elif total:
        message = f"{device}: {total} corrected PCI Express error(s)"
        found.append(Finding(NAME, NOTE, message, "", device, _evidence(mended), total, "errors"))
    return found


def _sum(errors: Mapping[str, int]) -> int:
    return sum(count for name, count in errors.items() if name not in ADVISORY)


def _evidence(errors: Mapping[str, int]) -> tuple[str, ...]:
    return tuple(f"{name} {count}" for name, count in errors.items())


CHECK = Check(
    name=NAME,
    title="The PCI Express devices have met no errors",
    tier="fast",
    fault=FAULT,
    needs=(FOLDER,),
    limit_s=6.0,
    thresholds={"fatal": 0, "nonfatal": 0, "corrected_per_hour": 1000, "corrected": 10_000},
    probe=probe,
    judge=judge,
)
