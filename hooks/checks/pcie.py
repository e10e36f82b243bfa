"""The checks of PCI Express links. (I/O)"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Optional

from ftrun.hooks.runtime.finding import Finding, Thresholds, bad, degraded, note, ok, skipped
from ftrun.hooks.runtime.host import Machine

# --- pcie-link

FOLDER = "/sys/bus/pci/devices"
KINDS = {
    "0x0200": "network adapter", "0x0207": "InfiniBand adapter", "0x0280": "network adapter", "0x0108": "drive", "0x0300": "GPU", "0x0302": "GPU",
    "0x0380": "GPU", "0x1200": "accelerator",
}  # fmt: skip
RESTING = ("GPU", "accelerator")
NVIDIA = "0x10de"
LANES_MAX = 32  # more is what a device says that does not answer


class Link(NamedTuple):
    """The link of one device: lanes and GT/s now, and what both of its ends can (None: not told)."""

    address: str
    kind: str
    lanes: int
    lanes_max: int
    speed: Optional[float]
    speed_max: Optional[float]


def probe_pcie_link(machine: Machine, _thresholds: Thresholds) -> tuple[Link, ...]:
    """The links of all devices of these kinds."""
    found = (_link(machine, address) for address in machine.names(FOLDER))
    return tuple(one for one in found if one is not None)


def judge_pcie_link(links: Sequence[Link], thresholds: Thresholds) -> Sequence[Finding]:
    """Degraded for fewer lanes than there could be, or a lower speed."""
    wanted = [str(one) for one in thresholds["addresses"]]
    mine = [
        one
        for one in links
        if (not wanted or one.address in wanted) and one.address not in thresholds["allow"]
    ]
    if not mine:
        return [skipped("no device with a link of its own here")]
    found = [finding for one in mine for finding in _pcie_link_faults(one)]
    return found or [ok(f"{len(mine)} link(s) with all their lanes", value=len(mine), unit="links")]


def _pcie_link_faults(one: Link) -> list[Finding]:
    line = (
        f"{one.kind}: {one.lanes} of {one.lanes_max} lanes, {one.speed or '?'} of {one.speed_max or '?'} GT/s",
    )
    if one.lanes < one.lanes_max:
        message = f"{one.kind} with {one.lanes} lanes of {one.lanes_max}"
        return [degraded(message, one.address, one.lanes, "lanes", evidence=line)]
    if one.speed and one.speed_max and one.speed < one.speed_max and one.kind not in RESTING:
        message = f"{one.kind} at {one.speed:g} GT/s of {one.speed_max:g}"
        return [degraded(message, one.address, one.speed, "GT/s", evidence=line)]
    return []


def _link(machine: Machine, address: str) -> Optional[Link]:
    folder = f"{FOLDER}/{address}"
    kind = KINDS.get((machine.peek(f"{folder}/class") or "").strip()[:6])
    vendor = (machine.peek(f"{folder}/vendor") or "").strip()
    if kind is None or (vendor == NVIDIA and kind == "GPU"):
        return None
    lanes = _number(machine, f"{folder}/current_link_width")
    if not lanes or lanes > LANES_MAX:
        return None
    # The folder is a link into the tree of the bus: the folder above it there is the port that the device hangs on.
    lanes_max = _least(machine, folder, "max_link_width")
    speed = _number(machine, f"{folder}/current_link_speed")
    return Link(
        address, kind, int(lanes), int(lanes_max or 0), speed, _least(machine, folder, "max_link_speed")
    )


def _least(machine: Machine, folder: str, name: str) -> Optional[float]:
    """What both ends can; None where the device does not tell."""
    own, above = _number(machine, f"{folder}/{name}"), _number(machine, f"{folder}/../{name}")
    return own if own is None or above is None else min(own, above)


def _number(machine: Machine, name: str) -> Optional[float]:
    found = re.match(r"\d+(?:\.\d+)?", machine.peek(name) or "")
    return float(found.group()) if found else None


# --- pcie-aer

AER_KINDS = ("fatal", "nonfatal", "correctable")
AER_ADVISORY = {"NonFatalErr", "Advisory Non-Fatal", "UnsupReq", "Unsupported Request"}


class PcieAerFacts(NamedTuple):
    """By PCI address and kind ("fatal", ...) the text of its counters, and seconds since boot."""

    texts: Mapping[str, Mapping[str, str]]
    uptime_s: float


def probe_pcie_aer(machine: Machine, _thresholds: Thresholds) -> PcieAerFacts:
    """The counters of every device that has them."""
    texts: dict[str, dict[str, str]] = {}
    for device in machine.names(FOLDER):
        found = {kind: machine.peek(f"{FOLDER}/{device}/aer_dev_{kind}") for kind in AER_KINDS}
        told = {kind: text for kind, text in found.items() if text}
        if told:
            texts[device] = told
    return PcieAerFacts(texts, machine.uptime_s())


def aer_counts(text: str) -> dict[str, int]:
    """Names and counts of one file, without the total and what is zero; lines of another form are left out."""
    rows = (line.rsplit(None, 1) for line in text.splitlines())
    pairs = ((row[0], int(row[1])) for row in rows if len(row) == 2 and row[1].isdigit())
    return {name: count for name, count in pairs if count and not name.startswith("TOTAL_")}


def judge_pcie_aer(facts: PcieAerFacts, thresholds: Thresholds) -> Sequence[Finding]:
    """Bad for fatal errors, degraded for non-fatal and for many corrected ones."""
    if not facts.texts:
        return [skipped("no device counts its errors here")]
    hours = max(facts.uptime_s / 3600, 1.0)
    found = [
        one
        for device, texts in facts.texts.items()
        for one in _pcie_aer_faults(device, texts, hours, thresholds)
    ]
    return found or [ok(f"{len(facts.texts)} device(s) without errors")]


def _pcie_aer_faults(
    device: str, texts: Mapping[str, str], hours: float, thresholds: Thresholds
) -> list[Finding]:
    found = []
    for kind, grade in (("fatal", bad), ("nonfatal", degraded)):
        errors = aer_counts(texts.get(kind, ""))
        total = _aer_sum(errors)
        if total > thresholds[kind]:
            message = f"{device}: {total} {kind} PCI Express error(s) since boot"
            found.append(grade(message, device, total, "errors", evidence=_aer_lines(errors)))
    mended = aer_counts(texts.get("correctable", ""))
    total = _aer_sum(mended)
    rate = total / hours
    if rate > thresholds["corrected_per_hour"] and total > thresholds["corrected"]:
        message = f"{device}: {total} corrected PCI Express errors, {rate:.0f} an hour"
        found.append(degraded(message, device, round(rate, 1), "errors/h", evidence=_aer_lines(mended)))
    elif total:
        message = f"{device}: {total} corrected PCI Express error(s)"
        found.append(note(message, device, total, "errors", evidence=_aer_lines(mended)))
    return found


def _aer_sum(errors: Mapping[str, int]) -> int:
    return sum(count for name, count in errors.items() if name not in AER_ADVISORY)


def _aer_lines(errors: Mapping[str, int]) -> tuple[str, ...]:
    return tuple(f"{name} {count}" for name, count in errors.items())


FUNCTIONS = {
    "pcie-link": (probe_pcie_link, judge_pcie_link),
    "pcie-aer": (probe_pcie_aer, judge_pcie_aer),
}
