"""`pcie-link`: network adapters, drives and accelerators have all their PCI Express lanes, at full speed. (I/O)

How it thinks. A card that sits badly, or a riser with a bad contact, comes up with half of its lanes and works, at half its pace, and no tool of its maker says so.
What is possible is what both ends of the link can, so the port above the card is asked, too. The speed of a GPU rests with the GPU, so it counts for the others only. NVIDIA's
own GPUs are left to gpu-pcie, and virtual functions have no link.

Thresholds: `addresses` (none: all) that count; `allow` (none), addresses whose slot is known to be slower.

Files: the kernel's ABI page for sysfs-bus-pci (current_link_width, max_link_width, current_link_speed "16.0 GT/s PCIe", max_link_speed, class); class codes of the PCI Code and ID Assignment Specification.

Checked against: trees built after the ABI page, with the words of kernels before 5.8 ("8 GT/s", "Unknown speed"); no machine with these files was at hand.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Optional

from ftrun.hooks.findings import DEGRADED, OK, SKIPPED, Check, Finding
from ftrun.hooks.machine import Machine

__all__ = ["CHECK", "Link", "judge"]

NAME = "pcie-link"
FAULT = "hardware-other"
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


def probe(machine: Machine, _thresholds: Mapping[str, Any]) -> tuple[Link, ...]:
    """The links of all devices of these kinds."""
    found = (_link(machine, address) for address in machine.names(FOLDER))
    return tuple(one for one in found if one is not None)


def judge(links: Sequence[Link], thresholds: Mapping[str, Any]) -> Sequence[Finding]:
    """Degraded for fewer lanes than there could be, or a lower speed."""
    wanted = [str(one) for one in thresholds["addresses"]]
    mine = [
        one
        for one in links
        if (not wanted or one.address in wanted) and one.address not in thresholds["allow"]
    ]
    if not mine:
        return [Finding(NAME, SKIPPED, "no device with a link of its own here")]
    found = [finding for one in mine for finding in _looked(one)]
    return found or [
        Finding(NAME, OK, f"{len(mine)} link(s) with all their lanes", value=len(mine), unit="links")
    ]


def _looked(one: Link) -> list[Finding]:
    line = (
        f"{one.kind}: {one.lanes} of {one.lanes_max} lanes, {one.speed or '?'} of {one.speed_max or '?'} GT/s",
    )
    if one.lanes < one.lanes_max:
        message = f"{one.kind} with {one.lanes} lanes of {one.lanes_max}"
        return [Finding(NAME, DEGRADED, message, FAULT, one.address, line, one.lanes, "lanes")]
    if one.speed and one.speed_max and one.speed < one.speed_max and one.kind not in RESTING:
        message = f"{one.kind} at {one.speed:g} GT/s of {one.speed_max:g}"
        return [Finding(NAME, DEGRADED, message, FAULT, one.address, line, one.speed, "GT/s")]
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


CHECK = Check(
    name=NAME,
    title="Adapters, drives and accelerators have all their PCI Express lanes",
    tier="fast",
    fault=FAULT,
    needs=(FOLDER,),
    limit_s=4.0,
    thresholds={"addresses": (), "allow": ()},
    probe=probe,
    judge=judge,
)
