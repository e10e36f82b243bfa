"""The words of a drill: what is launched, what is hurt and when, what must come of it. (pure)"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any, Protocol

from ftrun.slurm.records import dataclass
from ftrun.supervisor.run_types import Run

__all__ = [
    "Check",
    "Event",
    "Expect",
    "Fault",
    "Hands",
    "Ledger",
    "Move",
    "Result",
    "Row",
    "Scenario",
    "Sight",
    "Staging",
    "Story",
]


@dataclass(frozen=True, slots=True)
class Fault:
    """The trainer hurts itself: `what` (see trainer.FAULTS) at any of `steps`, by `rank` (-1: all).

    `starts` narrows it to starts of the script by number, from 1; () is every start. `sticky` makes the node it first struck a bad
    one, where it strikes again; `once` lets it strike each rank a single time, however often that one starts.
    """

    what: str
    steps: tuple[int, ...]
    rank: int = -1
    starts: tuple[int, ...] = ()
    sticky: bool = False
    once: bool = False


@dataclass(frozen=True, slots=True)
class Ledger:
    """What the trainer wrote down about itself, in the order of writing: JSON objects, see trainer.Trainer.note."""

    steps: tuple[Mapping[str, Any], ...] = ()
    saves: tuple[Mapping[str, Any], ...] = ()
    saving: tuple[Mapping[str, Any], ...] = ()
    hurts: tuple[Mapping[str, Any], ...] = ()
    ranks: tuple[Mapping[str, Any], ...] = ()
    refused: tuple[Mapping[str, Any], ...] = ()
    ends: tuple[Mapping[str, Any], ...] = ()
    finals: tuple[Mapping[str, Any], ...] = ()

    @property
    def step(self) -> int:
        """The last step of training; 0 before the first."""
        return int(self.steps[-1]["step"]) if self.steps else 0

    @property
    def start(self) -> int:
        """The start of the script that made the last step; 0 before the first."""
        return int(self.steps[-1]["start"]) if self.steps else 0

    def node_of(self, rank: int, start: int) -> str:
        """The node on which a rank was placed in this start; "" when it has not begun."""
        placed = (line for line in self.ranks if (line["rank"], line["start"]) == (rank, start))
        return next((str(line["node"]) for line in placed), "")


@dataclass(frozen=True, slots=True)
class Sight:
    """What a drill sees at one moment. `since_move_s`: seconds since the last move (or the submission)."""

    run: Run
    ledger: Ledger
    since_move_s: float
    supervised: bool  # a supervisor process of this drill lives
    reasons: Mapping[str, str] = field(default_factory=dict)  # node -> why Slurm holds it back
    published: tuple[int, ...] = ()  # steps of the staged checkpoints that are on disk as a whole
    sealed: Mapping[str, tuple[int, ...]] = field(
        default_factory=dict
    )  # node -> steps it has a whole part of
    copied: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # the same of what another node has


class Hands(Protocol):
    """What a drill can do to the job, the nodes, Slurm and the supervisor."""

    def crash(self, node: str) -> None:
        """The node loses power."""

    def freeze(self, node: str) -> None:
        """Everything on the node stops."""

    def mend(self, node: str) -> None:
        """The node is as before."""

    def lose_memory(self, node: str) -> None:
        """The memory controller of the node counts an uncorrected error."""

    def lose_gpu(self, node: str) -> None:
        """The driver of the node has lost a GPU, for whoever looks at the node."""

    def mend_gpu(self, node: str) -> None:
        """The driver of the node answers again."""

    def drain(self, node: str) -> None:
        """An administrator drains the node."""

    def controller_down(self) -> None:
        """slurmctld ends."""

    def controller_up(self) -> None:
        """slurmctld is started again."""

    def kill_supervisor(self) -> None:
        """SIGKILL to the supervisor."""

    def kill_agent(self) -> None:
        """SIGKILL to the agent beside the script."""

    def ftrun(self, *words: str) -> None:
        """Run an ftrun command to its end."""

    def scancel(self, job: str) -> None:
        """As the user would."""

    def submit_plain(self, *words: str) -> None:
        """Submit a job that is not ftrun's."""

    def kill_keepers(self) -> None:
        """SIGKILL to whatever keeps staged checkpoints, on all nodes."""

    def fill_disk(self) -> None:
        """No byte of the disk that is published to is left."""

    def free_disk(self) -> None:
        """As much of it is left as there was."""


@dataclass(frozen=True, slots=True)
class Move:
    """One act of the drill: done as soon as `when` holds and all moves before it are done.

    Where the act is a fault, `hurts` tells which node it hurts. With `repeats`, the last move is made again whenever `when` holds.
    """

    says: str
    when: Callable[[Sight], bool]
    act: Callable[[Hands, Sight], None]
    hurts: Callable[[Sight], str] | None = None  # "" = no node in particular
    repeats: bool = False


@dataclass(frozen=True, slots=True)
class Expect:
    """What must be true at the end. In `classes` "a|b" is either and "a?" may be missing.

    `blamed`: "hurt" = exactly the hurt nodes by the first incident, "nobody" = no node, "" = not asked.
    `avoided`: the last start runs on no hurt node. `rungs`: what was decided, in order ("swap", "step", "resubmit"); () = not asked.
    `sizes`: on how many nodes each start of the script trained, in order. `stayed`: with `rejoin`, every rank but the hurt one keeps its process. `again_within_s`: so long after each fault training runs again.
    """

    end: str = "finished"
    classes: tuple[str, ...] = ()
    blamed: str = ""
    avoided: bool = False
    attempts: int | tuple[int, int] = 1
    starts: int | None = None
    sizes: tuple[int, ...] = ()
    rungs: tuple[str, ...] = ()
    stayed: bool = False
    again_within_s: float | None = None
    reason: str = ""
    evidence: str = ""
    no_evidence: str = ""  # signatures with this word, of lines that somebody else's job wrote
    steps_lost_max: int | None = None
    ended_by_us: bool | None = None
    answer: str = ""  # of the operator to the run's request
    held: int | None = None  # how many nodes bear a drain reason of ftrun's in the end
    resumed_min: tuple[int, ...] = ()  # at which step each start began, at least
    read_from: str = ""  # where every rank of the last start read its file: "memory" or "disk"
    published: tuple[int, ...] = ()  # steps that are on disk in the end, as a whole


@dataclass(frozen=True, slots=True)
class Staging:
    """Checkpoints are staged in the memory of the nodes.

    `way`: by the hook, or by writing into FTRUN_STAGE_DIR ("path"). `pad_kib` is how large each rank's file is, `memory_mib` the /dev/shm of
    each node, `disk_mib` the disk that is published to (0 = whatever is there; else a disk of its own, which only root can have).
    """

    way: str = "hook"
    pad_kib: int = 256
    memory_mib: int = 1536
    disk_mib: int = 0


@dataclass(frozen=True, slots=True)
class Scenario:
    """One drill as data."""

    name: str
    title: str
    expect: Expect
    faults: tuple[Fault, ...] = ()
    moves: tuple[Move, ...] = ()
    ranks: int = 3
    spares: int = 0
    rejoin: bool = False  # ranks wait for the successor of a lost one
    companions: bool = False  # idle nodes may be asked for as companions
    beat: bool = False  # ranks tell where they are
    steps: int = 30
    every: int = 4
    step_s: float = 0.2
    save_s: float = 0.0
    load_s: float = 0.0  # for so long every start but the first is silent before its first step
    stage: Staging | None = None
    collective_timeout_s: float = 120.0
    on_timeout: str = "exit"
    on_loss: str = "exit"
    loader: str = ""  # of a bad checkpoint: "" = torch's words, own = other words, silent = none; bug: it can load none at all
    kill_on_bad_exit: bool = False
    sbatch: tuple[str, ...] = ()
    srun: tuple[str, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    box: Mapping[str, str] = field(default_factory=dict)  # slurm.conf of its sandbox
    nodes: int = 4
    chain: int = 1  # jobs that depend on each other; the first is hurt
    needs_sandbox: bool = False
    operator: bool = False  # nodes can be looked at over SSH, and the site has an operator's spool
    counters: bool = False  # the watch reads counters of this drill, not those of the machine
    sick: str = ""  # a node whose memory has failed before the job begins; needs `counters`
    quick: bool = False  # one of the few that every test run takes
    linger_s: float = 0.0  # how long after the end nothing more may happen
    timeout_s: float = 300.0  # only what hangs takes so long, however loaded the machine is

    @property
    def needs_root(self) -> bool:
        """A disk of its own is mounted for it."""
        return self.stage is not None and self.stage.disk_mib > 0


@dataclass(frozen=True, slots=True)
class Story:
    """Everything that was seen of one drill when it was over. `hurts`: at, what, node; Unix seconds."""

    runs: tuple[Run, ...]
    ledgers: tuple[Ledger, ...]
    hurts: tuple[Mapping[str, Any], ...]
    checkpoints: Mapping[str, Mapping[str, Any] | str]  # path -> its content, or why it cannot be read
    reasons: Mapping[str, str] = field(default_factory=dict)  # node -> why Slurm holds it back in the end
    left: tuple[str, ...] = ()  # jobs of the training that wait or run when all is over
    published: Mapping[str, Mapping[str, Any] | str] = field(
        default_factory=dict
    )  # the same of published ones
    in_memory: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # node -> jobs whose files it has
    timed_out: bool = False
    failure: str = ""


@dataclass(frozen=True, slots=True)
class Check:
    """One expectation: what was wanted, whether it held, what was seen. `timed`: it is about seconds, and so about the machine, too."""

    wanted: str
    held: bool
    seen: str = ""
    timed: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """One fault in the table at the end; None where there is nothing to tell."""

    fault: str
    detected_after_s: float | None = None
    diagnosed_as: str | None = None
    node_blamed: str | None = None
    action: str | None = None
    running_after_s: float | None = None
    steps_lost: int | None = None
    finished: str | None = None
    phases: Mapping[str, float] = field(default_factory=dict)  # phase -> seconds after the fault


@dataclass(frozen=True, slots=True)
class Event:
    """A line of the live view. A passing one says how the drill stands and is not kept."""

    drill: str
    after_s: float
    text: str
    passing: bool = False


@dataclass(frozen=True, slots=True)
class Result:
    """How one drill went. `folder` is "" when it was removed."""

    name: str
    title: str
    held: bool
    rows: tuple[Row, ...]
    checks: tuple[Check, ...]
    events: tuple[Event, ...]
    took_s: float
    folder: str
