"""A companion asked for before anything is decided: as soon as a node is known lost that no spare can stand in for. (I/O)

How it thinks. Ending what is left of a start, asking its nodes and checking them takes seconds, and so does a companion: so the two go side by side. Nothing but
the lost node speaks for it yet; where the decision is another one it is taken back, and nobody has been kept waiting. So it is asked for only where it would come at
once, where the rung is wanted and paid for, and nothing is known that forbids it. Until the ladder says so its nodes are no nodes of the run; they are checked
meanwhile, whoever waits for whatever.

Why no start of a job can lie in two jobs.
How it thinks. The script's own calls say most: the shim notes at every start each call of srun that needs one world of processes, and what never calls srun starts
nothing elsewhere. Then the fabric: where each job has keys of its own, ranks of two jobs cannot reach each other over it (HPE Slingshot gives each
job its VNIs, NVIDIA's IMEX its channel: the manual pages of slurm.conf, 24.11 to 26.05). What cannot be seen beforehand is seen once: a first start
over two jobs that comes to nothing though all its nodes are well is not followed by another in this launch.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from ftrun.slurm.client.errors import SlurmError
from ftrun.slurm.commands.questions import Question
from ftrun.supervisor.agent import companion_jobs, node_liveness
from ftrun.supervisor.agent.batch_channel import Started
from ftrun.supervisor.agent.companion_jobs import HERE, WAITING, Companions
from ftrun.supervisor.agent.context import Desk, say
from ftrun.supervisor.agent.node_checks import Checks
from ftrun.supervisor.config import recovery_order
from ftrun.supervisor.config import rungs as config_rungs
from ftrun.supervisor.config.node_counts import pool_of
from ftrun.supervisor.model.types import Diagnosis, FaultClass
from ftrun.supervisor.submission import companion_form

__all__ = ["NOTHING", "Apart", "Early", "idle", "may"]


KEYS_PER_JOB = ("hpe_slingshot", "nvidia_imex")
NOTHING = "the first start over both jobs came to nothing"
WORTH_S = 30.0  # of the job's time is left to a start when the companion came as late as it may


def idle(desk: Desk, but: Collection[str] = ()) -> int:
    """How many nodes of this job's partitions are idle, and none of ours nor of `but`; 0 where Slurm does not say."""
    try:
        nodes = desk.cluster.nodes()
    except SlurmError:
        return 0
    own = {name for node in desk.where.nodes if node in nodes for name in nodes[node].partitions}
    others = (row for name, row in nodes.items() if name not in desk.nodes and name not in but)
    return sum(row.state == "idle" and row.available and bool(own & {*row.partitions}) for row in others)


def may(desk: Desk, settings: Mapping[str, Any], start: int) -> bool:
    """Whether some idle node could come as a companion, as far as one question to Slurm tells."""
    orders = recovery_order.rungs_from(settings).orders.values()
    if not any(config_rungs.Rung.COMPANION in order for order in orders):
        return False
    if not desk.talk.calls(start) or desk.talk.no_span(start):
        return False
    if idle(desk):
        return True
    pool = pool_of(str(settings.get("pool", "")))
    try:
        return pool is not None and bool(
            companion_form.idle(desk.cluster, pool, desk.cluster.nodes(), desk.nodes)
        )
    except SlurmError:
        return False


@dataclass
class Apart:
    """What is known of it in one launch. `why` is a reason that lasts."""

    desk: Desk
    why: str = ""
    _switch: str | None = None
    _worked: bool = False

    def against(self, start: int, *, end_s: float | None, limit_s: float) -> str:
        """Why nodes of a companion are of no use after `start`; "" = they are. `end_s`: when the job's time is up (Unix seconds, None = unknown or never),
        `limit_s`: how long a companion is waited for."""
        if self.why:
            return self.why
        if not self.desk.talk.calls(start):
            return "the script starts nothing by srun"
        if told := self.desk.talk.no_span(start):
            return f"the script's srun cannot span two jobs: {told}"
        if end_s is not None and end_s - self.desk.clock.now_s() < limit_s + WORTH_S:
            return f"only {end_s - self.desk.clock.now_s():.0f} s are left of the job's time"
        return self._fabric()

    def after(
        self, start: int, settings: Mapping[str, Any], diagnosis: Diagnosis, end_s: float | None
    ) -> str:
        """The same for a fault of this kind, by the settings."""
        rungs = recovery_order.rungs_from(settings)
        limit_s = rungs.limit_s(config_rungs.Rung.COMPANION, diagnosis.fault, diagnosis.signature)
        return self.against(start, end_s=end_s, limit_s=limit_s)

    def note(self, nodes: tuple[str, ...], step: int | None, *, well: bool) -> None:
        """How a start on `nodes` went: its last step, and whether all its nodes were well at its end."""
        held = {node for span in self.desk.spans for node in span.nodes}
        if held.isdisjoint(nodes):
            return
        if step is not None:
            self._worked = True
        elif well and not self._worked:
            self.why = NOTHING

    @property
    def useless(self) -> tuple[str, ...]:
        """The nodes of companions, where a start that lies in two jobs comes to nothing."""
        spans = self.desk.spans if self.why == NOTHING else ()
        return tuple(node for span in spans for node in span.nodes)

    def _fabric(self) -> str:
        if self._switch is None:
            try:
                self._switch = self.desk.cluster.facts().switch
            except SlurmError as error:
                return f"the fabric of the cluster is not known: {error.message}"
        keys = next((kind for kind in KEYS_PER_JOB if kind in self._switch), "")
        return f"the fabric gives each job keys of its own (SwitchType={self._switch})" if keys else ""


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
        pool = companion_jobs.lent(self.desk, self.settings, count, away)
        if run.wish or (pool is None and idle(self.desk, away) < count):
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
        line = node_liveness.sweep_line(where.home, where.place, self._token, where.job)
        try:
            self._swept = self.desk.steps.begin(where.job, nodes, line)
        except SlurmError as error:
            say(f"the companion's nodes are not swept yet: {error.message}")
        if self._checks is not None and self.settings.get("after-checks") != "never":
            self._checks.begin(nodes)

    def _wanted(self) -> bool:
        rungs, fault = recovery_order.rungs_from(self.settings), FaultClass.NODE
        if config_rungs.Rung.COMPANION not in rungs.order(fault):
            return False
        allowed, over = rungs.budget(config_rungs.Rung.COMPANION, fault)
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
