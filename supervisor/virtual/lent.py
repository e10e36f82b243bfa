"""Nodes that other small jobs lend to a virtual run: its companions. (pure)

How it thinks. A companion is a job like any other: where others wait it waits for its turn, which is drawn, and always for its nodes, which are counted. The
mean of all turns is that of the queue, so where nobody waits it begins at once, and else later. Whoever waits for one holds the nodes that he has. Slurm ends a companion as a whole when one of its nodes dies. Nodes that the run's own job still keeps
aside are lent by nobody; one that left it may come back.
"""

from __future__ import annotations

from collections.abc import Collection

from ftrun.supervisor.virtual.life import Life

__all__ = ["Lent"]


class Lent:
    """The companions of one job."""

    def __init__(self) -> None:
        self._spans: list[tuple[str, ...]] = []

    def idle(self, life: Life, out: Collection[str]) -> tuple[str, ...]:
        """The nodes that a companion could have now; `out` are those that are not to be used."""
        away = {*life.cluster.away(life.now_s), *life.active, *life.spares, *out}
        return tuple(node for node in life.cluster.names if node not in away)

    def ask(self, life: Life, count: int, out: Collection[str], limit_s: float) -> tuple[str, ...]:
        """So many nodes within `limit_s`, or (): so long the run stands still and holds its own."""
        wait_s = self._turn_s(life)
        back_s = life.cluster.back_s(life.now_s, out)
        short = count - len(self.idle(life, out))
        if short > 0:
            wait_s = max(wait_s, back_s[short - 1] - life.now_s) if short <= len(back_s) else limit_s
        life.spend("queue", min(wait_s, limit_s))
        return self.come(life, count, out) if wait_s < limit_s else ()

    def _turn_s(self, life: Life) -> float:
        return life.wait(life.scenario["queue"] / life.scenario["contended"]) if life.contended() else 0.0

    def come(self, life: Life, count: int, out: Collection[str]) -> tuple[str, ...]:
        """So many nodes at once, or (): nobody waits for them."""
        nodes = self.idle(life, out)[:count]
        if len(nodes) < count:
            return ()
        self._spans.append(nodes)
        return nodes

    def broken(self, lost: Collection[str]) -> tuple[str, ...]:
        """All nodes of the companions that have one of these; they are over."""
        gone = [span for span in self._spans if not set(lost).isdisjoint(span)]
        self._spans = [span for span in self._spans if span not in gone]
        return tuple(node for span in gone for node in span)

    def end(self) -> None:
        """The job is over, and with it all that was lent to it."""
        self._spans = []
