"""A cluster that exists in memory only: for tests, simulation and dry runs. (pure)

`MemoryCluster` is one client of a virtual Slurm (`engine.Engine`), with a user, rights and bad luck of its own;
several clients may share one engine. It keeps the laws of the real thing, which one contract suite checks on both: what
is missing from an answer is unknown, an unreachable controller changes nothing, a hung one leaves the outcome open.

    engine = Engine({"main": [f"n{i}" for i in range(4)]})
    engine.script("train", lambda launch: launch.after(60, lambda: launch.exit(0)))
    cluster = MemoryCluster(engine); cluster.submit(...); engine.advance(120)
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from random import Random
from signal import Signals

from ftrun.slurm.client.cluster import (
    ClusterFacts,
    JobDetails,
    JobRow,
    JobState,
    NodeRow,
    NodeUsage,
    PartitionRow,
    Rights,
    StepFiles,
    SubmitRequest,
    Submitted,
)
from ftrun.slurm.client.errors import OutcomeUnknown, RefusedForGood, RefusedForNow, SlurmError, Unreachable
from ftrun.slurm.client.parse import clean_dependency, has_token
from ftrun.slurm.client.topology import Topology, topology_of
from ftrun.slurm.records import replace
from tests.fake_slurm.clock import Clock
from tests.fake_slurm.dependencies import is_dependency, waiting_for
from tests.fake_slurm.engine import Engine
from tests.fake_slurm.faults import Faults, quietly
from tests.fake_slurm.options import Wanted, fits, job_of, read_options
from tests.fake_slurm.records import Job, Node, Timing, facts_of

__all__ = ["Clock", "Engine", "Faults", "MemoryCluster", "Timing"]

_NO_ANSWER = "Socket timed out on send/recv operation"
_NO_CONTROLLER = "Unable to contact slurm controller (connect failure)"


class MemoryCluster:
    """A `Cluster` on a virtual Slurm.

    `seed` makes this client's bad luck repeatable. `spend` is told how many seconds a call that got no answer took,
    for a simulation that lets its own time pass meanwhile. `message_timeout_s` is that time.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        user: str = "user",
        may_drain: bool = True,
        faults: Faults | None = None,
        seed: int = 0,
        name: str = "memory",
        message_timeout_s: float = 10.0,
        spend: Callable[[float], None] | None = None,
    ) -> None:
        self.engine = engine
        self.faults = faults if faults is not None else Faults()
        self._user = user
        self._may_drain = may_drain
        self._name = name
        self._luck = Random(seed)
        self._message_timeout_s = message_timeout_s
        self._spend = spend if spend is not None else lambda _seconds: None
        self.reservations: dict[str, tuple[str, ...]] = {}
        self._told_jobs: dict[str, JobRow] = {}
        self._told_nodes: dict[str, NodeRow] = {}

    # ---------------------------------------------------------------- submit

    def submit(self, request: SubmitRequest) -> Submitted:
        """See `Cluster.submit`; only the options of `memory_options` mean anything."""
        if self.engine.controller == "down":
            raise self._no_controller()
        wanted = read_options(request.argv, request.script)
        if self.engine.controller == "hung":
            if self._happens(self.faults.hung_takes):
                self.engine.tell(lambda: self._enqueue_quietly(wanted, request))
            raise self._no_answer()
        self._check(wanted)
        if self._happens(self.faults.submit_busy):
            raise RefusedForNow("Slurm temporarily unable to accept job, sleeping and retrying", exit_code=1)
        if self._happens(self.faults.submit_lost):
            raise self._no_answer()
        if self._happens(self.faults.submit_late):
            late = partial(self._enqueue_quietly, wanted, request)
            self.engine.after(self.faults.late_s, lambda: self.engine.tell(late))
            raise self._no_answer()
        number = self._enqueue(wanted, request)
        if not fits(wanted, self.engine.partitions[wanted.partition or self._default_partition()]):
            # Slurm refuses this only once the job exists: it stays to be seen, failed, until it is purged.
            self.engine.end(self.engine.jobs[number], JobState.FAILED, "BadConstraints")
            raise RefusedForGood("Requested node configuration is not available", exit_code=1)
        if self._happens(self.faults.submit_unheard):
            raise self._no_answer()
        if self._happens(self.faults.submit_doubled):
            number = self._enqueue(wanted, request)
        return Submitted(str(number), "", f"Submitted batch job {number}\n", "")

    def _check(self, wanted: Wanted) -> None:
        nodes = self.engine.partitions.get(wanted.partition or self._default_partition())
        if nodes is None:
            raise RefusedForGood(f"invalid partition specified: {wanted.partition}", exit_code=1)
        if any(name not in self.engine.nodes for name in (*wanted.required, *wanted.excluded)):
            raise RefusedForGood("Invalid node name specified", exit_code=1)
        if wanted.dependency and not is_dependency(wanted.dependency):
            raise RefusedForGood("Job dependency problem", exit_code=1)

    def _enqueue(self, wanted: Wanted, request: SubmitRequest) -> int:
        engine = self.engine
        number = engine.next_id
        engine.next_id += 1
        partition = wanted.partition or self._default_partition()
        requeue = engine.requeue_default if wanted.requeue is None else wanted.requeue
        asked = replace(wanted, partition=partition, requeue=requeue)
        engine.add(job_of(asked, number, self._user, request, engine.now()))
        return number

    def _enqueue_quietly(self, wanted: Wanted, request: SubmitRequest) -> None:
        with suppress(RefusedForGood):
            self._check(wanted)
            self._enqueue(wanted, request)

    def _default_partition(self) -> str:
        return next(iter(self.engine.partitions))

    # ----------------------------------------------------------------- reads

    def find(self, token: str) -> tuple[JobRow, ...]:
        """Every job of this user that bears the token; never stale, because a wrong "none" would run a run twice."""
        self._reading()
        mine = (job for job in self.engine.jobs.values() if job.user == self._user)
        return tuple(job.row() for job in mine if has_token(job.comment, token))

    def jobs(self, job_ids: Collection[str]) -> Mapping[str, JobRow]:
        """The rows of these jobs, perhaps stale, perhaps with one missing (see `Faults`)."""
        self._reading()
        if self._happens(self.faults.stale):
            return {job_id: self._told_jobs[job_id] for job_id in job_ids if job_id in self._told_jobs}
        found = {job_id: self.engine.jobs.get(int(job_id)) for job_id in job_ids if job_id.isdigit()}
        rows = {job_id: job.row() for job_id, job in found.items() if job is not None}
        if rows and self._happens(self.faults.drop_row):
            del rows[self._luck.choice(sorted(rows))]
        self._told_jobs.update(rows)
        return rows

    def details(self, job_id: str) -> JobDetails | None:
        """One job in full; None when it is not known (any more)."""
        self._reading()
        job = self.engine.jobs.get(int(job_id)) if job_id.isdigit() else None
        return job.details() if job is not None else None

    def stays(self, job_id: str) -> tuple[NodeUsage, ...]:
        """The last launch of a job: this Slurm has no accounting."""
        self._reading()
        job = self.engine.jobs.get(int(job_id)) if job_id.isdigit() else None
        return job.stays() if job is not None else ()

    def nodes(self, names: Collection[str] | None = None) -> Mapping[str, NodeRow]:
        """Nodes by name; names that are not known are absent."""
        self._reading()
        wanted = self.engine.nodes if names is None else [name for name in names if name in self.engine.nodes]
        if self._happens(self.faults.stale):
            return {name: self._told_nodes[name] for name in wanted if name in self._told_nodes}
        rows = {name: self._row(self.engine.nodes[name]) for name in wanted}
        self._told_nodes.update(rows)
        return rows

    def _row(self, node: Node) -> NodeRow:
        jobs = self.engine.jobs
        return node.row(any(jobs[number].state is JobState.COMPLETING for number in node.jobs))

    def partitions(self) -> Mapping[str, PartitionRow]:
        """Partitions by name; the first is the default."""
        self._reading()
        default = self._default_partition()
        return {
            name: PartitionRow(name, True, name == default, nodes)
            for name, nodes in self.engine.partitions.items()
        }

    def topology(self) -> Topology:
        """The switches of the engine; none while it does not answer."""
        with suppress(SlurmError):
            self._reading()
            return topology_of("tree", self.engine.switches)
        return Topology()

    def facts(self) -> ClusterFacts:
        """What it says of itself."""
        self._reading()
        return facts_of(self._name, self.engine.timing, requeues=self.engine.requeue_default)

    def step_files(self, job_id: str) -> tuple[StepFiles, ...]:
        """Its steps write where their jobs do."""
        self._reading()
        return ()

    def reserved(self, name: str) -> tuple[str, ...]:
        """The nodes that `reservations` sets aside; nobody is kept off them."""
        return self.reservations.get(name, ())

    def ping(self) -> bool:
        """True when the controller answers."""
        return self.engine.controller == "up"

    def contended(self, partitions: Collection[str]) -> bool:
        """Whether a pending job of anybody waits for nodes there."""
        self._reading()
        waiting = [job for job in self.engine.jobs.values() if job.state is JobState.PENDING]
        return any(job.reason in ("Resources", "Priority") and job.partition in partitions for job in waiting)

    def rights(self) -> Rights:
        """As given to the constructor."""
        return Rights(self._may_drain, "as the simulation says")

    def dependents(self, job_id: str) -> Mapping[str, str]:
        """Pending jobs of this user whose dependency names `job_id`; conditions that are met are dropped."""
        self._reading()
        return waiting_for(job_id, self._user, self.engine.jobs, self.engine.final)

    # --------------------------------------------------------------- effects

    def cancel(
        self, job_id: str, *, signal: str | None = None, full: bool = False, batch: bool = False
    ) -> None:
        """scancel; whom a signal is for makes no difference here: steps are part of the script's behaviour."""
        del full, batch
        self.effect(lambda: self._cancel(job_id, signal))

    def _cancel(self, job_id: str, signal: str | None) -> None:
        job = self.engine.jobs.get(int(job_id)) if job_id.isdigit() else None
        if job is None or job.state.ended:
            return
        self._own(job)
        if signal is None:
            self.engine.end(job, JobState.CANCELLED)
        elif job.launch is not None and job.launch.running():
            number = Signals[f"SIG{signal.upper().removeprefix('SIG')}"]
            if number is Signals.SIGKILL:  # to the batch script: the same as a cancel
                self.engine.end(job, JobState.CANCELLED)
            elif not job.launch.signal(number.name.removeprefix("SIG")):
                job.launch.exit(0, number)

    def hold(self, job_id: str) -> None:
        """scontrol hold."""
        self.effect(lambda: self._hold(self._alterable(job_id), held=True))

    def release(self, job_id: str) -> None:
        """scontrol release."""
        self.effect(lambda: self._hold(self._alterable(job_id), held=False))

    def _hold(self, job: Job, *, held: bool) -> None:
        job.held, job.held_reason = held, "JobHeldUser"
        if job.state is JobState.PENDING:
            job.reason = "JobHeldUser" if held else "None"
        self.engine.schedule_soon()

    def exclude(self, job_id: str, nodes: Sequence[str]) -> None:
        """Set ExcNodeList of a pending job; an empty sequence clears it."""

        def change() -> None:
            job = self._pending(job_id)
            if any(name not in self.engine.nodes for name in nodes):
                raise RefusedForGood(f"Invalid node name specified for job {job_id}", exit_code=1)
            job.excluded = tuple(sorted(set(nodes)))
            self.engine.schedule_soon()

        self.effect(change)

    def reshape(self, job_id: str, *, nodes: int, tasks: int, cpus: int) -> None:
        """Another number of nodes for a pending job; tasks and CPUs mean nothing here."""
        del tasks, cpus

        def change() -> None:
            self._pending(job_id).node_count = nodes
            self.engine.schedule_soon()

        self.effect(change)

    def set_dependency(self, job_id: str, dependency: str) -> None:
        """Replace the dependency of a pending job; "" removes it."""

        def change() -> None:
            text = clean_dependency(dependency)
            job = self._pending(job_id)
            if text and not is_dependency(text):
                raise RefusedForGood(f"Job dependency problem for job {job_id}", exit_code=1)
            job.dependency = text
            self.engine.schedule_soon()

        self.effect(change)

    def set_comment(self, job_id: str, comment: str) -> None:
        """Replace the comment of a job that has not ended."""
        self.effect(lambda: setattr(self._alterable(job_id), "comment", comment))

    def batch_script(self, job_id: str) -> bytes:
        """The script of a job, which is none here."""
        self._alterable(job_id)
        return b"#!/bin/sh\n"

    def drain(self, node: str, reason: str) -> None:
        """Drain a node (see `Cluster.drain`)."""

        def change() -> None:
            row = self._node(node)
            if row.reason == reason and row.drained:
                return
            if row.row(completing=False).spoken_for:
                raise RefusedForGood(f"{node} already has a reason, which is not overwritten: {row.reason}")
            self._need_admin()
            row.drained, row.reason, row.reason_s = True, reason, self.engine.now()

        self.effect(change)

    def resume(self, node: str, reason: str) -> bool:
        """Give a node back if its reason is exactly this one."""
        self._reading()
        row = self._node(node)
        if not reason or row.reason != reason:
            return False

        def change() -> None:
            self._need_admin()
            row.drained, row.reason, row.reason_s = False, "", None
            row.down = row.down and bool(row.fault)
            self.engine.schedule_soon()

        self.effect(change)
        return True

    def reword(self, node: str, before: str, after: str) -> bool:
        """Replace the reason of a drained node if it is exactly `before`."""
        self._reading()
        row = self._node(node)
        if not before or not after or row.reason != before or not row.drained:
            return False

        def change() -> None:
            self._need_admin()
            row.reason, row.reason_s = after, self.engine.now()

        self.effect(change)
        return True

    # ---------------------------------------------------------------- asking

    def _happens(self, probability: float) -> bool:
        return probability > 0 and self._luck.random() < probability

    def _no_answer(self) -> OutcomeUnknown:
        self._spend(self._message_timeout_s)
        return OutcomeUnknown(_NO_ANSWER, exit_code=1)

    def _no_controller(self) -> Unreachable:
        self._spend(self._message_timeout_s)
        return Unreachable(_NO_CONTROLLER, exit_code=1)

    def _reading(self) -> None:
        if self.engine.controller != "up" or self._happens(self.faults.read_fails):
            raise self._no_controller()

    def effect(self, change: Callable[[], None]) -> None:
        """An effect by this client: refused, lost or unheard as its luck has it."""
        if self.engine.controller == "down":
            raise self._no_controller()
        if self.engine.controller == "hung":
            if self._happens(self.faults.hung_takes):
                self.engine.tell(lambda: quietly(change))
            raise self._no_answer()
        if self._happens(self.faults.effect_lost):
            raise self._no_answer()
        change()
        if self._happens(self.faults.effect_unheard):
            raise self._no_answer()

    def _own(self, job: Job) -> None:
        if job.user != self._user:
            raise RefusedForGood("Access/permission denied", exit_code=1)

    def _alterable(self, job_id: str) -> Job:
        job = self.engine.jobs.get(int(job_id)) if job_id.isdigit() else None
        if job is None:
            raise RefusedForGood(f"Invalid job id specified for job {job_id}", exit_code=1)
        self._own(job)
        if job.state.ended:
            raise RefusedForGood(f"Job has already finished for job {job_id}", exit_code=1)
        return job

    def _pending(self, job_id: str) -> Job:
        job = self._alterable(job_id)
        if job.state is not JobState.PENDING:
            raise RefusedForGood(f"Job is no longer pending execution for job {job_id}", exit_code=1)
        return job

    def _node(self, name: str) -> Node:
        node = self.engine.nodes.get(name)
        if node is None:
            raise RefusedForGood(f"Slurm knows no node {name}")
        return node

    def _need_admin(self) -> None:
        if not self._may_drain:
            raise RefusedForGood("Invalid user id", exit_code=1)
