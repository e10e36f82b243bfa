"""The queue of a virtual cluster: a job starts when its turn has come and its nodes are there. (pure)

How it thinks. The turn is drawn: what the jobs of others and the scheduler take. The nodes are counted: those that are away come back one by one. Whoever
is patient waits for both; who is not is told when his patience is over. Until its turn has come the nodes are others', so a smaller job would
start no sooner; when only nodes are missing, it would.
"""

from __future__ import annotations

import math

from ftrun.supervisor.virtual.life import Life

__all__ = ["Waiting", "first_job"]


class Waiting:
    """A job in the queue: `size` nodes that it must have, and as many of `spares` as there are; `left_out` are nodes that it does not take."""

    def __init__(
        self, life: Life, size: int, *, spares: int = 0, left_out: frozenset[str] = frozenset()
    ) -> None:
        self.size = size
        self._spares = spares
        self._left_out = left_out
        self._life = life
        self._turn_s = life.now_s + life.wait(life.scenario["queue"])
        self._since_s = life.now_s

    @property
    def waited_s(self) -> float:
        """For how long."""
        return self._life.now_s - self._since_s

    def ready(self) -> int:
        """How many idle nodes it could begin with at once."""
        return len(self.free()) if self._life.now_s >= self._turn_s else 0

    def free(self) -> tuple[str, ...]:
        """The nodes that it could have now."""
        away = self._life.cluster.away(self._life.now_s) | self._left_out
        return tuple(node for node in self._life.cluster.names if node not in away)

    def started(self, patience_s: float = math.inf) -> bool:
        """Wait until the job has its nodes. False where that takes longer than so many seconds from now; then so many have passed."""
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
        """When one more node is there. Where none is away, what is left out has to be taken back: at once."""
        back_s = self._life.cluster.next_back_s(self._life.now_s)
        if back_s is None:
            self._left_out = frozenset()
            return self._turn_s
        return back_s


def first_job(life: Life, spares: int) -> None:
    """All nodes are well and free."""
    size = life.scenario.nodes
    life.place(life.cluster.names[: size + spares], size)
