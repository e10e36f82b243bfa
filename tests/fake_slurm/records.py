"""The things of a virtual Slurm: nodes, jobs, launches and their processes. (pure)

Two truths are kept apart, because the difference between them is what ftrun has to live with: what *is* (a node's
`fault`, which processes run) and what the controller *believes* (`down`, `not_responding`, a job's state).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from typing import Literal, Protocol
from zlib import crc32

from ftrun.slurm.client.cluster import (
    ClusterFacts,
    JobDetails,
    JobRow,
    JobState,
    NodeRow,
    NodeUsage,
    SubmitRequest,
)
from ftrun.slurm.records import dataclass

__all__ = [
    "Controller",
    "Fault",
    "Job",
    "Launch",
    "Node",
    "Processes",
    "Script",
    "Step",
    "Timing",
    "World",
    "facts_of",
]

Fault = Literal["", "crash", "freeze", "slurmd"]
Controller = Literal["up", "down", "hung"]


@dataclass(frozen=True, slots=True)
class Timing:
    """How fast this Slurm is, in seconds. The defaults are a stock configuration's."""

    schedule_s: float = 1.0  # from a reason to schedule to scheduling
    complete_s: float = 0.5  # epilog: from the last process's end to a free node
    kill_wait_s: float = 30.0  # from SIGTERM to SIGKILL
    slurmd_timeout_s: float = 300.0
    requeue_delay_s: float = 121.0  # life of a credential, and one
    min_job_age_s: float = 300.0
    register_s: float = 3.0  # from a daemon's return to the controller's orders

    @property
    def silent_s(self) -> float:
        """From a node's silence to the mark "not responding"."""
        return 0.75 * self.slurmd_timeout_s

    @property
    def down_s(self) -> float:
        """From a node's silence to DOWN: the time-out runs from the last ping heard, and pings are rare."""
        return 1.6 * self.slurmd_timeout_s


def facts_of(name: str, timing: Timing, *, requeues: bool) -> ClusterFacts:
    """What such a Slurm says of itself: the oldest supported version."""
    return ClusterFacts(
        name,
        version=(22, 5, 0),
        slurmd_timeout_s=timing.slurmd_timeout_s,
        kill_wait_s=timing.kill_wait_s,
        max_script_size_bytes=4 << 20,
        min_job_age_s=timing.min_job_age_s,
        requeue_default=requeues,
    )


class World(Protocol):
    """What a launch needs of the virtual Slurm around it."""

    def now(self) -> float:
        """Virtual Unix time."""
        ...

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        """Do something later."""
        ...

    def script_over(self, launch: Launch, code: int, signal: int) -> None:
        """The batch script of a launch ended."""
        ...

    def occupy(self, launch: Launch, node: str) -> None:
        """Processes of a launch begin on a node, if it is there."""
        ...

    def silent(self, node: str) -> bool:
        """The node, or its daemon, does not answer."""
        ...


class Script(Protocol):
    """What a job does once it runs. Called once for each launch, at the virtual time of its start."""

    def __call__(self, launch: Launch, /) -> None:
        """Arrange timed events with `launch.after`; say how it ends with `launch.exit`."""
        ...


@dataclass(slots=True, eq=False)
class Processes:
    """The processes of one launch on one node: running, frozen with the node, or gone."""

    launch: Launch
    node: str
    alive: bool = True
    frozen: bool = False
    waiting: list[Callable[[], None]] = field(default_factory=list)  # what came due while frozen


@dataclass(slots=True, eq=False)
class Step:
    """What an srun of the script runs. `told` hears of each signal that reaches a node: (node, name); "" = it is ended there."""

    number: int
    name: str
    nodes: tuple[str, ...]
    told: Callable[[str, str], None]


@dataclass(slots=True, eq=False)
class Launch:
    """One start of a job by Slurm, as its script sees it."""

    world: World
    job: Job
    nodes: tuple[str, ...]
    restarts: int  # SLURM_RESTART_COUNT
    started_s: float
    request: SubmitRequest
    processes: dict[str, Processes] = field(default_factory=dict)
    # Asked when Slurm sends a signal ("TERM", "USR1", ...); True = the script lives on. None = it dies of it.
    on_signal: Callable[[str], bool] | None = None
    # Told when the processes on one node are gone, however that came.
    on_gone: Callable[[str], None] | None = None
    derived: tuple[int, int] = (0, 0)
    over: bool = False
    steps: list[Step] = field(default_factory=list)  # those that the controller has not seen the end of
    made: int = 0  # steps so far
    shrunk: int = 0  # so often its owner gave nodes back

    @property
    def job_id(self) -> str:
        """The id that Slurm gave; not unique over controller crashes."""
        return str(self.job.number)

    @property
    def head(self) -> str:
        """The node that runs the batch script."""
        return self.nodes[0]

    def now(self) -> float:
        """Virtual Unix time."""
        return self.world.now()

    def running(self, node: str | None = None) -> bool:
        """Whether the processes on a node (default: the batch script) exist and are not frozen."""
        processes = self.processes.get(self.head if node is None else node)
        return processes is not None and processes.alive and not processes.frozen

    def after(self, delay_s: float, action: Callable[[], None], node: str | None = None) -> None:
        """Do something as the processes of one node (default: as the batch script) after a while.

        Dropped when those processes are gone by then; late when their node was frozen in between.
        """
        processes = self.processes.get(self.head if node is None else node)
        if processes is None:
            return

        def due() -> None:
            if processes.frozen:
                processes.waiting.append(due)
            elif processes.alive:
                action()

        self.world.after(delay_s, due)

    def signal(self, name: str) -> bool:
        """Send a signal to the batch script; True when it lives on."""
        return self.running() and name != "KILL" and self.on_signal is not None and self.on_signal(name)

    def begin_step(self, name: str, nodes: tuple[str, ...], told: Callable[[str, str], None]) -> Step:
        """The script starts a step on some of its nodes; where processes are gone there, new ones begin."""
        step = Step(self.made, name, nodes, told)
        self.made += 1
        self.steps.append(step)
        for node in nodes:
            processes = self.processes.get(node)
            if processes is None or not processes.alive:
                self.world.occupy(self, node)
        return step

    def end_step(self, step: Step) -> None:
        """A step is over on every node that can say so."""
        step.nodes = tuple(node for node in step.nodes if self.world.silent(node))
        if not step.nodes and step in self.steps:
            self.steps.remove(step)

    def signal_step(self, step: Step, name: str) -> None:
        """scancel of a step: heard where the node's daemon answers; "" ends it there."""
        for node in [node for node in step.nodes if not self.world.silent(node)]:
            step.told(node, name)
        if not name:
            self.end_step(step)

    def step(self, code: int, signal: int = 0) -> None:
        """A job step ended so; the worst of all steps is DerivedExitCode."""
        self.derived = max(self.derived, (code, signal))

    def exit(self, code: int, signal: int = 0) -> None:
        """The batch script ends. Nothing happens when it is not running."""
        if self.running() and not self.over:
            self.over = True
            self.world.script_over(self, code, signal)


@dataclass(slots=True, eq=False)
class Node:
    """One node: what is (`fault`, `processes`) and what the controller believes (the rest)."""

    name: str
    partitions: tuple[str, ...]
    slots: int  # how many jobs fit
    fault: Fault = ""
    fault_count: int = 0  # tells an older fault's timers from this one's
    processes: list[Processes] = field(default_factory=list)
    unsent: list[Callable[[], None]] = field(default_factory=list)  # what its daemon has yet to tell
    jobs: set[int] = field(default_factory=set)
    not_responding: bool = False
    down: bool = False
    drained: bool = False
    reason: str = ""
    reason_s: float | None = None

    def row(self, completing: bool) -> NodeRow:
        """As sinfo shows it."""
        flags = {
            "drain": self.drained,
            "not_responding": self.not_responding,
            "completing": completing and not self.down,
        }
        busy = "allocated" if len(self.jobs) >= self.slots else "mixed"
        return NodeRow(
            name=self.name,
            state="down" if self.down else busy if self.jobs or not self.slots else "idle",
            flags=frozenset(flag for flag, there in flags.items() if there),
            reason=self.reason,
            reason_time_s=self.reason_s,
            partitions=self.partitions,
        )


@dataclass(slots=True, eq=False)
class Job:
    """One job as the controller believes it to be."""

    number: int
    name: str
    comment: str
    user: str
    partition: str
    node_count: int
    request: SubmitRequest
    submit_s: float
    begin_s: float
    wake_s: float | None = None  # when the queue is looked at again for this job's begin_s
    excluded: tuple[str, ...] = ()
    required: tuple[str, ...] = ()
    dependency: str = ""
    requeue: bool = True
    no_kill: bool = False
    held: bool = False
    held_reason: str = "JobHeldUser"
    time_limit_s: float | None = None
    std_out: str = ""
    std_err: str = ""
    state: JobState = JobState.PENDING
    reason: str = "None"
    nodes: tuple[str, ...] = ()
    start_s: float | None = None
    end_s: float | None = None
    restarts: int = 0
    exit_code: int = 0
    exit_signal: int = 0
    derived: tuple[int, int] = (0, 0)
    launch: Launch | None = None
    completing: set[str] = field(default_factory=set)
    becomes: JobState = JobState.COMPLETED  # when nothing of it is left on a node; PENDING = requeue
    grace_end_s: float | None = None  # preempted: when its time of grace is over

    def row(self) -> JobRow:
        """As squeue shows it."""
        return JobRow(
            job_id=str(self.number),
            state=self.state,
            reason=self.reason,
            nodes=self.nodes,
            node_count=len(self.nodes) or self.node_count,
            comment=self.comment,
            name=self.name,
            user=self.user,
            partition=self.partition,
            submit_time_s=self.submit_s,
            start_time_s=self.start_s,
            end_time_s=self.end_s,
            raw_job_id=str(self.number),
            restarts=self.restarts,
            time_limit_s=self.time_limit_s,
            planned_end_s=self.grace_end_s if self.state is JobState.RUNNING else None,
        )

    def stays(self) -> tuple[NodeUsage, ...]:
        """Where its last launch was. Users here have names only; each is given a number of its own."""
        if not self.nodes or self.start_s is None or self.state.pending:
            return ()
        return (NodeUsage(str(self.number), crc32(self.user.encode()), self.nodes, self.start_s, self.end_s),)

    def details(self) -> JobDetails:
        """As `scontrol -d show job` shows it."""
        return JobDetails(
            job_id=str(self.number),
            state=self.state,
            reason=self.reason,
            exit_code=self.exit_code,
            exit_signal=self.exit_signal,
            derived_exit_code=self.derived[0],
            restarts=self.restarts,
            nodes=self.nodes,
            excluded=self.excluded,
            required=self.required,
            std_out=self.std_out,
            std_err=self.std_err or self.std_out,
            dependency=self.dependency,
            comment=self.comment,
            requeue=self.requeue,
            # [tried on 22.05] It stays, also where Slurm has taken that node from the job (--no-kill).
            batch_host=self.launch.head if self.launch is not None else self.nodes[0] if self.nodes else "",
            time_limit_s=self.time_limit_s,
            user=self.user,
            fields={
                "PreemptTime": "None" if self.grace_end_s is None else "2026-01-01T00:00:00",
                **{name: str(self.node_count) for name in ("NumNodes", "NumTasks", "NumCPUs")},
            },
        )
