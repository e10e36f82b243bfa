"""How often a run meets faults, and what a planned restart of it takes: by its own history. (pure)

How it thinks. A run without a fault is held to be like a published training (`PRIOR`): one fault in its own node-hours and as many more as that
training needed for one; so the longer it goes well, the better it is thought of. A single guess (`between_s`) adds these to whatever was met, so that a fault in the
first minute is not taken for one a minute. What a person did or has to mend, and what was planned, is no fault of chance.
"""

from __future__ import annotations

import math
from statistics import median
from typing import TYPE_CHECKING

from ftrun.supervisor.model import FaultClass

if TYPE_CHECKING:
    from ftrun.supervisor.run_types import Attempt, Run

__all__ = [
    "NOT_FAULTS",
    "PRIOR",
    "PRIOR_EVENTS",
    "PRIOR_NODE_DAYS",
    "between_s",
    "met",
    "met_in",
    "node_hours",
    "restart_s",
]

F = FaultClass
NOT_FAULTS = frozenset({F.HEALTHY, F.CANCELLED, F.TIMELIMIT, F.USER_CODE, F.DATA, F.CONFIG})
"""What a person did or has to mend does not come again by chance; a time limit is a plan."""

PRIOR = "llama3-16k"
PRIOR_EVENTS, PRIOR_NODE_DAYS = 419, 2048 * 54


def met(run: Run) -> list[str]:
    """The class of each fault that may come again by chance."""
    return [one.fault for one in run.incidents if one.fault not in NOT_FAULTS]


def met_in(events: int, hours: float) -> tuple[int, float]:
    """(faults, node-days) to reckon with, for so many in so many node-hours: those, or the prior where there was none."""
    return (events, hours / 24.0) if events and hours else (1, hours / 24.0 + PRIOR_NODE_DAYS / PRIOR_EVENTS)


def between_s(run: Run, now_s: float, nodes: int) -> float:
    """Seconds between two faults of this run that are to be expected on so many nodes."""
    events = len(met(run)) + 1
    days = node_hours(run, now_s) / 24.0 + PRIOR_NODE_DAYS / PRIOR_EVENTS
    return days * 86_400.0 / events / nodes if nodes else math.inf


def node_hours(run: Run, now_s: float) -> float:
    """Node-hours in which the run's jobs ran; time in the queue, between attempts and while it was paused is none."""
    return sum(_node_s(one, run, now_s) for one in run.attempts) / 3600.0


def _node_s(attempt: Attempt, run: Run, now_s: float) -> float:
    known = (*attempt.starts.values(), attempt.launch.started_at_s, attempt.launch.running_seen_at_s)
    began = [one for one in known if one is not None]
    if not began:
        return 0.0
    over = attempt.launch.end.at_s
    if over is None:
        alive = attempt is run.attempt and not run.final
        over = now_s if alive else run.last_at_s
    sizes = [(one.begun_at_s, len(one.nodes)) for one in attempt.begun if one.nodes]
    if not sizes:
        return max(0.0, over - min(began)) * len(attempt.used)
    sizes[0] = min(began), sizes[0][1]
    ends = [*(at_s for at_s, _ in sizes[1:]), over]
    return sum(
        max(0.0, min(end_s, over) - at_s) * size for (at_s, size), end_s in zip(sizes, ends, strict=True)
    )


def restart_s(run: Run) -> float | None:
    """From a decision to go on inside the allocation until the first new step: the median of this run's own; None where none was measured.

    Where no step was seen, until the script ran again.
    """
    took = [
        ended_s - one.decided_at_s
        for one in run.incidents
        if one.inside and one.decided_at_s is not None
        for ended_s in (one.first_step_at_s or one.running_again_at_s,)
        if ended_s is not None and ended_s >= one.decided_at_s
    ]
    return median(took) if took else None
