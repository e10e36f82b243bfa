"""`roce-config`: the RoCE ports have the addresses that a job needs, and are set up alike. (I/O)

How it thinks. RoCE v2 routes by a GID made from an IP address of the interface; where the address is missing there is no such GID, and
NCCL fails or takes the slow path. An index that the site sets for all nodes (NCCL_IB_GID_INDEX) must hold a RoCE v2 GID on each
port. How a port trusts and marks priorities is comparable where Mellanox's driver shows it: ports that differ are a note.

Thresholds: `gid_index` (-1: any), `ports` that count ([]: all active RoCE ports).

Checked against: the kernel's ABI page for gids/, gid_attrs/types/ ("IB/RoCE v1", "RoCE v2") and gid_attrs/ndevs/. Priority flow
control itself is not in /sys; qos/trust is where MLNX_OFED documents it and was not seen on a machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ftrun.hooks import infiniband
from ftrun.hooks.findings import BAD, DEGRADED, NOTE, OK, SKIPPED, Check, Finding
from ftrun.hooks.machine import Machine

__all__ = ["CHECK", "Addresses", "judge"]

NAME = "roce-config"
FAULT = "network"
GIDS_MAX = 16  # tables are long, and the used entries stand first
EMPTY = "0000:0000:0000:0000:0000:0000:0000:0000"


class Addresses(NamedTuple):
    """One RoCE port: index -> kind of its GID ("RoCE v2"), its interface, and what that trusts ("" where not told)."""

    port: str
    kinds: Mapping[int, str]
    interface: str
    trust: str


def probe(machine: Machine, thresholds: Mapping[str, Any]) -> list[Addresses]:
    """The GID tables of all active ports whose link layer is Ethernet."""
    ports = [port for port in infiniband.ports(machine) if port.layer == "Ethernet" and port.is_active]
    return [_addresses(machine, port.name) for port in infiniband.wanted(ports, thresholds)]


def _addresses(machine: Machine, name: str) -> Addresses:
    device, number = name.split("/")
    folder = f"{infiniband.FOLDER}/{device}/ports/{number}"
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


def judge(found: Sequence[Addresses], thresholds: Mapping[str, Any]) -> Sequence[Finding]:
    """Bad where the site's index holds no RoCE v2 GID; degraded where a port has none at all."""
    if not found:
        return [Finding(NAME, SKIPPED, "no active RoCE port here")]
    told = [one for port in found for one in _looked(port, thresholds["gid_index"])]
    trusts = {port.trust for port in found if port.trust}
    if len(trusts) > 1:
        lines = tuple(f"{port.port} {port.trust}" for port in found)
        told.append(
            Finding(NAME, NOTE, f"the ports trust differently: {', '.join(sorted(trusts))}", evidence=lines)
        )
    return told or [Finding(NAME, OK, f"{len(found)} RoCE port(s) with v2 addresses")]


def _looked(one: Addresses, index: int) -> list[Finding]:
    lines = tuple(f"gid {place}: {kind}" for place, kind in sorted(one.kinds.items()))
    if index >= 0 and one.kinds.get(index) != "RoCE v2":
        message = f"GID {index} is {one.kinds.get(index) or 'empty'}, and the site uses it for RoCE v2"
        return [Finding(NAME, BAD, message, FAULT, one.port, lines)]
    if "RoCE v2" not in one.kinds.values():
        message = f"it has no RoCE v2 address; has {one.interface or 'its interface'} an IP address?"
        return [Finding(NAME, DEGRADED, message, FAULT, one.port, lines)]
    return []


CHECK = Check(
    name=NAME,
    title="The RoCE ports have the addresses that a job needs",
    tier="fast",
    fault=FAULT,
    needs=(infiniband.FOLDER,),
    limit_s=8.0,
    thresholds={"gid_index": -1, "ports": ()},
    probe=probe,
    judge=judge,
)
