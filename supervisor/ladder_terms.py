"""What the ladder is asked and what it answers: the place a job stands in, the move that comes next. (pure)"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import TYPE_CHECKING

from ftrun.slurm.records import dataclass
from ftrun.supervisor.grounds import CLASS_RULES, Case, Ruling
from ftrun.supervisor.model import FaultClass
from ftrun.supervisor.rung_order import Rung
from ftrun.supervisor.rungs import Rungs

if TYPE_CHECKING:
    from ftrun.supervisor.sizes import Sizes

__all__ = ["ENDS_THE_JOB", "NODE_BOUND", "PROCESS_FAULTS", "Ask", "Move", "Place", "put_in"]

F = FaultClass
PROCESS_FAULTS = frozenset(
    {F.UNKNOWN, F.LIBRARY_BUG, F.NETWORK, F.STORAGE, F.OOM_GPU, F.OOM_HOST, F.USER_CODE, F.DATA}
)
"""What can kill one process and leave the others able to go on."""

NODE_BOUND = frozenset({F.HARDWARE_GPU, F.HARDWARE_OTHER, F.NODE})
"""What the same nodes would show again."""

ENDS_THE_JOB = frozenset({F.PREEMPTED, F.TIMELIMIT, F.CANCELLED})
"""What takes the allocation itself away."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where the job stands inside its allocation.

    `nodes` are all of the job; `active` those of the present start, in the order of the ranks; `spares` those that a start could
    use (they answer, nothing bad is known of them), the best first; `aside` those that no later start may use. `start` counts the
    starts of this launch from 1. `dead_rank` is the one rank that died while all others live; None otherwise. `step_off`,
    `swap_off`, `companion_off` and `shrink_off` say why the script cannot be started again here in that way ("" = it can), `spares_off`
    why some nodes that wait are no spares ("" = all are).

    `sizes` are those at which the run may go on, less the ones that did not work; None = it has but one. `batch_node` is where the
    script runs ("" = not known). `idle` is how many idle, healthy nodes outside of the job a companion could have now, None where nobody
    knows; `others_wait`: jobs of others wait for nodes. `lent` are those of `nodes` that companions hold.
    """

    nodes: tuple[str, ...]
    active: tuple[str, ...]
    spares: tuple[str, ...] = ()
    aside: tuple[str, ...] = ()
    start: int = 1
    rejoin: bool = False
    dead_rank: int | None = None
    step_off: str = ""
    swap_off: str = ""
    spares_off: str = ""
    sizes: Sizes | None = None
    batch_node: str = ""
    companion_off: str = ""
    idle: int | None = None
    others_wait: bool = False
    shrink_off: str = ""
    lent: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Move:
    """What comes next.

    `nodes` are those of the next start, in the order of the ranks: a spare stands where the node stood that it replaces; () for
    resubmit. For a companion they are those of this allocation, and `missing` is how many of the companion's come behind them. `aside` is what no later start may use, `path` every rung that was considered, with what was found. `limit_s` is the
    longest that it may take until the script or the process runs again (0 = none), `delay_s` the pause in it.
    `used` and `spent` are the uses of the rungs and the budgets of the classes after this move: what a journal keeps, and what
    the next call of `climb` and the next Case are given.
    """

    rung: Rung
    nodes: tuple[str, ...]
    aside: tuple[str, ...]
    reason: str
    limit_s: float = 0.0
    path: tuple[tuple[str, str], ...] = ()
    delay_s: float = 0.0
    used: Mapping[str, int] = field(default_factory=dict)
    spent: Mapping[str, int] = field(default_factory=dict)
    missing: int = 0


@dataclass(frozen=True, slots=True)
class Ask:
    """One question: everything that the rungs are measured by."""

    case: Case
    ruling: Ruling
    rungs: Rungs
    place: Place
    used: Mapping[str, int]
    order: tuple[Rung, ...]

    @property
    def fault(self) -> FaultClass:
        """The class of the fault."""
        return self.case.diagnosis.fault

    @property
    def signature(self) -> str:
        """The signature of the fault; "" for none."""
        return self.case.diagnosis.signature

    @property
    def out(self) -> tuple[str, ...]:
        """Active nodes that no later start may use: set aside before, or blamed surely enough to be left out."""
        bad = {*self.ruling.decision.exclude, *self.place.aside}
        return tuple(node for node in self.place.active if node in bad)

    @property
    def blamed(self) -> tuple[str, ...]:
        """Active nodes that a spare should replace: those that are out, else those that are only suspected."""
        if self.out or CLASS_RULES[self.fault].exclude == "never":
            return self.out
        culprits = frozenset(self.case.culprits)  # thousands of nodes
        return tuple(node for node in self.place.active if node in culprits)

    @property
    def spares(self) -> tuple[str, ...]:
        """The spares that may take a place now."""
        bad = {*self.place.active, *self.place.aside, *self.case.culprits, *self.ruling.decision.exclude}
        return tuple(node for node in self.place.spares if node in self.place.nodes and node not in bad)

    @property
    def floor(self) -> int:
        """The lowest rung in the list that was used for this class without progress since; -1 for none."""
        tried = [
            i for i, rung in enumerate(self.order) if self.used.get(f"{rung.value}:{self.fault.value}", 0)
        ]
        return max(tried, default=-1)


def put_in(active: Iterable[str], bad: Iterable[str], spares: Iterable[str]) -> tuple[str, ...] | None:
    """The active nodes with a spare in the place of each bad one, all others where they were; None where spares are too few."""
    gone, free = set(bad), iter(spares)
    nodes = [next(free, "") if node in gone else node for node in active]
    return tuple(nodes) if all(nodes) else None
