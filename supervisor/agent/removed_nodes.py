"""Nodes that Slurm removed from a live start, where no srun would report it. (I/O)

A job with --no-kill goes on without a node that Slurm lost. Where srun started the ranks, its messages or a
stalled start make the agent ask the nodes. Where the script reaches its nodes in another way, neither sign
may come: the other ranks print on, or nothing was ever printed. So in such a start, and in no other, the
agent asks Slurm from time to time which nodes the job still has. A restarting controller may report nonsense
for a moment, so two answers must agree, with the job running and its first node still in it.
"""

from __future__ import annotations

from ftrun.slurm.client.cluster import JobState
from ftrun.slurm.client.errors import SlurmError
from ftrun.supervisor.agent.batch_channel import Started
from ftrun.supervisor.agent.context import AgentContext, Suspicion, log_line
from ftrun.supervisor.diagnosis import suspicions

LOOK_EVERY_S = 60.0
AGAIN_S = 10.0


class RemovedNodes:
    """Monitors one start for nodes that Slurm removed from the job."""

    def __init__(self, ctx: AgentContext, started: Started) -> None:
        self._ctx, self._started = ctx, started
        self._next_s = ctx.clock.mono_s() + LOOK_EVERY_S
        self._before: frozenset[str] = frozenset()
        self._before_s = 0.0

    def look(self) -> Suspicion | None:
        """Why to end this start now; None = go on. It asks Slurm and waits for nothing else."""
        ctx, mono_s = self._ctx, self._ctx.clock.mono_s()
        lent = {
            node for span in ctx.spans for node in span.nodes
        }  # a node that left the job may be back in a companion
        own = [node for node in self._started.nodes if node in ctx.where.nodes and node not in lent]
        if mono_s < self._next_s or len(own) < 2:
            return None
        self._next_s = mono_s + LOOK_EVERY_S
        if ctx.channel.calls(self._started.number):
            return None
        gone = self._gone(own)
        lost = tuple(node for node in own if node in gone & self._before)
        if not self._before:
            self._before_s = mono_s
        self._before = gone
        if lost:
            return Suspicion(suspicions.lost_suspicion(lost), mono_s - self._before_s)
        if gone:
            self._next_s = mono_s + AGAIN_S
        return None

    def _gone(self, own: list[str]) -> frozenset[str]:
        where = self._ctx.where
        try:
            row = self._ctx.cluster.jobs((where.job,)).get(where.job)
        except SlurmError as error:
            log_line(f"it is not known which nodes the job has: {error.message}")
            return frozenset()
        if row is None or row.state is not JobState.RUNNING or where.node not in row.nodes:
            return frozenset()
        return frozenset(own).difference(row.nodes)
