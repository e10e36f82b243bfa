"""The checks of network cards and their bonds, from /sys/class/net and /proc/net/bonding. (I/O)

Checked against: the kernel's ABI page for sysfs-class-net, and /sys of Linux 6.1. An interface that is down
has no speed: reading it is an error, which is None here, as is the -1 of drivers that do not know.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Optional

from ftrun.hooks.runtime import state_dir
from ftrun.hooks.runtime.finding import Finding, Thresholds, bad, degraded, note, ok, skipped, unknown
from ftrun.hooks.runtime.host import Machine
from ftrun.hooks.runtime.state_dir import Growth

FOLDER = "/sys/class/net"
FIELDS = ("operstate", "speed", "mtu", "flags", "type", "duplex", "bonding_slave/state")
UP = 0x1
SLAVE = 0x800
TYPES = {"1": "Ethernet", "32": "InfiniBand"}


class Interface(NamedTuple):
    """`is_wanted`: somebody has set it up; `is_physical`: there is a device behind it and it is no virtual function."""

    name: str
    kind: str
    is_physical: bool
    is_wanted: bool
    is_slave: bool
    state: str
    speed_mbps: Optional[int]
    mtu: Optional[int]
    duplex: str


def interfaces(machine: Machine, _thresholds: Thresholds) -> list[Interface]:
    """Every interface but the loopback."""
    found = [name for name in machine.names(FOLDER) if name not in ("lo", "bonding_masters")]
    texts = machine.read_all([f"{FOLDER}/{name}/{field}" for name in found for field in FIELDS])
    return [
        _interface(machine, name, {field: texts.get(f"{FOLDER}/{name}/{field}", "") for field in FIELDS})
        for name in found
    ]


def counters(machine: Machine, only: Sequence[str]) -> dict[str, dict[str, int]]:
    """Interface -> counter -> count, of the counters in `only` and of interfaces with a device behind them."""
    names = [name for name in machine.names(FOLDER) if machine.names(f"{FOLDER}/{name}/device")]
    return state_dir.read_counts(
        machine, {f"{FOLDER}/{name}/statistics/{one}": (name, one) for name in names for one in only}
    )


def _interface(machine: Machine, name: str, told: dict[str, str]) -> Interface:
    device = machine.names(f"{FOLDER}/{name}/device")
    flags = int(told["flags"], 16) if told["flags"].startswith("0x") else 0
    speed = _integer(told["speed"])
    return Interface(
        name,
        TYPES.get(told["type"], ""),
        bool(device) and "physfn" not in device,
        bool(flags & UP),
        bool(flags & SLAVE),
        told["operstate"],
        speed if speed is not None and speed > 0 else None,
        _integer(told["mtu"]),
        told["duplex"],
    )


def _integer(text: str) -> Optional[int]:
    try:
        return int(text)
    except ValueError:
        return None


# --- nic-link

SLOW_MBPS = 100


def judge_link(found: Sequence[Interface], thresholds: Thresholds) -> Sequence[Finding]:
    """Bad when an expected interface is missing, down or slower; degraded when another that is set up has no
    carrier.
    """
    expected: Mapping[str, int] = thresholds["expected"]
    by_name = {one.name: one for one in found}
    told = [
        finding
        for name, speed in expected.items()
        for finding in _expected_faults(name, speed, by_name.get(name))
    ]
    others = [one for one in found if one.is_physical and one.name not in expected]
    told += [finding for one in others for finding in _carrier_faults(one)]
    if not told and not expected and not others:
        return [skipped("no network card here, and none is expected")]
    up = [one for one in found if one.is_physical and one.state != "down"]
    return told or [_link_speed(one) for one in up] or [ok("nothing is set up")]


def _expected_faults(name: str, speed: int, one: Interface | None) -> list[Finding]:
    if one is None:
        return [bad("this interface is expected, and is not here", name)]
    if one.state not in ("up", "unknown"):
        line = (f"operstate {one.state}",)
        return [bad(f"this interface is expected, and is {one.state}", name, evidence=line)]
    if speed and one.speed_mbps is not None and one.speed_mbps < speed:
        return [bad(f"{one.speed_mbps} Mb/s instead of {speed}", name, float(one.speed_mbps), "Mb/s")]
    return []


def _carrier_faults(one: Interface) -> list[Finding]:
    if not one.is_wanted or one.is_slave:
        return []
    if one.state in ("down", "lowerlayerdown"):
        return [degraded("it is set up and has no carrier", one.name, evidence=(f"operstate {one.state}",))]
    if one.duplex == "half" or (
        one.speed_mbps is not None and one.speed_mbps <= SLOW_MBPS and one.kind == "Ethernet"
    ):
        speed = None if one.speed_mbps is None else float(one.speed_mbps)
        message = (
            f"{one.speed_mbps} Mb/s, {one.duplex or 'duplex not told'}: slower than any card of a cluster"
        )
        return [degraded(message, one.name, speed, "Mb/s")]
    return []


def _link_speed(one: Interface) -> Finding:
    """An interface that is well, with its speed, to be compared across nodes."""
    speed = None if one.speed_mbps is None else float(one.speed_mbps)
    told = (one.state or "state not told") if speed is None else f"{one.speed_mbps} Mb/s {one.state}"
    return ok(told, one.name, speed, "" if speed is None else "Mb/s")


# --- nic-errors

NIC_LIMITS = {
    "rx_crc_errors": 1, "rx_frame_errors": 1, "rx_errors": 10, "tx_errors": 10, "tx_carrier_errors": 1,
    "rx_missed_errors": 10_000, "rx_fifo_errors": 10_000,
}  # fmt: skip


def probe_nic_errors(machine: Machine, thresholds: Thresholds) -> Growth:
    """Two readings."""
    return state_dir.over_time(lambda: counters(machine, list(NIC_LIMITS)), thresholds)


def judge_nic_errors(facts: Growth, thresholds: Thresholds) -> Sequence[Finding]:
    """Degraded when a counter grows faster than its limit."""
    if not facts.after:
        return [skipped("no network card with counters here")]
    limits = {**NIC_LIMITS, **thresholds["growth"]}
    found = [one for name in sorted(facts.after) for one in growth_faults(name, facts, limits)]
    return found or [ok(f"no error counter of {len(facts.after)} card(s) grows")]


def growth_faults(device: str, facts: Growth, limits: Mapping[str, int]) -> list[Finding]:
    """Degraded for counters that grew by their limit, a note for slower growth; nothing without any."""
    more = state_dir.growth_of(facts, device)
    span = f" in {facts.seconds:.0f} s" if facts.seconds else ""
    told = tuple(f"{name} +{count}{span}, {facts.after[device][name]} in all" for name, count in more.items())
    over = [name for name, count in more.items() if count >= limits.get(name, 1)]
    if over:
        count = more[over[0]]
        message = f"{', '.join(over)}: {count} more{span}"
        return [degraded(message, device, float(count), "errors", evidence=told)]
    return [note(f"{', '.join(more)} grow slowly", device, evidence=told)] if told else []


# --- mtu


def judge_mtu(found: Sequence[Interface], thresholds: Thresholds) -> Sequence[Finding]:
    """Bad where the site expects another size; degraded where a card differs from most of its equals."""
    expected: Mapping[str, int] = thresholds["expected"]
    up = [
        one
        for one in found
        if one.mtu and one.state in ("up", "unknown") and (one.is_physical or one.name in expected)
    ]
    told = [
        bad(f"{one.mtu} bytes instead of {expected[one.name]}", one.name, float(one.mtu or 0), "bytes")
        for one in up
        if one.name in expected and one.mtu != expected[one.name]
    ]
    told += [finding for one in up if one.name not in expected for finding in _odd_mtu(one, up)]
    if not told and not up:
        return [skipped("no network card is up")]
    return told or [ok(f"{one.mtu} bytes", one.name, float(one.mtu or 0), "bytes") for one in up]


def _odd_mtu(one: Interface, up: Sequence[Interface]) -> list[Finding]:
    """What is said of a card that differs from more than half of those of its kind and speed; at least two must agree."""
    equals = [
        other.mtu
        for other in up
        if (other.kind, other.speed_mbps) == (one.kind, one.speed_mbps) and other.speed_mbps
    ]
    usual = max(sorted({mtu or 0 for mtu in equals}), key=equals.count, default=0)
    if not usual or equals.count(usual) < 2 or equals.count(usual) * 2 <= len(equals) or one.mtu == usual:
        return []
    return [degraded(f"{one.mtu} bytes, its equals have {usual}", one.name, float(one.mtu or 0), "bytes")]


# --- bond

BONDING = "/proc/net/bonding"


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


def probe_bond(machine: Machine, _thresholds: Thresholds) -> list[Bond]:
    """All bonds."""
    texts = machine.read_all([f"{BONDING}/{name}" for name in machine.names(BONDING)])
    return [parsed_bond(path.rsplit("/", 1)[-1], text) for path, text in texts.items()]


def parsed_bond(name: str, text: str) -> Bond:
    """A bond from the text of its file."""
    head, *parts = re.split(r"(?=^Slave Interface: )", text, flags=re.MULTILINE)
    links = tuple(
        Link(
            _bond_field(part, "Slave Interface"),
            _bond_field(part, "MII Status") == "up",
            int(_bond_field(part, "Link Failure Count") or 0),
            _bond_field(part, "Aggregator ID"),
        )
        for part in parts
    )
    return Bond(name, _bond_field(head, "MII Status") == "up", _bond_field(head, r"\s*Aggregator ID"), links)


def judge_bond(found: Sequence[Bond], thresholds: Thresholds) -> Sequence[Finding]:
    """Bad when a bond is down, degraded when one of its links is, or stands apart."""
    if not found:
        return [skipped("no bonded interface here")]
    told = [one for bond in found for one in _bond_faults(bond, thresholds)]
    return told or [ok(", ".join(f"{bond.name}: {len(bond.links)} links up" for bond in found))]


def _bond_faults(bond: Bond, thresholds: Thresholds) -> list[Finding]:
    if not bond.links:
        return [unknown("no link of this bond can be read", bond.name)]
    down = [link.name for link in bond.links if not link.is_up]
    if not bond.is_up or len(down) == len(bond.links):
        return [bad("the bond is down", bond.name, evidence=tuple(f"{name} down" for name in down))]
    if down:
        message = f"{', '.join(down)} down: the bond goes on with {len(bond.links) - len(down)} of {len(bond.links)} links"
        return [degraded(message, bond.name, evidence=tuple(f"{name} down" for name in down))]
    apart = [link for link in bond.links if bond.aggregator and link.aggregator != bond.aggregator]
    if apart:
        lines = tuple(f"{link.name} aggregator {link.aggregator}, active {bond.aggregator}" for link in apart)
        message = (
            f"{', '.join(link.name for link in apart)} carries nothing: another aggregator than the bond's"
        )
        return [degraded(message, bond.name, evidence=lines)]
    flapping = [link for link in bond.links if link.failures >= thresholds["failures"]]
    return [
        note(f"{link.name} has failed {link.failures} times", bond.name, float(link.failures), "failures")
        for link in flapping
    ]


def _bond_field(text: str, title: str) -> str:
    found = re.search(rf"^{title}: *(.*?) *$", text, re.MULTILINE)
    return found.group(1) if found else ""


FUNCTIONS = {
    "nic-link": (interfaces, judge_link),
    "nic-errors": (probe_nic_errors, judge_nic_errors),
    "mtu": (interfaces, judge_mtu),
    "bond": (probe_bond, judge_bond),
}
