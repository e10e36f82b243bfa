"""What a drill observes, and the conditions under which an action is due. (pure)"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any

from ftrun.slurm.records import dataclass
from ftrun.supervisor.drill.scenario import Action
from ftrun.supervisor.model.run import Run

Line = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Trace:
    """The trainer's own log, in the order of writing: JSON objects of Trainer.note."""

    steps: tuple[Line, ...] = ()
    saves: tuple[Line, ...] = ()
    saving: tuple[Line, ...] = ()
    faults: tuple[Line, ...] = ()
    ranks: tuple[Line, ...] = ()
    refused: tuple[Line, ...] = ()
    ends: tuple[Line, ...] = ()
    finals: tuple[Line, ...] = ()

    @property
    def step(self) -> int:
        """The last completed step; 0 before the first."""
        return int(self.steps[-1]["step"]) if self.steps else 0

    @property
    def start(self) -> int:
        """The start of the script that made the last step; 0 before the first."""
        return int(self.steps[-1]["start"]) if self.steps else 0

    @property
    def starts(self) -> tuple[int, ...]:
        """The starts of the script, in order."""
        return tuple(sorted({int(line["start"]) for line in self.ranks}))

    def nodes_of(self, start: int) -> frozenset[str]:
        """The nodes on which ranks were placed in this start."""
        return frozenset(str(line["node"]) for line in self.ranks if line["start"] == start)

    def node_of(self, rank: int, start: int) -> str:
        """The node on which a rank was placed in this start; "" if it has not begun."""
        placed = (line for line in self.ranks if (line["rank"], line["start"]) == (rank, start))
        return next((str(line["node"]) for line in placed), "")

    @property
    def steps_lost(self) -> int:
        """How many steps were repeated."""
        return len(self.steps) - len({line["step"] for line in self.steps})


@dataclass(frozen=True, slots=True)
class Observation:
    """The state at one moment. `since_action_s`: seconds since the last action (or the submission)."""

    run: Run
    trace: Trace
    since_action_s: float
    supervised: bool  # a supervisor process of this drill lives; looked for only where an action waits for it
    reasons: Mapping[str, str] = field(default_factory=dict)  # node -> its drain reason
    published: tuple[int, ...] = ()  # steps of the staged checkpoints that are complete on disk
    # Node -> steps whose part is complete in its memory; node -> steps whose part another node has a copy of.
    sealed: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    copied: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Everything that is known of a drill after its end. `faults`: the faults by actions (at in Unix seconds,
    what, node).

    `checkpoints` and `published`: path -> content, or why it cannot be read.
    """

    runs: tuple[Run, ...]
    traces: tuple[Trace, ...]
    faults: tuple[Line, ...]
    checkpoints: Mapping[str, Line | str]
    reasons: Mapping[str, str] = field(default_factory=dict)  # node -> its drain reason in the end
    jobs_left: tuple[str, ...] = ()  # jobs of the training that are pending or running after the end
    published: Mapping[str, Line | str] = field(default_factory=dict)
    in_memory: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # node -> jobs whose files it has
    timed_out: bool = False
    failure: str = ""

    @property
    def hurt_nodes(self) -> frozenset[str]:
        """The nodes that a fault struck, by the trainer or by an action."""
        lines = (*self.faults, *self.traces[0].faults)
        return frozenset(str(line["node"]) for line in lines) - {""}


# ---------------------------------------------------------------------------- when an action is due


def _reached(seen: Observation, step: int, start: int) -> bool:
    return (seen.trace.start, seen.trace.step) >= (start, step)


def _saving(seen: Observation, start: int) -> bool:
    """Whether rank 0 is writing a checkpoint, and not the first of this start."""
    begun = [line for line in seen.trace.saving if line["start"] == start]
    done = [line for line in seen.trace.saves if line["start"] == start]
    return len(begun) >= 2 and len(begun) > len(done)


def _in_memory(seen: Observation, step: int, holders: Mapping[str, tuple[int, ...]]) -> bool:
    """Whether all parts of the first start's checkpoint of this step are in memory, and not on disk yet."""
    nodes = seen.trace.nodes_of(1)
    return bool(nodes) and step not in seen.published and all(step in holders.get(node, ()) for node in nodes)


CONDITIONS: Mapping[str, Callable[[Observation, Any], bool]] = {
    "after_s": lambda seen, seconds: seen.since_action_s >= seconds,  # since the last action
    "attempts": lambda seen, number: len(seen.run.attempts) >= number,  # so many were made
    "training_attempt": lambda seen, number: (
        bool(seen.trace.steps) and seen.trace.steps[-1]["attempt"] >= number
    ),
    "state": lambda seen, states: seen.run.state.value in states,
    "warnings": lambda seen, number: len(seen.run.warnings) >= number,
    "supervised": lambda seen, wanted: seen.supervised is wanted,
    "struck": lambda seen, wanted: bool(seen.trace.faults) is wanted,  # by a fault from inside
    "started": lambda seen, start: any(line["start"] >= start for line in seen.trace.ranks),
    "saving": _saving,
    "saved": lambda seen, start: any(line["start"] >= start for line in seen.trace.saves),
    "saved_attempt": lambda seen, number: any(line["attempt"] >= number for line in seen.trace.saves),
    "asked": lambda seen, wanted: any(ask["step"] == "left" for ask in seen.run.asked.values()) is wanted,
    "held": lambda seen, words: any(
        reason.startswith("ftrun:") and words in reason for reason in seen.reasons.values()
    ),
    "published": lambda seen, step: step in seen.published,
    "sealed": lambda seen, step: _in_memory(seen, step, seen.sealed),
    "copied": lambda seen, step: _in_memory(seen, step, seen.copied),
}
"""One more condition is `step`: reached in start number `start` (default 1) of the script, or in a later one.
"""


def is_due(action: Action, seen: Observation) -> bool:
    """Whether all conditions of the action hold and its target node is known."""
    when = dict(action.when)
    start, step = when.pop("start", 1), when.pop("step", 0)
    return (
        _reached(seen, step, start if step else 0)
        and all(CONDITIONS[name](seen, value) for name, value in when.items())
        and (not action.has_target or bool(target_node(action, seen)))
    )


def target_node(action: Action, seen: Observation) -> str:
    """The node that the action acts on; "" for none, or if it is not known yet."""
    if action.rank is not None:
        return seen.trace.node_of(action.rank, action.of_start)
    if action.spare is None or seen.run.attempt is None:
        return ""
    used = {str(line["node"]) for line in seen.trace.ranks}
    spares = [node for node in seen.run.attempt.nodes if node not in used]
    return spares[action.spare] if action.spare < len(spares) else ""
