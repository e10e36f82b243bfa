"""What a cluster lets the owner of a job do while it waits, and what is set aside for them: the part of the protocol `Cluster` that is about the queue. (pure)"""

from __future__ import annotations

from typing import Protocol

__all__ = ["PendingJobs"]


class PendingJobs(Protocol):
    """What ftrun asks of a cluster about jobs of its user that wait. Raises as `Cluster` does."""

    def reshape(self, job_id: str, *, nodes: int, tasks: int, cpus: int) -> None:
        """Let a *pending* job ask for so many nodes, and so many tasks and CPUs in all; it keeps its place in the queue."""
        ...

    def reserved(self, name: str) -> tuple[str, ...]:
        """The nodes of a reservation; () where Slurm knows none of this name."""
        ...
