"""The nouns of ftrun as frozen records. (pure)

Fault classes, evidence, diagnosis and decision: what passes between the scanner, the diagnosis, the policy and the
loop. No behaviour beyond small derived facts; the life of a run is in `lifecycle`, its history in `events`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum
from typing import Any

from ftrun.slurm.records import dataclass

__all__ = [
    "Action",
    "Blame",
    "Decision",
    "Diagnosis",
    "Evidence",
    "FaultClass",
    "Layer",
    "Loading",
    "Proof",
    "Role",
    "Source",
    "Topology",
]


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


@dataclass(frozen=True, slots=True)
class Proof:
    """One line that a diagnosis rests on."""

    file: str
    line: int
    text: str
    signature: str


@dataclass(frozen=True, slots=True)
class Topology:
    """Who sits where: rank -> node ("" where two lines put it on two), address -> node, rank -> device on its node. Empty where unknown; never guessed."""

    nodes: tuple[str, ...] = ()
    rank_node: Mapping[int, str] = field(default_factory=dict)
    address_node: Mapping[str, str] = field(default_factory=dict)
    rank_device: Mapping[int, str] = field(
        default_factory=dict
    )  # a PCI address or an index, as the line has it

    def node_of(self, name: str) -> str | None:
        """The node that a host name, an address or a rank ("rank 3") stands for; None when it is not of this attempt."""
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

    `path` is the checkpoint (absolute), `error` its words in no order, without paths and numbers: the same words again are the same error; `text` the line itself.
    `named`: the words name the checkpoint, or the catalog knows them for a broken one. `verdict` is one of: aside (the checkpoint is to blame),
    program (every checkpoint gives this error), again (one more start from it tells), "" (nothing follows). `back`: checkpoints that were set aside for this very error, and are good again.
    """

    path: str
    error: str = ""
    text: str = ""
    named: bool = False
    verdict: str = ""
    back: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The cause chosen from the evidence.

    `nodes` are culprits by name (hosts; "rank N" where no host is known), `exclude` says that the next attempt should avoid
    them (or the one that Slurm will name), `retry` whether an unchanged resubmission makes sense.
    `rests_on` lists what earned the confidence.
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
        }


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
    ask: tuple[str, ...] = ()  # nodes that the site's operator is asked to drain, where this user may not
    delay_s: float = 0.0
    spends: str = ""  # the class whose budget pays for it; "" = free
    older_checkpoint: bool = False  # set the checkpoint aside that this attempt resumed from
    fresh: bool = False  # no checkpoint may be loaded, and the next start begins from nothing all the same
    anyway: bool = False  # the next script starts whatever the checks before it find
    aside: int = 0  # a size of the run that provoked the fault, and is not used again; 0 = none
    advice: str = ""
    notes: tuple[str, ...] = ()  # what was considered on the way, for `explain`

    def to_json(self) -> dict[str, Any]:
        """A decision as journal data."""
        plain: Mapping[str, Any] = dataclasses.asdict(self)
        return {key: list(value) if isinstance(value, tuple) else value for key, value in plain.items()}
