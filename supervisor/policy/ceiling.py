"""The ceiling: when a run is not started again, whatever the budgets of the classes leave. (pure)

`retries` restarts without net progress, or a storm: so many restarts within so much time without it (`storm`).
`PolicyInput.net_progress` says what that is, and refills both. Preemptions, and attempts that checks held,
count for nothing. `max-lost` and `deadline` are caps of the user's own: only a person lifts them.

A class budget that is used up says little where the run made net progress in the last hours and its faults
come at different places: on a hundred nodes and more, two faults between two checkpoints are a coincidence, and a
node that breaks in ways that nobody can name breaks anywhere. Such a class may fail `RECENT_BUDGET` times. The
same class at the same place twice is none, unless it blames broken nodes.
"""

from __future__ import annotations

from collections.abc import Iterator

from ftrun.hooks.runtime.formats import duration_text
from ftrun.supervisor.model.run import Incident
from ftrun.supervisor.model.types import FaultClass
from ftrun.supervisor.policy.estimates import lost_node_hours
from ftrun.supervisor.policy.policy_input import PolicyInput

RECENT_S = 6 * 3600.0
RECENT_BUDGET = 10
MANY_NODES = 128
BROKEN_NODES = frozenset({FaultClass.HARDWARE_GPU, FaultClass.HARDWARE_OTHER, FaultClass.NODE})
HOLD_BUDGET = "preflight"


def ceiling_reached(case: PolicyInput) -> str:
    """Why the run is not started again; "" = nothing speaks against it."""
    return _cap_reached(case) or _retries_reached(case)


def is_free(case: PolicyInput) -> bool:
    """Slurm took the nodes for another job: that counts for nothing."""
    return case.paid_by is FaultClass.PREEMPTED


def is_recent(case: PolicyInput) -> bool:
    """Whether the run made net progress in the last hours."""
    at_s = case.progress_at_s
    return at_s is not None and case.now_s - at_s <= RECENT_S


def is_large(case: PolicyInput) -> bool:
    """Whether a node may fail every few hours though nothing else is wrong."""
    return len(case.attempt.nodes) >= MANY_NODES


def is_coincidence(case: PolicyInput) -> bool:
    """Whether a class budget that is used up says little."""
    before = case.before
    if before is None or not is_large(case) or not is_recent(case):
        return False
    found = case.diagnosis.fault
    return found in BROKEN_NODES or (before.fault, before.step) != (found.value, case.step)


def _retries_reached(case: PolicyInput) -> str:
    if is_free(case):
        return ""
    if case.retries >= case.limits.retries:
        used = "the 1 retry is" if case.limits.retries == 1 else f"all {case.limits.retries} retries are"
        return f"no net progress, and {used} used up"
    if case.limits.storm is None or case.net_progress:
        return ""
    most, within_s = case.limits.storm
    if sum(1 for _ in _restarts_since(case, case.now_s - within_s)) < most:
        return ""
    return f"a storm: {most} retries within {duration_text(within_s)} without net progress (--ft-storm)"


def _restarts_since(case: PolicyInput, since_s: float) -> Iterator[Incident]:
    """The restarts since then that count, of those after the last net progress."""
    since_s = max(since_s, case.run.progress_at_s or 0.0, case.run.resumed_at_s)
    for one in case.earlier:
        free = one.fault == FaultClass.PREEMPTED or one.decision.get("spends") == HOLD_BUDGET
        if one.rung and not free and one.decided_at_s is not None and one.decided_at_s >= since_s:
            yield one


def _cap_reached(case: PolicyInput) -> str:
    limits, run = case.limits, case.run
    if limits.deadline_s and case.now_s >= run.created_at_s + limits.deadline_s:
        return (
            f"the deadline, {duration_text(limits.deadline_s)} after submission, has passed (--ft-deadline)"
        )
    if limits.max_lost_node_h is None:
        return ""
    lost = lost_node_hours(run, case.now_s)
    if lost <= limits.max_lost_node_h:
        return ""
    return f"recovery has cost {lost:,.1f} of {limits.max_lost_node_h:,g} node-hours (--ft-max-lost)"
