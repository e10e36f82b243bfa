"""The life of a run: its states and the only ways between them. (pure)

Two rules. Everything that can change the state of a run is in TRANSITIONS, keyed by the kind of a journal record; and
this file knows neither Slurm nor files nor the time. A record that has no arrow from the present state is a mistake of
ours, and the error names both.

    submitting  an attempt is opened; sbatch may be under way, its outcome may be unknown
    queued      Slurm has the job and has not started it (again)
    running     Slurm has started it
    suspect     a fatal line was seen and training stands still; it may yet go on
    ending      we asked Slurm to end the attempt
    settling    the launch is over (or never came to be); late lines are awaited, then cause and next step are found
    recovering  the next step is decided: fence, drain, wait, close the attempt, open the next one
    finished    the user's script came to its end
    stopped     going on makes no sense, or a person said stop; the reason is in the record
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

__all__ = ["FINAL", "IGNORED", "INSIDE", "TRANSITIONS", "IllegalEvent", "State", "next_state"]


class State(StrEnum):
    """Where a run is."""

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


FINAL = frozenset({State.FINISHED, State.STOPPED})

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
    State.ENDING: {
        "job.requeued": State.SETTLING,
        "job.ended": State.SETTLING,
        "run.stopped": State.STOPPED,
    },
    State.SETTLING: {
        "decided": State.RECOVERING,
        **_OVER,
    },
    State.RECOVERING: {
        "attempt.opened": State.SUBMITTING,
        "launch.kept": State.QUEUED,
        "job.started": State.RUNNING,
        **_OVER,
    },
    State.FINISHED: {},
    State.STOPPED: {"run.resumed": State.RECOVERING, "run.given-up": State.STOPPED},
}

# What the agent inside a live allocation journals, and the supervisor copies: it goes on there, and the run stays where it is.
INSIDE = frozenset(
    {
        "agent.opened",
        "ladder.off",
        "start.begun",
        "start.over",
        "checkpoint.poisoned",
        "start.diagnosed",
        "start.decided",
        "start.stopped",
        "start.placed",
        "start.first-step",
        "start.left",
        "start.stays",
        "grow.stays",
        "grow.begun",
        "grow.dropped",
        "dependents.held",
        "hang.suspected",
        "hang.decided",
        "stacks.taken",
        "save.asked",
        "save.done",
        "save.missed",
        "straggler.seen",
        "rank.died",
        "rank.again",
        "rank.left",
        "steps.cancel.intended",
        "steps.cancel.done",
        "script.end.intended",
        "script.end.done",
        "stage.paired",
        "restore.intended",
        "restore.done",
        "restore.failed",
        "sweep.intended",
        "sweep.done",
        "nodes.checked",
        "release.intended",
        "release.done",
        "release.refused",
        "companion.intended",
        "companion.submitted",
        "companion.here",
        "companion.failed",
        "companion.ended.intended",
        "companion.ended",
        "companion.gone",
    }
)

IGNORED = "!"
"""So ends the key of a line that is no evidence, for another job wrote it (`line.ignored`)."""

# Records that tell something without moving the run. They may appear in any state.
NEUTRAL = INSIDE | frozenset(
    {
        "journal.opened",
        "run.created",
        "submit.intended",
        "submit.unknown",
        "job.adopted",
        "launch.seen",
        "evidence",
        "line.ignored",
        "tasks.failed",
        "tasks.given-up",
        "tasks.end.intended",
        "tasks.end.done",
        "launch.progress",
        "diagnosed",
        "end.done",
        "drain.intended",
        "drain.done",
        "drain.refused",
        "drain.asked",
        "raise.asked",
        "cancel.intended",
        "cancel.done",
        "exclude.intended",
        "exclude.done",
        "exclude.refused",
        "resize.intended",
        "resize.done",
        "resize.refused",
        "queue.waited",
        "dependents.moved",
        "attempt.over",
        "attempt.closed",
        "agent.absent",
        "request.seen",
        "halt.set",
        "halt.due",
        "leave.intended",
        "leave.asked",
        "leave.saved",
        "leave.missed",
        "leave.dropped",
        "warned",
        "observed",
        "checkpoint.set-aside",
        "checkpoint.taken-back",
        "final.line",
        "hook.intended",
        "hook.ended",
    }
)


class IllegalEvent(ValueError):
    """A journal record that cannot happen in this state."""

    def __init__(self, state: State, kind: str) -> None:
        super().__init__(f"{kind!r} cannot happen to a run that is {state.value}")
        self.state = state
        self.kind = kind


def next_state(state: State, kind: str) -> State:
    """The state after a record of this kind. Raises IllegalEvent."""
    if kind in NEUTRAL:
        return state
    try:
        return TRANSITIONS[state][kind]
    except KeyError:
        raise IllegalEvent(state, kind) from None
