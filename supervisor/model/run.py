"""A run as a value: the run, its attempts, launches, starts, companions and incidents. (pure)

    Run        the whole: state, settings, budgets spent, exclusions, incidents, the present attempt
    Attempt    one try: token, job, nodes, state of its submission, its present launch, whether it is closed
    Launch     one start of the job by Slurm: when it ran, how it ended, its agent, its present start
    Start      one start of the script inside a launch: its nodes and its checkpoint
    StartNote  such a start as the agent noted it, with its times and its end
    Companion  a small job that holds nodes for starts of a launch
    Incident   one fault: what was diagnosed, what was decided, when

Nothing here reads a journal: `events.apply` returns the next run. `Attempt.end_state`,
`Attempt.resize_state` and `Run.save_stage` name the states of the parts whose moves `states.PARTS` lists.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from ftrun.hooks.checkpoints.diverged import Divergence
from ftrun.slurm.records import dataclass, replace
from ftrun.supervisor.model.states import (
    FINAL_STATES,
    CompanionState,
    EndState,
    ResizeState,
    SaveStage,
    State,
    Submission,
)
from ftrun.supervisor.model.types import HangVerdict

Record = Mapping[str, Any]
"""One record of a journal."""


@dataclass(frozen=True, slots=True)
class StartNote:
    """One start of the script, as the agent there noted it; Unix seconds by its node's clock."""

    launch: int
    number: int
    nodes: tuple[str, ...]
    begun_at_s: float
    resume_from: str = ""
    over_at_s: float | None = None
    code: int | None = None
    signal: int | None = None
    by_us: bool = False  # the agent ended it
    end_offsets: Mapping[str, int] = field(default_factory=dict)  # log -> its bytes when the agent began to
    passed_over: str = ""  # a newer checkpoint that it did not load, and why
    grown: bool = False  # that was for one with more nodes: it had made steps, and nothing had failed


@dataclass(frozen=True, slots=True)
class Companion:
    """A small job of the same user that holds nodes for starts of a launch. Times are Unix seconds.

    `state` is one of: intended (sbatch may be under way), submitted, here (it runs), failed (nobody waits for
    it any more; it may still be there), ending (its end is announced), ended (it was cancelled), gone (Slurm
    has it no more: the only state in which it holds no nodes for certain).
    """

    launch: int
    number: int  # within its launch
    nodes_asked: int
    mark: str  # in its comment: how it is found where nobody noted its id
    asked_at_s: float
    job: str = ""
    pool: str = ""  # where it is borrowed from; "" = the job's own partition
    nodes: tuple[str, ...] = ()
    state: CompanionState = "intended"
    reason: str = ""  # why it failed, or was ended
    here_at_s: float | None = None
    gone_at_s: float | None = None
    end_state: str = ""  # Slurm's state at its end; "" where nobody saw that
    by_us: bool = False  # we ended it, or were about to
    unanswered: bool = False  # its sbatch gave no answer, and its mark found no job: Slurm may still make one

    @property
    def gone(self) -> bool:
        """Nothing of it is left."""
        return self.state == "gone"

    @property
    def lost(self) -> bool:
        """It was ended, and not by us: by a person, its time limit, a dead node."""
        return self.gone and not self.by_us and self.end_state not in ("", "COMPLETED")


@dataclass(frozen=True, slots=True)
class HangDecision:
    """It was decided that a start hangs."""

    launch: int
    start: int
    verdict: HangVerdict


@dataclass(frozen=True, slots=True)
class Start:
    """The present start of the script inside a launch."""

    number: int = 1  # within its launch
    nodes: tuple[str, ...] = ()  # that it uses; () = all of the job's
    resume_from: str = ""
    passed_over: str = ""  # a newer checkpoint that it did not load, and why


@dataclass(frozen=True, slots=True)
class LaunchEnd:
    """How a launch ended, as Slurm says."""

    state: str = ""  # Slurm's state at the end, or PENDING after a requeue; "" = it has not ended
    reason: str = ""
    exit_code: int | None = None
    exit_signal: int | None = None
    derived_exit_code: int = 0
    at_s: float | None = None  # when we saw it
    slurm_at_s: float | None = None  # when it was, as Slurm says; None where it does not
    slurm_started_at_s: float | None = None  # when the launch had started, likewise
    preempted: bool = False  # Slurm had taken its nodes for another job by then, in whatever state


@dataclass(frozen=True, slots=True)
class Launch:
    """The present start of an attempt's job by Slurm."""

    number: int = 0  # within its attempt: how often the job was requeued before
    started_at_s: float | None = None  # as Slurm says
    running_seen_at_s: float | None = None  # when we saw it
    limit_s: float | None = None  # Slurm's time limit for it
    end: LaunchEnd = LaunchEnd()
    requeued: bool = False  # ended by a requeue: the job may start again by itself
    over: bool = False  # nothing of it runs any more: that is proven
    claim_seen: bool = False
    inside: bool = False  # an agent looks, or looked, after it from inside
    ladder_off: str = ""  # why nothing is restarted inside it any more; "" = it may be
    no_agent: str = ""  # why no agent looks after it, though one should; "" = one does, or none should
    aside: tuple[str, ...] = ()  # nodes of the allocation that no later start of it may use
    start: Start = Start()
    start_seen: int = 1  # the newest start whose own record we have read
    log_sizes: Mapping[str, int] = field(
        default_factory=dict
    )  # other logs -> bytes, before that start, or before the attempt

    def next(self, number: int) -> Launch:
        """A new launch of the same attempt; Slurm's last word on times and end stands until the next."""
        return Launch(
            number,
            started_at_s=self.started_at_s,
            running_seen_at_s=self.running_seen_at_s,
            limit_s=self.limit_s,
            end=self.end,
            log_sizes=self.log_sizes,
        )


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try of a run."""

    number: int
    opened_at_s: float
    token: str = ""
    submission: Submission = "opened"
    refusal: str = ""
    job: str = ""
    cluster: str = ""
    adopted: bool = False  # its job was submitted without ftrun, so batch.sh is not in it
    known_as: tuple[str, ...] = ()  # user and name of the job when it showed our token; () = it never did
    submitted_s: float | None = None  # its time of submission then, as Slurm says
    intended_at_s: float | None = None  # when its sbatch was announced
    submitted_at_s: float | None = None
    launch: Launch = Launch()
    starts: Mapping[int, float] = field(default_factory=dict)  # launch -> its first start, as Slurm says
    nodes: tuple[str, ...] = ()
    partition: str = ""  # where it ran
    end_intended: str = ""  # why we asked for its end; "" = we did not
    end_done: bool = False
    cancel_intended: bool = False  # we took its requeued job out of the queue, or were about to
    cancel_offsets: Mapping[str, int] = field(default_factory=dict)  # log -> its bytes just before our cancel
    closed: bool = False
    excluded: tuple[str, ...] = ()
    spares_asked: int | None = None  # nodes asked for beyond the user's; None = as many as the settings say
    size: int = 0  # nodes that its script uses; 0 = as many as the user asked for
    resizing: int = 0  # the size that its waiting job is being made to ask for; 0 = none
    resized: bool = False  # that was done, and what it was submitted with no longer holds
    fixed: bool = False  # Slurm does not let its waiting job be made smaller
    waited_s: float = 0.0  # how long it waits in the queue, as far as that was noted
    sized_at_s: float = 0.0  # how long it had waited when it was made smaller last
    moved: bool = False  # it gave way to another size in the queue, and never started
    dependents_held: Mapping[str, str] = field(default_factory=dict)  # job -> what it waits for
    dependents_since: Mapping[str, float] = field(default_factory=dict)  # job -> its time of submission
    dependents_moved: bool = False  # what waited for an earlier attempt waits for this one
    failed_tasks: tuple[int, ...] = ()  # of an array: those that are to be repeated
    task_states: Mapping[int, str] = field(default_factory=dict)  # of the failed tasks, as Slurm says
    tasks: tuple[int, ...] = ()  # of an array: those that this attempt is for; () = all
    last_step: int | None = None
    total_steps: int | None = None  # as the trainer says
    step_s: float | None = None  # usual seconds a step
    stepped_at_s: float | None = None  # when the step was noted
    begun: tuple[StartNote, ...] = ()  # the starts that an agent noted, oldest first
    hung: HangDecision | None = None  # the last start of which that was decided
    hung_tasks: Mapping[int, HangDecision] = field(default_factory=dict)  # of an array: the same of each task
    ended_tasks: tuple[int, ...] = ()  # of those: which we ended, or were about to
    judged: int = -1  # the newest launch that the supervisor has decided about
    copied: Mapping[int, int] = field(
        default_factory=dict
    )  # launch -> how many of its agent's records are known
    companions: tuple[Companion, ...] = ()  # of all its launches, in the order in which they were asked for
    growth: str = ""  # its agent's last word about more nodes: why there are none, or how many there will be
    growth_failed: tuple[
        float, ...
    ] = ()  # when a try to have more came to nothing before the run was touched

    @property
    def reach(self) -> tuple[str, ...]:
        """The nodes of the present launch: those of the job, then those that its companions brought."""
        brought = (node for one in self.companions if one.launch == self.launch.number for node in one.nodes)
        return tuple(dict.fromkeys((*self.nodes, *brought)))

    @property
    def family(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The jobs and nodes that it has, or had at any time: its own and those of its companions."""
        jobs = (self.job, *(one.job for one in self.companions))
        nodes = (*self.nodes, *(node for one in self.companions for node in one.nodes))
        return tuple(job for job in jobs if job), nodes

    @property
    def joined(self) -> tuple[str, ...]:
        """The jobs of the companions whose nodes the present start uses."""
        used = set(self.used)
        mine = (one for one in self.companions if one.launch == self.launch.number and not one.gone)
        return tuple(one.job for one in mine if used & set(one.nodes))

    def holder(self, node: str) -> str:
        """The job that held a node: a companion's if it was none of the attempt's, or came back with one."""
        beside = (
            one.job
            for one in reversed(self.companions)
            if node in one.nodes and (node not in self.nodes or not one.gone)
        )
        return next(beside, self.job)

    @property
    def starts_made(self) -> int:
        """How often the script was started in it, requeues and restarts in place included."""
        if self.moved:
            return 0
        return 1 + self.launch.number + sum(start.number > 1 for start in self.begun)

    @property
    def used(self) -> tuple[str, ...]:
        """The nodes that the present start uses."""
        return self.launch.start.nodes or self.nodes

    @property
    def unused(self) -> tuple[str, ...]:
        """Nodes of the allocation that wait to be used."""
        return tuple(node for node in self.nodes if node not in {*self.used, *self.launch.aside})

    @property
    def ended_by_us(self) -> bool:
        """Whether a cancel of ours went out, or was about to, before the end."""
        return bool(self.end_intended) and (self.end_done or self.cancel_intended)

    @property
    def end_offsets(self) -> Mapping[str, int]:
        """Log -> its bytes when ftrun (its agent, or a cancel of ours) began to end the present start. {} if
        that ended by itself.
        """
        present = (self.launch.number, self.launch.start.number)
        inside = (one.end_offsets for one in self.begun if (one.launch, one.number) == present)
        found = dict(self.cancel_offsets) if self.ended_by_us or self.ended_tasks else {}
        for log, size_bytes in next(inside, {}).items():
            found[log] = min(size_bytes, found.get(log, size_bytes))
        return found

    @property
    def end_state(self) -> EndState:
        """How far the end of its present launch is."""
        launch = self.launch
        found: Mapping[EndState, bool] = {
            "closed": self.closed,
            "over": launch.over,
            "cancelling": self.cancel_intended,
            "requeued": launch.requeued,
            "ended": bool(launch.end.state),
            "asked": self.end_done,
            "intended": bool(self.end_intended),
        }
        return next((state for state, holds in found.items() if holds), "live")

    @property
    def resize_state(self) -> ResizeState:
        """How its waiting job stands towards another size."""
        found: Mapping[ResizeState, bool] = {
            "moved": self.moved,
            "resizing": bool(self.resizing),
            "fixed": self.fixed,
            "resized": self.resized,
        }
        return next((state for state, holds in found.items() if holds), "unchanged")

    @property
    def incident(self) -> str:
        """The id of the fault that ended it.

        If an agent served the launch, it is the agent's name for the start, so that one fault counts once.
        """
        launch = f"{self.number}.{self.launch.number}"
        named = self.launch.inside or self.launch.start.number > 1
        return f"{launch}.{self.launch.start.number}" if named else launch

    def of_last_start(self) -> Attempt:
        """This attempt as its last start alone made it.

        Nodes that this start did not use took no part, and the derived exit code that Slurm keeps of the
        job's failed steps belongs to the starts before it.
        """
        derived = self.launch.end.derived_exit_code if self.launch.start.number == 1 else 0
        return replace(self.ended_as(derived_exit_code=derived), nodes=self.used)

    def ended_as(self, **changes: Any) -> Attempt:
        """This attempt with the end of its launch told otherwise: fields of `End`."""
        launch = replace(self.launch, end=replace(self.launch.end, **changes))
        return replace(self, launch=launch)


@dataclass(frozen=True, slots=True)
class GivenUpTasks:
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
class Budgets:
    """What was used up, and how far the run had come, before something was decided."""

    spent: Mapping[str, int]
    retries: int
    best_step: int | None
    best_checkpoint: str
    progress_at_s: float | None = None


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
    first_step: int | None = None  # which one that was: what lies between it and `step` is done once more
    start: int = 1  # which start of the script failed, within its launch
    stopped_at_s: float | None = None  # inside the allocation: nothing of that start is left on its nodes ...
    placed_at_s: float | None = None  # ... and the nodes of the next one are chosen
    path: tuple[tuple[str, str], ...] = ()  # each rung that the agent considered, and why it was taken or not
    before: Budgets | None = None  # where it may be decided once more: the budgets without the first decision

    @classmethod
    def of(cls, record: Record, **more: Any) -> Incident:
        """The incident of a record that holds a diagnosis; `more`: the fields that are not in it."""
        data, diagnosis = record["data"], record["data"]["diagnosis"]
        return cls(
            id=data["incident"],
            attempt=record["attempt"],
            launch=record["launch"],
            fault=diagnosis["class"],
            signature=diagnosis["signature"],
            title=diagnosis["title"],
            nodes=tuple(diagnosis["nodes"]),
            step=data.get("step"),
            first_evidence_at_s=data.get("first_evidence_at_s"),
            diagnosis=diagnosis,
            **more,
        )

    @property
    def inside(self) -> bool:
        """The agent decided it, to go on inside the allocation."""
        return "rung" in self.decision

    @property
    def began_at_s(self) -> float:
        """When its first sign was seen, else its end or its diagnosis."""
        return self.first_evidence_at_s or self.ended_at_s or self.diagnosed_at_s

    @property
    def rung(self) -> str:
        """The rung of the ladder that was taken; "" if the run was not to continue."""
        again = self.decision.get("kind") in ("resubmit", "keep")
        return str(self.decision.get("rung") or ("resubmit" if again else ""))

    def with_phase(self, name: str, at_s: float) -> Incident:
        """This incident with the time of one of PHASES, in their order: two processes note them, each when it
        looks, and a clock may be set back.
        """
        place = PHASES.index(name)
        before = [known for one in PHASES[:place] if (known := getattr(self, one)) is not None]
        behind = [known for one in PHASES[place + 1 :] if (known := getattr(self, one)) is not None]
        return replace(self, **{name: max([min([at_s, *behind]), *before])})

    @property
    def awaits_launch(self) -> bool:
        """Whether a new launch was decided; until then late observations are of the one that failed."""
        return self.decided_at_s is not None and not self.inside


PHASES = (
    "ended_at_s",
    "diagnosed_at_s",
    "decided_at_s",
    "stopped_at_s",
    "placed_at_s",
    "running_again_at_s",
    "first_step_at_s",
)
"""The phases of an incident, in the order in which they happen."""


@dataclass(frozen=True, slots=True)
class Run:
    """A run as its journal tells it."""

    id: str
    state: State = State.NEW
    name: str = ""
    token: str = ""
    created_at_s: float = 0.0
    settings: Mapping[str, Any] = field(default_factory=dict)
    submitter: Mapping[str, Any] = field(default_factory=dict)
    attempts: tuple[Attempt, ...] = ()
    incidents: tuple[Incident, ...] = ()
    excluded: tuple[Exclusion, ...] = ()
    spent: Mapping[str, int] = field(default_factory=dict)  # class -> since the last refill
    retries: int = 0  # against the ceiling: since the last net progress
    progress_at_s: float | None = None  # when that was seen; None = never, or by an older release
    resumed_at_s: float = 0.0  # when a person last resumed it with fresh budgets
    rungs: Mapping[str, int] = field(default_factory=dict)  # rung of the ladder -> used since the last refill
    best_step: int | None = None
    best_checkpoint: str = ""
    sizes_aside: tuple[int, ...] = ()  # sizes that provoked a fault
    more: Mapping[str, str] = field(
        default_factory=dict
    )  # options of sbatch that replace the user's: `escalate`
    set_aside: tuple[tuple[str, str], ...] = ()  # (path, stamp) of checkpoints that a start failed to load
    poisoned: tuple[Divergence, ...] = ()  # what trainings that diverged have saved
    drained: tuple[str, ...] = ()
    undrained: tuple[tuple[str, str], ...] = ()  # (incident, node) whose drain was refused
    given_up: tuple[GivenUpTasks, ...] = ()  # tasks of an array that are not tried again
    wish: str = ""  # "", "cancel", "stop", "pause": what a person asked for
    wish_by: str = ""
    requests_seen: tuple[str, ...] = ()
    halt: Mapping[str, Any] = field(default_factory=dict)  # the conditions of `halts.Halt`; {} = none
    leaving: Mapping[str, Any] = field(default_factory=dict)  # the last checkpoint that was asked for
    warnings: tuple[str, ...] = ()
    decision: Mapping[str, Any] = field(default_factory=dict)
    final_reason: str = ""
    final_class: str = ""
    exit_code: int | None = None
    evidence_seen: frozenset[str] = frozenset()
    hooks: Mapping[str, str] = field(default_factory=dict)  # the user's commands: key -> what ended it
    asked: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # of the site's service, by request
    opinions: Mapping[str, Mapping[str, Any]] = field(
        default_factory=dict
    )  # incident -> asked, then answered
    last_at_s: float = 0.0

    @property
    def attempt(self) -> Attempt | None:
        """The present attempt; None before the first."""
        return self.attempts[-1] if self.attempts else None

    @property
    def final(self) -> bool:
        """Nothing more will be done unless a person resumes it."""
        return self.state in FINAL_STATES

    @property
    def save_stage(self) -> SaveStage:
        """How far the last request for a checkpoint is."""
        stage: SaveStage = self.leaving.get("stage", "")
        return stage

    @property
    def paused(self) -> bool:
        """It was stopped to be resumed, for no fault of its own."""
        return self.state is State.STOPPED and self.wish == "pause"

    @property
    def budgets(self) -> Budgets:
        """What is used up by now."""
        return Budgets(self.spent, self.retries, self.best_step, self.best_checkpoint, self.progress_at_s)

    @property
    def job_ids(self) -> tuple[str, ...]:
        """Every job this run ever had, oldest first."""
        return tuple(a.job for a in self.attempts if a.job)

    @property
    def companion_ids(self) -> tuple[str, ...]:
        """Every job that held nodes for one of those, oldest first."""
        return tuple(one.job for a in self.attempts for one in a.companions if one.job)

    def with_attempt(self, **changes: Any) -> Run:
        """This run with its present attempt changed."""
        return replace(self, attempts=(*self.attempts[:-1], replace(self.attempts[-1], **changes)))

    def with_launch(self, **changes: Any) -> Run:
        """This run with the present launch of its present attempt changed."""
        return self.with_attempt(launch=replace(self.attempts[-1].launch, **changes))

    def with_start(self, **changes: Any) -> Run:
        """This run with the present start of its present launch changed."""
        return self.with_launch(start=replace(self.attempts[-1].launch.start, **changes))

    def excluded_at(self, now_s: float) -> tuple[str, ...]:
        """The nodes excluded at a time, sorted."""
        return tuple(sorted({e.node for e in self.excluded if e.until_s > now_s}))

    def excluded_after(self, record: Record) -> tuple[Exclusion, ...]:
        """The exclusions after a decision. What is over by the clock of who decides stays over."""
        data, kept = record["data"], {e.node: e for e in self.excluded if e.until_s > record["at"]}
        for node in data.get("exclude", ()):
            kept[node] = Exclusion(node, data["exclude_until_s"], data["reason"])
        return tuple(kept[node] for node in sorted(kept) if node not in data.get("relax", ()))


def max_step(one: int | None, other: int | None) -> int | None:
    """The higher of two steps that may be unknown."""
    return other if one is None else one if other is None else max(one, other)


def progress_after(step: int | None, checkpoint: str, decision: Mapping[str, Any]) -> dict[str, Any]:
    """The progress of `Run` after a decision; dropped where the next start begins from nothing."""
    if decision.get("fresh"):
        return {"best_step": None, "best_checkpoint": ""}
    further = max_step(step, decision.get("step"))
    return {"best_step": further, "best_checkpoint": decision.get("checkpoint") or checkpoint}
