"""Which nodes share a leaf switch or a block, and how far apart two nodes are. (pure)

`scontrol show topology` and topology.conf have the same words, so one parser reads both. topology/tree has
switches, of which the leaves hold nodes; topology/block has blocks (an NVLink domain such as NVL72), and from
24.11 on aggregated blocks above them. Both become *leaves* (the switches or blocks that hold nodes) and what is
above each. Everything is a hint: a cluster without topology, or text that is not understood, gives an empty
`Topology`, for which all nodes are equally far apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ftrun.slurm.client.nodeset import expand

FAR = 99
"""The distance of nodes that have nothing in common, or of which nothing is known."""
LEVELS_MAX = 16  # of switches; a longer path is a loop in the text


@dataclass(frozen=True)
class Topology:
    """`kind` is tree, block or "" (no topology). `leaves`: leaf switch or block -> its nodes; `paths`: node -> its leaf and
    what is above it, the nearest first.
    """

    kind: str = ""
    leaves: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    paths: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.leaves)

    def leaf(self, node: str) -> str:
        """The leaf switch or block of a node; "" = unknown."""
        return next(iter(self.paths.get(node, ())), "")

    def distance(self, one: str, other: str) -> int:
        """0 below the same leaf, 1 below the same switch above it, and so on; FAR for what has nothing in common."""
        there = self.paths.get(other, ())
        shared = (
            max(level, there.index(name))
            for level, name in enumerate(self.paths.get(one, ()))
            if name in there
        )
        return next(shared, FAR)


def topology_of(
    kind: str, leaves: Mapping[str, Iterable[str]], above: Mapping[str, str] | None = None
) -> Topology:
    """The topology of these leaves; `above`: switch or block -> the one above it. A node that two leaves name
    belongs to the first.
    """
    paths: dict[str, tuple[str, ...]] = {}
    for leaf, nodes in leaves.items():
        path = [leaf]
        while above and (higher := above.get(path[-1], "")) and len(path) < LEVELS_MAX:
            path.append(higher)
        for node in nodes:
            paths.setdefault(node, tuple(path))
    held = {leaf: tuple(n for n in nodes if paths[n][0] == leaf) for leaf, nodes in leaves.items()}
    return Topology(kind if held else "", held, paths)


def parse_topology(text: str) -> Topology:
    """From `scontrol show topology` or topology.conf; lines that are neither switch nor block are skipped.

    topology/tree: `SwitchName=s0 Level=0 LinkSpeed=1 Nodes=n[0-1]`, and with `Switches=s[0-1]` those above.
    topology/block: `BlockName=b0 BlockIndex=0 Nodes=n[0-17] BlockSize=18`, `AggregatedBlock=b[0-1] ...`.
    """
    leaves: dict[str, tuple[str, ...]] = {}
    above: dict[str, str] = {}
    kind = ""
    for line in text.splitlines():
        row = _fields(line)
        try:
            nodes, below = expand(row.get("nodes", "")), expand(row.get("switches", ""))
            if name := row.get("switchname", ""):
                kind = kind or "tree"
                leaves |= {name: nodes} if nodes and not below else {}
                above |= dict.fromkeys(below, name)
            elif name := row.get("blockname", ""):
                kind = kind or "block"
                leaves |= {name: nodes} if nodes else {}
            elif name := row.get("aggregatedblock", ""):  # the smaller ones come first
                above |= {_top(block, above): name for block in expand(name)}
        except ValueError:
            continue
    return topology_of(kind, leaves, above)


def _fields(line: str) -> dict[str, str]:
    words = line.partition("#")[0].split()
    return {key.lower(): value for key, sign, value in (word.partition("=") for word in words) if sign}


def _top(name: str, above: Mapping[str, str]) -> str:
    for _ in range(LEVELS_MAX):
        name = above.get(name, name)
    return name


def has_no_topology(stderr: str) -> bool:
    """Whether the controller answered that there is no topology."""
    return "No topology information available" in stderr


def whole_segments(nodes: Sequence[str], unit: int, topology: Topology) -> tuple[tuple[str, ...], ...]:
    """As many segments as `nodes` hold: `unit` nodes each that share a leaf, in the order given. Nodes of which no leaf is
    known belong to none.
    """
    shared: dict[str, list[str]] = {}
    found = []
    for node in nodes:
        if leaf := topology.leaf(node):
            shared.setdefault(leaf, []).append(node)
            if len(shared[leaf]) == unit:
                found.append(tuple(shared.pop(leaf)))
    return tuple(found)


def by_leaf(nodes: Sequence[str], topology: Topology) -> tuple[str, ...]:
    """The nodes with those of one leaf in a row, in the order given otherwise."""
    first: dict[str, int] = {}
    for at, node in enumerate(nodes):
        first.setdefault(topology.leaf(node), at)
    return tuple(sorted(nodes, key=lambda node: first[topology.leaf(node)]))


def is_whole(segment: Sequence[str], topology: Topology) -> bool:
    """Whether these nodes share a leaf, as far as the topology is known."""
    return not topology or len({topology.leaf(node) for node in segment}) <= 1
