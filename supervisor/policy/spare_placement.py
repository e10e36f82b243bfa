"""Which spare takes which place, and which segments of a run are whole. (pure)

A spare below the same leaf switch (in the same block) as the node that it replaces keeps the collective where it
was; one further away may cost bandwidth for the rest of the job. So the closest pairs of place and spare are made
first. A spare of which something doubtful is known comes after every other one, however near it is.

Where the framework needs whole segments (`unit = segment`: an NVLink domain that one model replica fills), each
`unit` ranks in a row are one *segment*, and its nodes share a leaf. A broken segment is completed by spares of its
own leaf, or replaced as a whole by spares that share another leaf; healthy nodes of a segment that cannot be
completed are spares for others. A segment that is not whole is not used.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from ftrun.slurm.client.topology import Topology, is_whole, whole_segments

UNKNOWN = Topology()


def substitute_nodes(
    active: Iterable[str],
    bad: Collection[str],
    spares: Sequence[str],
    topology: Topology = UNKNOWN,
    doubtful: Collection[str] = (),
) -> tuple[str, ...] | None:
    """The active nodes with a spare in the position of each bad one, the nearest as far as possible; None if there are too
    few spares.
    """
    active = tuple(active)
    wanted = set(bad)
    places = [node for node in active if node in wanted]
    if len(spares) < len(places):
        return None
    ranked = sorted(
        (spare in doubtful, topology.distance(node, spare), place, number, node, spare)
        for place, node in enumerate(places)
        for number, spare in enumerate(spares)
    )
    taken: dict[str, str] = {}
    used: set[str] = set()
    for *_, node, spare in ranked:
        if node not in taken and spare not in used:
            taken[node] = spare
            used.add(spare)
    return tuple(taken.get(node, node) for node in active)


def mend_segments(
    active: Sequence[str], bad: Collection[str], spares: Sequence[str], unit: int, topology: Topology
) -> tuple[tuple[str, ...], ...]:
    """The segments after the loss of the `bad` nodes; () stands for one that cannot be made whole. `active` is in the order
    of the ranks, `spares` the best first.
    """
    segments = [tuple(active[at : at + unit]) for at in range(0, len(active), unit)]
    free, broken = list(spares), []
    for number, segment in enumerate(segments):
        well = tuple(node for node in segment if node not in bad)
        if len(well) == unit and is_whole(segment, topology):
            continue
        leaf = topology.leaf(well[0]) if well and is_whole(well, topology) else ""
        near = [spare for spare in free if leaf and topology.leaf(spare) == leaf][: unit - len(well)]
        segments[number] = (*well, *near) if leaf and len(well) + len(near) == unit else ()
        free = [spare for spare in free if spare not in segments[number]]
        if not segments[number]:
            broken.append(number)
    kept = {node for segment in segments for node in segment}
    left = [node for node in active if node not in bad and node not in kept]
    whole = iter(whole_segments((*free, *left), unit, topology))
    for number in broken:
        segments[number] = next(whole, ())
    return tuple(segments)


def in_rank_order(nodes: Iterable[str], order: Sequence[str]) -> tuple[str, ...]:
    """The nodes as srun ranks them: in Slurm's `order`, those that come later last."""
    rank = {node: at for at, node in enumerate(order)}
    return tuple(sorted(nodes, key=lambda node: rank.get(node, len(rank))))


def are_in_rows(nodes: Sequence[str], unit: int, topology: Topology) -> bool:
    """Whether each `unit` nodes in a row share a leaf, as far as the topology is known."""
    return all(is_whole(nodes[at : at + unit], topology) for at in range(0, len(nodes), unit))
