"""The ports of the RDMA adapters of this node, InfiniBand and RoCE, from /sys/class/infiniband. (I/O)

Checked against: the kernel's ABI page for sysfs-class-infiniband; trees of mlx5 adapters in the public test
data of leptonai's gpud ("4: ACTIVE", "5: LinkUp", "400 Gb/sec (4X NDR)") and of Prometheus' procfs. A rate of
"2.5 Gb/sec (1X SDR)" is that of a port which is down.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Optional

from ftrun.hooks.runtime.host import Machine

__all__ = ["FOLDER", "Port", "counters", "ports", "wanted"]

FOLDER = "/sys/class/infiniband"
RATE = re.compile(r"([\d.]+) Gb/sec \((\d+)X ?(\w*)\)")
FIELDS = ("state", "phys_state", "rate", "link_layer")


class Port(NamedTuple):
    """One port. `state` and `physical` are words (ACTIVE, LinkUp), "" where not told; `rate_gbps` and `lanes` are None then.

    `kind` is the adapter's model and firmware family: ports of one kind and link layer should be equal.
    """

    name: str
    state: str
    physical: str
    rate_gbps: Optional[float]
    lanes: Optional[int]
    layer: str
    kind: str

    @property
    def is_active(self) -> bool:
        """Whether it carries traffic."""
        return self.state == "ACTIVE"

    @property
    def family(self) -> tuple[str, str]:
        """What it can be compared with."""
        return self.kind, self.layer


def names(machine: Machine) -> list[str]:
    """All ports as "mlx5_0/1"."""
    return [
        f"{device}/{port}"
        for device in machine.names(FOLDER)
        for port in machine.names(f"{FOLDER}/{device}/ports")
        if port.isdigit()
    ]


def ports(machine: Machine) -> list[Port]:
    """Every port of every adapter; [] where there is none. Raises NoAnswer where the driver hangs."""
    found = names(machine)
    paths = [f"{_folder(name)}/{field}" for name in found for field in FIELDS]
    kinds = [
        f"{FOLDER}/{device}/{field}" for device in machine.names(FOLDER) for field in ("hca_type", "board_id")
    ]
    texts = machine.read_all([*paths, *kinds])
    return [_port(name, texts) for name in found]


def counters(machine: Machine, only: Sequence[str]) -> dict[str, dict[str, int]]:
    """Port -> counter -> count, of those counters named in `only` that the port has (from counters/ and hw_counters/)."""
    paths = {
        f"{_folder(name)}/{group}/{counter}": (name, counter)
        for name in names(machine)
        for group in ("counters", "hw_counters")
        for counter in only
    }
    found: dict[str, dict[str, int]] = {}
    for path, text in machine.read_all(list(paths)).items():
        if text.isdigit():  # some drivers print "N/A (no PMA)"
            name, counter = paths[path]
            found.setdefault(name, {})[counter] = int(text)
    return found


def wanted(found: Sequence[Port], thresholds: Mapping[str, Any]) -> list[Port]:
    """The ports that a site names in `ports` ("mlx5_0" or "mlx5_0/1"), or all."""
    only = list(thresholds["ports"])
    return [port for port in found if not only or port.name in only or port.name.split("/")[0] in only]


def _folder(name: str) -> str:
    device, port = name.split("/")
    return f"{FOLDER}/{device}/ports/{port}"


def _port(name: str, texts: Mapping[str, str]) -> Port:
    told = {field: texts.get(f"{_folder(name)}/{field}", "") for field in FIELDS}
    device = f"{FOLDER}/{name.partition('/')[0]}"
    rate = RATE.search(told["rate"])
    return Port(
        name,
        _word(told["state"]),
        _word(told["phys_state"]),
        float(rate.group(1)) if rate else None,
        int(rate.group(2)) if rate else None,
        told["link_layer"],
        f"{texts.get(f'{device}/hca_type', '')} {texts.get(f'{device}/board_id', '')}".strip(),
    )


def _word(text: str) -> str:
    """ "4: ACTIVE" is ACTIVE."""
    return text.partition(":")[2].strip()
