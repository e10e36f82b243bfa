"""The part of the protocol `Cluster` about pending jobs: their shape, and reservations. (pure)"""

from __future__ import annotations

from typing import Protocol


class PendingJobs(Protocol):
    """Operations on this user's pending jobs. Raises as `Cluster` does."""

    def reshape(self, job_id: str, *, nodes: int, tasks: int, cpus: int) -> None:
        """Change nodes, tasks and CPUs of a *pending* job, which keeps its place in the queue."""
        ...

    def reserved(self, name: str) -> tuple[str, ...]:
        """The nodes of a reservation; () if Slurm knows none of this name."""
        ...
