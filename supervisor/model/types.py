"""Records that pass between scanner, diagnosis, policy and loop: evidence, diagnosis, decision. (pure)

Frozen records without behaviour beyond small derived facts. Also here: the verdict on a start that may
hang, the result of the checks before the script, the fixed words in a journal by which an end is
recognised, and the defaults of each fault class. The states of a run are in `states`, the run itself in
`run`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from dataclasses import field
from enum import StrEnum
from typing import Any, Literal

from ftrun.slurm.records import dataclass


class FaultClass(StrEnum):
    """The fault classes (a surface: names never change). `HEALTHY` is the absence of a fault."""

    HARDWARE_GPU = "hardware-gpu"
    HARDWARE_OTHER = "hardware-other"
    NETWORK = "network"
    STORAGE = "storage"
    NODE = "node"
    SCHEDULER = "scheduler"
    OOM_GPU = "oom-gpu"
    OOM_HOST = "oom-host"
    USER_CODE = "user-code"
    DATA = "data"
    CHECKPOINT = "checkpoint"
    PREEMPTED = "preempted"
    TIMELIMIT = "timelimit"
    CANCELLED = "cancelled"
    HANG = "hang"
    LIBRARY_BUG = "library-bug"
    CONFIG = "config"
    PORT_CONFLICT = "port-conflict"
    UNKNOWN = "unknown"
    HEALTHY = "healthy"


class Role(StrEnum):
    """What a matching line is in the story of a fault."""

    CAUSE = "cause"  # can be the reason by itself
    CONSEQUENCE = "consequence"  # follows from something else: counted, never blamed
    EITHER = "either"  # a cause only where nothing better is known
    INFO = "info"  # worth recording; no fault (link flap, corrected error, warning)
    SEAT = "seat"  # tells which rank or address is on which host; no evidence of anything


class Blame(StrEnum):
    """Whose fault a signature says it is."""

    NODE = "node"
    DEVICE = "device"
    LINK = "link"
    JOB = "job"
    CLUSTER = "cluster"
    UNKNOWN = "unknown"


class Layer(StrEnum):
    """The part of the machine, or of what runs on it, that a signature is about."""

    HARDWARE = "hardware"  # accelerators, their memory and links, processors, DRAM, PCIe, power, cooling
    NETWORK = "network"
    STORAGE = "storage"
    NODE = "node"  # the host: its kernel, its daemons, its clock
    SCHEDULER = "scheduler"
    RUNTIME = "runtime"  # CUDA, ROCm, CANN, collectives, MPI, containers
    FRAMEWORK = "framework"
    USER = "user"


class Source(StrEnum):
    """Where a piece of evidence comes from. LOG can be written by users: a claim, not proof."""

    LOG = "log"  # the job's own output
    KERNEL = "kernel"  # root's kernel log, read by a probe
    COUNTER = "counter"  # what a driver's tool counts (nvidia-smi, npu-smi, rdma), read by a probe
    BMC = "bmc"  # the board's own event log
    SLURM = "slurm"  # Slurm's record of job or node
    EXIT = "exit"  # the exit record that batch.sh wrote
    CHECK = "check"  # a health check that ftrun itself ran
    REPORT = "report"  # a health check that ran inside the job, as its user: a claim about its own attempt
    SILENCE = "silence"  # no step, no output for longer than the run's own habit
    CHECKPOINT = "checkpoint"  # what the checkpoint folder says


class Action(StrEnum):
    """What a signature recommends, before policy has its say."""

    NONE = "none"
    RESTART = "restart"
    RESUBMIT = "resubmit"
    EXCLUDE = "exclude"  # resubmit without the culprit node
    DRAIN = "drain"  # exclude, and drain where corroborated and allowed
    WAIT = "wait"  # resubmit after a back-off
    STOP = "stop"


@dataclass(frozen=True, slots=True)
class Evidence:
    """One fact with its source.

    `order` sorts facts of one attempt by when they were *written* as far as known (file order for logs);
    `at_s` is the Unix time when ftrun saw it, or the line's own time stamp, None where neither is known.
    `captures` names what the line itself names: host, rank, local_rank, pci, device, ip, peer, step, code.
    `file_rank` and `file_node`: whose file it is, where each rank or node writes one of its own.
    """

    source: Source
    signature: str
    text: str
    file: str = ""
    line: int = 0
    offset_bytes: int = 0
    order: int = 0
    at_s: float | None = None
    captures: Mapping[str, str] = field(default_factory=dict)
    count: int = 1
    progress_after: bool = False  # training went on after this line: it was survived
    step: int | None = None  # the highest that its file had printed by then
    calm_after: bool = False  # a loss as low as before was printed after this line
    file_rank: int | None = None
    file_node: str = ""


@dataclass(frozen=True, slots=True)
class Proof:
    """One line that a diagnosis rests on."""

    file: str
    line: int
    text: str
    signature: str


@dataclass(frozen=True, slots=True)
class Topology:
    """Which rank is where: rank -> node ("" if two lines disagree), address -> node, rank -> device on its
    node. Empty if unknown; never guessed.
    """

    nodes: tuple[str, ...] = ()
    rank_node: Mapping[int, str] = field(default_factory=dict)
    address_node: Mapping[str, str] = field(default_factory=dict)
    rank_device: Mapping[int, str] = field(
        default_factory=dict
    )  # a PCI address or an index, as the line has it

    def node_of(self, name: str) -> str | None:
        """Return the node of a host name, an address or a rank ("rank 3"); None if unknown here."""
        if name in self.nodes:
            return name
        short = name.split(".", 1)[0]
        if short in self.nodes:
            return short
        if name in self.address_node:
            return self.address_node[name]
        if name.startswith("rank "):
            number = name.removeprefix("rank ")
            return (self.rank_node.get(int(number)) or None) if number.isdigit() else None
        return None


@dataclass(frozen=True, slots=True)
class Loading:
    """A start that resumed from a checkpoint and failed before its first new step.

    `path` is the checkpoint (absolute); `text` the line; `error` its words, sorted, without paths and
    numbers, so that equal words are the same error. `named`: the words name the checkpoint, or the catalogue
    knows them for a broken one. `verdict` is one of: aside (the checkpoint is to blame), program (every
    checkpoint gives this error), again (one more start from it will tell), "" (nothing follows). `back`:
    checkpoints that were set aside for this error and are good again.
    """

    path: str
    error: str = ""
    text: str = ""
    named: bool = False
    verdict: str = ""
    back: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Opinion:
    """What a language model that the user chose said of an end (docs/second-opinion.md): a guess by text.

    `suspect` is a node of the job, "" = none; `by` names model and host.
    """

    fault: FaultClass
    retry: bool
    suspect: str = ""
    reason: str = ""
    by: str = ""

    @property
    def words(self) -> str:
        """The opinion in one line."""
        where = f", suspects {self.suspect}" if self.suspect else ""
        again = "a retry makes sense" if self.retry else "a retry would fail again"
        reason = f": {self.reason}" if self.reason else ""
        return f"{self.fault.value}, {again}{where}{reason}"

    def to_json(self) -> dict[str, Any]:
        """The opinion as journal data."""
        return {
            "class": self.fault.value,
            "retry": self.retry,
            "suspect": self.suspect,
            "reason": self.reason,
            "by": self.by,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Opinion:
        """The opinion of a record. Raises LookupError, ValueError."""
        reason, by = str(data.get("reason", "")), str(data.get("by", ""))
        return cls(FaultClass(data["class"]), data["retry"] is True, str(data["suspect"]), reason, by)


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The cause chosen from the evidence.

    `nodes` are culprits by name (hosts; "rank N" where no host is known), `exclude` says that the next
    attempt should avoid them (or the one that Slurm will name), `retry` whether an unchanged resubmission
    makes sense. `rests_on` lists what earned the confidence.
    """

    fault: FaultClass
    retry: bool
    action: Action
    nodes: tuple[str, ...]
    exclude: bool
    confidence: float  # 0..1
    signature: str  # "" when nothing matched
    title: str
    because: tuple[Proof, ...] = ()
    consequences: int = 0
    advice: str = ""
    blame: Blame = Blame.UNKNOWN
    rests_on: tuple[str, ...] = ()
    sources: tuple[Source, ...] = ()  # the distinct sources that agree on the cause
    suspicious: tuple[Proof, ...] = ()  # for `unknown`: the lines a person should look at
    loading: Loading | None = None  # of a start that failed before its first new step
    opinion: Opinion | None = None  # class and retry are those of a second opinion: the budget is unknown's

    def to_json(self) -> dict[str, Any]:
        """A diagnosis as the surface of `diagnose --json` names its parts."""
        return {
            "class": self.fault.value,
            "retry": self.retry,
            "action": self.action.value,
            "nodes": list(self.nodes),
            "exclude": self.exclude,
            "confidence": round(self.confidence, 3),
            "signature": self.signature,
            "title": self.title,
            "because": [dataclasses.asdict(proof) for proof in self.because or self.suspicious],
            "consequences": self.consequences,
            "advice": self.advice,
            "rests_on": list(self.rests_on),
            "sources": [source.value for source in self.sources],
            **({"loading": dataclasses.asdict(self.loading)} if self.loading is not None else {}),
            **({"opinion": self.opinion.to_json()} if self.opinion is not None else {}),
        }


PROOF_CHARS = 300


def first_proof(diagnosis: Mapping[str, Any], *, text: bool = True) -> str:
    """`FILE:LINE: TEXT` of the first line that proves a diagnosis (its JSON), or only its place; "" for none."""
    proof = next(iter(diagnosis.get("because") or ()), None)
    if not proof:
        return ""
    place = f"{proof['file']}:{proof['line']}"
    return f"{place}: {' '.join(proof['text'].split())[:PROOF_CHARS]}" if text else place


def cause_line(diagnosis: Mapping[str, Any]) -> str:
    """A diagnosis (its JSON) in a few words: class, title, and the place of its proof; "" for none."""
    if not diagnosis:
        return ""
    place = first_proof(diagnosis, text=False)
    return f"{diagnosis['class']}: {' '.join(diagnosis['title'].split())}" + (f" ({place})" if place else "")


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do after a launch is over, and why.

    `kind` is one of: resubmit (a new attempt), keep (Slurm starts the requeued job itself), finish, stop.
    """

    kind: str
    reason: str
    exclude: tuple[str, ...] = ()  # nodes that this and later attempts avoid
    relax: tuple[str, ...] = ()  # exclusions given up to stay under the cap
    avoid: tuple[str, ...] = ()  # nodes that the next attempt alone avoids ("try elsewhere first")
    drain: tuple[str, ...] = ()
    ask: tuple[str, ...] = ()  # nodes that the site's service is asked to drain, where this user may not
    delay_s: float = 0.0
    spends: str = ""  # the class whose budget pays for it; "" = free
    older_checkpoint: bool = False  # set the checkpoint aside that this attempt resumed from
    fresh: bool = False  # no checkpoint may be loaded, and the next start begins from nothing all the same
    anyway: bool = False  # the next script starts whatever the checks before it find
    aside: int = 0  # a size of the run that provoked the fault, and is not used again; 0 = none
    more: Mapping[str, str] = field(
        default_factory=dict
    )  # options of sbatch from now on, such as mem -> 768M
    advice: str = ""
    notes: tuple[str, ...] = ()  # what was considered on the way, for `explain`

    def to_json(self) -> dict[str, Any]:
        """A decision as journal data."""
        plain: Mapping[str, Any] = dataclasses.asdict(self)
        return {key: list(value) if isinstance(value, tuple) else value for key, value in plain.items()}


class HangState(StrEnum):
    """The state of a start as hang detection sees it."""

    HEALTHY = "healthy"
    QUIET = "quiet"
    SUSPECT = "suspect"
    HUNG = "hung"


@dataclass(frozen=True, slots=True)
class HangVerdict:
    """The verdict on a start now. `threshold_s`: the silence at which it would count as hung; None = at none,
    by what is known now.

    `wants_stacks`: a sample of the stacks of all ranks is wanted for a later `observe`. `behind`: who is
    behind, if known. `rank_ended`: srun had reported by then that a task of the start ended by itself.
    """

    state: HangState
    quiet_s: float
    threshold_s: float | None
    reason: str
    behind: tuple[str, ...] = ()
    wants_stacks: bool = False
    rank_ended: bool = False


def hang_verdict_to_json(verdict: HangVerdict) -> dict[str, Any]:
    """What the journal keeps of a verdict, suspected or decided."""
    return {
        "quiet_s": round(verdict.quiet_s, 1),
        "threshold_s": verdict.threshold_s,
        "behind": list(verdict.behind),
        "reason": verdict.reason,
        **({"rank_ended": True} if verdict.rank_ended else {}),
    }


def hang_verdict_from_json(data: Mapping[str, Any]) -> HangVerdict:
    """The verdict of a record `hang.decided`. Raises LookupError, TypeError, ValueError."""
    behind = tuple(str(one) for one in data["behind"])
    threshold_s = None if data["threshold_s"] is None else float(data["threshold_s"])
    reason, rank_ended = str(data["reason"]), data.get("rank_ended") is True
    return HangVerdict(
        HangState.HUNG, float(data["quiet_s"]), threshold_s, reason, behind, rank_ended=rank_ended
    )


PRELAUNCH_SCHEMA = 1
TEXT_CHARS = 400


@dataclass(frozen=True, slots=True)
class PrelaunchHold:
    """What the preflight of a launch found: node -> its worst finding (check, fault, device, message)."""

    bad: Mapping[str, Mapping[str, str]]
    nodes: int


def parse_prelaunch_hold(table: object, nodes: Collection[str]) -> PrelaunchHold | None:
    """Return the findings on these nodes in a preflight record (see `hooks/health/preflight.py`); None if it
    did not hold the script, or is no such record.
    """
    if (
        not isinstance(table, Mapping)
        or table.get("schema") != PRELAUNCH_SCHEMA
        or table.get("held") is not True
    ):
        return None
    told = table.get("bad")
    if not isinstance(told, Mapping):
        return None
    bad = {
        node: {key: str(finding.get(key, ""))[:TEXT_CHARS] for key in ("check", "fault", "device", "message")}
        for node, finding in told.items()
        if node in nodes and isinstance(finding, Mapping)
    }
    return PrelaunchHold(bad, len(nodes)) if bad else None


# How it ended (`reason` of job.ended).
STARTED_TWICE = "started twice by Slurm"
CLOSED = "closed before it started"
LOST_TRACK = "in the queue again under the same count"
UNKNOWN_TO_SLURM = "Slurm does not know the job any more"
UNWATCHED = f"{UNKNOWN_TO_SLURM}, and nobody watched how it ended"
LEFT_THE_QUEUE = "left the queue unstarted while nobody watched"

# Why we end it (`reason` of end.intended begins so, or has it).
WITHOUT_SCRIPT = "Slurm keeps the job, but nobody runs the script"
NEAR_TIME_LIMIT = "its time limit is near"
MOVED_OFF = "moved off"

UNLIMITED = 1_000_000


@dataclass(frozen=True, slots=True)
class ClassRule:
    """Defaults of one class: attempts without progress, how culprits are treated, whether waiting helps.

    `exclude`: always | proven (more than the log says so, or the same culprit before) | never.
    """

    budget: int
    exclude: Literal["always", "proven", "never"] = "never"
    drain: bool = False
    elsewhere: bool = False  # the second try goes to other nodes first
    back_off: float = (
        0.0  # the cause passes with time: wait from the first retry on, so many times the setting
    )


CLASS_RULES: Mapping[FaultClass, ClassRule] = {
    FaultClass.HARDWARE_GPU: ClassRule(5, exclude="always", drain=True, elsewhere=True),
    FaultClass.HARDWARE_OTHER: ClassRule(5, exclude="always", drain=True, elsewhere=True),
    FaultClass.NODE: ClassRule(5, exclude="always", drain=True),
    FaultClass.NETWORK: ClassRule(5, exclude="proven", elsewhere=True),
    FaultClass.STORAGE: ClassRule(3, exclude="proven", back_off=2.0),
    FaultClass.SCHEDULER: ClassRule(5, back_off=6.0),
    FaultClass.PREEMPTED: ClassRule(UNLIMITED),
    FaultClass.TIMELIMIT: ClassRule(UNLIMITED),
    FaultClass.HANG: ClassRule(3, exclude="proven", elsewhere=True),
    FaultClass.CHECKPOINT: ClassRule(UNLIMITED),
    FaultClass.PORT_CONFLICT: ClassRule(3),
    FaultClass.LIBRARY_BUG: ClassRule(1),
    FaultClass.UNKNOWN: ClassRule(1, elsewhere=True),
    FaultClass.OOM_GPU: ClassRule(0, exclude="always"),
    FaultClass.OOM_HOST: ClassRule(0, exclude="always"),
    FaultClass.USER_CODE: ClassRule(0),
    FaultClass.DATA: ClassRule(0),
    FaultClass.CONFIG: ClassRule(0),
    FaultClass.CANCELLED: ClassRule(0),
    FaultClass.HEALTHY: ClassRule(1),
}


@dataclass(frozen=True, slots=True)
class CheckpointState:
    """What is known of checkpoints at one moment.

    `path` is the newest complete one by the rule of `checkpoints.newest` ("" = none), `stamp` identifies one
    writing of it (`checkpoints.stamp`), `step` is the one in its name (`checkpoints.step_of`), `logged` the
    highest step that the log reports as saved. `quiet_s`: how long path and stamp have been unchanged;
    `marked`: it has the marker; `overtaken`: the one before, of which the newest has taken the place.
    """

    path: str = ""
    stamp: str = ""
    step: int | None = None
    logged: int | None = None
    quiet_s: float = 0.0
    marked: bool = False
    overtaken: CheckpointState | None = None

    def to_json(self) -> dict[str, Any]:
        """What the journal keeps at the time of the request."""
        return {"path": self.path, "stamp": self.stamp, "step": self.step, "logged": self.logged}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> CheckpointState:
        """The inverse of `to_json`."""
        return cls(data.get("path", ""), data.get("stamp", ""), data.get("step"), data.get("logged"))
