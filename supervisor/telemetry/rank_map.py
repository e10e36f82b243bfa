"""Which rank runs on which host, by the lines of launchers and libraries. (pure)

A rank is only a number until a line names it together with a host; then every later line of that rank names a
machine. Such lines come by the thousand, so they are no evidence: signatures of the role `seat` find them,
and what they say goes into one map. The first line about a rank counts; a rank that two lines put on two
hosts is on neither.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from ftrun.slurm.records import replace
from ftrun.supervisor.model.types import Topology
from ftrun.supervisor.telemetry.line_owner import NCCL_PREFIX

SEATS_MAX = 1 << 16
"""How many ranks and addresses are remembered; more than any machine has."""

NOTED_MAX = 16 * SEATS_MAX
"""How many entries are read. A log that seats all ranks again in each line is read on, but no longer
believed.
"""

_WORLD = re.compile(r"\bn[rR]anks (\d{1,7})\b")
_NOWHERE = ""


@dataclass(slots=True)
class RankMap:
    """The map as it grows: rank -> host, rank -> device on it, address -> host."""

    hosts: dict[int, str] = field(default_factory=dict)
    devices: dict[int, str] = field(default_factory=dict)
    addresses: dict[str, str] = field(default_factory=dict)
    noted: int = 0
    world: int = 0  # the size of the largest communicator seen

    def note(self, text: str, captures: Mapping[str, str]) -> None:
        """Add what one line says. `captures` are those of its signature (host, rank, device, pci, ip)."""
        host = captures.get("host") or _prefix_host(text)
        if not host or len(self.hosts) + len(self.addresses) >= SEATS_MAX or self.noted >= NOTED_MAX:
            return
        ranks = _ranks(captures.get("rank", "")) if self._of_world(text) else ()
        self.noted += 1 + len(ranks)
        for rank in ranks:
            self.seat(rank, host)
            device = captures.get("pci") or captures.get("device")
            if device:
                self.devices.setdefault(rank, device)
        address = captures.get("ip")
        if address:
            known = self.addresses.setdefault(address, host)
            if known != host:
                self.addresses[address] = _NOWHERE

    def seat(self, rank: int, host: str) -> None:
        """Put a rank on a host; two hosts for one rank are none."""
        known = self.hosts.setdefault(rank, host)
        if known not in {host, _NOWHERE} and known.split(".")[0] != host.split(".", maxsplit=1)[0]:
            self.hosts[rank] = _NOWHERE

    def _of_world(self, text: str) -> bool:
        """Whether the ranks in this line are those of the whole job: NCCL numbers ranks anew in each
        communicator.
        """
        size = int(found[1]) if (found := _WORLD.search(text)) else self.world
        if size > self.world:
            self.world = size
            self.hosts.clear()
            self.devices.clear()
        return size == self.world

    def added_to(self, topology: Topology) -> Topology:
        """`topology` plus what was learnt. Its own entries stay, and hosts outside of the attempt are left
        out.
        """
        ranks = {rank: node for rank, host in self.hosts.items() if (node := _node(host, topology))}
        addresses = {ip: node for ip, host in self.addresses.items() if (node := _node(host, topology))}
        # In two places, by a library and by one of several steps' task numbers: no later line may decide.
        contested = {rank: _NOWHERE for rank, host in self.hosts.items() if host == _NOWHERE}
        return replace(
            topology,
            rank_node={**contested, **ranks, **topology.rank_node},
            address_node={**addresses, **topology.address_node},
            rank_device={
                **{rank: device for rank, device in self.devices.items() if rank in ranks},
                **topology.rank_device,
            },
        )


def _node(host: str, topology: Topology) -> str | None:
    if not host:
        return None
    return topology.node_of(host) if topology.nodes else host


def _prefix_host(text: str) -> str:
    found = NCCL_PREFIX.search(text)
    return found["host"] if found else ""


def _ranks(text: str) -> tuple[int, ...]:
    """`3`, or srun's `4-7,9`."""
    ranks: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        if not first.isdigit() or (last and not last.isdigit()):
            return ()
        low, high = int(first), int(last or first)
        if high - low >= SEATS_MAX - len(ranks):
            return ()
        ranks += range(low, high + 1)
    return tuple(ranks)
