"""`bond`: bonded links are up, all of them, and in one group. (I/O)

How it thinks. A bond hides the loss of a link: it works on with half the bandwidth, so that is degraded and costs no node; a bond
that is down is bad. With LACP a link in another aggregator than the active one carries nothing, although it is up.

Thresholds: `failures` (10) of a link since the bond was made: a note.

Checked against: the kernel's bonding documentation for /proc/net/bonding ("MII Status", "Aggregator ID", "Link Failure Count").
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ftrun.hooks.findings import BAD, DEGRADED, NOTE, OK, SKIPPED, UNKNOWN, Check, Finding
from ftrun.hooks.machine import Machine

__all__ = ["CHECK", "Bond", "Link", "judge", "parsed"]

NAME = "bond"
FAULT = "network"
FOLDER = "/proc/net/bonding"


class Link(NamedTuple):
    """One link of a bond; `aggregator` is "" without LACP."""

    name: str
    is_up: bool
    failures: int
    aggregator: str


class Bond(NamedTuple):
    """A bond with its links; `aggregator` is the active one."""

    name: str
    is_up: bool
    aggregator: str
    links: tuple[Link, ...]


def probe(machine: Machine, _thresholds: Mapping[str, Any]) -> list[Bond]:
    """All bonds."""
    texts = machine.read_all([f"{FOLDER}/{name}" for name in machine.names(FOLDER)])
    return [parsed(path.rsplit("/", 1)[-1], text) for path, text in texts.items()]


def parsed(name: str, text: str) -> Bond:
    """A bond from the text of its file."""
    head, *parts = re.split(r"(?=^Slave Interface: )", text, flags=re.MULTILINE)
    links = tuple(
        Link(
            _field(part, "Slave Interface"),
            _field(part, "MII Status") == "up",
            int(_field(part, "Link Failure Count") or 0),
            _field(part, "Aggregator ID"),
        )
        for part in parts
    )
    return Bond(name, _field(head, "MII Status") == "up", _field(head, r"\s*Aggregator ID"), links)


def judge(found: Sequence[Bond], thresholds: Mapping[str, Any]) -> Sequence[Finding]:
    """Bad when a bond is down, degraded when one of its links is, or stands apart."""
    if not found:
        return [Finding(NAME, SKIPPED, "no bonded interface here")]
    told = [one for bond in found for one in _looked(bond, thresholds)]
    return told or [
        Finding(NAME, OK, ", ".join(f"{bond.name}: {len(bond.links)} links up" for bond in found))
    ]


def _looked(bond: Bond, thresholds: Mapping[str, Any]) -> list[Finding]:
    if not bond.links:
        return [Finding(NAME, UNKNOWN, "no link of this bond can be read", device=bond.name)]
    down = [link.name for link in bond.links if not link.is_up]
    if not bond.is_up or len(down) == len(bond.links):
        return [
            Finding(NAME, BAD, "the bond is down", FAULT, bond.name, tuple(f"{name} down" for name in down))
        ]
    if down:
        message = f"{', '.join(down)} down: the bond goes on with {len(bond.links) - len(down)} of {len(bond.links)} links"
        return [Finding(NAME, DEGRADED, message, FAULT, bond.name, tuple(f"{name} down" for name in down))]
    apart = [link for link in bond.links if bond.aggregator and link.aggregator != bond.aggregator]
    if apart:
        lines = tuple(f"{link.name} aggregator {link.aggregator}, active {bond.aggregator}" for link in apart)
        message = (
            f"{', '.join(link.name for link in apart)} carries nothing: another aggregator than the bond's"
        )
        return [Finding(NAME, DEGRADED, message, FAULT, bond.name, lines)]
    flapping = [link for link in bond.links if link.failures >= thresholds["failures"]]
    return [
        Finding(
            NAME,
            NOTE,
            f"{link.name} has failed {link.failures} times",
            "",
            bond.name,
            (),
            float(link.failures),
            "failures",
        )
        for link in flapping
    ]


def _field(text: str, title: str) -> str:
    found = re.search(rf"^{title}: *(.*?) *$", text, re.MULTILINE)
    return found.group(1) if found else ""


CHECK = Check(
    name=NAME,
    title="Bonded links are up, all of them",
    tier="fast",
    fault=FAULT,
    needs=(FOLDER,),
    limit_s=5.0,
    thresholds={"failures": 10},
    probe=probe,
    judge=judge,
)
