"""The nodes of a virtual cluster: which are broken, since when that is known, when they are back. (pure)"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from random import Random

from ftrun.slurm.client.topology import topology_of
from ftrun.slurm.records import dataclass
from ftrun.supervisor.policy.policy_input import ClusterView
from ftrun.supervisor.simulator.scenario import Cause, Scenario


@dataclass(frozen=True, slots=True)
class Sickness:
    """A node that is not well: from `known_s` on Slurm starts nothing there, at `back_s` it is well again.

    `lasting`: used before then, it fails again; otherwise it only restarts.
    """

    cause: Cause
    known_s: float
    back_s: float
    lasting: bool


class Cluster:
    """All nodes that the job could be placed on, those of the training included."""

    def __init__(self, scenario: Scenario, random: Random) -> None:
        size = scenario.nodes + int(scenario["idle"])
        self.names = tuple(f"n{number:05d}" for number in range(size))
        self._all = frozenset(self.names)
        rack = int(scenario["rack"])
        racks = (
            {f"rack{at // rack}": self.names[at : at + rack] for at in range(0, size, rack)} if rack else {}
        )
        self.topology = topology_of("tree", racks)
        self._sick: dict[str, Sickness] = {}
        self._scenario = scenario
        self._random = random

    def hurt(self, node: str, cause: Cause, now_s: float) -> None:
        """The node shows this fault; whether it lasts is drawn.

        A node that is broken already stays as it is, except that Slurm notices a crash.
        """
        sickness = self._sick.get(node)
        if sickness is not None and sickness.lasting and sickness.back_s > now_s:
            return
        lasting = self._random.random() < cause.lasts
        found_s = self._random.expovariate(1.0 / max(self._scenario["found"], 1e-9))
        repair_s = self._random.expovariate(1.0 / max(self._scenario["repair"], 1e-9))
        if lasting:
            known_s = now_s if cause.lost else now_s + found_s
            self._sick[node] = Sickness(cause, known_s, known_s + repair_s, True)
        elif cause.lost:
            self._sick[node] = Sickness(cause, now_s, now_s + self._scenario["reboot"], False)

    def lose_rack(self, node: str, cause: Cause, now_s: float) -> tuple[str, ...]:
        """All nodes of this node's rack are gone, and come back together; returns the others of it."""
        back_s = now_s + self._random.expovariate(1.0 / max(self._scenario["rack-repair"], 1e-9))
        nodes = self.topology.leaves[self.topology.leaf(node)]
        for one in nodes:
            sick = self._sick.get(one)
            if sick is None or sick.back_s < back_s:
                self._sick[one] = Sickness(cause, now_s, back_s, True)
        return tuple(one for one in nodes if one != node)

    def found(self, node: str, now_s: float) -> None:
        """The site learns of a broken node: its repair starts now."""
        sickness = self._sick.get(node)
        if sickness is not None and sickness.known_s > now_s:
            self._sick[node] = Sickness(
                sickness.cause, now_s, now_s + (sickness.back_s - sickness.known_s), sickness.lasting
            )

    def broken(self, nodes: Iterable[str], now_s: float) -> tuple[str, Cause] | None:
        """One of these nodes that will fail again if it is used, and why; None where all are well."""
        used = self._sick.keys() & set(nodes)
        for node in sorted(used):
            sickness = self._sick[node]
            if sickness.lasting and sickness.back_s > now_s:
                return node, sickness.cause
        return None

    def away(self, now_s: float) -> frozenset[str]:
        """The nodes on which Slurm starts nothing."""
        self._sick = {node: sickness for node, sickness in self._sick.items() if sickness.back_s > now_s}
        return frozenset(node for node, sickness in self._sick.items() if sickness.known_s <= now_s)

    def silent(self, now_s: float) -> frozenset[str]:
        """Those of them that do not answer."""
        return frozenset(node for node in self.away(now_s) if self._sick[node].cause.lost)

    def held_broken(self, node: str, now_s: float) -> bool:
        """Whether the node is broken, answers, and the site does not know of it yet."""
        sickness = self._sick.get(node)
        return sickness is not None and sickness.known_s > now_s

    def next_back_s(self, now_s: float) -> float | None:
        """When the next node comes back."""
        return min(
            (sickness.back_s for sickness in self._sick.values() if sickness.known_s <= now_s), default=None
        )

    def back_s(self, now_s: float, out: Collection[str]) -> list[float]:
        """When each node that is away now comes back, the soonest first; without those of `out`."""
        return sorted(
            sickness.back_s
            for node, sickness in self._sick.items()
            if sickness.known_s <= now_s < sickness.back_s and node not in out
        )

    def view(self, held: Iterable[str], now_s: float, needed: int) -> ClusterView:
        """What Slurm would show the policy."""
        available = self._all - self.away(now_s)
        return ClusterView(
            partition=self.names,
            available=available,
            idle=available - frozenset(held),
            lost=self.silent(now_s),
            nodes_needed=needed,
            topology=self.topology,
        )
