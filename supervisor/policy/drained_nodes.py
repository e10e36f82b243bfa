"""What to do about a live job when somebody else has drained one of its nodes. (pure)

Slurm lets such a job go on, and the person who drained the node waits for its end. The run can leave the node
without losing a step: after a checkpoint, by a spare of the job or, where other nodes can start at once, by a
new job. Otherwise the job goes on and ftrun says so, because waiting in the queue would cost more than it
brings anybody. If most of the partition is held back, the reason is maintenance, not one node, and a new job
would only be driven from node to node. A job is left, or asked in vain, once; its spares may be used up one
by one.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from enum import StrEnum

from ftrun.slurm.client.cluster import NodeRow
from ftrun.slurm.records import dataclass

OURS = "ftrun:"  # prefix of drain reasons of ftrun
_NOT_AT_ONCE = frozenset(
    {"planned", "powered_down", "powering_up", "reboot", "reboot_requested", "reboot_issued"}
)
_SOCKETS = re.compile(r"\([^)]*\)")


class DrainAction(StrEnum):
    """The possible actions."""

    NOTHING = ""
    WARN = "warn"
    SWAP = "swap"  # the agent swaps in a spare at the next checkpoint
    LEAVE = "leave"  # end the job after its next checkpoint, and start a new one elsewhere


@dataclass(frozen=True, slots=True)
class DrainInput:
    """The situation of the job.

    `drained` are nodes of the present start that others have drained for a while now. `spares` counts the
    nodes of the job that an agent can swap in (0 without an agent), `needed` the nodes of a new job, `free`
    those on which it could start at once. `held` of `partition` nodes are held back. `ends_soon`: Slurm ends
    the job soon anyway; `tried`: it was asked before and saved nothing; `bound`: the user asked for one of
    these nodes by name; `constrained`: for features, and only Slurm knows which other nodes have them;
    `contended`: other jobs wait for nodes and would take those that it gives back.
    """

    setting: str
    drained: tuple[str, ...]
    spares: int = 0
    needed: int = 1
    free: int = 0
    held: int = 0
    partition: int = 0
    ends_soon: bool = False
    tried: bool = False
    bound: bool = False
    constrained: bool = False
    contended: bool = False


@dataclass(frozen=True, slots=True)
class DrainDecision:
    """The action, and why."""

    act: DrainAction
    why: str


def decide_drained(scene: DrainInput) -> DrainDecision:
    """The first action whose condition holds."""
    if not scene.drained or scene.setting == "never":
        return DrainDecision(DrainAction.NOTHING, "")
    if scene.setting == "warn":
        return DrainDecision(DrainAction.WARN, "drained=warn")
    if scene.tried:
        return DrainDecision(DrainAction.WARN, "it was asked for a checkpoint, and saved nothing")
    if scene.held * 2 > scene.partition:
        return DrainDecision(
            DrainAction.WARN, f"{scene.held} of {scene.partition} nodes of the partition are held back"
        )
    if scene.ends_soon:
        return DrainDecision(DrainAction.WARN, "its job ends soon anyway")
    if scene.spares >= len(scene.drained):
        return DrainDecision(DrainAction.SWAP, "a spare can take its place")
    if scene.bound:
        return DrainDecision(DrainAction.WARN, "the job asks for this very node")
    if scene.constrained:
        return DrainDecision(
            DrainAction.WARN, "the job asks for features, and Slurm alone knows which other nodes have them"
        )
    if scene.contended:
        return DrainDecision(
            DrainAction.WARN, "other jobs wait for nodes, and would take those that it gives back"
        )
    if scene.free < scene.needed:
        return DrainDecision(
            DrainAction.WARN,
            f"a new job needs {scene.needed} nodes, and only {scene.free} are free to begin at once",
        )
    return DrainDecision(DrainAction.LEAVE, "a new job can begin on other nodes at once")


def drained_by_others(used: Iterable[str], nodes: Mapping[str, NodeRow]) -> tuple[str, ...]:
    """The nodes in use that somebody other than ftrun has drained and that are well as far as Slurm knows."""
    rows = ((name, nodes.get(name)) for name in used)
    return tuple(
        name
        for name, row in rows
        if row is not None and row.drained and row.responding and not row.reason.startswith(OURS)
    )


def startable_nodes(
    idle: Iterable[str], used: Collection[str], nodes: Mapping[str, NodeRow]
) -> frozenset[str]:
    """The idle nodes on which a job that runs on `used` could start now: same devices, powered on, not
    planned for another job.
    """
    kinds = {_kind(nodes[name]) for name in used if name in nodes}
    rows = ((name, nodes.get(name)) for name in idle)
    return frozenset(
        name for name, row in rows if row is not None and not row.flags & _NOT_AT_ONCE and _kind(row) in kinds
    )


def _kind(row: NodeRow) -> str:
    """The generic resources of a node, without their sockets."""
    return _SOCKETS.sub("", row.gres)


def held_back_count(partition: Iterable[str], nodes: Mapping[str, NodeRow]) -> int:
    """How many nodes of a partition are drained, down or kept for maintenance."""
    rows = (nodes.get(name) for name in partition)
    return sum(1 for row in rows if row is not None and not row.available)
