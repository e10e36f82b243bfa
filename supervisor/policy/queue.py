"""A waiting job of a run: wait, shrink or give up; and the size of the next start. (pure)

The user's own first start is waited for. A run that ran before waits at its present size for `resize-after`;
then the largest size that can start now is better than the full one later. In the queue a size only goes
down, so a waiting run settles after as many moves as it has sizes. It goes up only at a start that must be
made anyway.

Reasons. What a person or the job itself wants (a hold, a time, a dependency) is not waiting for nodes and is
left alone. If Slurm says that the job will never start, ftrun gives back the nodes that it keeps the job off,
suspects first and those with a proven fault last, with a smaller size in between. If nothing of ours is in
the way, waiting is an error. Limits of users, accounts and QOS on all jobs together pass with other jobs, so
the job waits for them. Limits on one job or node do not: those are an error. Source of the reasons:
slurm/slurm.h (`job_state_reason`) and the manual page of squeue, 22.05 to 26.05.

Waiting time (`QueueClock`). Only time between two polls that Slurm answered counts, by the supervisor's own
monotonic clock, so no two clocks are compared; time in which Slurm was silent or no supervisor lived does not
count. The sum is journalled from time to time, less often when it is long, and the next supervisor continues
from the last record. A restart thus loses a minute, or a twentieth of a long wait.

Resizing in the queue (`reshaped`). The numbers come from Slurm's own picture of the job, whatever made them
(an option, a variable, a site default): tasks and CPUs in proportion to the nodes. One call sets all three,
with an upper limit for the nodes, because Slurm 22.05 keeps the old CPU count and the old upper limit where
they are missing. What counts for the whole job or per task (GPUs, memory per GPU) cannot be changed in this
way on any version, and a number that does not divide has no share: such a job is submitted anew. Slurm's
result is read back.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Mapping, Sequence

from ftrun.slurm.client.cluster import NodeRow
from ftrun.slurm.records import dataclass, replace
from ftrun.supervisor.config.node_counts import Sizes
from ftrun.supervisor.model.run import Run
from ftrun.supervisor.policy import elastic
from ftrun.supervisor.policy.policy_input import PROOF_SOURCES, ClusterView

REQUESTED_WAITS = ("jobheld", "begintime", "dependency", "jobarraytasklimit")
"""Waits that somebody asked for; `DependencyNeverSatisfied` is handled separately."""

NEVER_STARTS = (
    "dependencyneversatisfied",
    "badconstraints",
    "partitionconfig",
    "partitionnodelimit",
    "partitiontimelimit",
    "invalidaccount",
    "invalidqos",
    "accountnotallowed",
    "qosnotallowed",
    "reservationdeleted",
    "reservationinvalid",
)
"""Reasons that time alone does not resolve."""

SHORT_OF_NODES = ("badconstraints", "reqnodenotavail", "nodesrequiredforjobaredown")
"""The nodes that this job may use are too few, not only busy."""

PER_JOB = re.compile(r"(assoc|qos)(max\w*per(job|node)(limit)?|min\w*)$")
"""Limits of an association or QOS on one job; time alone does not resolve these either."""

TOO_LARGE = (
    "badconstraints",
    "partitionnodelimit",
    *(
        f"{whose}max{what}perjob"
        for whose in ("assoc", "qos")
        for what in ("node", "cpu", "gres", "mem", "memory", "billing")
    ),
)
"""Reasons that a smaller size may resolve."""

NEVER_FOR_S = 30.0
"""A reason counts after this time: a controller that rereads its configuration may report nonsense for a moment."""

RELAX_EVERY_S = 15.0
"""Slurm has so long to consider the released nodes."""

LOOKED_AT_S = 5.0
"""Before that Slurm may not have considered a new job at all."""

FAR = 4.0
"""A start expected later than so many times `resize-after` is far: then a quarter of `resize-after` is enough."""


NOTED_EVERY_S = 60.0
NOTED_SHARE = 0.05
STEP_MAX_S = 300.0
"""At most this much counts between two polls: after a longer gap the supervisor was not watching."""

_OF_THE_WHOLE = ("TresPerJob", "TresPerTask", "TresPerSocket", "CpusPerTres", "MemPerTres", "MemPerGpu")
_NONE = frozenset({"", "(null)", "N/A", "None"})


@dataclass(frozen=True, slots=True)
class PendingJob:
    """A job in the queue. Times are seconds by our own clock.

    `waited_s`: since the first look at it there; `sized_s`: since it was made smaller there; `relaxed_s`:
    since the last change of its excluded nodes; `never_s`: since its reason is one that time does not
    resolve. `starts_in_s`: when Slurm expects to start it, None if unknown. `resized`: it was made smaller in
    place. `spares`: extra nodes that it asks for. `first`: nothing of this run ever ran. `kept_off`: its
    excluded nodes in the order of release (see `release_order`). `expired`: those of them whose exclusion is over.
    """

    reason: str
    waited_s: float
    size: int
    spares: int = 0
    first: bool = False
    kept_off: tuple[tuple[str, ...], ...] = ()
    expired: tuple[str, ...] = ()
    relaxed_s: float = float("inf")
    never_s: float = 0.0
    sized_s: float = float("inf")
    starts_in_s: float | None = None
    resized: bool = False


@dataclass(frozen=True, slots=True)
class WaitSettings:
    """The settings for waiting: `resize-after`, `queue-timeout` (seconds), `on-queue-timeout`."""

    spare_wait_s: float
    timeout_s: float
    on_timeout: str = ""


@dataclass(frozen=True, slots=True)
class QueueAction:
    """What to do with a waiting job.

    `kind`: stay, shrink (to `size`), anew (at `size`, by another job), relax (release excluded `nodes`),
    notify (report `reason`), stop, hopeless.
    """

    kind: str
    reason: str = ""
    size: int = 0
    nodes: tuple[str, ...] = ()


STAY = QueueAction("stay")


def decide_wait(pending: PendingJob, ready: int, sizes: Sizes | None, patience: WaitSettings) -> QueueAction:
    """What to do with a waiting job. `ready`: how many idle, healthy nodes it could have at this moment."""
    never = never_starts(pending.reason)
    if not never and any(_plain(pending.reason).startswith(reason) for reason in REQUESTED_WAITS):
        return STAY
    if pending.resized and _plain(pending.reason).startswith("badconstraints"):
        told = "Slurm does not take the job as it was made smaller in the queue"
        return QueueAction("anew", told, pending.size) if pending.never_s >= LOOKED_AT_S else STAY
    may_relax = not pending.first and pending.relaxed_s >= RELAX_EVERY_S
    if may_relax and pending.expired:
        told = f"no longer kept off {', '.join(pending.expired)} (the exclusion is over)"
        return QueueAction("relax", told, nodes=pending.expired)
    may_relax = may_relax and cannot_start(pending.reason)
    if may_relax and pending.kept_off and pending.kept_off[0]:
        return _relax(pending, "under suspicion only")
    smaller = _smaller(pending, ready, sizes, patience)
    if smaller:
        why = f"{pending.reason or 'waiting'} for {pending.waited_s:.0f} s{_expected(pending)}"
        return QueueAction("shrink", f"on with {smaller} of {pending.size} nodes ({why})", smaller)
    if may_relax and any(pending.kept_off) and (never or pending.waited_s >= patience.timeout_s):
        return _relax(pending, "nothing else is left")
    if never and pending.never_s >= NEVER_FOR_S:
        told = f"the job can never start: Slurm says {pending.reason}"
        return QueueAction("notify" if pending.first else "hopeless", told)
    return STAY if pending.first else _timeout(pending, patience)


def _smaller(pending: PendingJob, ready: int, sizes: Sizes | None, patience: WaitSettings) -> int:
    """The size to go on with; 0 = none. If enough nodes are idle and Slurm does not start the job, nodes are
    not what it lacks.
    """
    if sizes is None or pending.first:
        return 0
    if any(_plain(pending.reason).startswith(reason) for reason in TOO_LARGE):
        return sizes.at_most(pending.size - 1)
    waited_s = min(pending.waited_s, pending.sized_s)
    if waited_s < max(spare_wait_s(pending, patience), LOOKED_AT_S) or ready >= pending.size + pending.spares:
        return 0
    most = pending.size if pending.spares else pending.size - 1  # it may start without its spares
    return sizes.at_most(min(ready, most))


def spare_wait_s(pending: PendingJob, patience: WaitSettings) -> float:
    """How long a job waits at its size. Slurm's expected start is a hint, not a promise.

    An early expected start doubles the wait at most, a late one cuts it to a quarter.
    """
    wait_s, starts_in_s = patience.spare_wait_s, pending.starts_in_s
    if starts_in_s is None or starts_in_s < 0:
        return wait_s
    if starts_in_s <= wait_s:
        return 2 * wait_s
    return wait_s / 4 if starts_in_s > FAR * wait_s else wait_s


def _expected(pending: PendingJob) -> str:
    if pending.starts_in_s is None or pending.starts_in_s < 0:
        return ""
    return f", and Slurm expects to start it in {pending.starts_in_s:.0f} s"


def _timeout(pending: PendingJob, patience: WaitSettings) -> QueueAction:
    if pending.waited_s < patience.timeout_s:
        return STAY
    times = int(pending.waited_s // patience.timeout_s) if patience.timeout_s else 1
    if patience.on_timeout == "stop":
        waited = f"{pending.waited_s:.0f} s in the queue ({pending.reason})"
        return QueueAction("stop", f"{waited}: longer than queue-timeout, and on-queue-timeout=stop")
    if patience.on_timeout != "notify":
        times = 1
    waited = f"for {times * patience.timeout_s:.0f} s"
    return QueueAction("notify", f"the run waits in the queue {waited} now; it goes on waiting")


def _relax(pending: PendingJob, why: str) -> QueueAction:
    nodes = next(tier for tier in pending.kept_off if tier)
    told = f"Slurm says {pending.reason}: no longer kept off {', '.join(nodes)} ({why})"
    return QueueAction("relax", told, nodes=nodes)


def cannot_start(reason: str) -> bool:
    """Slurm says that the usable nodes of this job are too few, not only busy."""
    words = _plain(reason)
    return any(part in words for part in SHORT_OF_NODES)


def never_starts(reason: str) -> bool:
    """Slurm says that this job will not start, however long it waits."""
    words = _plain(reason)
    return any(words.startswith(known) for known in NEVER_STARTS) or PER_JOB.match(words) is not None


def _plain(reason: str) -> str:
    return reason.lower().replace(" ", "").replace("_", "")


def release_order(run: Run, kept_off: Collection[str], now_s: float) -> tuple[tuple[str, ...], ...]:
    """The excluded nodes of a job in the order of their release.

    First all that are only suspect (avoided, silent, quarantined by other runs, blamed by a log), then those
    with a proven fault one by one, the oldest exclusion first.
    """
    blamed = {e.node: e.until_s for e in run.excluded if e.until_s > now_s and e.node in kept_off}
    proven = {
        node
        for incident in run.incidents
        if PROOF_SOURCES.intersection(incident.diagnosis.get("sources", ()))
        for node in incident.nodes
    }
    soft = tuple(sorted(node for node in kept_off if node not in blamed or node not in proven))
    hard = sorted((until_s, node) for node, until_s in blamed.items() if node in proven)
    return (soft, *((node,) for _, node in hard))


def run_size(run: Run, sizes: Sizes) -> int:
    """The present size of the run: that of its last start or, if that size is excluded, of the last start
    that made steps.
    """
    tried = [(size, stepped) for _, size, stepped in elastic.sizes_tried(run, sizes)]
    if tried and tried[-1][0] not in run.sizes_aside:
        return tried[-1][0]
    worked = [size for size, stepped in tried if stepped and size not in run.sizes_aside]
    return worked[-1] if worked else sizes.full


def sizes_left(run: Run, sizes: Sizes | None) -> Sizes | None:
    """The sizes at which the run can go on; None if it has only one size."""
    return sizes.without(run.sizes_aside) if sizes is not None else None


def with_same_devices(view: ClusterView, nodes: Mapping[str, NodeRow], run: Run) -> ClusterView:
    """The view with only those idle nodes that have the same devices as the nodes on which the run ran;
    unchanged if it never ran.
    """
    ran = {node for one in run.attempts for node in one.nodes}
    devices = {nodes[node].gres for node in ran if node in nodes}
    if not devices:
        return view
    return replace(
        view, idle=frozenset(node for node in view.idle if node in nodes and nodes[node].gres in devices)
    )


def available_count(view: ClusterView, own: Collection[str], exclude: Collection[str]) -> int:
    """How many idle, healthy nodes a start could have now, including those of `own` that become free."""
    return len((view.idle | (set(own) & view.available)) - set(exclude))


def next_size(sizes: Sizes, now: int, view: ClusterView, own: Collection[str], exclude: Sequence[str]) -> int:
    """The size of a start that must be made anyway: the present size, or a larger one if enough idle, healthy
    nodes are there.

    `own` are the nodes of the attempt that is over, which become free. Never more than the partition could
    ever give without `exclude`, which would wait forever. If Slurm does not show the partition, the present
    size.
    """
    if not view.partition:
        return now
    ever = len((view.available | view.lost) - set(exclude))
    return max(
        sizes.at_most(available_count(view, own, exclude)), min(now, sizes.at_most(ever) or sizes.all[0])
    )


@dataclasses.dataclass(slots=True)
class QueueClock:
    """The waiting time of one job as one supervisor counts it; seconds."""

    waited_s: float = 0.0
    noted_s: float = 0.0
    looked_s: float | None = None  # monotonic time of the last poll; None = none, or Slurm was silent since

    def look(self, noted_s: float, mono_s: float) -> float:
        """A poll at which Slurm showed the job in the queue. Returns its waiting time. `noted_s` is the
        journalled one.
        """
        self.waited_s = max(self.waited_s, noted_s)
        self.noted_s = noted_s
        if self.looked_s is not None:
            self.waited_s += min(max(0.0, mono_s - self.looked_s), STEP_MAX_S)
        self.looked_s = mono_s
        return self.waited_s

    def stop(self) -> None:
        """Slurm does not answer."""
        self.looked_s = None

    @property
    def due(self) -> bool:
        """The sum is due to be journalled."""
        return self.waited_s - self.noted_s >= max(NOTED_EVERY_S, NOTED_SHARE * self.waited_s)


@dataclass(frozen=True, slots=True)
class JobShape:
    """What a waiting job shall request: nodes, and its total tasks and CPUs."""

    nodes: int
    tasks: int
    cpus: int


def resized_shape(fields: Mapping[str, str], nodes: int) -> JobShape | str:
    """The job of these `scontrol show job` fields with another number of nodes; or why Slurm cannot be told
    so.
    """
    for name in _OF_THE_WHOLE:
        counted = [part for part in fields.get(name, "").split(",") if part not in _NONE]
        if any(not part.startswith("cpu") for part in counted):
            return f"{name}={fields[name]} counts for the whole job or for each task"
    if fields.get("ReqNodeList", "") not in _NONE:
        return "it names its nodes"
    before, tasks, cpus = (_exactly(fields.get(name, "")) for name in ("NumNodes", "NumTasks", "NumCPUs"))
    if not before or not tasks or not cpus:
        return "Slurm shows no plain numbers of nodes, tasks and CPUs"
    if tasks * nodes % before or cpus * nodes % before:
        return f"{tasks} tasks with {cpus} CPUs on {before} nodes cannot be dealt out over {nodes}"
    return JobShape(nodes, tasks * nodes // before, cpus * nodes // before)


def has_shape(fields: Mapping[str, str], shape: JobShape) -> bool:
    """Whether Slurm shows the job in this shape."""
    found = tuple(_exactly(fields.get(name, "")) for name in ("NumNodes", "NumTasks", "NumCPUs"))
    return found == (shape.nodes, shape.tasks, shape.cpus)


def _exactly(text: str) -> int:
    """4 for "4" or "4-4"; 0 for a range or no number."""
    least, _, most = text.partition("-")
    return int(least) if least.isdigit() and most in ("", least) else 0
