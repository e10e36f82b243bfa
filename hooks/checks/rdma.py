"""The checks of RDMA adapters, InfiniBand and RoCE, from /sys/class/infiniband. (I/O)

Checked against: the kernel's ABI page for sysfs-class-infiniband; trees of mlx5 adapters in the public test
data of leptonai's gpud ("4: ACTIVE", "5: LinkUp", "400 Gb/sec (4X NDR)") and of Prometheus' procfs. A rate of
"2.5 Gb/sec (1X SDR)" is that of a port which is down.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Optional

from ftrun.hooks.checks.ethernet import growth_faults
from ftrun.hooks.runtime import device_counters
from ftrun.hooks.runtime.device_counters import Growth
from ftrun.hooks.runtime.finding import Finding, Thresholds, bad, degraded, note, ok, skipped
from ftrun.hooks.runtime.formats import DAY_S
from ftrun.hooks.runtime.host import Machine

FOLDER = "/sys/class/infiniband"
RATE = re.compile(r"([\d.]+) Gb/sec \((\d+)X ?(\w*)\)")
FIELDS = ("state", "phys_state", "rate", "link_layer")


class Port(NamedTuple):
    """One port. `state` and `physical` are words (ACTIVE, LinkUp), "" where not told; `rate_gbps` and `lanes`
    are None then. `kind` is the adapter's model and firmware family: ports of one kind and link layer should
    be equal.
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


def ports(machine: Machine, _thresholds: Thresholds) -> list[Port]:
    """Every port of every adapter; [] where there is none. Raises NoAnswer where the driver hangs."""
    found = names(machine)
    paths = [f"{_folder(name)}/{field}" for name in found for field in FIELDS]
    kinds = [
        f"{FOLDER}/{device}/{field}" for device in machine.names(FOLDER) for field in ("hca_type", "board_id")
    ]
    texts = machine.read_all([*paths, *kinds])
    return [_port(name, texts) for name in found]


def counters(machine: Machine, only: Sequence[str]) -> dict[str, dict[str, int]]:
    """Port -> counter -> count, of those counters in `only` that the port has; some drivers print "N/A (no PMA)"."""
    groups = ("counters", "hw_counters")
    return device_counters.read_counts(
        machine,
        {
            f"{_folder(name)}/{group}/{one}": (name, one)
            for name in names(machine)
            for group in groups
            for one in only
        },
    )


def is_wanted(name: str, thresholds: Thresholds) -> bool:
    """Whether a site names this port in `ports` ("mlx5_0" or "mlx5_0/1"), or none at all."""
    only = list(thresholds["ports"])
    return not only or name in only or name.partition("/")[0] in only


def _folder(name: str) -> str:
    device, port = name.split("/")
    return f"{FOLDER}/{device}/ports/{port}"


def _port(name: str, texts: Mapping[str, str]) -> Port:
    told = {field: texts.get(f"{_folder(name)}/{field}", "") for field in FIELDS}
    device = f"{FOLDER}/{name.partition('/')[0]}"
    rate = RATE.search(told["rate"])
    return Port(
        name,
        _state(told["state"]),
        _state(told["phys_state"]),
        float(rate.group(1)) if rate else None,
        int(rate.group(2)) if rate else None,
        told["link_layer"],
        f"{texts.get(f'{device}/hca_type', '')} {texts.get(f'{device}/board_id', '')}".strip(),
    )


def _state(text: str) -> str:
    """ "4: ACTIVE" is ACTIVE."""
    return text.partition(":")[2].strip()


# --- ib-port


def judge_port(found: Sequence[Port], thresholds: Thresholds) -> Sequence[Finding]:
    """Bad when an expected port is not active, or a link waits for its subnet manager; degraded when its
    equals are up.
    """
    if not found and not thresholds["ports"]:
        return [skipped("no RDMA port here")]
    missing = [name for name in thresholds["ports"] if not any(_is_named(port, name) for port in found)]
    told = [bad("this port is expected, and there is no such port", name) for name in missing]
    told += [one for port in found for one in _port_faults(port, found, thresholds)]
    active = [port for port in found if port.is_active]
    if len(active) < thresholds["active"]:
        message = f"{len(active)} port(s) active, {thresholds['active']} expected"
        told.append(bad(message, value=float(len(active)), unit="ports"))
    return told or [ok(f"{len(active)} of {len(found)} port(s) active")]


def _port_faults(port: Port, found: Sequence[Port], thresholds: Thresholds) -> list[Finding]:
    if port.is_active or not port.state:
        return []
    line = (f"state {port.state}, physical state {port.physical or 'not told'}",)
    if any(_is_named(port, name) for name in thresholds["ports"]):
        return [bad(f"this port is expected, and is {port.state}", port.name, evidence=line)]
    if port.physical == "Disabled":
        return [note("somebody has disabled this port", port.name, evidence=line)]
    if port.physical == "LinkUp" and port.layer == "InfiniBand" and port.state in ("INIT", "ARMED"):
        return [bad("its link is up, and no subnet manager has made it active", port.name, evidence=line)]
    if thresholds["ports"] or thresholds["active"]:
        return []  # the site has said which count
    if any(other.is_active and other.family == port.family for other in found):
        return [degraded(f"it is {port.state}, while others of its kind are up", port.name, evidence=line)]
    return [note(f"it is {port.state}, as are all of its kind", port.name, evidence=line)]


def _is_named(port: Port, name: str) -> bool:
    return name in (port.name, port.name.partition("/")[0])


# --- ib-speed


def judge_speed(found: Sequence[Port], thresholds: Thresholds) -> Sequence[Finding]:
    """Bad below the site's speed, degraded below that of equal ports."""
    active = [one for one in found if is_wanted(one.name, thresholds) and one.is_active and one.rate_gbps]
    if not active:
        return [skipped("no active RDMA port here")]
    return [one for port in active for one in _speed_faults(port, active, thresholds)]


def _speed_faults(port: Port, active: Sequence[Port], thresholds: Thresholds) -> list[Finding]:
    rate, lanes = port.rate_gbps or 0.0, port.lanes or 0
    line = (f"rate {rate:g} Gb/s, {lanes}X",)
    if rate < thresholds["gbps"] or lanes < thresholds["lanes"]:
        message = f"{rate:g} Gb/s on {lanes} lane(s), the site wants {thresholds['gbps'] or 'any'} Gb/s"
        return [bad(message, port.name, rate, "Gb/s", evidence=line)]
    equals = [other for other in active if other.family == port.family]
    most = max(other.rate_gbps or 0 for other in equals)
    if rate < most and not thresholds["gbps"]:
        message = f"{rate:g} Gb/s on {lanes} lane(s), its equals have {most:g} Gb/s"
        return [degraded(message, port.name, rate, "Gb/s", evidence=line)]
    return [ok(f"{rate:g} Gb/s", port.name, rate, "Gb/s")]


# --- ib-errors

LINK_LIMITS = {
    "symbol_error": 10, "port_rcv_errors": 10, "local_link_integrity_errors": 1, "link_error_recovery": 1,
    "excessive_buffer_overrun_errors": 1, "port_rcv_remote_physical_errors": 100,
}  # fmt: skip
PACKET_LIMITS = {
    "out_of_sequence": 10_000, "packet_seq_err": 1_000, "local_ack_timeout_err": 10,
    "rnr_nak_retry_err": 100, "roce_adp_retrans_to": 10, "rx_icrc_encapsulated": 10,
    "port_xmit_discards": 10_000,
}  # fmt: skip


def probe_errors(machine: Machine, thresholds: Thresholds) -> Growth:
    """Two readings."""
    return device_counters.over_time(lambda: counters(machine, [*LINK_LIMITS, *PACKET_LIMITS]), thresholds)


def judge_errors(facts: Growth, thresholds: Thresholds) -> Sequence[Finding]:
    """Degraded when a counter grows faster than its limit."""
    found = [name for name in sorted(facts.after) if is_wanted(name, thresholds)]
    if not found:
        return [skipped("no RDMA port with counters here")]
    told = [one for port in found for one in _errors_faults(port, facts, thresholds)]
    return told or [ok(f"no counter of {len(found)} port(s) grows")]


def _errors_faults(port: str, facts: Growth, thresholds: Thresholds) -> list[Finding]:
    grown = growth_faults(port, facts, {**LINK_LIMITS, **PACKET_LIMITS, **thresholds["growth"]})
    if grown:
        return grown
    great = [name for name in LINK_LIMITS if facts.after[port].get(name, 0) >= thresholds["total"]]
    if great:
        lines = tuple(f"{name} {facts.after[port][name]}" for name in great)
        return [note(f"{', '.join(great)}: great numbers, and none of them new", port, evidence=lines)]
    return []


# --- ib-flaps

FLAP_COUNTER = "link_downed"


class FlapsFacts(NamedTuple):
    """Two readings, and how long the node has been up (seconds)."""

    growth: Growth
    uptime_s: float


def probe_flaps(machine: Machine, thresholds: Thresholds) -> FlapsFacts:
    """Two readings of one counter."""
    growth = device_counters.over_time(lambda: counters(machine, [FLAP_COUNTER]), thresholds)
    return FlapsFacts(growth, machine.uptime_s())


def judge_flaps(facts: FlapsFacts, thresholds: Thresholds) -> Sequence[Finding]:
    """Degraded when a link fell since the last reading, or falls often."""
    links = [name for name in sorted(facts.growth.after) if is_wanted(name, thresholds)]
    if not links:
        return [skipped("no RDMA port that counts its falls")]
    found = [one for port in links for one in _flaps_faults(port, facts, thresholds)]
    return found or [ok(f"{len(links)} link(s) stay up")]


def _flaps_faults(port: str, facts: FlapsFacts, thresholds: Thresholds) -> list[Finding]:
    total = facts.growth.after[port].get(FLAP_COUNTER, 0)
    fresh = device_counters.growth_of(facts.growth, port).get(FLAP_COUNTER, 0)
    line = (f"{FLAP_COUNTER} {total}",)
    if fresh:
        message = f"its link fell {fresh} time(s) since the last reading"
        return [degraded(message, port, float(fresh), "falls", evidence=line)]
    days = max(1.0, facts.uptime_s / DAY_S)
    if total > thresholds["least"] and total / days > thresholds["a_day"]:
        message = f"its link fell {total} times in {days:.1f} day(s)"
        return [degraded(message, port, float(total), "falls", evidence=line)]
    return []


# --- roce-config

GIDS_MAX = 16  # tables are long, and the used entries stand first
EMPTY = "0000:0000:0000:0000:0000:0000:0000:0000"


class Addresses(NamedTuple):
    """One RoCE port: index -> kind of its GID ("RoCE v2"), its interface, and what that trusts ("" where not told)."""

    port: str
    kinds: Mapping[int, str]
    interface: str
    trust: str


def probe_roce(machine: Machine, thresholds: Thresholds) -> list[Addresses]:
    """The GID tables of all active ports whose link layer is Ethernet."""
    found = [one.name for one in ports(machine, thresholds) if one.layer == "Ethernet" and one.is_active]
    return [_addresses(machine, name) for name in found if is_wanted(name, thresholds)]


def _addresses(machine: Machine, name: str) -> Addresses:
    folder = _folder(name)
    paths = {
        (part, index): f"{folder}/{part}/{index}"
        for part in ("gids", "gid_attrs/types", "gid_attrs/ndevs")
        for index in range(GIDS_MAX)
    }
    texts = machine.read_all(list(paths.values()))
    told = {key: texts.get(path, "") for key, path in paths.items()}
    used = [index for index in range(GIDS_MAX) if told["gids", index] not in ("", EMPTY)]
    interface = next((told["gid_attrs/ndevs", index] for index in used if told["gid_attrs/ndevs", index]), "")
    trust = (machine.read(f"/sys/class/net/{interface}/qos/trust") or "").strip() if interface else ""
    return Addresses(name, {index: told["gid_attrs/types", index] for index in used}, interface, trust)


def judge_roce(found: Sequence[Addresses], thresholds: Thresholds) -> Sequence[Finding]:
    """Bad where the site's index holds no RoCE v2 GID; degraded where a port has none at all."""
    if not found:
        return [skipped("no active RoCE port here")]
    told = [one for port in found for one in _roce_faults(port, thresholds["gid_index"])]
    trusts = {port.trust for port in found if port.trust}
    if len(trusts) > 1:
        lines = tuple(f"{port.port} {port.trust}" for port in found)
        told.append(note(f"the ports trust differently: {', '.join(sorted(trusts))}", evidence=lines))
    return told or [ok(f"{len(found)} RoCE port(s) with v2 addresses")]


def _roce_faults(one: Addresses, index: int) -> list[Finding]:
    lines = tuple(f"gid {place}: {kind}" for place, kind in sorted(one.kinds.items()))
    if index >= 0 and one.kinds.get(index) != "RoCE v2":
        message = f"GID {index} is {one.kinds.get(index) or 'empty'}, and the site uses it for RoCE v2"
        return [bad(message, one.port, evidence=lines)]
    if "RoCE v2" not in one.kinds.values():
        message = f"it has no RoCE v2 address; has {one.interface or 'its interface'} an IP address?"
        return [degraded(message, one.port, evidence=lines)]
    return []


FUNCTIONS = {
    "ib-port": (ports, judge_port),
    "ib-speed": (ports, judge_speed),
    "ib-errors": (probe_errors, judge_errors),
    "ib-flaps": (probe_flaps, judge_flaps),
    "roce-config": (probe_roce, judge_roce),
}
