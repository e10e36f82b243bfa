"""What happened to a run, folded into what it is now. (pure)

`fold(records)` is the only way from the journal to a `Run`; a `Run` is a value and `after(record)` gives the next one.
Everything the supervisor remembers beyond one tick is in here, so a supervisor that died goes on from the same value.

    Run       the whole: state, settings, budgets spent, exclusions, incidents, the present attempt
    Attempt   one try: token, job, launch, nodes, how its submission stands, whether it is proven over and closed
    Incident  one fault: what was diagnosed, what was decided, when
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from typing import Any

from ftrun.hooks.checkpoints.diverged import Poison
from ftrun.slurm.records import dataclass, replace
from ftrun.supervisor import halts, inplace, persons, rulings
from ftrun.supervisor.lifecycle import FINAL, INSIDE, State, next_state
from ftrun.supervisor.parts import Attempt, Exclusion, GivenUp, Incident, asked, hooked, progressed

__all__ = ["Attempt", "BadRecord", "Exclusion", "Incident", "Run", "fold"]

Record = Mapping[str, Any]


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
    retries: int = 0  # against the ceiling, never refilled
    rungs: Mapping[str, int] = field(default_factory=dict)  # rung of the ladder -> used since the last refill
    best_step: int | None = None
    best_checkpoint: str = ""
    sizes_aside: tuple[int, ...] = ()  # sizes that provoked a fault
    set_aside: tuple[tuple[str, str], ...] = ()  # (path, stamp) of checkpoints that a start failed to load
    poisoned: tuple[Poison, ...] = ()  # what trainings that diverged have saved
    drained: tuple[str, ...] = ()
    undrained: tuple[tuple[str, str], ...] = ()  # (incident, node) whose drain was refused
    given_up: tuple[GivenUp, ...] = ()  # tasks of an array that are not tried again
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
    asked: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # of the operator, by request
    last_at_s: float = 0.0

    @property
    def attempt(self) -> Attempt | None:
        """The present attempt; None before the first."""
        return self.attempts[-1] if self.attempts else None

    @property
    def final(self) -> bool:
        """Nothing more will be done unless a person resumes it."""
        return self.state in FINAL

    @property
    def paused(self) -> bool:
        """It was stopped to be resumed, for no fault of its own."""
        return self.state is State.STOPPED and self.wish == "pause"

    @property
    def job_ids(self) -> tuple[str, ...]:
        """Every job this run ever had, oldest first."""
        return tuple(a.job for a in self.attempts if a.job)

    @property
    def companion_ids(self) -> tuple[str, ...]:
        """Every job that held nodes for one of those, oldest first."""
        return tuple(one.job for a in self.attempts for one in a.companions if one.job)

    def after(self, record: Record) -> Run:
        """The run after one record. Raises IllegalEvent for a record that cannot follow."""
        kind = str(record["kind"])
        state = next_state(self.state, kind)
        run = replace(self, state=state, last_at_s=float(record["at"]))
        apply = inplace.after if kind in INSIDE else _APPLY.get(kind)
        return apply(run, record) if apply else run

    def with_attempt(self, **changes: Any) -> Run:
        """This run with its present attempt changed."""
        return replace(self, attempts=(*self.attempts[:-1], replace(self.attempts[-1], **changes)))

    def excluded_at(self, now_s: float) -> tuple[str, ...]:
        """The nodes excluded at a time, sorted."""
        return tuple(sorted({e.node for e in self.excluded if e.until_s > now_s}))


class BadRecord(ValueError):
    """A journal record that lacks what its kind needs: no ftrun wrote it so."""


def fold(run_id: str, records: Iterable[Record]) -> Run:
    """The run that these records make. Raises IllegalEvent, or BadRecord where a record lacks what its kind needs."""
    run = Run(run_id)
    for record in records:
        try:
            run = run.after(record)
        except (LookupError, TypeError, AttributeError, AssertionError) as error:
            kind = record.get("kind", "a record without a kind")
            raise BadRecord(
                f"{kind!r} makes no sense in the journal: {type(error).__name__}: {error}"
            ) from error
    return run


def _created(run: Run, record: Record) -> Run:
    data = record["data"]
    return replace(
        run,
        name=data.get("name", ""),
        token=data.get("token", ""),
        settings=data.get("settings", {}),
        submitter=data.get("submitter", {}),
        created_at_s=record["at"],
    )


def _opened(run: Run, record: Record) -> Run:
    data = record["data"]
    attempt = Attempt(
        record["attempt"],
        record["at"],
        excluded=tuple(data.get("excluded", ())),
        tasks=tuple(data.get("tasks", ())),
        spares_asked=data.get("spares"),
        size=int(data.get("size", 0)),
    )
    return replace(run, attempts=(*run.attempts, attempt), decision={}, final_reason="", final_class="")


def _submit_intended(run: Run, record: Record) -> Run:
    return run.with_attempt(
        submission="intended", token=record["data"].get("token", ""), intended_at_s=record["at"]
    )


def _submit_done(run: Run, record: Record) -> Run:
    data = record["data"]
    return run.with_attempt(
        submission="done",
        job=record["job"] or data.get("job", ""),
        cluster=data.get("cluster", ""),
        submitted_at_s=record["at"] if data.get("seen", True) else None,
    )


def _submit_refused(run: Run, record: Record) -> Run:
    data = record["data"]
    end_state = "REFUSED" if data.get("for_good") else "REFUSED_FOR_NOW"
    return run.with_attempt(
        submission="refused", refusal=data["message"], end_state=end_state, ended_at_s=record["at"], over=True
    )


def _submit_lost(run: Run, record: Record) -> Run:
    return replace(
        run.with_attempt(submission="lost", over=True), decision=record["data"].get("decision", {})
    )


def _started(run: Run, record: Record) -> Run:
    data = record["data"]
    before = run.attempt
    run = _at_launch(run, record["launch"])
    if before is not None and (before.end_state or data.get("stays")) and not data.get("over"):
        run = _without_intents(run)
    resizing = run.attempt.resizing if run.attempt is not None else 0
    if resizing:  # it started while it was being made smaller: its nodes tell whether that came first
        done = len(data["nodes"]) == resizing
        run = run.with_attempt(resizing=0, **({"size": resizing, "resized": True} if done else {}))
    started = data.get("started_at_s")
    starts = {} if started is None else {record["launch"]: started}
    run = run.with_attempt(
        started_at_s=started,
        limit_s=data.get("limit_s"),
        starts=starts | dict(run.attempt.starts if run.attempt else ()),
        running_seen_at_s=record["at"],
        nodes=tuple(data["nodes"]),
        partition=data.get("partition", "") or (run.attempt.partition if run.attempt else ""),
        known_as=tuple(data.get("known_as", ())) or (run.attempt.known_as if run.attempt else ()),
        submitted_s=data.get("submitted_s") or (run.attempt.submitted_s if run.attempt else None),
        requeued=False,
        moved=False,
        waited_s=0.0,
        sized_at_s=0.0,
        end_state="",
        over=False,
        ended_at_s=None,
    )
    last = run.incidents[-1] if run.incidents else None
    if last is not None and last.running_again_at_s is None and last.awaits_launch:
        incident = replace(run.incidents[-1], running_again_at_s=record["at"])
        run = replace(run, incidents=(*run.incidents[:-1], incident))
    return run


_FIRST_START: Mapping[str, Any] = {
    "inside": False,
    "start": 1,
    "start_seen": 1,
    "log_sizes": {},
    "active": (),
    "aside": (),
    "ladder_off": "",
    "no_agent": "",
    "passed_over": "",
}


def _agent_absent(run: Run, record: Record) -> Run:
    return run.with_attempt(no_agent=record["data"]["why"])


def _at_launch(run: Run, launch: int) -> Run:
    """The present attempt at this launch: what another launch of it recorded of itself does not count for this one."""
    if run.attempt is None or (launch == run.attempt.launch and not run.attempt.requeued):
        return run
    return run.with_attempt(launch=launch, claim_seen=False, resume_from="", **_FIRST_START)


def _without_intents(run: Run) -> Run:
    """Another launch lives: what was meant to end the one before has not ended this one."""
    return run.with_attempt(end_intended="", end_done=False, cancel_intended=False)


def _launch_seen(run: Run, record: Record) -> Run:
    data = record["data"]
    changes: dict[str, Any] = {"claim_seen": True, "launch": record["launch"]}
    if data.get("nodes"):
        changes["nodes"] = tuple(data["nodes"])
    if "resume_from" in data:
        changes |= {"resume_from": data["resume_from"], "passed_over": data.get("passed", "")}
    if "active" in data:  # a later start inside the same launch
        number = record["start"]
        changes |= {"start": number, "start_seen": number, "active": tuple(data["active"])}
        changes["log_sizes"] = data.get("sizes", {})
    return run.with_attempt(**changes)


def _ended(run: Run, record: Record) -> Run:
    data = record["data"]
    run = _at_launch(run, record["launch"])
    changes: dict[str, Any] = {
        "end_state": data["state"],
        "end_reason": data.get("reason", ""),
        "exit_code": data.get("exit_code"),
        "exit_signal": data.get("exit_signal"),
        "derived_exit_code": data.get("derived_exit_code", 0),
        "ended_at_s": record["at"],
        "slurm_end_s": data.get("slurm_end_s"),
        "requeued": record["kind"] == "job.requeued",
        "preempted": bool(data.get("preempted")),
        "over": False,
    }
    left = run.attempts[-1].nodes if run.attempts else ()
    if data.get("nodes") and not set(data["nodes"]) < set(
        left
    ):  # Slurm takes lost nodes out of a job that goes on
        changes["nodes"] = tuple(data["nodes"])
    return run.with_attempt(**changes)


def _moved(run: Run, record: Record) -> Run:
    first = run.attempt is not None and not run.attempt.nodes
    return replace(run.with_attempt(moved=first), decision=record["data"]["decision"])


def _resizing(run: Run, record: Record) -> Run:
    return run.with_attempt(resizing=int(record["data"]["size"]))


def _resized(run: Run, record: Record) -> Run:
    data = record["data"]
    waited_s = float(data["waited_s"])
    return run.with_attempt(
        size=int(data["size"]), resizing=0, resized=True, waited_s=waited_s, sized_at_s=waited_s
    )


def _end_intended(run: Run, record: Record) -> Run:
    return run.with_attempt(end_intended=record["data"]["reason"], end_done=False)


def _progress(run: Run, record: Record) -> Run:
    data = record["data"]
    run = run.with_attempt(**progressed(record))
    last = run.incidents[-1] if run.incidents else None
    if data.get("first_step") and last is not None and last.first_step_at_s is None and last.awaits_launch:
        incident = replace(run.incidents[-1], first_step_at_s=record["at"])
        run = replace(run, incidents=(*run.incidents[:-1], incident))
    return run


def _dependents_moved(run: Run, record: Record) -> Run:
    attempts = tuple(replace(attempt, dependents_held={}) for attempt in run.attempts)
    return replace(run, attempts=attempts).with_attempt(dependents_moved=bool(record["data"]["to"]))


_APPLY: Mapping[str, Callable[[Run, Record], Run]] = {
    "agent.absent": _agent_absent,
    "run.created": _created,
    "attempt.opened": _opened,
    "submit.intended": _submit_intended,
    "submit.unknown": lambda run, record: run.with_attempt(submission="unknown"),
    "submit.done": _submit_done,
    "submit.refused": _submit_refused,
    "submit.lost": _submit_lost,
    "job.started": _started,
    "launch.seen": _launch_seen,
    "job.adopted": lambda run, record: run.with_attempt(job=record["job"], starts={}),
    "launch.kept": lambda run, record: run.with_attempt(
        requeued=False,
        launch=record["launch"],
        over=False,
        end_state="",
        claim_seen=False,
        resume_from="",
        **_FIRST_START,
    ),
    "job.ended": _ended,
    "job.requeued": _ended,
    "queue.moved": _moved,
    "queue.waited": lambda run, record: run.with_attempt(waited_s=float(record["data"]["waited_s"])),
    "resize.intended": _resizing,
    "resize.done": _resized,
    "resize.refused": lambda run, record: run.with_attempt(resizing=0, fixed=True),
    "exclude.done": lambda run, record: (
        run.with_attempt(excluded=tuple(record["data"]["left"])) if "left" in record["data"] else run
    ),
    "end.intended": _end_intended,
    "cancel.intended": lambda run, record: (
        run.with_attempt(cancel_intended=True) if record["data"].get("own") else run
    ),
    "end.done": lambda run, record: run.with_attempt(end_done=True),
    "dependents.moved": _dependents_moved,
    "tasks.failed": persons.tasks_failed,
    "tasks.given-up": persons.tasks_given_up,
    "tasks.end.intended": persons.task_ending,
    **dict.fromkeys(
        ("evidence", "line.ignored"),
        lambda run, record: replace(run, evidence_seen=run.evidence_seen | {record["data"]["key"]}),
    ),
    "launch.progress": _progress,
    "diagnosed": rulings.diagnosed,
    "decided": rulings.decided,
    "attempt.over": lambda run, record: run.with_attempt(over=True),
    "attempt.closed": lambda run, record: run.with_attempt(closed=True),
    "drain.done": lambda run, record: replace(run, drained=(*run.drained, record["data"]["node"])),
    "drain.refused": lambda run, record: replace(
        run, undrained=(*run.undrained, (record["data"].get("incident", ""), record["data"]["node"]))
    ),
    "drain.asked": lambda run, record: replace(run, asked=asked(run.asked, record)),
    "raise.asked": lambda run, record: replace(run, asked=asked(run.asked, record)),
    "checkpoint.taken-back": lambda run, record: replace(
        run, set_aside=tuple(one for one in run.set_aside if one[0] not in record["data"]["paths"])
    ),
    "checkpoint.set-aside": lambda run, record: replace(
        run, set_aside=(*run.set_aside, (record["data"]["path"], record["data"].get("stamp", "")))
    ),
    "request.seen": persons.request,
    "run.finished": rulings.final,
    "run.stopped": rulings.final,
    "run.abandoned": rulings.final,
    "run.resumed": persons.resumed,
    "run.given-up": persons.given_up,
    "hook.intended": lambda run, record: replace(run, hooks=hooked(run.hooks, record["data"])),
    "hook.ended": lambda run, record: replace(run, hooks=hooked(run.hooks, record["data"])),
    "warned": lambda run, record: replace(run, warnings=(*run.warnings, record["data"]["message"])),
    **halts.APPLY,
}
