"""The two rungs that change who takes part: nodes from a companion job, and going on with fewer. (pure)

How it thinks. Both begin where spares run out. A companion is asked for the missing nodes only; whoever may also go on smaller asks for one only
where it would begin at once, because steps at a smaller size are worth more than waiting, and growing comes later. Going smaller
keeps whole units: spares first stand in for what is missing, the units that are whole then go on, and healthy nodes whose unit was broken
fill further units as far as they reach. It is passed over where a new job at full size would begin at once.
"""

from __future__ import annotations

from ftrun.supervisor.ladder_terms import Ask, put_in
from ftrun.supervisor.sizes import whole_units

__all__ = ["against_companion", "against_shrink", "fewer", "missing", "patched"]

_NONE_OF_ITS_OWN = "no node of the job itself would be left to take part, and a script with companions' nodes alone is none of its job"


def against_companion(ask: Ask, *, may_shrink: bool) -> str:
    """What speaks against asking for the missing nodes; "" = nothing. `may_shrink`: going on smaller is possible, too."""
    place = ask.place
    if off := place.companion_off or place.swap_off or place.step_off or _no_batch_node(ask):
        return off
    bad = ask.blamed
    if not bad:
        return "no node is blamed"
    if len(bad) == len(place.active):
        return "every node is blamed: no node is left to go on with"
    if not missing(ask):
        return "there is a spare for each blamed node"
    if not set(_staying(ask)) - place.lent:
        return _NONE_OF_ITS_OWN
    if may_shrink and place.idle is None:
        return "nobody knows how many nodes are idle, and the run may go on smaller at once"
    if may_shrink and place.idle is not None and place.idle < missing(ask):
        return f"{_nodes(missing(ask))} wanted, {place.idle} idle, and the run may go on smaller at once"
    return ""


def against_shrink(ask: Ask, *, companion: bool) -> str:
    """What speaks against going on with fewer nodes; "" = nothing. `companion`: one could still be asked for."""
    place, sizes = ask.place, ask.place.sizes
    if sizes is None:
        return "the run has but one size (--ft-nodes)"
    if off := place.shrink_off or place.swap_off or place.step_off or _no_batch_node(ask):
        return off
    bad = ask.blamed
    if not bad and not ask.ruling.decision.aside:
        return "no node is blamed"
    if bad and len(bad) == len(place.active) > 1:
        return "every node is blamed: the job or the cluster, not a node"
    if bad and not missing(ask):
        return "there is a spare for each blamed node"
    if not fewer(ask):
        left = len([node for node in place.active if node not in bad])
        return f"no valid size is left: {_nodes(left)} well, the smallest size is {sizes.all[0]}"
    if not set(fewer(ask)) - place.lent:
        return _NONE_OF_ITS_OWN
    well = [node for node in place.nodes if node not in {*place.aside, *bad}]
    wanted = max(0, sizes.full - len(well))
    at_full = ask.ruling.decision.aside != sizes.full
    if (
        at_full
        and not companion
        and place.idle is not None
        and place.idle >= wanted
        and not place.others_wait
    ):
        return f"a new job at full size would begin at once: {_nodes(place.idle)} idle, nobody else waits"
    return ""


def _staying(ask: Ask) -> tuple[str, ...]:
    """The nodes that a companion's would stand behind."""
    nodes, left = patched(ask)
    return tuple(node for node in nodes if node not in left)


def missing(ask: Ask) -> int:
    """How many nodes no spare can stand in for."""
    return max(0, len(ask.blamed) - len(ask.spares))


def patched(ask: Ask) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(the active nodes with a spare in the place of each bad one, as far as spares reach; the bad ones that are left)."""
    covered = len(ask.spares)
    nodes = put_in(ask.place.active, ask.blamed[:covered], ask.spares)
    assert nodes is not None
    return nodes, ask.blamed[covered:]


def fewer(ask: Ask) -> tuple[str, ...]:
    """The nodes of the largest valid size below the present one, in the order of the ranks; () where there is none."""
    sizes = ask.place.sizes
    if sizes is None:
        return ()
    whole, neighbours = whole_units(*patched(ask), sizes.unit)
    left = (*whole, *neighbours)
    most = min(len(left), len(ask.place.active) - 1)
    valid = [size for size in sizes.all if size <= most and size != ask.ruling.decision.aside]
    return left[: max(valid, default=0)]


def _no_batch_node(ask: Ask) -> str:
    place = ask.place
    gone = place.batch_node and place.batch_node not in place.nodes
    return f"{place.batch_node}, where the script runs, is gone" if gone else ""


def _nodes(number: int) -> str:
    return "1 node is" if number == 1 else f"{number} nodes are"
