"""The queue of a virtual cluster, and the companions that a virtual run borrows. (pure)

A job starts when its turn has come and its nodes are there. The turn is drawn: it stands for other users'
jobs and the scheduler. The nodes are counted: those that are away come back one by one. A caller with
patience waits for both; otherwise it is told when its patience is over. Until the turn has come the nodes
belong to others, so a smaller job would start no sooner; when only nodes are missing, it would.

A companion is a job like any other: where other jobs wait it waits for its turn, which is drawn, and always
for its nodes, which are counted. The mean of all turns is that of the queue, so a companion starts at once
where nobody waits, and later elsewhere. The run holds its own nodes while it waits for one. Slurm ends a
whole companion when one of its nodes dies. Nodes that the run's own job still keeps aside are not
available; one that left the job may come back.
"""

from __future__ import annotations

import math
from collections.abc import Collection

from ftrun.supervisor.simulator.virtual_run import VirtualRun


class QueuedJob:
    """A job in the queue: `size` nodes, up to `spares` more, none of `left_out`."""

    def __init__(
        self, life: VirtualRun, size: int, *, spares: int = 0, left_out: frozenset[str] = frozenset()
    ) -> None:
        self.size = size
        self._spares = spares
        self._left_out = left_out
        self._life = life
        self._turn_s = life.now_s + life.wait(life.scenario["queue"])
        self._since_s = life.now_s

    @property
    def waited_s(self) -> float:
        """How long it has waited."""
        return self._life.now_s - self._since_s

    def ready(self) -> int:
        """How many idle nodes it could start with at once."""
        return len(self.free()) if self._life.now_s >= self._turn_s else 0

    def free(self) -> tuple[str, ...]:
        """The nodes that it could have now."""
        away = self._life.cluster.away(self._life.now_s) | self._left_out
        return tuple(node for node in self._life.cluster.names if node not in away)

    def started(self, patience_s: float = math.inf) -> bool:
        """Wait until the job has its nodes. False: `patience_s` have passed, and it has not."""
        life = self._life
        until_s = life.now_s + patience_s
        while not life.over:
            free = self.free()
            next_s = self._turn_s if len(free) >= self.size else self._back_s()
            if len(free) >= self.size and life.now_s >= self._turn_s:
                life.place(free[: self.size + self._spares], self.size)
                return True
            if next_s > until_s:
                life.spend("queue", until_s - life.now_s, held=False)
                return False
            life.spend("queue", max(next_s - life.now_s, 0.001), held=False)
        return True

    def _back_s(self) -> float:
        """When one more node is back. Where only exclusions are in the way, as many as are needed are given back at once: Slurm says
        that the job cannot start, and ftrun releases them (`policy.queue`).
        """
        now_s = self._life.now_s
        kept_off = sorted(self._left_out - self._life.cluster.away(now_s))
        short = self.size - len(self.free())
        back_s = self._life.cluster.next_back_s(now_s)
        if short <= len(kept_off) or back_s is None:
            self._left_out -= frozenset(kept_off[: max(short, 0)])
            return self._turn_s
        return back_s


def first_job(life: VirtualRun, spares: int) -> None:
    """Place the first job: all nodes are healthy and free."""
    size = life.scenario.nodes
    life.place(life.cluster.names[: size + spares], size)


class Companions:
    """The companions of one job."""

    def __init__(self) -> None:
        self._spans: list[tuple[str, ...]] = []

    def idle(self, life: VirtualRun, out: Collection[str]) -> tuple[str, ...]:
        """The nodes that a companion could have now; `out` are those that are not to be used."""
        away = {*life.cluster.away(life.now_s), *life.active, *life.spares, *out}
        return tuple(node for node in life.cluster.names if node not in away)

    def ask(self, life: VirtualRun, count: int, out: Collection[str], limit_s: float) -> tuple[str, ...]:
        """`count` nodes within `limit_s`, or (). The run stands still meanwhile and holds its own nodes."""
        wait_s = self.turn_s(life)
        back_s = life.cluster.back_s(life.now_s, out)
        short = count - len(self.idle(life, out))
        if short > 0:
            wait_s = max(wait_s, back_s[short - 1] - life.now_s) if short <= len(back_s) else limit_s
        life.spend("queue", min(wait_s, limit_s))
        return self.come(life, count, out) if wait_s < limit_s else ()

    def turn_s(self, life: VirtualRun) -> float:
        """How long a companion waits for its turn."""
        return life.wait(life.scenario["queue"] / life.scenario["contended"]) if life.contended() else 0.0

    def come(self, life: VirtualRun, count: int, out: Collection[str]) -> tuple[str, ...]:
        """`count` nodes at once, or ()."""
        nodes = self.idle(life, out)[:count]
        if len(nodes) < count:
            return ()
        self._spans.append(nodes)
        return nodes

    def broken(self, lost: Collection[str]) -> tuple[str, ...]:
        """All nodes of the companions that have one of these; those companions end."""
        gone = [span for span in self._spans if not set(lost).isdisjoint(span)]
        self._spans = [span for span in self._spans if span not in gone]
        return tuple(node for span in gone for node in span)

    def end(self) -> None:
        """The job is over, and with it its companions."""
        self._spans = []
