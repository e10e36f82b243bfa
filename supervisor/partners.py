"""Which node keeps the copy of which other's staged files. (pure)

How it thinks. Every node gives its copy to one other and takes that of one other, so none holds more than one. A leaf switch, or a block, takes all of
its nodes along when it dies: so the two do not share one where that can be had. Nodes in the order of their leaves, turned by the size of the largest, meet only strangers
as long as no leaf has more than half of them; where one has, as few as possible meet their own. Where nothing is known of switches, half-way round the list is
farthest from a neighbour in the rack.

A copy that exists is worth keeping: pairs of which both nodes are still there stay, and only who is left over is paired anew.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

__all__ = ["holders", "paired"]


def paired(
    nodes: Sequence[str],
    leaves: Mapping[str, Sequence[str]] | None = None,
    before: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Node -> the node that keeps its copy, for all `nodes`; {} for fewer than two.

    `leaves`: leaf switch or block -> its nodes, {} = not known; `before`: the pairs as they were.
    """
    names = tuple(dict.fromkeys(nodes))
    if len(names) < 2:
        return {}
    leaf_of = {node: leaf for leaf, members in (leaves or {}).items() for node in members}
    kept = {
        giver: taker
        for giver, taker in (before or {}).items()
        if giver in names and taker in names and giver != taker
    }
    if len(set(kept.values())) < len(kept):
        kept = {}
    givers = [node for node in names if node not in kept]
    takers = [node for node in names if node not in set(kept.values())]
    found = kept | _turned(givers, takers, leaf_of)
    for own in [node for node, taker in found.items() if node == taker]:
        other = next(node for node in names if node != own)
        found[own], found[other] = found[other], own
    return {node: found[node] for node in names}


def holders(pairs: Mapping[str, str], node: str) -> tuple[str, ...]:
    """The nodes whose copies `node` keeps."""
    return tuple(giver for giver, taker in pairs.items() if taker == node)


def _turned(givers: Sequence[str], takers: Sequence[str], leaf_of: Mapping[str, str]) -> dict[str, str]:
    """Who gives to whom, of two lists of one length; somebody may be left with himself."""
    count = len(givers)
    sizes = Counter(leaf_of.get(node, "") for node in givers)
    largest = max(sizes.values(), default=0)
    turn = largest if len(sizes) > 1 and largest < count else count // 2
    givers = sorted(givers, key=lambda node: leaf_of.get(node, ""))
    takers = sorted(takers, key=lambda node: leaf_of.get(node, ""))
    few = range(count) if count <= 64 else (turn,)
    candidates = dict.fromkeys((turn, *few))

    def clashes(by: int) -> tuple[int, int]:
        pairs = [(givers[at], takers[(at + by) % count]) for at in range(count)]
        same = sum(leaf_of.get(giver, giver) == leaf_of.get(taker, taker) for giver, taker in pairs)
        return sum(giver == taker for giver, taker in pairs), same

    if not count:
        return {}
    best = min(candidates, key=clashes)
    return {givers[at]: takers[(at + best) % count] for at in range(count)}
