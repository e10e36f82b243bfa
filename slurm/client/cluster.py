"""The protocol between ftrun and a cluster, and its records. (pure)

It contains everything that the supervisor needs from a scheduler, and nothing that a launcher over SSH could
not offer one day. The words are Slurm's own. `slurm.commands` implements it by Slurm's commands,
`slurm.native` by pyslurm; the tests have a virtual Slurm with a virtual clock. One contract suite runs
against all of them.

Rules that callers rely on:

- A row that is missing from an answer is *unknown*, not *ended* (squeue silently drops missing ids).
- `Unreachable` means: keep the last state and do nothing.
- A job's identity is (cluster, job id, token, restarts), never the id alone: ids are reused after a
  controller crash.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from ftrun.slurm.client.topology import Topology


class JobState(str, Enum):
    """Slurm's job states (base state; flags like COMPLETING stand in for the base state as squeue prints them)."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    SUSPENDED = "SUSPENDED"
    COMPLETING = "COMPLETING"
    CONFIGURING = "CONFIGURING"
    RESIZING = "RESIZING"
    SIGNALING = "SIGNALING"
    STAGE_OUT = "STAGE_OUT"
    STOPPED = "STOPPED"
    REQUEUED = "REQUEUED"
    REQUEUE_FED = "REQUEUE_FED"
    REQUEUE_HOLD = "REQUEUE_HOLD"
    RESV_DEL_HOLD = "RESV_DEL_HOLD"
    SPECIAL_EXIT = "SPECIAL_EXIT"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    TIMEOUT = "TIMEOUT"
    NODE_FAIL = "NODE_FAIL"
    PREEMPTED = "PREEMPTED"
    BOOT_FAIL = "BOOT_FAIL"
    DEADLINE = "DEADLINE"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    REVOKED = "REVOKED"
    UNKNOWN = "UNKNOWN"

    @property
    def pending(self) -> bool:
        """Waiting to start, for the first time or again."""
        return self in _PENDING

    @property
    def live(self) -> bool:
        """Holds nodes now: processes of the job may exist."""
        return self in ACTIVE_STATES

    @property
    def ended(self) -> bool:
        """Terminal for this launch."""
        return self in _ENDED


_PENDING = frozenset({
    JobState.PENDING, JobState.REQUEUED, JobState.REQUEUE_FED, JobState.REQUEUE_HOLD,
    JobState.RESV_DEL_HOLD, JobState.SPECIAL_EXIT,
})  # fmt: skip
ACTIVE_STATES = frozenset({
    JobState.RUNNING, JobState.SUSPENDED, JobState.COMPLETING, JobState.CONFIGURING, JobState.RESIZING,
    JobState.SIGNALING, JobState.STAGE_OUT, JobState.STOPPED,
})  # fmt: skip
_ENDED = frozenset({
    JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED, JobState.TIMEOUT, JobState.NODE_FAIL,
    JobState.PREEMPTED, JobState.BOOT_FAIL, JobState.DEADLINE, JobState.OUT_OF_MEMORY, JobState.REVOKED,
})  # fmt: skip


CUT_SHORT_S = 120.0  # limits are counted in minutes
NO_LIMIT_S = 360 * 86_400.0  # Slurm shows an end a year after the start, or none, for a job without a limit


@dataclass(frozen=True)
class JobRow:
    """One job as the cheap bulk query shows it. Times are Unix seconds, None where Slurm says N/A."""

    job_id: str  # as squeue prints %i: "123", "123_4" (array task), "123+1" (het component)
    state: JobState
    reason: str  # may contain spaces: "launch failed requeued held"
    nodes: tuple[str, ...]  # expanded host list; empty while pending
    node_count: int
    comment: str  # contains the token
    name: str
    user: str
    partition: str
    submit_time_s: float | None  # Slurm resets it at every requeue
    start_time_s: float | None
    end_time_s: float | None
    raw_job_id: str = ""  # the plain number of an array task, if known
    restarts: int | None = None  # how often Slurm restarted it; None if the bulk query cannot tell
    time_limit_s: float | None = None  # None = unlimited or unknown
    planned_end_s: float | None = None  # of a running job: when Slurm will end it, as of now

    @property
    def is_cut_short(self) -> bool:
        """Slurm ends it before its time limit: in the grace time of a preemption it counts as running."""
        planned_s, limit_s, started_s = self.planned_end_s, self.limit_end_s, self.start_time_s
        if limit_s is None and started_s is not None:
            limit_s = started_s + NO_LIMIT_S
        return planned_s is not None and limit_s is not None and planned_s < limit_s - CUT_SHORT_S

    @property
    def limit_end_s(self) -> float | None:
        """The latest time at which Slurm will end it; None before it starts, or without a limit."""
        if self.start_time_s is None or self.time_limit_s is None:
            return None
        return self.start_time_s + self.time_limit_s


@dataclass(frozen=True)
class JobDetails:
    """One job as the expensive query shows it (called at turning points only)."""

    job_id: str
    state: JobState
    reason: str
    exit_code: int  # of the batch script
    exit_signal: int
    derived_exit_code: int  # highest of the steps; reveals a failed step of a script that exits 0
    restarts: int
    nodes: tuple[str, ...]
    excluded: tuple[str, ...]
    required: tuple[str, ...]
    std_out: str  # Slurm's idea of the path; %N is left unexpanded by Slurm
    std_err: str
    dependency: str
    comment: str
    requeue: bool
    batch_host: str
    time_limit_s: float | None  # None = unlimited
    user: str
    fields: Mapping[str, str] = field(default_factory=dict)  # every Key=Value, as printed
    doubtful: frozenset[str] = (
        frozenset()
    )  # fields that text of the job's user may have posed as: no proof for others

    @property
    def is_preempted(self) -> bool:
        """Slurm has taken its nodes for another job. True from the first moment of the grace time [tried on
        22.05], and after an end in it, whatever state that end has; not for a job that was requeued.
        """
        return self.fields.get("PreemptTime", "None") not in {"", "None", "N/A", "Unknown"}


@dataclass(frozen=True)
class NodeRow:
    """One node. `state` is the lower-case base state ("idle", "mixed", "allocated", "down", ...)."""

    name: str
    state: str
    flags: frozenset[str]  # lower case: "drain", "completing", "not_responding", "fail", "maint", ...
    reason: str
    reason_time_s: float | None
    partitions: tuple[str, ...]
    gres: str = ""

    @property
    def responding(self) -> bool:
        """Slurm can reach the node's daemon."""
        return "not_responding" not in self.flags and self.state not in {"down", "unknown", "error"}

    @property
    def spoken_for(self) -> bool:
        """Somebody has set the reason; slurmctld's passing note on a silent node does not count."""
        return bool(self.reason) and not self.reason.startswith("Not responding")

    @property
    def drained(self) -> bool:
        """No new job starts here, those that run go on: a drain, or `scontrol update state=fail`, which means the same."""
        return bool(self.flags & {"drain", "fail"})

    @property
    def available(self) -> bool:
        """A new job can start here now, or when the present ones end."""
        return (
            self.responding and not self.drained and not self.flags & {"maint", "powering_down", "reserved"}
        )


@dataclass(frozen=True)
class NodeUsage:
    """A period in which a job held nodes, by Slurm's record (Unix time); `end_s` None: it still does."""

    job_id: str  # the plain number
    uid: int  # the job's user; -1 if Slurm does not say
    nodes: tuple[str, ...]
    start_s: float
    end_s: float | None
    account: str = ""  # the project that it is charged to; "" without accounting


@dataclass(frozen=True)
class PartitionRow:
    """A partition with all its nodes; `max_time_s`, `max_memory_mib` (of a node): what its jobs may ask for, None without a
    limit or if not queried.
    """

    name: str
    up: bool
    default: bool
    nodes: tuple[str, ...]
    max_time_s: float | None = None
    max_memory_mib: float | None = None


@dataclass(frozen=True)
class Rights:
    """What the calling user may do. `why` is the evidence, for people."""

    may_drain: bool
    why: str


@dataclass(frozen=True)
class ClusterFacts:
    """Settings of a cluster (scontrol show config), read occasionally."""

    name: str  # ClusterName
    version: tuple[int, int, int]
    slurmd_timeout_s: float
    kill_wait_s: float
    max_script_size_bytes: int
    min_job_age_s: float
    requeue_default: bool  # JobRequeue
    tracking: str = ""  # ProctrackType
    auth: str = "auth/munge"  # AuthType
    munge_socket: str = ""  # of AuthInfo; "" = munge's own default
    switch: str = ""  # SwitchType
    preemption_signals: bool = False  # a preempted job gets the signal of its --signal instead of TERM


@dataclass(frozen=True)
class SubmitRequest:
    """One call of sbatch: arguments after the word `sbatch`, the script's bytes or None (script is in argv),
    and the exact context of the child process (protocol P2). `env` is the whole environment, nothing is
    added.
    """

    token: str
    argv: tuple[str, ...]
    script: bytes | None  # goes to sbatch's standard input
    env: Mapping[str, str]
    cwd: str
    umask: int | None = None
    limits: Mapping[str, tuple[int, int]] = field(
        default_factory=dict
    )  # RLIMIT_NAME -> (soft, hard); -1 = infinity
    nice: int | None = None


@dataclass(frozen=True)
class Submitted:
    """The answer of a successful sbatch. `stdout`/`stderr` are verbatim, for the user."""

    job_id: str
    cluster: str  # from --parsable "id;cluster", else ""
    stdout: str
    stderr: str


@dataclass(frozen=True)
class StepFiles:
    """Where a step writes by -o and -e: absolute names of the first task's files, () for the job's own."""

    tasks: int
    nodes: tuple[str, ...]
    files: tuple[str, ...]


class Cluster(Protocol):
    """The operations of a cluster. Every method may raise the errors of `ftrun.slurm.client.errors`.
    Implementations retry reads a few times if that is safe; effects never.
    """

    def submit(self, request: SubmitRequest) -> Submitted:
        """Call sbatch once. Raises RefusedForGood, RefusedForNow or Unreachable (no job exists),
        OutcomeUnknown (call find() before any other submission of this run).
        """

    def find(self, token: str) -> tuple[JobRow, ...]:
        """Every job of this user with the token in its comment, in any state that Slurm remembers."""

    def jobs(self, job_ids: Collection[str]) -> Mapping[str, JobRow]:
        """The rows of these jobs, in one call whatever their number. A missing id is unknown (not ended). An
        array id or het leader id yields the rows of all its tasks or components, under their own ids.
        """

    def details(self, job_id: str) -> JobDetails | None:
        """One job in full; None when Slurm does not know the id (any more)."""

    def step_files(self, job_id: str) -> tuple[StepFiles, ...]:
        """The live steps of a job that srun made and that write to files of their own; Slurm tells since 24.11,
        before it () is returned.
        """

    def nodes(self, names: Collection[str] | None = None) -> Mapping[str, NodeRow]:
        """Nodes by name (all, or these) in one call."""

    def partitions(self) -> Mapping[str, PartitionRow]:
        """Partitions by name in one call."""

    def topology(self) -> Topology:
        """Which nodes share a switch or a block, as told last; empty where nobody knows. A hint: it never raises."""

    def facts(self) -> ClusterFacts:
        """Name, version and the settings that decisions depend on."""

    def contended(self, partitions: Collection[str]) -> bool:
        """Whether pending jobs of any user wait for nodes there, as far as this user may see."""

    def ping(self) -> bool:
        """True when the controller answers; never raises."""

    def cancel(
        self, job_id: str, *, signal: str | None = None, full: bool = False, batch: bool = False
    ) -> None:
        """scancel, or send a signal: to the tasks of its steps, with `batch` to the batch script instead,
        with `full` to both. A job that is gone already is no error.
        """

    def hold(self, job_id: str) -> None:
        """Keep a pending job from starting."""

    def release(self, job_id: str) -> None:
        """Let a held job start."""

    def exclude(self, job_id: str, nodes: Sequence[str]) -> None:
        """Set the ExcNodeList of a *pending* job to exactly these nodes."""

    def reshape(self, job_id: str, *, nodes: int, tasks: int, cpus: int) -> None:
        """Change nodes, tasks and CPUs of a *pending* job, which keeps its place in the queue."""

    def reserved(self, name: str) -> tuple[str, ...]:
        """The nodes of a reservation; () if Slurm knows none of this name."""

    def drain(self, node: str, reason: str) -> None:
        """Drain a node. Raises RefusedForGood if this user may not. Never overwrites another reason: raises
        RefusedForGood if the node is drained or down with one already (see `NodeRow.spoken_for`).
        """

    def resume(self, node: str, reason: str) -> bool:
        """Return a node to service if its present reason is exactly this one; False (nothing done) otherwise."""

    def reword(self, node: str, before: str, after: str) -> bool:
        """Replace the reason of a drained node if it is exactly `before`; False (nothing done) otherwise."""

    def stays(self, job_id: str) -> Sequence[NodeUsage]:
        """Where a job of any user has run, oldest first: as far as controller and accounting still know."""

    def rights(self) -> Rights:
        """What this user may do, determined without changing anything."""

    def dependents(self, job_id: str) -> Mapping[str, str]:
        """Pending jobs of this user whose dependency names `job_id`: their id -> full dependency text."""

    def set_dependency(self, job_id: str, dependency: str) -> None:
        """Replace the dependency of a pending job."""

    def set_comment(self, job_id: str, comment: str) -> None:
        """Replace the comment of a job that has not ended."""

    def batch_script(self, job_id: str) -> bytes:
        """The batch script of a job that has not ended, byte for byte. Raises RefusedForGood where Slurm has none."""
