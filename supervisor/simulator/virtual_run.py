"""The life of a virtual run: from fault to fault, never second by second. (pure)

Faults are memoryless, so the next one is drawn for the whole training at once, and what lies between two
faults is arithmetic: a number of whole intervals is saved, the rest is lost. A fault may come at any moment
in which the training holds its nodes and its processes are alive, also while it loads its checkpoint, but
not while nothing runs. What to do about a fault is decided by `Rules`: they let time pass under one of the
names of the tally, choose nodes, and return. Rules may also want to look at a healthy run: they are called
at the first checkpoint after the time that they name.

A node that stays broken and is used again fails again soon. That is the price of a restart without a
diagnosis.
"""

from __future__ import annotations

import math
from random import Random
from typing import Protocol

from ftrun.slurm.records import dataclass
from ftrun.supervisor.simulator.cluster import Cluster
from ftrun.supervisor.simulator.scenario import Cause, Scenario
from ftrun.supervisor.simulator.tally import Outcome


@dataclass(frozen=True, slots=True)
class Fault:
    """What happened. `node` is where ("" = nowhere in particular), `named` whether a diagnosis names it.

    `step` is the highest step of this start (None before the first), `saved` how many checkpoints it wrote; `others` are the
    nodes of its rack that are gone with it.
    """

    cause: Cause
    node: str
    named: bool
    step: int | None
    saved: int
    others: tuple[str, ...] = ()

    @property
    def nodes(self) -> tuple[str, ...]:
        """All nodes that it hit."""
        return (self.node, *self.others) if self.node else ()

    @property
    def silent(self) -> tuple[str, ...]:
        """Those of them that do not answer."""
        return self.nodes if self.cause.lost else ()


class VirtualRun:
    """A run under way. Rules read it, let time pass in it and place it."""

    def __init__(self, scenario: Scenario, seed: int) -> None:
        self.scenario = scenario
        self.random = Random(f"{seed} faults")
        self.luck = Random(f"{seed} waits")  # separate, so that all rules meet nearly the same faults
        self.cluster = Cluster(scenario, Random(f"{seed} nodes"))
        self.end_s = scenario["days"] * 86_400.0
        self.now_s = 0.0
        self.active: tuple[str, ...] = ()
        self.spares: tuple[str, ...] = ()
        self.warm = False  # this start has made its first step
        self._saved = 0  # checkpoints that this start wrote before the last look
        self.outcome = Outcome(self.end_s)
        self._weights = [cause.per_node_day for cause in scenario.causes]

    @property
    def over(self) -> bool:
        """The time is up."""
        return self.now_s >= self.end_s

    def spend(self, what: str, seconds: float, *, held: bool = True) -> None:
        """Time passes without new training; `held` nodes, spares included, belong to the run meanwhile."""
        passed = min(seconds, self.end_s - self.now_s)
        self.outcome.lost_s[what] += passed
        self._pass(passed, held)

    def _pass(self, seconds: float, held: bool) -> None:
        self.now_s += seconds
        if held:
            self.outcome.spare_node_s += seconds * len(self.spares)

    def wait(self, mean_s: float) -> float:
        """A random wait with this mean."""
        return self.luck.expovariate(1.0 / mean_s) if mean_s > 0.0 else 0.0

    def contended(self) -> bool:
        """Whether other jobs wait for nodes just now."""
        return self.luck.random() < self.scenario["contended"]

    def work(self, look_s: float = math.inf) -> Fault | None:
        """Train until the next fault, or the first checkpoint after `look_s`; None: no fault, or time up."""
        rate = self.scenario.faults_a_second * self.pace
        until_s = self.random.expovariate(rate) if rate else self.end_s
        bad = self.cluster.broken(self.active, self.now_s)
        if bad is not None:
            again_s = self.random.expovariate(1.0 / self.scenario["relapse"])
            bad = bad if again_s < until_s else None
            until_s = min(until_s, again_s)
        launch_s = 0.0 if self.warm else self.scenario["launch"]
        self._saved = self._saved if self.warm else 0
        if until_s <= launch_s:
            self.spend("restart", until_s)
            return None if self.over else self._fault(bad, None, 0)
        self.spend("restart", launch_s)
        self.warm = True
        return self._trained(until_s - launch_s, bad, look_s)

    def _trained(self, seconds: float, bad: tuple[str, Cause] | None, look_s: float) -> Fault | None:
        left_s = self.end_s - self.now_s
        every_s, cost_s = self.scenario["checkpoint-every"], self.scenario["checkpoint-cost"]
        cycle_s = every_s + cost_s
        looked = False
        if look_s < self.now_s + min(seconds, left_s):
            pause_s = max(1, math.ceil((look_s - self.now_s) / cycle_s)) * cycle_s
            looked = pause_s < min(seconds, left_s)
            seconds = min(pause_s, seconds)
        through = seconds >= left_s
        seconds = min(seconds, left_s)
        saved = round(seconds / cycle_s) if looked else int(seconds // cycle_s)
        rest_s = max(0.0, seconds - saved * cycle_s)
        unsaved_s, writing_s = min(rest_s, every_s), max(0.0, rest_s - every_s)
        outcome = self.outcome
        kept_s = saved * every_s + (unsaved_s if through else 0.0)
        reached_s = outcome.useful_s + self.pace * (saved * every_s + unsaved_s)
        outcome.useful_s += self.pace * kept_s
        outcome.lost_s["smaller size"] += (1.0 - self.pace) * kept_s
        outcome.lost_s["lost steps"] += 0.0 if through else unsaved_s
        outcome.lost_s["checkpointing"] += saved * cost_s + writing_s
        self._pass(seconds, held=True)
        self._saved += saved
        if through:
            self.now_s = self.end_s
            return None
        return None if looked else self._fault(bad, int(reached_s / self.scenario["step"]), self._saved)

    def _fault(self, bad: tuple[str, Cause] | None, step: int | None, saved: int) -> Fault:
        self.outcome.faults += bad is None
        if bad is not None:
            node, cause = bad
        else:
            (cause,) = self.random.choices(self.scenario.causes, self._weights)
            node = self.random.choice(self.active)
        others: tuple[str, ...] = ()
        if bad is None and cause.rack:
            others = self.cluster.lose_rack(node, cause, self.now_s)
        else:
            self.cluster.hurt(node, cause, self.now_s)
        named = self.random.random() < cause.named
        return Fault(cause, node if cause.of_a_node else "", named and cause.of_a_node, step, saved, others)

    def place(self, nodes: tuple[str, ...], size: int) -> None:
        """Set the nodes of the next job: `size` for the training, the rest spares."""
        self.active, self.spares = nodes[:size], nodes[size:]
        self.warm = False

    @property
    def pace(self) -> float:
        """The speed relative to full size: a fraction of the nodes does that fraction of the work."""
        return len(self.active) / self.scenario.nodes

    def restarted(self, how: str) -> None:
        """Count a restart."""
        self.outcome.restarts[how] = self.outcome.restarts.get(how, 0) + 1

    def stopped(self, why: str) -> None:
        """Count a stop that a person has to undo."""
        self.outcome.stops[why] = self.outcome.stops.get(why, 0) + 1


class Rules(Protocol):
    """What is done about faults."""

    def begin(self, life: VirtualRun) -> None:
        """Place the first job. Its own time in the queue is not counted."""

    def recover(self, life: VirtualRun, fault: Fault) -> None:
        """Do everything until the script is about to start again."""

    def look_at_s(self, life: VirtualRun) -> float:
        """When to look at a healthy run; infinite where it is left alone."""

    def look(self, life: VirtualRun) -> None:
        """Look at a healthy run that has just written a checkpoint."""


def simulate(scenario: Scenario, seed: int, rules: Rules) -> Outcome:
    """One life under these rules."""
    life = VirtualRun(scenario, seed)
    rules.begin(life)
    while not life.over:
        fault = life.work(rules.look_at_s(life))
        if life.over:
            break
        if fault is None:
            rules.look(life)
            continue
        life.warm = False
        rules.recover(life, fault)
    return life.outcome
