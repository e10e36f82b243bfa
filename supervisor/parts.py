"""The parts of a run as its journal tells it: attempts, exclusions, incidents. (pure)"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Attempt", "Exclusion", "GivenUp", "Incident", "asked", "higher", "hooked"]


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try of a run. `submission` is one of: opened, intended, unknown, done, refused, lost."""

    number: int
    opened_at_s: float
    token: str = ""
    submission: str = "opened"
    refusal: str = ""
    job: str = ""
    cluster: str = ""
    launch: int = 0
    known_as: tuple[str, ...] = ()  # user and name of the job when it showed our token; () = it never did
    submitted_at_s: float | None = None
    started_at_s: float | None = None  # as Slurm says, of the present launch
    starts: Mapping[int, float] = field(default_factory=dict)  # launch -> its first start, as Slurm says
    running_seen_at_s: float | None = None  # when we saw it
    ended_at_s: float | None = None  # when we saw the end of the present launch
    slurm_end_s: float | None = None  # when it ended, as Slurm says; None where it does not
    nodes: tuple[str, ...] = ()
    partition: str = ""  # where it ran
    end_state: str = ""  # Slurm's state at the end of the launch, or PENDING after a requeue
    end_reason: str = ""
    exit_code: int | None = None
    exit_signal: int | None = None
    derived_exit_code: int = 0
    requeued: bool = False  # ended by a requeue: the job may start again by itself
    end_intended: str = ""  # why we asked for its end; "" = we did not
    end_done: bool = False
    cancel_intended: bool = False  # we took its requeued job out of the queue, or were about to
    claim_seen: bool = False
    over: bool = False
    closed: bool = False
    excluded: tuple[str, ...] = ()
    resume_from: str = ""
    dependents_held: Mapping[str, str] = field(default_factory=dict)  # job -> what it waits for
    dependents_moved: bool = False  # what waited for an earlier attempt waits for this one
    failed_tasks: tuple[int, ...] = ()  # of an array: those that are to be repeated
    task_states: Mapping[int, str] = field(default_factory=dict)  # of the failed tasks, as Slurm says
    tasks: tuple[int, ...] = ()  # of an array: those that this attempt is for; () = all
    last_step: int | None = None
    last_loss: float | None = None

    @property
    def ended_by_us(self) -> bool:
        """Its end may be of our making: a cancel of ours went out, or was about to. What ended before that did so without us."""
        return bool(self.end_intended) and (self.end_done or self.cancel_intended)


@dataclass(frozen=True, slots=True)
class GivenUp:
    """Tasks of an array that are not tried again, and why."""

    tasks: tuple[int, ...]
    fault: str
    signature: str
    title: str


@dataclass(frozen=True, slots=True)
class Exclusion:
    """A node that the next attempts avoid until `until_s`."""

    node: str
    until_s: float
    why: str


@dataclass(frozen=True, slots=True)
class Incident:
    """One fault of a run. Times are Unix seconds."""

    id: str
    attempt: int
    launch: int
    fault: str
    signature: str
    title: str
    nodes: tuple[str, ...]
    attempt_nodes: tuple[str, ...]
    step: int | None
    first_evidence_at_s: float | None
    ended_at_s: float | None
    diagnosed_at_s: float
    diagnosis: Mapping[str, Any]
    decision: Mapping[str, Any] = field(default_factory=dict)
    decided_at_s: float | None = None
    running_again_at_s: float | None = None
    first_step_at_s: float | None = None


def higher(one: int | None, other: int | None) -> int | None:
    """The higher of two steps that may be unknown."""
    return other if one is None else one if other is None else max(one, other)


def hooked(hooks: Mapping[str, str], data: Mapping[str, Any]) -> Mapping[str, str]:
    """The commands of the user after a record of one: "" while it is at work, then what ended it."""
    return {**hooks, data["key"]: data.get("why", "")}


def asked(
    before: Mapping[str, Mapping[str, Any]], record: Mapping[str, Any]
) -> Mapping[str, Mapping[str, Any]]:
    """The requests to the operator after one more record: id -> node, incident, step (intended, left, failed, answered), verdict, why."""
    data = record["data"]
    known = before.get(
        data["id"], {"node": data["node"], "incident": "", "at_s": record["at"], "verdict": "", "why": ""}
    )
    return {**before, data["id"]: {**known, **data}}
