"""Correlated failures: one cause behind several nodes, a switch or the job or cluster. (pure)

Two failures are alike if they have the same signature (the same class, where there is none). Around each
failure the rule looks at all alike failures within the window. If they hit several nodes, and all but one at
most sit below one leaf switch (or block) of a cluster with at least two, the cause is that switch. Otherwise,
if they hit many nodes, the cause is the job or the cluster.

That rule needs three nodes, as it looks back over months. `suspect_switch` judges the nodes of one job that failed
together, by the chance that so many of them would share a leaf if they had failed independently of it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from ftrun.slurm.client.topology import Topology
from ftrun.slurm.records import dataclass

CLUSTER = ""  # the place of a cause that is not a switch: the job or the cluster


@dataclass(frozen=True, slots=True)
class Failure:
    """One node that failed. `key` names the incident, `like` is the signature or class."""

    at_s: float
    like: str
    node: str
    key: str


@dataclass(frozen=True, slots=True)
class CommonCause:
    """One cause behind failures of several nodes. `where` is a switch or block; "" = the job or the cluster."""

    at_s: float
    until_s: float
    like: str
    where: str
    nodes: tuple[str, ...]
    failures: frozenset[tuple[str, str]]  # (node, key of the incident)

    @property
    def sentence(self) -> str:
        """The message for users."""
        who = f"{self.like} on {len(self.nodes)} nodes within minutes"
        if self.where:
            return f"{who}, below {self.where}: held to be the switch's fault, or that of what they share"
        return f"{who}: held to be the job's or the cluster's fault"


def common_causes(
    failures: Iterable[Failure],
    window_s: float,
    many: int,
    several: int,
    domains: Mapping[str, Iterable[str]],
) -> tuple[CommonCause, ...]:
    """The causes that are not a single node's, oldest first. A failure is part of one cause at most."""
    leaf = {node: name for name, nodes in domains.items() for node in nodes} if len(domains) > 1 else {}
    alike: dict[str, list[Failure]] = {}
    for failure in failures:
        if failure.like:
            alike.setdefault(failure.like, []).append(failure)
    found: list[CommonCause] = []
    for group in alike.values():
        group.sort(key=lambda f: (f.at_s, f.node, f.key))
        found += _causes(group, window_s, many, several, leaf)
    return tuple(sorted(found, key=lambda c: (c.at_s, c.like, c.where)))


def _causes(
    group: Sequence[Failure], window_s: float, many: int, several: int, leaf: Mapping[str, str]
) -> list[CommonCause]:
    """Failures that are close in time and have the same place in common are one cause."""
    open_causes: dict[str, list[Failure]] = {}
    found: list[CommonCause] = []
    for failure, nodes in _windows(group, window_s):
        where = _where(failure.node, nodes, many, several, leaf)
        if where is None:
            continue
        before = open_causes.setdefault(where, [])
        if before and failure.at_s - before[-1].at_s > window_s:
            found.append(_cause(where, before))
            before.clear()
        before.append(failure)
    return found + [_cause(where, members) for where, members in open_causes.items() if members]


def _windows(group: Sequence[Failure], window_s: float) -> Iterable[tuple[Failure, Counter[str]]]:
    """Each failure with the nodes that failed alike within `window_s` before or after it."""
    first = last = 0
    nodes: Counter[str] = Counter()
    for failure in group:
        while last < len(group) and group[last].at_s <= failure.at_s + window_s:
            nodes[group[last].node] += 1
            last += 1
        while group[first].at_s < failure.at_s - window_s:
            nodes[group[first].node] -= 1
            if not nodes[group[first].node]:
                del nodes[group[first].node]
            first += 1
        yield failure, nodes


def _where(
    node: str, nodes: Mapping[str, int], many: int, several: int, leaf: Mapping[str, str]
) -> str | None:
    """The switch that the failures around `node` point at, CLUSTER, or None: it failed by itself."""
    if len(nodes) >= several and leaf:
        switch, count = Counter(leaf.get(n, CLUSTER) for n in nodes).most_common(1)[0]
        if switch and count >= several and len(nodes) - count <= 1 and leaf.get(node) == switch:
            return switch
        if switch and count >= several and len(nodes) - count <= 1:
            return None  # the one elsewhere failed by itself
    return CLUSTER if len(nodes) >= many else None


def _cause(where: str, members: Sequence[Failure]) -> CommonCause:
    return CommonCause(
        at_s=members[0].at_s,
        until_s=members[-1].at_s,
        like=members[0].like,
        where=where,
        nodes=tuple(sorted({f.node for f in members})),
        failures=frozenset((f.node, f.key) for f in members),
    )


CHANCE_MAX = 0.05
"""A switch is suspected where the chance that its nodes fail together for reasons of their own is smaller."""

TOGETHER_S = 600.0
"""Failures of one run within this time are one failure of several nodes."""


@dataclass(frozen=True, slots=True)
class SwitchSuspicion:
    """A leaf switch or block that may be the cause: `failed` of the `all_failed` nodes that failed together are below it."""

    name: str
    failed: int
    all_failed: int
    below: int  # of the job's nodes
    of: int  # nodes of the job
    chance: float

    @property
    def sentence(self) -> str:
        """The arithmetic, for people."""
        return (
            f"{self.name} is suspected: {self.failed} of {self.all_failed} nodes that failed together are below it, as are"
            f" {self.below} of the job's {self.of}; by chance in {100.0 * self.chance:.2g} % of cases"
        )


def suspect_switch(
    failed: Collection[str], nodes: Collection[str], topology: Topology
) -> SwitchSuspicion | None:
    """The switch below which nodes of one job failed together; None where that may well be chance.

    All of `failed` but one at most are below it (both, where two failed). The chance is that of drawing as many nodes of
    one leaf, whichever it is, from the job's `nodes` without replacement.
    """
    hurt = set(failed)
    name, count = Counter(topology.leaf(node) for node in hurt).most_common(1)[0] if hurt else ("", 0)
    if not name or count < 2 or count < len(hurt) - (len(hurt) > 2):
        return None
    everyone = hurt.union(nodes)
    leaves = Counter(topology.leaf(node) for node in everyone)
    total = math.comb(len(everyone), len(hurt))
    ways = sum(
        math.comb(size, in_leaf) * math.comb(len(everyone) - size, len(hurt) - in_leaf)
        for size in leaves.values()
        for in_leaf in range(count, len(hurt) + 1)
    )
    chance = min(1.0, ways / total)
    if chance > CHANCE_MAX:
        return None
    return SwitchSuspicion(name, count, len(hurt), leaves[name], len(everyone), chance)
