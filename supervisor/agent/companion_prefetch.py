"""Companion prefetch: ask for a companion as soon as a node is lost that no spare can replace. (I/O)

To end what is left of a start and to query and check its nodes takes seconds, and so does a companion: the
agent does both in parallel. At that time only the lost node argues for a companion. If the ladder decides
otherwise, the agent cancels it and has delayed nothing. So it asks only where the companion would start at
once, where the rung is enabled and has budget left, and where no known fact forbids it. Until the ladder
selects the companion its nodes do not belong to the run; their checks run in parallel.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from ftrun.slurm.client.errors import SlurmError
from ftrun.slurm.commands.node_queries import NodeQuery
from ftrun.supervisor.agent import node_liveness
from ftrun.supervisor.agent.batch_channel import Started
from ftrun.supervisor.agent.companion_jobs import READY, WAITING, Companions
from ftrun.supervisor.agent.context import AgentContext, log_line
from ftrun.supervisor.agent.node_checks import FailureChecks
from ftrun.supervisor.agent.spanning_limits import SpanningLimits, idle_count, pool_with_idle_nodes
from ftrun.supervisor.config import node_counts, recovery_order
from ftrun.supervisor.config import rungs as config_rungs
from ftrun.supervisor.model.types import FaultClass

LOOK_EVERY_S = 0.1
DECIDED_S = 60.0  # the ladder has decided by then


@dataclass
class CompanionPrefetch:
    """The companion prefetch of one launch."""

    ctx: AgentContext
    companions: Companions
    apart: SpanningLimits
    settings: Mapping[str, Any]
    _swept: NodeQuery | None = None  # the sweep of its nodes
    _token: str = ""
    _checks: FailureChecks | None = None
    _next_s: float = 0.0
    _over_s: float = 0.0

    def ask(
        self, started: Started, lost: Collection[str], aside: Collection[str], checks: FailureChecks | None
    ) -> None:
        """These nodes of a start are lost: ask for as many as spares cannot replace. Raises OSError
        (journal), GivenUp.
        """
        gone = [node for node in started.nodes if node in lost]
        spares = {*self.ctx.nodes} - {*started.nodes, *aside, *lost}
        count = len(gone) - len(spares)
        if count <= 0 or len(gone) == len(started.nodes) or self.companions.expected or not self._wanted():
            return
        if self.apart.against(started.number, end_s=None, limit_s=0.0):
            return
        self._swept = None
        run, now_s = self.ctx.journal.run(), self.ctx.clock.now_s()
        away = {*run.excluded_at(now_s), *lost}
        pool = pool_with_idle_nodes(self.ctx, self.settings, count, away)
        if run.wish or (pool is None and idle_count(self.ctx, away) < count):
            return
        why = f"{', '.join(gone)} cannot be replaced by a spare"
        self.companions.ask(count, away, None, why, pool=pool, ahead=True)
        if self.companions.expected:
            self._token = f"{self.ctx.where.launch}.{started.number + 1}"
            self._checks, self._over_s = checks, self.ctx.clock.mono_s() + DECIDED_S
            self.ctx.beside = self._tick

    def taken(self) -> NodeQuery | None:
        """The question that sweeps the companion's nodes, once; the caller listens to it."""
        found, self._swept = self._swept, None
        return found

    def _look_at(self, nodes: tuple[str, ...]) -> None:
        where = self.ctx.where
        line = node_liveness.sweep_line(where.home, where.place, self._token, where.job)
        try:
            self._swept = self.ctx.steps.begin(where.job, nodes, line)
        except SlurmError as error:
            log_line(f"the companion's nodes are not swept yet: {error.message}")
        if self._checks is not None and self.settings.get("after-checks") != "never":
            self._checks.begin(nodes)

    def _wanted(self) -> bool:
        if node_counts.segment_size(
            self.settings
        ):  # which nodes will do depends on which segments stay whole
            return False
        rungs, fault = recovery_order.rung_rules_from(self.settings), FaultClass.NODE
        if config_rungs.Rung.COMPANION not in rungs.order(fault):
            return False
        allowed, over = rungs.budget(config_rungs.Rung.COMPANION, fault)
        used = self.ctx.journal.run().rungs
        return used.get(f"companion:{over}" if over else "companion", 0) < allowed

    def _tick(self) -> None:
        """Called during every wait of the agent: when the companion is there, sweep and check its nodes."""
        mono_s = self.ctx.clock.mono_s()
        if mono_s < self._next_s:
            return
        self._next_s = mono_s + LOOK_EVERY_S
        found = self.companions.look()
        if found.state == READY:
            self._look_at(found.nodes)
        if found.state != WAITING or mono_s > self._over_s:
            self.ctx.beside = None
