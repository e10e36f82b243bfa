"""The states of a run and of its parts, and the only ways between them. (pure)

A record of the journal moves a run along an arrow of TRANSITIONS, which is keyed by the kind of the record.
A record that has no arrow from the present state is a bug of ftrun; the error names both. This file knows
no Slurm, no files and no time.

    submitting  an attempt is opened; sbatch may be under way, its outcome may be unknown
    queued      Slurm has the job and has not started it (again)
    running     Slurm has started it
    suspect     a fatal line was seen and training stands still; it may yet go on
    ending      ftrun asked Slurm to end the attempt
    settling    the launch is over (or never started); ftrun waits for late lines, then finds cause and next step
    recovering  the next step is decided: fence, drain, wait, close the attempt, open the next one
    finished    the user's script came to its end
    stopped     going on makes no sense, or a person said stop; the record has the reason

Five parts of a run have states of their own; PART_TRANSITIONS has their tables, and tests check journals
against them. The fold does not refuse a move that they lack: an unforeseen order of records must
not stop the supervision of a live run.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Literal, NamedTuple, get_args

from ftrun.supervisor.model.errors import UnreadableRun


class State(StrEnum):
    """The state of a run."""

    NEW = "new"
    SUBMITTING = "submitting"
    QUEUED = "queued"
    RUNNING = "running"
    SUSPECT = "suspect"
    ENDING = "ending"
    SETTLING = "settling"
    RECOVERING = "recovering"
    FINISHED = "finished"
    STOPPED = "stopped"


FINAL_STATES = frozenset({State.FINISHED, State.STOPPED})

_OVER: Mapping[str, State] = {"run.finished": State.FINISHED, "run.stopped": State.STOPPED}

TRANSITIONS: Mapping[State, Mapping[str, State]] = {
    State.NEW: {"attempt.opened": State.SUBMITTING, "run.stopped": State.STOPPED},
    State.SUBMITTING: {
        "submit.done": State.QUEUED,
        "submit.refused": State.SETTLING,
        "submit.lost": State.RECOVERING,
        "run.abandoned": State.STOPPED,
        "run.stopped": State.STOPPED,
    },
    State.QUEUED: {
        "job.started": State.RUNNING,
        "job.requeued": State.SETTLING,
        "job.ended": State.SETTLING,
        "end.intended": State.ENDING,
        "queue.moved": State.RECOVERING,
        "run.stopped": State.STOPPED,
    },
    State.RUNNING: {
        "fault.suspected": State.SUSPECT,
        "job.requeued": State.SETTLING,
        "job.ended": State.SETTLING,
        "end.intended": State.ENDING,
        "run.stopped": State.STOPPED,
    },
    State.SUSPECT: {
        "fault.survived": State.RUNNING,
        "job.requeued": State.SETTLING,
        "job.ended": State.SETTLING,
        "end.intended": State.ENDING,
        "run.stopped": State.STOPPED,
    },
    State.ENDING: {"job.requeued": State.SETTLING, "job.ended": State.SETTLING, "run.stopped": State.STOPPED},
    State.SETTLING: {"decided": State.RECOVERING, **_OVER},
    State.RECOVERING: {
        "attempt.opened": State.SUBMITTING,
        "launch.kept": State.QUEUED,
        "job.started": State.RUNNING,
        **_OVER,
    },
    State.FINISHED: {},
    State.STOPPED: {"run.resumed": State.RECOVERING, "run.given-up": State.STOPPED},
}

# ---------------------------------------------------------------------- the parts of a run

Submission = Literal["opened", "intended", "unknown", "done", "refused", "lost"]
"""How the sbatch call of an attempt stands; `unknown`: it gave no answer."""

EndState = Literal["live", "intended", "asked", "cancelling", "requeued", "ended", "over", "closed"]
"""How far the end of an attempt's present launch is.

intended: ftrun is about to end it; asked: Slurm was told; cancelling: its requeued job is taken out of the
queue; requeued, ended: what Slurm did; over: proven that nothing of it runs; closed: no launch of the attempt
can start any more.
"""

ResizeState = Literal["unchanged", "resizing", "resized", "fixed", "moved"]
"""How an attempt's waiting job stands towards another size.

resizing: Slurm is asked for fewer nodes; fixed: Slurm refused that; moved: the attempt gives way to one of
another size.
"""

SaveStage = Literal["", "intended", "asked", "saved", "missed", "stays", "dropped"]
"""How far the last request for a checkpoint is; "" = there is none. stays: it was saved, and the job cannot
leave its nodes.
"""

CompanionState = Literal["intended", "submitted", "here", "failed", "ending", "ended", "gone"]
"""How far a companion is, in this order: it only ever goes forward. See `run.Companion`."""

COMPANION_STATES: tuple[CompanionState, ...] = get_args(CompanionState)


class Move(NamedTuple):
    """A record of this kind moves a part from any of these states to that one."""

    kind: str
    before: tuple[str, ...]
    after: str


class Part(NamedTuple):
    """A part of a run with states of its own: what it is, its first state, its moves."""

    title: str
    first: str
    moves: tuple[Move, ...]

    def allows(self, before: str, kind: str, after: str) -> bool:
        """Whether a record of this kind may move the part so; it may always leave it as it is."""
        listed = (move.kind == kind and before in move.before and after == move.after for move in self.moves)
        return before == after or any(listed)


def _forward(kind: str, after: CompanionState) -> Move:
    return Move(kind, COMPANION_STATES[: COMPANION_STATES.index(after)], after)


PART_TRANSITIONS: Mapping[str, Part] = {
    "submission": Part(
        "The sbatch call of an attempt",
        "opened",
        (
            Move("submit.intended", ("opened",), "intended"),
            Move("submit.unknown", ("intended",), "unknown"),
            Move("submit.done", ("intended", "unknown"), "done"),
            Move("submit.refused", ("intended", "unknown"), "refused"),
            Move("submit.lost", ("opened", "intended", "unknown"), "lost"),
        ),
    ),
    "end": Part(
        "The end of an attempt",
        "live",
        (
            Move("end.intended", ("live", "asked"), "intended"),
            Move("end.done", ("intended",), "asked"),
            Move("cancel.intended", ("live", "intended", "asked", "requeued", "ended"), "cancelling"),
            Move("job.requeued", ("live", "intended", "asked"), "requeued"),
            Move("job.ended", ("live", "intended", "asked", "requeued"), "ended"),
            Move("launch.kept", ("requeued",), "live"),
            Move("job.started", ("requeued", "ended", "cancelling"), "live"),
            Move("job.started", ("ended",), "intended"),  # what ended the launch before is still wanted
            Move("submit.refused", ("live",), "over"),
            Move("submit.lost", ("live",), "over"),
            Move("attempt.over", ("live", "intended", "asked", "cancelling", "requeued", "ended"), "over"),
            Move("attempt.closed", ("live", "over"), "closed"),
        ),
    ),
    "resize": Part(
        "The size of an attempt's waiting job",
        "unchanged",
        (
            Move("resize.intended", ("unchanged", "resized"), "resizing"),
            Move("resize.done", ("resizing",), "resized"),
            Move("resize.refused", ("resizing",), "fixed"),
            Move("queue.moved", ("unchanged", "resizing", "resized", "fixed"), "moved"),
            Move("job.started", ("resizing",), "resized"),
            *(
                Move("job.started", ("resizing", "moved"), state)
                for state in ("unchanged", "resized", "fixed")
            ),
        ),
    ),
    "save": Part(
        "The request for a checkpoint",
        "",
        (
            Move("leave.intended", ("", "asked", "saved", "missed", "stays", "dropped"), "intended"),
            Move("leave.asked", ("intended",), "asked"),
            Move("leave.saved", ("intended", "asked"), "saved"),
            Move("leave.missed", ("intended", "asked"), "missed"),
            Move("start.stays", ("intended", "asked", "saved"), "stays"),
            Move("start.stays", ("intended", "asked", "saved"), "missed"),
            Move("leave.dropped", ("intended", "asked", "saved", "missed", "stays"), "dropped"),
            *(
                Move(kind, ("intended", "asked", "saved", "missed", "stays", "dropped"), "")
                for kind in ("run.resumed", "run.given-up")
            ),
        ),
    ),
    "companion": Part(
        "A companion",
        "intended",
        (
            _forward("companion.submitted", "submitted"),
            _forward("companion.here", "here"),
            _forward("companion.failed", "failed"),
            _forward("companion.ended.intended", "ending"),
            _forward("companion.ended", "ended"),
            _forward("companion.gone", "gone"),
        ),
    ),
}

# ---------------------------------------------------------------------- records that do not move the run

# The agent inside a live allocation journals these, and the supervisor copies them.
AGENT_KINDS = frozenset({
    "agent.opened", "ladder.off", "slurm.unanswered", "start.begun", "start.over",
    "checkpoint.poisoned", "start.diagnosed", "start.decided", "start.stopped", "start.placed",
    "start.first-step", "start.left", "start.stays", "grow.stays", "grow.begun", "grow.dropped",
    "dependents.held", "hang.suspected", "hang.decided", "stacks.taken", "save.asked", "save.done",
    "save.missed", "straggler.seen", "rank.died", "rank.again", "rank.left", "start.end.intended",
    "steps.cancel.intended", "steps.cancel.done", "script.end.intended", "script.end.done",
    "stage.paired", "restore.intended", "restore.done", "restore.failed", "sweep.intended",
    "sweep.done", "nodes.checked", "release.intended", "release.done", "release.refused",
    "companion.intended", "companion.submitted", "companion.here", "companion.failed",
    "companion.ended.intended", "companion.ended", "companion.gone",
})  # fmt: skip

IGNORED_SUFFIX = "!"
"""Suffix of the key of a line that is no evidence, because another job wrote it (`line.ignored`)."""

# Records that do not move the run. They may appear in any state.
NON_MOVING_KINDS = AGENT_KINDS | frozenset({
    "journal.opened", "run.created", "submit.intended", "submit.unknown", "job.adopted", "launch.seen",
    "evidence", "line.ignored", "tasks.failed", "tasks.given-up", "tasks.end.intended",
    "tasks.end.done", "launch.progress", "diagnosed", "end.done", "drain.intended", "drain.done",
    "drain.refused", "drain.asked", "raise.asked", "cancel.intended", "cancel.done", "exclude.intended",
    "exclude.done", "exclude.refused", "resize.intended", "resize.done", "resize.refused",
    "queue.waited", "dependents.moved", "attempt.over", "attempt.closed", "agent.absent",
    "request.seen", "halt.set", "halt.due", "leave.intended", "leave.asked", "leave.saved",
    "leave.missed", "leave.dropped", "warned", "observed", "checkpoint.set-aside",
    "checkpoint.taken-back", "final.line", "hook.intended", "hook.ended",
    "opinion.asked", "opinion.answered",
})  # fmt: skip


class IllegalEvent(UnreadableRun):
    """A journal record that cannot happen in this state."""

    def __init__(self, state: State, kind: str) -> None:
        super().__init__(f"{kind!r:.80} cannot happen to a run that is {state.value}")
        self.state = state
        self.kind = kind


def next_state(state: State, kind: str) -> State:
    """Return the state of the run after a record of this kind. Raises IllegalEvent."""
    if kind in NON_MOVING_KINDS:
        return state
    try:
        return TRANSITIONS[state][kind]
    except KeyError:
        raise IllegalEvent(state, kind) from None
