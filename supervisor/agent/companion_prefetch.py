"""Companions before they are needed: as soon as a node is lost, or a spare is used up. (I/O)

`CompanionPrefetch` asks for a companion as soon as a node is lost that no spare can replace.

To end what is left of a start and to query and check its nodes takes seconds, and so does a companion: the
agent does both in parallel. At that time only the lost node argues for a companion. If the ladder decides
otherwise, the agent cancels it and has delayed nothing. So it asks only where the companion would start at
once, where the rung is enabled and has budget left, and where no known fact forbids it. Until the ladder
selects the companion its nodes do not belong to the run; their checks run in parallel.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from ftrun.slurm.client.errors import SlurmError
from ftrun.slurm.commands.node_queries import NodeQuery
from ftrun.supervisor.agent import node_liveness
from ftrun.supervisor.agent.batch_channel import Started
from ftrun.supervisor.agent.companion_jobs import (
    FAILED,
    NOT_KNOWN,
    READY,
    WAITING,
    Companion,
    Companions,
    unfit_nodes,
)
from ftrun.supervisor.agent.context import AgentContext, log_line
from ftrun.supervisor.agent.node_checks import FailureChecks
from ftrun.supervisor.agent.spanning_limits import SpanningLimits, idle_count, pool_with_idle_nodes
from ftrun.supervisor.agent.start_monitor import StartMonitor
from ftrun.supervisor.config import node_counts, recovery_order
from ftrun.supervisor.config import rungs as config_rungs
from ftrun.supervisor.model.types import FaultClass

LOOK_EVERY_S = 0.1
DECIDED_S = 60.0  # the ladder has decided by then
REFILL_EVERY_S = 15.0  # between two looks for spares that are used up; doubles with each failure
REFILL_EVERY_S_MAX = 3600.0


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


@dataclass
class SpareRefill:
    """Asks for spares again when they are used up, by a companion that queues while the script works (`spares-refill`).

    Its nodes are checked once and are spares from then on. A fault that needs a companion at once takes its place
    in the queue over, or ends it.
    """

    ctx: AgentContext
    companions: Companions
    apart: SpanningLimits
    settings: Mapping[str, Any]
    off: str = ""  # why nothing is asked for any more in this launch
    _asked: Companion | None = None
    _unfit: set[str] = field(default_factory=set)
    _next_s: float = 0.0
    _pause_s: float = REFILL_EVERY_S

    def __post_init__(self) -> None:
        if self.settings.get("spares-refill") == "auto":
            rungs = {
                rung
                for order in recovery_order.rung_rules_from(self.settings).orders.values()
                for rung in order
            }
            if not {config_rungs.Rung.SWAP, config_rungs.Rung.COMPANION} <= rungs:
                self.off = "recover has not both swap and companion"
            elif node_counts.segment_size(self.settings):
                self.off = "single nodes complete no segment"
        else:
            self.off = "spares-refill=never"

    def look(self, monitor: StartMonitor, aside: Collection[str], *, busy: bool) -> None:
        """One look while a start works. Raises OSError (journal), GivenUp."""
        if self._asked is not None:
            self._follow(monitor, self._asked)
            return
        mono_s = self.ctx.clock.mono_s()
        if self.off or busy or mono_s < self._next_s or monitor.memory.step is None:
            return
        self._next_s = mono_s + REFILL_EVERY_S
        started = monitor.started
        unused = {*self.ctx.nodes} - {*started.nodes, *aside, *self._unfit}
        missing = int(self.settings["spares"]) - len(unused)
        sizes = node_counts.sizes_of_settings(self.settings)
        small = sizes is not None and len(started.nodes) < sizes.full  # it grows first
        if missing <= 0 or small or self.apart.against(started.number, end_s=None, limit_s=0.0):
            return
        run = self.ctx.journal.run()
        if run.wish or run.halt or self._ends_soon(started):
            return
        away = {*run.excluded_at(self.ctx.clock.now_s()), *aside, *self._unfit}
        why = f"{missing} of {self.settings['spares']} spares are used up"
        pool = pool_with_idle_nodes(self.ctx, self.settings, missing, away)
        log_line(f"start {started.number}: {why}: asked for again")
        found = self.companions.ask(missing, away, None, why, pool=pool, spare=True)
        self._asked = found if found.spare and not found.over else None
        if found.state == FAILED:
            self._note_failure(found)

    def _ends_soon(self, started: Started) -> bool:
        """The job ends before a spare is of use, or Slurm does not say when it ends."""
        try:
            row = self.ctx.cluster.jobs((self.ctx.where.job,)).get(self.ctx.where.job)
        except SlurmError:
            return True
        if row is None:
            return True
        end_s = node_liveness.planned_end_s(row)
        return self.apart.against(started.number, end_s=end_s, limit_s=0.0) != ""

    def _note_failure(self, asked: Companion) -> None:
        self._next_s = self.ctx.clock.mono_s() + self._pause_s
        self._pause_s = min(2.0 * self._pause_s, REFILL_EVERY_S_MAX)
        if asked.lasts:
            self.off = asked.reason

    def _follow(self, monitor: StartMonitor, asked: Companion) -> None:
        found = self.companions.look() if asked.state == WAITING else asked
        if not asked.over and asked.spare and found.state == WAITING:
            return
        self._asked = None
        self._next_s = self.ctx.clock.mono_s() + REFILL_EVERY_S
        if asked.state == FAILED:
            self._note_failure(asked)
        if asked.over or not asked.spare or asked.state != READY:
            return
        unfit = unfit_nodes(self.ctx, self.settings, monitor.started, asked, lives=True)
        if unfit:
            self._unfit |= {node for node, why in unfit.items() if not why.startswith(NOT_KNOWN)}
            self._note_failure(asked)
            self.companions.end(
                asked.number, "; ".join(f"{node}: {why}" for node, why in sorted(unfit.items()))
            )
            return
        asked.spare, self._pause_s = False, REFILL_EVERY_S
        log_line(f"start {monitor.started.number}: spares again: {', '.join(asked.nodes)}")
