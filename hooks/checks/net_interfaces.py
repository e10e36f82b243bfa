"""The network interfaces of this node, from /sys/class/net. (I/O)

Checked against: the kernel's ABI page for sysfs-class-net, and /sys of Linux 6.1. An interface that is down
has no speed: reading it is an error, which is None here, as is the -1 of drivers that do not know.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Optional

from ftrun.hooks.runtime.host import Machine

__all__ = ["FOLDER", "Interface", "counters", "interfaces"]

FOLDER = "/sys/class/net"
FIELDS = ("operstate", "speed", "mtu", "flags", "type", "duplex", "carrier_down_count", "bonding_slave/state")
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
    downs: Optional[int]


def interfaces(machine: Machine) -> list[Interface]:
    """Every interface but the loopback."""
    found = [name for name in machine.names(FOLDER) if name not in ("lo", "bonding_masters")]
    texts = machine.read_all([f"{FOLDER}/{name}/{field}" for name in found for field in FIELDS])
    return [
        _interface(machine, name, {field: texts.get(f"{FOLDER}/{name}/{field}", "") for field in FIELDS})
        for name in found
    ]


def counters(machine: Machine, only: Sequence[str]) -> dict[str, dict[str, int]]:
    """Interface -> counter -> count, of the counters in `only` and of interfaces with a device behind them."""
    paths = {
        f"{FOLDER}/{name}/statistics/{counter}": (name, counter)
        for name in machine.names(FOLDER)
        if machine.names(f"{FOLDER}/{name}/device")
        for counter in only
    }
    found: dict[str, dict[str, int]] = {}
    for path, text in machine.read_all(list(paths)).items():
        if text.isdigit():
            name, counter = paths[path]
            found.setdefault(name, {})[counter] = int(text)
    return found


def _interface(machine: Machine, name: str, told: dict[str, str]) -> Interface:
    device = machine.names(f"{FOLDER}/{name}/device")
    flags = int(told["flags"], 16) if told["flags"].startswith("0x") else 0
    speed = _number(told["speed"])
    return Interface(
        name,
        TYPES.get(told["type"], ""),
        bool(device) and "physfn" not in device,
        bool(flags & UP),
        bool(flags & SLAVE),
        told["operstate"],
        speed if speed is not None and speed > 0 else None,
        _number(told["mtu"]),
        told["duplex"],
        _number(told["carrier_down_count"]),
    )


def _number(text: str) -> Optional[int]:
    try:
        return int(text)
    except ValueError:
        return None
