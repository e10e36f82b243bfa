"""What strikes in a soak, taken from the drills, and the plan that a seed makes of it. (pure)

How it thinks. A blow is a kind of harm, a moment, and the rank that it strikes: it names no node, because the sides of a soak are on
different ones. A deck of all kinds is shuffled and dealt to its end before it is shuffled again, so that a long soak has all of them
equally often. Left out are the drills after which a run must stop (a bug, memory used up, scancel), those of one size or of staging alone,
and a loss that is no number, after which no side could say which of its steps are worth anything.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from random import Random
from typing import Any

__all__ = ["KINDS", "Blow", "Kind", "plan", "plan_as_json"]


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of harm. `drill`: where it comes from. `inside`: what the trainer does to itself (harm.FAULTS); "" = it comes from outside.

    `rank`: the only rank that it can strike; -1 = any. `sticky`: the node stays bad until it is repaired. `repair_s`: how long that takes; 0 = the
    repair time of the soak, which is that of a person.
    """

    name: str
    drill: str
    says: str
    inside: str = ""
    rank: int = -1
    sticky: bool = False
    node: bool = False  # it hurts the node, so that a drain may name it
    repair_s: float = 0.0


KINDS: tuple[Kind, ...] = (
    Kind("gpu-lost", "gpu-lost", "a GPU falls off the bus, and does so again until it is replaced", "gpu-lost", sticky=True, node=True),
    Kind("gpu-lost-once", "swap-rank-0", "a GPU fails once", "gpu-lost", node=True),
    Kind("rank-killed", "rank-killed", "a rank is killed without a word", "killed"),
    Kind("hang", "rank-hang", "a rank hangs in front of a collective", "hang"),
    Kind("stopped", "hang-stopped", "a rank is stopped as a whole", "stopped"),
    Kind("link-flap", "link-flap", "a link goes down and up, and training goes on", "link-flap", node=True),
    Kind("link-lost", "link-flap-stopped", "a link goes down and up, and a collective never ends", "link-lost", node=True),
    Kind("torn-save", "torn-newest", "the end comes while a checkpoint is written in place", "torn-save", rank=0),
    Kind("nonsense-save", "torn-checkpoint", "the newest checkpoint is whole as a file and cannot be loaded", "nonsense-save", rank=0),
    Kind("requeue-itself", "self-requeue", "the script puts its own job back into the queue", "requeue-itself", rank=0),
    Kind("memory", "watch-only-fault", "a rank stands still, and only a counter of its node tells why", "hang", node=True),
    Kind("node-crash", "node-crash-requeue", "a node loses power", node=True),
    Kind("node-frozen", "node-frozen", "a node freezes, and wakes up beside its successor", node=True),
    Kind("slurmd-killed", "swap-frozen", "the slurmd of a node dies, its ranks go on", node=True),
    Kind("drain", "drain-requested", "an administrator drains a node", node=True),
    Kind("controller-killed", "controller-down", "slurmctld is killed with -9", repair_s=15.0),
    Kind("controller-down", "controller-down-fault", "slurmctld ends, and is down for a while", repair_s=40.0),
    Kind("controller-hangs", "controller-down", "slurmctld hangs", repair_s=20.0),
    Kind("supervisor-killed", "supervisor-gone", "the supervisor is killed with -9; somebody asks `ftrun status` later", repair_s=20.0),
    Kind("agent-killed", "agent-killed", "the agent beside the script is killed with -9", repair_s=1.0),
    Kind("preemption", "preemption", "an urgent job wants more nodes than are free", repair_s=25.0),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Blow:
    """One harm of a plan: seconds after the beginning, which kind, which rank, and how many seconds later it is repaired."""

    number: int
    at_s: float
    kind: Kind
    rank: int
    repair_s: float


def plan(
    seed: int,
    *,
    length_s: float,
    every_s: float,
    ranks: int,
    person_s: float,
    kinds: tuple[Kind, ...] = KINDS,
) -> tuple[Blow, ...]:
    """The blows of this seed, in order: one in each stretch of `every_s`, somewhere in the middle half of it.

    None comes in the last stretch, so that what it costs is seen. `person_s` is how long a person takes to repair.
    """
    dice = Random(seed)
    deck: list[Kind] = []
    blows: list[Blow] = []
    for number in range(max(1, int(length_s / every_s) - 1)):
        deck = deck or dice.sample(kinds, len(kinds))
        kind, at_s = deck.pop(), every_s * (number + dice.uniform(0.25, 0.75))
        drawn = dice.randrange(
            ranks
        )  # also where the kind has a rank of its own: that may change, and the plans stay
        rank = kind.rank if kind.rank >= 0 else drawn
        blows.append(Blow(number, round(at_s, 1), kind, rank, kind.repair_s or person_s))
    return tuple(blows)


def plan_as_json(blows: tuple[Blow, ...]) -> list[dict[str, Any]]:
    """The plan as data; a kind by its name."""
    return [{**asdict(blow), "kind": blow.kind.name} for blow in blows]
