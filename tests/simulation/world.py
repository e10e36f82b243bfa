"""The simulated world: a virtual Slurm, hosts with clocks of their own, supervisors that die, and a user. (I/O)

How it thinks. One virtual clock moves everything. The run's folder, its journal and the lease are real files; the supervisor,
its keepers, the lease and the virtual Slurm are the real code, driven by `Supervisor.tick` without threads. A
pause is a nested advance of the clock in the middle of a tick, so everything else goes on while one process stands
still between two of its system calls; a crash is `crash_points.Crash` at such a point.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

from ftrun.slurm.client.cluster import JobRow, JobState, SubmitRequest, Submitted
from ftrun.slurm.client.errors import OutcomeUnknown, SlurmError
from ftrun.supervisor.config import home as config_home
from ftrun.supervisor.config import settings
from ftrun.supervisor.context.services import STALE_AFTER_S
from ftrun.supervisor.controller.loop import Supervisor
from ftrun.supervisor.model.node_entry import NodeEntry
from ftrun.supervisor.model.states import State
from ftrun.supervisor.model.stop_conditions import StopConditions
from ftrun.supervisor.nodes import ledger
from ftrun.supervisor.store import flag_files, journal, run_dir, submission_context
from ftrun.supervisor.store.crash_points import PlannedCrash
from ftrun.supervisor.store.lease import Lease, LeaseLost
from ftrun.supervisor.submission import plan as submission_plan
from ftrun.supervisor.telemetry import diverged_checkpoints
from tests.fake_slurm import faults as memory_faults
from tests.fake_slurm.cluster import Clock, Engine, Faults, MemoryCluster, Timing
from tests.fake_slurm.options import read_options
from tests.fake_slurm.records import Job
from tests.simulation import stacks
from tests.simulation.agents import Agent
from tests.simulation.holder import Holder, named
from tests.simulation.inside import Rank
from tests.simulation.laws import OUTLIVES_LOOK_S, Laws
from tests.simulation.plan import (
    AgentFault,
    JobFault,
    PersonAct,
    Plan,
    SlurmFault,
    SubmitFault,
    SupervisorFault,
)
from tests.simulation.trainer import Start
from tests.unit.lives import put_node_side

__all__ = ["Outcome", "World", "live"]

TIMING = Timing(
    schedule_s=1.0,
    complete_s=0.5,
    kill_wait_s=5.0,
    slurmd_timeout_s=20.0,
    requeue_delay_s=12.0,
    min_job_age_s=120.0,
    register_s=3.0,
)
RECHECK_EVERY_S = 3600.0
LIMIT_S = 6 * 3600.0  # after calm: far more than any plan needs
AFTERMATH_S = 300.0  # after the end: late jobs must still be dealt with
LOOKUP_S = 25.0
SCRIPT = b"#!/bin/sh\nexec python3 train.py\n"

Outcome = str  # finished, stopped, none (no run), or the state in which it got stuck


class HostClock:
    """The clocks of one host: Unix time is skewed, monotonic time counts from its boot."""

    def __init__(self, clock: Clock, skew_s: float, boot_s: float) -> None:
        self._clock = clock
        self._skew_s = skew_s
        self._boot_s = boot_s

    def now_s(self) -> float:
        """Unix seconds as this host believes."""
        return self._clock.now() + self._skew_s

    def mono_s(self) -> float:
        """Seconds since boot."""
        return self._clock.now() - self._boot_s

    def sleep(self, seconds: float) -> None:
        """Never called: nobody waits inside a tick."""
        raise AssertionError(f"a tick slept {seconds} s")


class Register(Engine):
    """An engine that keeps a list of the tokens of all jobs that it was ever given."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.tokens: list[str] = []

    def add(self, job: Job) -> None:
        """See `Engine.add`."""
        if named(job) is None:
            self.tokens.append(job.comment)
        super().add(job)


class WatchedCluster(MemoryCluster):
    """A client whose effects the laws see, and that meets what the plan has for single calls."""

    world: World
    process: Process | None = None  # None: the client of `ftrun sbatch`

    def submit(self, request: SubmitRequest) -> Submitted:
        """See `Cluster.submit`."""
        self._effective("submit")
        self.world.laws.submits(request)
        fault = self.world.submit_fault(request.token)
        if fault is None:
            return super().submit(request)
        if fault.kind == "copied":
            return self._submit_twice(request, fault.for_s)
        usual, self.faults = self.faults, Faults(**{f"submit_{fault.kind}": 1.0}, late_s=fault.for_s)
        try:
            return super().submit(request)
        finally:
            self.faults = usual

    def _submit_twice(self, request: SubmitRequest, late_s: float) -> Submitted:
        """A second job appears later, unless Slurm said no: what it refuses it makes neither once nor twice."""
        try:
            answer = super().submit(request)
        except OutcomeUnknown:
            self._copy_late(request, late_s)
            raise
        self._copy_late(request, late_s)
        return answer

    def _copy_late(self, request: SubmitRequest, late_s: float) -> None:
        self.engine.after(late_s, lambda: self.engine.tell(lambda: self._copy(request)))

    def _copy(self, request: SubmitRequest) -> None:
        self.world.trace(f"  a second job of {request.token} appears")
        self._enqueue_quietly(read_options(request.argv, request.script), request)

    def jobs(self, job_ids: Collection[str]) -> Mapping[str, JobRow]:
        """See `Cluster.jobs`."""
        rows = super().jobs(job_ids)
        if self.world.hidden:
            return {}
        self.world.laws.looks(rows.values())
        return rows

    def find(self, token: str) -> tuple[JobRow, ...]:
        """See `Cluster.find`."""
        rows = super().find(token)
        if self.world.hidden == "all":
            return ()
        self.world.laws.looks(rows)
        return rows

    def cancel(
        self, job_id: str, *, signal: str | None = None, full: bool = False, batch: bool = False
    ) -> None:
        """See `Cluster.cancel`."""
        self._effective("cancel")
        self.world.laws.cancels(self.engine.jobs.get(int(job_id)), self._looked_s())
        super().cancel(job_id, signal=signal, full=full, batch=batch)

    def exclude(self, job_id: str, nodes: Sequence[str]) -> None:
        """See `Cluster.exclude`."""
        self._effective("exclude")
        self.world.laws.excludes(self.engine.jobs.get(int(job_id)), nodes)
        super().exclude(job_id, nodes)

    def drain(self, node: str, reason: str) -> None:
        """See `Cluster.drain`."""
        self._effective("drain")
        super().drain(node, reason)
        self.world.laws.drains(node)

    def _looked_s(self) -> float:
        """When the answer was asked for on which this process acts; an answer may be a repetition of an older one."""
        look = self.process.supervisor._snapshot if self.process is not None else None
        if self.process is None or look is None:
            return self.engine.now()
        age_s = self.process.clock.mono_s() - look.mono_s
        repeated_s = STALE_AFTER_S if self.faults.stale else 0.0
        return self.engine.now() - age_s - repeated_s

    def _effective(self, what: str) -> None:
        if self.process is not None:
            self.world.laws.acts(self.process, what)


class CheapLease(Lease):
    """A lease that touches no file where that could show nothing: files of leases were a quarter of the cost of a life."""

    world: World
    shown = 0  # the last epoch whose counter was written

    def acquire(self) -> bool:
        """See `Lease.acquire`."""
        taken = super().acquire()
        self.world.epoch = max(self.world.epoch, self.epoch)
        return taken

    def _confirm(self) -> None:
        """Nobody has taken a later epoch: then only the time may have passed."""
        since_s = self._renewed_s if self._renewed_s is not None else float("-inf")
        if self.epoch != self.world.epoch or self._clock.mono_s() - since_s > self.term_s / 2:
            super()._confirm()

    def _beat(self) -> None:
        if self.shown != self.epoch or len(self.world.processes) > 1:
            super()._beat()
            self.shown = self.epoch


class Process:
    """One supervisor process on one host."""

    def __init__(self, world: World, number: int, host: int) -> None:
        self.world = world
        self.name = f"host{host}-{number}"
        skew_s = world.plan.skews_s[host % len(world.plan.skews_s)]
        clock = self.clock = HostClock(world.clock, skew_s, world.start_s - 1000.0 * (host + 1))
        self.lease = CheapLease(world.home, clock, term_s=world.lease_s, writer=self.name)
        self.lease.world = world
        cluster = world.client(number)
        cluster.process = self
        self.supervisor = Supervisor(world.home, cluster, clock, self.lease, log=self)
        self.supervisor.services.crash = self.point
        self.supervisor.services.steps, self.supervisor.services.in_background = (
            stacks.steps_of(world),
            stacks.beside(world),
        )
        self.dead = False
        self.paused = False
        self.leads = False  # at the last moment before an effect
        self.renewed_s = float("-inf")
        self._back_after_s = 0.0
        world.clock.after(0.0, self._next_turn)
        world.clock.after(0.0, self._renew)

    def info(self, event: str, **fields: Any) -> None:
        """What the supervisor logs."""
        told = " ".join(f"{key}={value}" for key, value in fields.items() if key != "run")
        self.world.trace(f"{self.name}: {event} {told}")
        if event == "decided":
            # What was decided rests on this, however long the process stood still since.
            look = self.supervisor._snapshot
            age_s = self.clock.mono_s() - look.mono_s if look is not None else 0.0
            self.world.laws.decided_s = self.world.clock.now() - age_s
        if event in ("run.finished", "run.stopped"):
            self.world.laws.run_ends()
        if event == "run.failed-step":
            self.world.laws.breach(f"a step failed: {fields['traceback'].splitlines()[-1]}")

    def point(self, name: str) -> None:
        """A place where this process may be hurt."""
        world = self.world
        if name.endswith(":before"):
            self.leads = self._may_act()
        fault = world.fault_at(name)
        if fault is None:
            return
        world.trace(f"{self.name}: {fault.kind} at point {world.points} ({name}) for {fault.for_s:.0f} s")
        if fault.kind in ("pause", "slow"):
            self.paused = fault.kind == "pause"
            world.spend(fault.for_s)
            self.paused = False
            world.laws.went_on_s = world.clock.now()
            world.trace(f"{self.name}: goes on")
            return
        if fault.tear and name.startswith("record:after"):
            self._tear(fault.tear)
        self._back_after_s = fault.for_s
        raise PlannedCrash(name)

    def _may_act(self) -> bool:
        """It holds the highest epoch, and renewed it no longer ago than half a term (P8)."""
        lease, mono_s = self.lease, self.world.clock.now()
        return self.world.epoch == lease.epoch and mono_s - self.renewed_s <= lease.term_s / 2

    def _tear(self, length: int) -> None:
        """The record that was being written is cut: its last bytes never reached the disk."""
        mine = sorted(Path(self.world.run_dir, "journal").glob(f"*-{self.name}.*jsonl"))
        content = mine[-1].read_bytes()
        last = content.rfind(b"\n", 0, len(content) - 1) + 1
        os.truncate(mine[-1], max(last, len(content) - length))

    def _next_turn(self) -> None:
        self.world.aside(self._turn)

    def _turn(self) -> None:
        if self.dead:
            return
        world = self.world
        try:
            delay_s = self._work()
        except PlannedCrash:
            self._die()
            return
        world.clock.after(delay_s, self._next_turn)

    def _work(self) -> float:
        """One turn of `Supervisor.run`. Returns the seconds until the next."""
        try:
            if not self.lease.held:
                self.supervisor.forget()
                if not self.lease.acquire():
                    return 1.0
                self.renewed_s = self.world.clock.now()
                self.world.trace(f"{self.name}: leads, epoch {self.lease.epoch}")
            self.supervisor.tick()
        except LeaseLost as error:
            self.world.trace(f"{self.name}: {error}")
            self.supervisor.forget()
            self.lease.epoch = 0
            return 1.0
        self.world.look_for_the_end(self.supervisor)
        return min(self.world.poll_s, 0.5) if self.supervisor.moving else self.world.poll_s

    def _renew(self) -> None:
        """The thread beside the loop."""
        if self.dead:
            return
        if self.lease.held and not self.paused and not self.world.stalled:
            with contextlib.suppress(LeaseLost, OSError):
                self.lease.renew()
                self.renewed_s = self.world.clock.now()
        self.world.clock.after(self.lease.term_s / 10, self._renew)

    def _die(self) -> None:
        self.dead = True
        self.supervisor.forget()
        self.world.processes.remove(self)
        self.world.clock.after(self._back_after_s, self.world.start_supervisor)


class World:
    """Everything around one run."""

    def __init__(self, plan: Plan, home: str, *, show: bool = False) -> None:
        self.plan = plan
        self.home = os.path.join(home, "home")
        self.cwd = os.path.join(home, "work")
        os.makedirs(os.path.join(self.cwd, "ckpt"))
        put_node_side(self.home)
        self._show = show
        self.clock = Clock()
        self.start_s = self.clock.now()
        nodes = [f"n{number:02d}" for number in range(plan.nodes)]
        self.engine: Register = Register({"main": nodes}, timing=TIMING, clock=self.clock)
        self.engine.requeue_default = plan.requeue
        self.engine.script("", self.started)
        self.laws = Laws(self)
        self.cluster_name = "memory"
        self.run_dir = ""
        self.checkpoint = "ckpt/step-*.pt"
        self.nodes_blind = False
        self.rewound = False
        self.points = 0
        self.over = False
        self.hurt_s: dict[str, float] = {}
        self.mended_s: dict[str, float] = {}
        self.processes: list[Process] = []
        self.epoch = 0  # the highest that any of them ever took
        self.agents: list[Agent] = []
        self.driver: Agent | None = None  # whose thread runs the events; None = the main one
        self.left: list[Callable[[], None]] = []  # what it has left to the main thread
        self.orphans: list[Rank] = []  # ranks that nobody could reach when their start ended
        self.current_s = float("-inf")  # when a start became the present one last
        self.talks = os.path.join(home, "talks")
        self._agent_points: Counter[str] = Counter()
        self.supervisor_faults = {(f.at_name, f.at_point): f for f in plan.supervisors}
        self._named: Counter[str] = Counter()  # how often a point was passed
        self.hidden = ""  # which answers lack the jobs of the run
        self._may_resume = plan.resume_after_s > 0
        self._resuming = False  # a person is about to
        self.crashed_s = float("-inf")  # when the controller crashed last
        self.lost_waiting: set[int] = set()  # jobs that a controller forgot while they waited
        self.stalled = False  # no lease can be renewed
        self._faults = list(plan.job)
        self._luck = Random(plan.seed)
        self._made = 0
        self._settings: dict[str, Any] = (
            settings.defaults()
            | {"spares": plan.spares}
            | dict(plan.settings)
            | ({"nodes": f"{plan.least}-{plan.wanted}"} if plan.least else {})
            | {"checkpoint": self.checkpoint}
        )
        self.poll_s = float(self._settings["poll"])
        self.lease_s = float(self._settings["lease"])
        self.end_wait_s = float(self._settings["fault-grace"])
        self.hang_min_s = float(self._settings["hang-min"])
        self.claim_wait_s = float(self._settings["claim-wait"])
        self.exclude_cap = float(self._settings["exclude-cap"])
        fence = self._settings["fence-wait"]
        self.fence_wait_s = float(fence) if fence != "" else TIMING.slurmd_timeout_s + 30.0

    def trace(self, line: str) -> None:
        """A line of the story, for whoever replays a seed."""
        if self._show:
            print(f"{self.since_start_s():8.1f} {line}")

    def aside(self, deed: Callable[[], None]) -> None:
        """Do now, on the main thread, what may let time pass in the middle of it."""
        if self.driver is not None:
            self.left.append(deed)
            return
        deed()
        while self.left:  # two agents may hand it back and forth
            self.left.pop()()

    def spend(self, seconds: float) -> None:
        """Whoever calls this stands still, and everything else goes on."""
        assert self.driver is None, "what lets time pass was not left to the main thread"
        self.clock.advance(seconds)

    def at_rest(self) -> bool:
        """The run is over, or a law is broken: nobody needs to see more."""
        return self.over or bool(self.laws.broken)

    def since_start_s(self) -> float:
        """Virtual seconds."""
        return self.clock.now() - self.start_s

    def disk_s(self, _run_dir: str, _now_s: float) -> float:
        """The clock of the file system."""
        return self.clock.now()

    def client(self, number: int) -> WatchedCluster:
        """A client with its own bad luck, which ends when the plan is calm."""
        lucky = not number and self.plan.lucky_front
        faults = Faults() if lucky else Faults(**dict(self.plan.client))
        cluster = WatchedCluster(
            self.engine,
            may_drain=self.plan.may_drain,
            faults=faults,
            seed=self.plan.seed * 1000 + number,
            spend=self.spend,
        )
        cluster.world = self

        def calm() -> None:
            cluster.faults = Faults()

        self.clock.after(max(0.0, self.plan.calm_s - self.since_start_s()), calm)
        return cluster

    # ------------------------------------------------------------------ what happens

    def begin(self) -> None:
        """Set everything going."""
        plan = self.plan
        if plan.haunted:
            self._haunt()
        if plan.crowded_s:
            self._crowd()
        for number, at_s, for_s in plan.strangers:
            name = f"n{number:02d}"
            self.clock.after(at_s, lambda n=name: self._stranger(n, 0))  # type: ignore[misc]
            self.clock.after(at_s + for_s, lambda n=name: self._stranger(n, 1))  # type: ignore[misc]
        self._look_for_companions()
        self._go_on(self._front())
        self.clock.after(5.0, self.start_supervisor)
        if plan.second_at_s:
            self.clock.after(plan.second_at_s, self.start_supervisor)
        for fault in plan.slurm:
            self.clock.after(fault.at_s, lambda f=fault: self._slurm_fault(f))  # type: ignore[misc]
        for act in plan.people:
            self.clock.after(act.at_s, lambda a=act: self._person(a))  # type: ignore[misc]
        if plan.blind_nodes_s[1]:
            self.clock.after(plan.blind_nodes_s[0], lambda: self._blind(True))
            self.clock.after(sum(plan.blind_nodes_s), lambda: self._blind(False))
        for rows in plan.hidden:
            self.clock.after(rows.at_s, lambda r=rows: self._hide(r.where))  # type: ignore[misc]
            self.clock.after(rows.at_s + rows.for_s, lambda: self._hide(""))
        for outage in plan.outages:
            name = f"n{outage.node:02d}"
            self.clock.after(outage.at_s, lambda n=name, o=outage: self.hurt(n, o.kind, o.for_s))  # type: ignore[misc]
        if plan.usurped_at_s:
            self.clock.after(plan.usurped_at_s, self._usurp)
        for stall in plan.stalls:
            self.clock.after(stall.at_s, lambda: self._stall(True))
            self.clock.after(stall.at_s + stall.for_s, lambda: self._stall(False))
        self.clock.after(plan.calm_s + RECHECK_EVERY_S, self._recheck)

    def _recheck(self) -> None:
        """The site's `ftrun recheck` from cron: what ftrun drained comes back once it is healthy."""
        for name, node in self.engine.nodes.items():
            if node.drained and node.reason.startswith("ftrun:") and not node.fault:
                self.trace(f"  {name}: given back by the site")
                node.drained, node.reason, node.reason_s = False, "", None
                self.engine.schedule_soon()
        self.clock.after(RECHECK_EVERY_S, self._recheck)

    def _look_for_companions(self) -> None:
        self.laws.companions_left()
        self.clock.after(OUTLIVES_LOOK_S, self._look_for_companions)

    def _haunt(self) -> None:
        """Other runs of the user have held faults against some nodes, at times against all of them."""
        luck = Random(f"haunted {self.plan.seed}")
        for number, name in enumerate(luck.sample(sorted(self.engine.nodes), self.plan.haunted)):
            told: dict[str, Any] = {
                "run": f"other-{number}",
                "signature": f"fault-{number}",
                "id": f"haunted-{number}",
            }
            at_s = self.start_s - luck.uniform(0, 0.9) * float(self._settings["exclude-for"])
            ledger.append_entries(self.home, NodeEntry(at_s, "excluded", (name,), **told))

    def _crowd(self) -> None:
        """Nothing starts for a while, so the first job of the run waits."""
        slots = {name: node.slots for name, node in self.engine.nodes.items()}

        def leave() -> None:
            for name, node in self.engine.nodes.items():
                node.slots = slots[name]
            self.engine.schedule_soon()

        for node in self.engine.nodes.values():
            node.slots = 0
        self.clock.after(self.plan.crowded_s, leave)

    def _stranger(self, name: str, slots: int) -> None:
        """Somebody else has a node, as soon as what runs there has left it, or leaves it."""
        self.trace(f"{name} is {'free again' if slots else 'taken by a stranger'}")
        self.engine.nodes[name].slots = slots
        self.engine.schedule_soon()

    def _blind(self, blind: bool) -> None:
        self.nodes_blind = blind

    def _hide(self, where: str) -> None:
        self.trace(f"slurmctld: its answers lack the run's jobs: {where or 'no more'}")
        self.hidden = where

    def _stall(self, stalled: bool) -> None:
        self.trace(f"leases: {'cannot be renewed' if stalled else 'can be renewed'}")
        self.stalled = stalled

    def _usurp(self) -> None:
        self.epoch += 1
        self.trace(f"lease: usurped, epoch {self.epoch}")
        os.symlink("nobody", os.path.join(self.home, "lease", f"epoch-{self.epoch:06d}"))

    def submit_fault(self, token: str) -> SubmitFault | None:
        """What the plan has for the sbatch of this attempt."""
        return next((f for f in self.plan.submits if token.endswith(f":{f.attempt}")), None)

    def fault_at(self, name: str) -> SupervisorFault | None:
        """What the plan has for this point of a supervisor's work."""
        self.points += 1
        self._named[name] += 1
        fault = self.supervisor_faults.get(("", self.points))
        return fault or self.supervisor_faults.get((name, self._named[name]))

    def agent_fault_at(self, name: str) -> AgentFault | None:
        """What the plan has for this point of an agent's work."""
        self._agent_points.update(("", name))
        passed = self._agent_points
        return next(
            (f for f in self.plan.agents if f.at_point == passed[f.at_name] and f.at_name in ("", name)), None
        )

    @property
    def agent_points(self) -> int:
        """How many points agents have passed."""
        return self._agent_points[""]

    def agent_luck(self) -> Faults:
        """The bad luck of a new agent's client."""
        faults = Faults(**dict(self.plan.client)) if self.since_start_s() < self.plan.calm_s else Faults()

        def calm() -> None:
            for name in Faults.__slots__:
                setattr(faults, name, getattr(Faults(), name))

        self.clock.after(max(0.0, self.plan.calm_s - self.since_start_s()), calm)
        return faults

    def start_supervisor(self) -> None:
        """A new process, on a host that depends on how many there were."""
        self._made += 1
        self.processes.append(Process(self, self._made, self._made % 3))

    def started(self, launch: Any) -> None:
        """Slurm starts the batch script."""
        self.trace(f"  job {launch.job_id} starts on {','.join(launch.nodes)}, restart {launch.restarts}")
        if named(launch.job) is not None:
            Holder(self, launch)
        else:
            Start(self, launch)

    def due(self, step: int) -> JobFault | None:
        """The planned fault that comes before this step is made; each comes once."""
        for fault in self._faults:
            if fault.at_step <= step:
                self._faults.remove(fault)
                self.trace(f"  fault: {fault.kind} before step {step}")
                return fault
        return None

    def again(self, fault: JobFault) -> None:
        """This fault comes at the same step of every attempt."""
        self._faults.append(fault)

    def hurt(self, name: str, how: str, for_s: float) -> None:
        """Break a node and mend it later."""
        self.laws.guilty.add(name)
        if self.engine.nodes[name].fault:
            return
        if how == "drain":
            self._drain(name, for_s)
            return
        # Slurm does not see a node that is broken again before it has registered: it is lost since the first time.
        back_s = self.clock.now() - self.mended_s.get(name, float("-inf"))
        if not (self.engine.nodes[name].not_responding and back_s <= self.engine.timing.register_s + 1.0):
            self.hurt_s[name] = self.clock.now()
        self.trace(f"  {name}: {how} for {for_s:.0f} s")
        self.engine.fail_node(name, how)  # type: ignore[arg-type]
        self.clock.after(for_s, lambda: self._mend(name))

    def _drain(self, name: str, for_s: float) -> None:
        """By an administrator, who takes it back."""
        node = self.engine.nodes[name]
        node.drained, node.reason, node.reason_s = True, "broken fan", self.clock.now()
        self.trace(f"  {name}: drained for {for_s:.0f} s")

        def undrain() -> None:
            node.drained, node.reason, node.reason_s = False, "", None
            self.engine.schedule_soon()

        self.clock.after(for_s, undrain)

    def unfit(self, name: str) -> bool:
        """Whether this node says that no start should use it."""
        return int(name[1:]) in self.plan.unfit

    def _mend(self, name: str) -> None:
        self.mended_s[name] = self.clock.now()
        self.engine.mend_node(name)
        self.trace(f"  {name}: mended")
        for start in self.laws.starts:
            start.last_words(name)

    def _slurm_fault(self, fault: SlurmFault) -> None:
        self.trace(f"slurmctld: {fault.kind} for {fault.for_s:.0f} s")
        if fault.kind == "crash":
            self.crashed_s = self.clock.now()
            live = (
                [number for number, job in self.engine.jobs.items() if job.state.live] if fault.rewind else []
            )
            self.rewound = self.rewound or bool(live)
            waiting = {number for number, job in self.engine.jobs.items() if job.state is JobState.PENDING}
            memory_faults.crash_controller(self.engine, lose_last=fault.lose, rewind=live)
            self.lost_waiting |= waiting - set(self.engine.jobs)
        else:
            self.engine.set_controller("hung" if fault.kind == "hung" else "down")
        self.clock.after(fault.for_s, lambda: self.engine.set_controller("up"))

    def _person(self, act: PersonAct) -> None:
        self.trace(f"person: {act.kind}")
        if act.kind in ("cancel", "stop"):
            if self.run_dir and os.path.isdir(os.path.join(self.run_dir, "requests")):
                self._request(act.kind)
                self.laws.wished_s = self.clock.now()
            return
        if act.kind == "halt":
            self._halt(dict(act.halt))
            return
        if self.engine.controller != "up":
            return
        for job in [job for job in self.engine.jobs.values() if not job.state.ended]:
            if act.kind == "scancel-companions":
                if named(job) is not None:
                    self.engine.end(job, JobState.CANCELLED)
            elif act.kind == "scancel":
                self.laws.person_cancels(job)
                self.engine.end(job, JobState.CANCELLED)
            elif job.state is JobState.RUNNING and named(job) is None:
                memory_faults.requeue(self.engine, job.number)

    def _halt(self, told: dict[str, Any]) -> None:
        """A person wants the run to be left under a condition."""
        if not self.run_dir or not os.path.isdir(os.path.join(self.run_dir, "requests")):
            return
        now_s = self.clock.now()
        if "before_s" in told:
            told["before_s"] += now_s
        halt = StopConditions(token=f"{now_s:.3f}", by="ann", **told)
        flag_files.write_halt(self.run_dir, halt)
        self._request(halt.word, halt=True)
        self.laws.halted_s = now_s
        if halt.after_checkpoint:
            self.laws.wished_s = now_s

    def _request(self, want: str, *, halt: bool = False) -> None:
        self.trace(f"request: {want}")
        path = os.path.join(self.run_dir, "requests", f"{int(self.clock.now() * 1e9)}-{want}.json")
        config_home.write_atomically(
            path, f'{{"want":"{want}","by":"ann","halt":{str(halt).lower()}}}'.encode()
        )
        run_dir.announce(self.home)

    # ------------------------------------------------------------------ ftrun sbatch

    def _go_on(self, front: Generator[float, None, None]) -> None:
        try:
            delay_s = next(front)
        except StopIteration:
            return
        self.clock.after(delay_s, lambda: self.aside(lambda: self._go_on(front)))

    def _front(self) -> Generator[float, None, None]:
        """The records of `ftrun sbatch`, one after the other; it may stand still or die between any two."""
        plan = self.plan
        for step, deed in enumerate(self._front_steps(), start=1):
            if step == plan.front_dies_at:
                self.trace("front: dies")
                return
            if step == plan.front_pause[0]:
                yield plan.front_pause[1]
            if not deed():
                return
            yield 0.05

    def _front_steps(self) -> Generator[Callable[[], bool], None, None]:
        cluster = self.client(0)
        token = ""
        book: list[journal.Journal] = []
        heard: list[Submitted] = []

        def create() -> bool:
            nonlocal token
            self.run_dir = run_dir.create_run(self.home, "train")
            token = f"ftrun:{os.path.basename(self.run_dir)}:{self.plan.seed:08x}"
            argv = [f"-N{self.plan.wanted}"]
            if self.plan.time_limit_s:
                argv.append(f"--time={int(self.plan.time_limit_s // 60)}")
            if self.plan.one_log:
                argv.append("--output=train.log")
            if self.plan.no_kill:
                argv.append(f"--no-kill={self.plan.no_kill}")
            kept = self._kept(token, [*argv, os.path.join(self.cwd, "train.sh")])
            submission_context.save(self.run_dir, kept, {b"PATH": b"/bin"}, SCRIPT)
            return True

        def note(kind: str, **data: Any) -> Callable[[], bool]:
            def deed() -> bool:
                if not book:
                    book.append(journal.Journal.open_first(self.run_dir))
                    book[0]._now = self.clock.now
                book[0].append(kind, **data)
                self.trace(f"front: {kind}")
                return True

            return deed

        def intend() -> bool:
            """A supervisor may have given the run up; nobody can look at the very moment of the sbatch that follows."""
            note("submit.intended", attempt=1, token=f"{token}:1")()
            return not run_dir.is_claimed(self.run_dir, 1)

        def call() -> bool:
            request = submission_plan.request_for(self.run_dir, submission_plan.AttemptSpec(1))
            try:
                heard.append(cluster.submit(request))
            except OutcomeUnknown:
                return self._looked_up(cluster, f"{token}:1", heard) or note("submit.unknown", message="?")()
            except SlurmError as error:
                self.trace(f"front: {error.message}; no run is left")
                run_dir.discard_run(self.run_dir)
                self.over = True
                return False
            return True

        yield create
        yield note("run.created", name="train", token=token, settings=self._settings)
        yield lambda: run_dir.open_attempt(self.run_dir, 1) is not None
        yield note("attempt.opened", attempt=1)
        yield intend
        yield call
        if heard:
            yield note("submit.done", attempt=1, job=heard[0].job_id, cluster="memory")
        else:
            yield note("run.abandoned", attempt=1, reason="no answer", **{"class": "scheduler"})

    def _looked_up(self, cluster: MemoryCluster, token: str, heard: list[Submitted]) -> bool:
        give_up = self.clock.now() + LOOKUP_S
        while self.clock.now() < give_up:
            try:
                rows = cluster.find(token)
            except SlurmError:
                rows = ()
            if rows:
                heard.append(Submitted(rows[0].job_id, "", "", ""))
                return True
            self.spend(1.0)
        return False

    def _kept(self, token: str, argv: list[str]) -> dict[str, Any]:
        return {
            "v": submission_context.VERSION,
            "cwd": self.cwd,
            "umask": 0o022,
            "limits": {},
            "nice": 0,
            "host": "login",
            "user": "ann",
            "run": os.path.basename(self.run_dir),
            "run_token": token,
            "argv": argv,
            "script_args": [],
            "script_path": argv[-1],
            "script_name": "train.sh",
            "source": "file",
            "has_shebang": True,
            "job_name": "train.sh",
            "shape": "single",
            "array": "",
            "wait": False,
            "slurm_conf": "",
            "settings": self._settings,
            **({"python": sys.executable} if self.plan.agent else {}),
            **({"active": self.plan.wanted} if self.plan.spares else {}),
        }

    # ------------------------------------------------------------------ the end

    def look_for_the_end(self, supervisor: Supervisor) -> None:
        """The run is over for the supervisor that leads, and nothing more can come of the plan."""
        if self.over or self._resuming or not self.run_dir:
            return
        if supervisor.idle and supervisor.ticks and not supervisor._broken:
            run = self.laws.run()
            self.over = run is not None and run.final
            if run is not None and run.state is State.STOPPED and self._may_resume:
                self.over = self._may_resume = False
                self._resuming = True
                self.clock.after(self.plan.resume_after_s, self._resume)

    def _resume(self) -> None:
        self._resuming = False
        self._request("resume")
        self.laws.resumes()

    def live(self) -> Outcome:
        """Live until the run is over and its aftermath has passed."""
        self.begin()
        self.clock.advance_until(self.at_rest, self.plan.calm_s + LIMIT_S)
        if self.over:  # a late job leaves by itself once it starts, and for that the nodes must be back
            away_s = max((one.at_s + one.for_s for one in self.plan.outages), default=0.0)
            self.clock.advance(max(AFTERMATH_S, away_s + AFTERMATH_S - self.since_start_s()))
        if self.run_dir and not os.path.isdir(self.run_dir):
            return "none"
        self.laws.at_the_end()
        run = self.laws.run()
        return run.state.value if run is not None else "none"


def live(plan: Plan, *, show: bool = False) -> tuple[Outcome, list[str], World]:
    """One life in a folder of its own: its end, the laws that it broke, and the world it left.

    Its checkpoints bear the virtual time, so the file system's clock shows that, too.
    """
    base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    folder = tempfile.mkdtemp(prefix="ftrun-sim-", dir=base)
    try:
        world = World(replace(plan), folder, show=show)
        with mock.patch.object(diverged_checkpoints, "_disk_s", world.disk_s):
            outcome = world.live()
        for process in world.processes:
            process.supervisor.forget()
        for agent in world.agents:
            agent.close()
        return outcome, world.laws.broken, world
    finally:
        _close_journals(folder)
        shutil.rmtree(folder, ignore_errors=True)


def _close_journals(folder: str) -> None:
    """What the kernel does for a process that dies: those of a life are all this one."""
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the listing's own is gone
            path = os.readlink(f"/proc/self/fd/{name}")
            if path.startswith(f"{folder}/") and path.endswith(".jsonl"):
                os.close(int(name))
