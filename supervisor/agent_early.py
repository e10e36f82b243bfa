"""A companion asked for before anything is decided: as soon as a node is known lost that no spare can stand in for. (I/O)

How it thinks. Ending what is left of a start, asking its nodes and checking them takes seconds, and so does a companion: so the two go side by side. Nothing but
the lost node speaks for it yet; where the decision is another one it is taken back, and nobody has been kept waiting. So it is asked for only where it would come at
once, where the rung is wanted and paid for, and nothing is known that forbids it. Until the ladder says so its nodes are no nodes of the run; they are checked
meanwhile, whoever waits for whatever.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from ftrun.slurm.client.errors import SlurmError
from ftrun.slurm.commands.questions import Question
from ftrun.supervisor import agent_apart, agent_joining, agent_reach, ladder
from ftrun.supervisor.agent_apart import Apart
from ftrun.supervisor.agent_checks import Checks
from ftrun.supervisor.agent_companion import HERE, WAITING, Companions
from ftrun.supervisor.agent_desk import Desk, say
from ftrun.supervisor.agent_talk import Started
from ftrun.supervisor.model import FaultClass

__all__ = ["Early"]

LOOK_EVERY_S = 0.1
DECIDED_S = 60.0  # by then the ladder has spoken


@dataclass
class Early:
    """For one launch."""

    desk: Desk
    companions: Companions
    apart: Apart
    settings: Mapping[str, Any]
    _swept: Question | None = None  # what its nodes say to being swept
    _token: str = ""
    _checks: Checks | None = None
    _next_s: float = 0.0
    _over_s: float = 0.0

    def ask(
        self, started: Started, lost: Collection[str], aside: Collection[str], checks: Checks | None
    ) -> None:
        """These nodes of a start are lost: ask for as many, where spares do not reach. Raises OSError (journal), GivenUp."""
        gone = [node for node in started.nodes if node in lost]
        spares = {*self.desk.nodes} - {*started.nodes, *aside, *lost}
        count = len(gone) - len(spares)
        if count <= 0 or len(gone) == len(started.nodes) or self.companions.expected or not self._wanted():
            return
        if self.apart.against(started.number, end_s=None, limit_s=0.0):
            return
        self._swept = None
        run, now_s = self.desk.book.run(), self.desk.clock.now_s()
        away = {*run.excluded_at(now_s), *lost}
        pool = agent_joining.lent(self.desk, self.settings, count, away)
        if run.wish or (pool is None and agent_apart.idle(self.desk, away) < count):
            return
        why = f"{', '.join(gone)} cannot be replaced by a spare"
        self.companions.ask(count, away, None, why, pool=pool, ahead=True)
        if self.companions.expected:
            self._token = f"{self.desk.where.launch}.{started.number + 1}"
            self._checks, self._over_s = checks, self.desk.clock.mono_s() + DECIDED_S
            self.desk.beside = self._tick

    def taken(self) -> Question | None:
        """The question that sweeps its nodes, once; the caller listens to it."""
        found, self._swept = self._swept, None
        return found

    def _look_at(self, nodes: tuple[str, ...]) -> None:
        where = self.desk.where
        line = agent_reach.sweep_line(where.home, where.place, self._token, where.job)
        try:
            self._swept = self.desk.steps.begin(where.job, nodes, line)
        except SlurmError as error:
            say(f"the companion's nodes are not swept yet: {error.message}")
        if self._checks is not None and self.settings.get("after-checks") != "never":
            self._checks.begin(nodes)

    def _wanted(self) -> bool:
        rungs, fault = ladder.rungs_from(self.settings), FaultClass.NODE
        if ladder.Rung.COMPANION not in rungs.order(fault):
            return False
        allowed, over = rungs.budget(ladder.Rung.COMPANION, fault)
        used = self.desk.book.run().rungs
        return used.get(f"companion:{over}" if over else "companion", 0) < allowed

    def _tick(self) -> None:
        """Called by whoever waits: have its nodes check themselves once it is here."""
        mono_s = self.desk.clock.mono_s()
        if mono_s < self._next_s:
            return
        self._next_s = mono_s + LOOK_EVERY_S
        found = self.companions.look()
        if found.state == HERE:
            self._look_at(found.nodes)
        if found.state != WAITING or mono_s > self._over_s:
            self.desk.beside = None
