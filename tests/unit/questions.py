"""Questions to the nodes of a job that are answered at once, or never. (pure)"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ftrun.slurm.commands.node_queries import QueryAnswers

__all__ = ["Said", "Shut"]


class Said:
    """A question with these answers, and srun has ended: who is not among them does not answer."""

    def __init__(self, nodes: Sequence[str], answers: Mapping[str, tuple[str, ...]]) -> None:
        self.nodes = tuple(nodes)
        self.reached = QueryAnswers(dict(answers), ended=frozenset(answers))
        self.over = True

    def listen(self, wait_s: float) -> None:
        """All is told."""

    def let_go(self) -> None:
        """It has ended."""


class Shut:
    """The doors of these nodes are shut."""

    def __init__(self, nodes: Sequence[str]) -> None:
        self._nodes = frozenset(nodes)

    def refused(self) -> frozenset[str]:
        """The nodes whose slurmd refuses."""
        return self._nodes

    def close(self) -> None:
        """Nothing is open."""
