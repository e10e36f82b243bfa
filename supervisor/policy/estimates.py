"""Estimates from a run's own history: time between faults, cost of a restart, expected end. (pure)

Time between faults. A run without a fault is treated like a published training (`PRIOR`): its own node-hours
plus as many as that training needed for one fault. So the longer the run goes well, the better the estimate.
`between_s` adds that prior to whatever was observed, so that one fault in the first minute does not count as
one per minute. Faults that a person caused or must fix, and planned ends, are not random and do not count.

Expected end. Current step, last step and the usual seconds per step give the remaining work; the time limit
gives the number of jobs. Queue time and the time before a job's first step are unknown, so they are left out,
and the output says so. Where a job is too short for the rest, the next job repeats what follows the
checkpoint that ftrun asks for before the limit.
"""

from __future__ import annotations

import math
from itertools import zip_longest
from statistics import median
from typing import Any

from ftrun.slurm.records import dataclass
from ftrun.supervisor.config.settings import number_of
from ftrun.supervisor.model.run import Attempt, Incident, Run
from ftrun.supervisor.model.stop_conditions import TIME_LIMIT_MARGIN_S
from ftrun.supervisor.model.types import FaultClass
from ftrun.supervisor.policy.save_request import LIMIT_SHARE

F = FaultClass
NOT_FAULTS = frozenset({F.HEALTHY, F.CANCELLED, F.TIMELIMIT, F.USER_CODE, F.DATA, F.CONFIG})
"""What a person caused or must fix is not random; a time limit is planned."""

_COST_NOTHING = frozenset({F.HEALTHY, F.CANCELLED, F.PREEMPTED})
"""Ends that are no fault, or for which others took the nodes."""

PRIOR = "llama3-16k"
PRIOR_EVENTS, PRIOR_NODE_DAYS = 419, 2048 * 54

ALIVE = frozenset({"running", "suspect"})


def random_faults(run: Run) -> list[str]:
    """The class of each random fault so far."""
    return [one.fault for one in run.incidents if one.fault not in NOT_FAULTS]


def faults_with_prior(events: int, hours: float) -> tuple[int, float]:
    """(faults, node-days) for an estimate, from so many faults in so many node-hours; with the prior if there
    was none.
    """
    return (events, hours / 24.0) if events and hours else (1, hours / 24.0 + PRIOR_NODE_DAYS / PRIOR_EVENTS)


def fault_interval_s(run: Run, now_s: float, nodes: int) -> float:
    """Expected seconds between two faults of this run on so many nodes."""
    events = len(random_faults(run)) + 1
    days = node_hours(run, now_s) / 24.0 + PRIOR_NODE_DAYS / PRIOR_EVENTS
    return days * 86_400.0 / events / nodes if nodes else math.inf


def node_hours(run: Run, now_s: float) -> float:
    """Node-hours in which jobs of the run were running; without queue time, pauses and gaps between attempts."""
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


def lost_node_hours(run: Run, now_s: float) -> float:
    """Node-hours that faults have cost since the run was submitted, or resumed by a person.

    From the first sign of a fault to the end of its start, from the next start to its first new step (inside
    the allocation the time in between, too), and the steps that are made once more, at the usual time of a
    step; never more of these than the failed start ran. Time in the queue holds no nodes.
    """
    faults = [one for one in run.incidents if one.fault not in _COST_NOTHING]
    counted = [one for one in faults if (one.decided_at_s or one.diagnosed_at_s) >= run.resumed_at_s]
    lost_s = sum(
        _lost_s(run, one, following, now_s) * len(one.attempt_nodes)
        for one, following in zip_longest(counted, counted[1:])
        if one is not None
    )
    return lost_s / 3600.0


def _lost_s(run: Run, one: Incident, following: Incident | None, now_s: float) -> float:
    owner = next((attempt for attempt in run.attempts if attempt.number == one.attempt), None)
    decided_s = one.decided_at_s or one.diagnosed_at_s
    ended_s = one.ended_at_s or decided_s
    lost_s = max(0.0, ended_s - one.began_at_s)
    again_s = one.running_again_at_s
    back_s = one.first_step_at_s
    if back_s is None and following is not None and following.step is None and one.step is not None:
        back_s = following.began_at_s  # that start never made a step
    if one.inside:
        alive = following is None and not run.final
        lost_s += max(0.0, (back_s or again_s or (now_s if alive else decided_s)) - ended_s)
    elif again_s is not None and back_s is not None:
        lost_s += max(0.0, back_s - again_s)
    if owner is None or one.step is None or one.first_step is None or owner.step_s is None:
        return lost_s
    redone_s = max(0, one.step - one.first_step + 1) * owner.step_s
    return lost_s + min(redone_s, start_ran_s(owner, one.launch, one.start, one.began_at_s))


def start_ran_s(attempt: Attempt, launch: int, start: int, ended_s: float) -> float:
    """How long a start ran, in seconds; 0 where nobody knows when it began."""
    known = (one.begun_at_s for one in attempt.begun if (one.launch, one.number) == (launch, start))
    begun_s = next(known, attempt.starts.get(launch))
    return 0.0 if begun_s is None else max(0.0, ended_s - begun_s)


def restart_s(run: Run) -> float | None:
    """Seconds from a decision to recover inside the allocation until the first new step; the median of this
    run, None if never measured.

    If no step was seen: until the script ran again.
    """
    took = [
        ended_s - one.decided_at_s
        for one in run.incidents
        if one.inside and one.decided_at_s is not None
        for ended_s in (one.first_step_at_s or one.running_again_at_s,)
        if ended_s is not None and ended_s >= one.decided_at_s
    ]
    return median(took) if took else None


@dataclass(frozen=True, slots=True)
class RunEstimate:
    """The expected end: `at_s` (Unix seconds, without queue time), `jobs` how many jobs it takes, the present
    one included.
    """

    at_s: float
    jobs: int
    step: int
    target: int
    step_s: float
    limit_s: float | None


def estimate_end(
    *,
    step: int,
    target: int,
    step_s: float,
    now_s: float,
    started_s: float | None,
    limit_s: float | None,
    save_wait_s: float,
) -> RunEstimate:
    """The end of a run that is at `step` now. `started_s` is the start of the present job."""
    work_s = max(0, target - step) * step_s
    if limit_s is None or started_s is None or now_s + work_s <= started_s + limit_s:
        return RunEstimate(now_s + work_s, 1, step, target, step_s, limit_s)
    lost_s = min(save_wait_s + TIME_LIMIT_MARGIN_S, limit_s / LIMIT_SHARE)
    rest_s = work_s - max(0.0, started_s + limit_s - lost_s - now_s)
    whole = max(
        0, math.ceil((rest_s - limit_s) / (limit_s - lost_s))
    )  # jobs that run to their limit before the last one
    begins_s = max(now_s, started_s + limit_s) + whole * limit_s
    return RunEstimate(
        begins_s + rest_s - whole * (limit_s - lost_s), 2 + whole, step, target, step_s, limit_s
    )


def estimate_run(run: Run, now_s: float) -> RunEstimate | None:
    """The expected end of a running run; None if its pace or its last step is unknown."""
    attempt = run.attempt
    if attempt is None or run.state.value not in ALIVE:
        return None
    wanted = run.halt.get("at_step")
    target = attempt.total_steps if wanted is None else min(wanted, attempt.total_steps or wanted)
    if target is None or attempt.last_step is None or not attempt.step_s or attempt.stepped_at_s is None:
        return None
    made = int(max(0.0, now_s - attempt.stepped_at_s) / attempt.step_s)
    return estimate_end(
        step=min(attempt.last_step + made, max(target, attempt.last_step)),
        target=target,
        step_s=attempt.step_s,
        now_s=now_s,
        started_s=attempt.launch.started_at_s,
        limit_s=attempt.launch.limit_s,
        save_wait_s=number_of(run.settings, "save-wait"),
    )


def estimate_json(found: RunEstimate | None) -> dict[str, Any] | None:
    """The estimate as `--json` prints it."""
    if found is None:
        return None
    return {
        "at": round(found.at_s),
        "jobs": found.jobs,
        "from_step": found.step,
        "target_step": found.target,
        "step_s": found.step_s,
        "time_limit_s": found.limit_s,
    }
