"""A drill as data: the training, the faults and their times, and the expected outcome. (pure)

A table of drills is a TOML file whose [[drill]] rows have the fields of `Scenario`. Faults strike inside a
rank of the training (`drill_trainer.faults`). Actions come from outside, each as soon as its conditions hold
(`observation.CONDITIONS`) and all earlier actions are done. Conditions refer to steps and states, so a slow
machine makes a drill longer but not wrong.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import field
from typing import Any, NamedTuple

from ftrun.slurm.records import dataclass


class ActionKind(NamedTuple):
    """Its name in the timeline, whether it is a fault, and whether it is for sandboxes only."""

    says: str
    fault: bool = False
    sandbox_only: bool = True


ACTIONS: Mapping[str, ActionKind] = {
    "crash": ActionKind("a node loses power", fault=True),
    "freeze": ActionKind("a node freezes", fault=True),
    "mend": ActionKind("the node thaws"),
    "drain": ActionKind("an administrator drains a node", fault=True),
    "lose_memory": ActionKind("memory loses data", fault=True),
    "lose_gpu": ActionKind("a driver loses its GPU", fault=True),
    "mend_gpu": ActionKind("the GPU is replaced"),
    "stop_controller": ActionKind("slurmctld ends", fault=True),
    "start_controller": ActionKind("slurmctld comes back"),
    "fill_disk": ActionKind("the disk is full", fault=True),
    "free_disk": ActionKind("there is room on the disk"),
    "occupy": ActionKind("strangers take the other nodes"),
    "vacate": ActionKind("the strangers leave"),
    "urgent_job": ActionKind("an urgent job wants all nodes", fault=True),
    "kill_staging_daemons": ActionKind("the staging daemons are killed"),
    "kill_supervisor": ActionKind("the supervisor is killed", sandbox_only=False),
    "kill_agent": ActionKind("the agent is killed", sandbox_only=False),
    "scancel": ActionKind("the user says scancel", fault=True, sandbox_only=False),
    "ftrun": ActionKind("somebody runs ftrun", sandbox_only=False),
}


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault inside the trainer: `what` (see faults.FAULTS) strikes `rank` (-1: all) at `steps` or at
    `any_step`.

    `starts` limits it to these starts of the script, numbered from 1; () is every start. `sticky` makes the
    node it first struck a bad one, where it strikes again; `once` lets it strike each rank only once, however
    often that rank starts.
    """

    what: str
    steps: tuple[int, ...] = ()
    any_step: bool = False
    rank: int = -1
    starts: tuple[int, ...] = ()
    sticky: bool = False
    once: bool = False


@dataclass(frozen=True, slots=True)
class Action:
    """One action from outside: `do` (see ACTIONS) as soon as all conditions of `when` hold.

    It acts on the node of `rank` in start `of_start`, or on spare number `spare` of the job, and waits until
    that node is known. With `repeats`, the last action is repeated whenever `when` holds.
    """

    do: str
    when: Mapping[str, Any]
    rank: int | None = None
    of_start: int = 1
    spare: int | None = None
    nodes: int = 1  # how many strangers take ("occupy")
    words: tuple[str, ...] = ()  # the command line of "ftrun"; {run} stands for the run's id
    says: str = ""  # instead of the usual words of ACTIONS
    fault: bool | None = None  # instead of what ACTIONS says
    repeats: bool = False

    @property
    def title(self) -> str:
        """Its text in the timeline."""
        return self.says or ACTIONS[self.do].says

    @property
    def is_fault(self) -> bool:
        """Whether the run has to recover from it."""
        return ACTIONS[self.do].fault if self.fault is None else self.fault

    @property
    def has_target(self) -> bool:
        """Whether it acts on one node."""
        return self.rank is not None or self.spare is not None


@dataclass(frozen=True, slots=True)
class Expectation:
    """The expected outcome. In `classes`, "a|b" is either class, and "a?" may be missing.

    `blamed`: "hurt" = the first incident blames exactly the hurt nodes, "nobody" = no node, "" = not checked.
    `avoided`: the last start runs on no hurt node. `rungs`: the decisions in order ("swap", "step",
    "resubmit"); () = not checked. `sizes`: the number of nodes of each start of the script, in order.
    `processes_kept`: every rank but the hurt one keeps its process (for drills that restart single ranks).
    `again_within_s`: training runs again within this time after each fault.
    """

    end: str = "finished"
    classes: tuple[str, ...] = ()
    blamed: str = ""
    avoided: bool = False
    attempts: int | tuple[int, int] = 1
    starts: int | None = None
    sizes: tuple[int, ...] = ()
    rungs: tuple[str, ...] = ()
    processes_kept: bool = False
    again_within_s: float | None = None
    reason: str = ""
    told: str = ""  # words in the reason of a decision
    evidence: str = ""
    no_evidence: str = ""  # signatures with this word, of lines that another job wrote
    steps_lost_max: int | None = None
    ended_by_us: bool | None = None
    site_answer: str = ""  # of the site's service, to the run's request
    drained_nodes: int | None = None  # how many nodes have a drain reason of ftrun in the end
    resumed_from_min: tuple[int, ...] = ()  # at which step each start began, at least
    read_from: str = ""  # where every rank of the last start read its file: "memory" or "disk"
    published: tuple[int, ...] = ()  # steps whose checkpoint is complete on disk in the end

    @property
    def attempts_range(self) -> tuple[int, int]:
        """The fewest and the most attempts."""
        return self.attempts if isinstance(self.attempts, tuple) else (self.attempts, self.attempts)


@dataclass(frozen=True, slots=True)
class Staging:
    """How checkpoints are staged in the memory of the nodes.

    `way`: by the hook, or by writing into FTRUN_STAGE_DIR ("path"). `pad_kib`: size of each rank's file;
    `memory_mib`: /dev/shm of each node; `disk_mib`: size of the disk for published checkpoints (0: no disk of
    its own; else the drill needs root to mount one).
    """

    way: str = "hook"
    pad_kib: int = 256
    memory_mib: int = 1536
    disk_mib: int = 0


@dataclass(frozen=True, slots=True)
class Scenario:
    """One drill."""

    name: str
    title: str
    expect: Expectation
    faults: tuple[Fault, ...] = ()
    actions: tuple[Action, ...] = ()
    ranks: int = 3
    spares: int = 0
    rejoin: bool = False  # ranks wait for the successor of a lost one
    companions: bool = False  # the agent may request companions on idle nodes
    heartbeats: bool = False
    steps: int = 30
    save_every: int = 4
    step_s: float = 0.2
    save_s: float = 0.0
    load_s: float = 0.0  # every start but the first is silent for this time before its first step
    stage: Staging | None = None
    collective_timeout_s: float = 120.0
    on_timeout: str = "exit"
    on_peer_lost: str = "exit"
    # How a bad checkpoint fails to load: as in torch (""), "own" error, "silent"; "bug": all fail.
    loader: str = ""
    kill_on_bad_exit: bool = False
    sbatch: tuple[str, ...] = ()
    srun: tuple[str, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    slurm_conf: Mapping[str, str] = field(default_factory=dict)  # of its sandbox
    nodes: int = 4
    topology: str = ""  # topology.conf of its sandbox
    segment: int = 0  # so many ranks in a row start only below one leaf of it
    chain: int = 1  # jobs that depend on each other; the first is hurt
    site_service: bool = False  # nodes run sshd, and the site names a spool for `ftrun site`
    counters: bool = False  # node checks read counters of this drill, not those of the machine
    sick_node: str = ""  # a node whose memory has failed before the job begins; needs `counters`
    linger_s: float = 0.0  # after the end, nothing may happen for this time
    timeout_s: float = 300.0  # long enough for a loaded machine: only a hang takes so long

    @property
    def needs_sandbox(self) -> bool:
        """Whether it breaks nodes or slurmctld, or needs its own slurm.conf."""
        special = (
            self.slurm_conf or self.topology or self.site_service or self.counters or self.stage is not None
        )
        return bool(special) or any(ACTIONS[action.do].sandbox_only for action in self.actions)

    @property
    def needs_root(self) -> bool:
        """Whether it mounts a disk of its own."""
        return self.stage is not None and self.stage.disk_mib > 0


def parse(text: str) -> tuple[Scenario, ...]:
    """The drills of a table. Raises ValueError, with the name of the drill if it is known."""
    return tuple(_scenario(row) for row in tomllib.loads(text)["drill"])


def _scenario(row: Mapping[str, Any]) -> Scenario:
    try:
        stage = Staging(**row["stage"]) if "stage" in row else None
        actions = tuple(Action(**_frozen(action)) for action in row.get("actions", ()))
        if unknown := {action.do for action in actions} - set(ACTIONS):
            raise TypeError(f"no action is called {', '.join(sorted(unknown))}")
        return Scenario(
            **{
                **_frozen(row),
                "expect": Expectation(**_frozen(row["expect"])),
                "faults": tuple(Fault(**_frozen(fault)) for fault in row.get("faults", ())),
                "actions": actions,
                "stage": stage,
            }
        )
    except (KeyError, TypeError) as error:
        raise ValueError(f"drill {row.get('name', '?')}: {error}") from error


def _frozen(row: Mapping[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in row.items()}
