"""The path that a fault of a class or signature would take: `explain --what-if`. (pure)

`ladder.climb` answers for one fault in one situation. Here only settings and class are known, so each rung is
shown with the condition under which it would be chosen. Both read the same tables, and a test holds them
together: `climb` never picks a rung that is "never" here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ftrun.hooks.runtime.formats import duration_text
from ftrun.supervisor.config.recovery_order import RungRules, rung_rules_from
from ftrun.supervisor.config.rungs import IN_PLACE, Rung, inapplicable_rungs
from ftrun.supervisor.config.settings import format_value
from ftrun.supervisor.diagnosis.class_defaults import CLASS_DEFAULTS, UNSURE
from ftrun.supervisor.model.types import CLASS_RULES, UNLIMITED, Action, FaultClass
from ftrun.supervisor.policy import elastic
from ftrun.supervisor.policy.ladder import ENDS_ALLOCATION, NODE_BOUND, PROCESS_FAULTS
from ftrun.supervisor.policy.policy_input import PolicyLimits, limits_from

NEVER = "never: "
F = FaultClass


def what_if(
    settings: Mapping[str, Any],
    fault: FaultClass,
    signature: str = "",
    *,
    retry: bool | None = None,
    action: Action | None = None,
) -> list[tuple[str, str]]:
    """(rung or `stop`, when and how often) in the order of the attempts.

    `retry` and `action` come from the signature; None = the default of the class. Raises SettingError.
    """
    limits, rungs = limits_from(settings), rung_rules_from(settings)
    default = CLASS_DEFAULTS[fault]
    again = default.retry if retry is None else retry
    stops = (action or default.action) is Action.STOP or not limits.budget(fault)
    if fault is F.CANCELLED:
        return [("stop", "a person ended it")]
    if not limits.retries:
        return [("stop", "retries=0: watched and diagnosed only")]
    raised = not CLASS_RULES[fault].budget and limits.budget(fault) > 0
    if stops and not again and not raised:
        proven = fault in (F.OOM_GPU, F.OOM_HOST)
        unless = ", unless a sick device or a neighbour is proven to be why" if proven else ""
        guess = f"; where that is less than {UNSURE:g} sure and the script had made steps, once more"
        more = fault is F.OOM_HOST and "mem" in limits.escalate
        again_rows = [("resubmit", "with more memory, twice at most (escalate)")] if more else []
        return [*again_rows, ("stop", f"trying again cannot succeed{unless}{guess}")]
    order, off = rungs.order(fault, signature), inapplicable_rungs(settings)
    shown = (
        [] if fault in ENDS_ALLOCATION else [*order[:-1], *(rung for rung in IN_PLACE if rung not in order)]
    )
    rows = [_row(rungs, rung, fault, signature, off) for rung in shown]
    why = "the allocation itself ends" if fault in ENDS_ALLOCATION else "else, and whatever fails above"
    return [*rows, ("resubmit", why), ("stop", _end(limits, fault))]


def _row(
    rungs: RungRules, rung: Rung, fault: FaultClass, signature: str, off: Mapping[Rung, str]
) -> tuple[str, str]:
    if rung not in rungs.order(fault, signature):
        return rung.value, NEVER + off.get(rung, "it is not in the list (recover)")
    when = _WHEN[rung](fault)
    allowed, over = rungs.budget(rung, fault, signature)
    if not allowed:
        when = NEVER + f"budget-{rung.value} is 0"
    if when.startswith(NEVER):
        return rung.value, when
    of = f" for {over}" if over else ""
    limit = format_value(f"limit-{rung.value}", rungs.limit_s(rung, fault, signature))
    return rung.value, f"{when}; budget {allowed}{of}, within {limit}"


def _rank(fault: FaultClass) -> str:
    if fault not in PROCESS_FAULTS:
        return NEVER + "more than the fault of a process"
    return "where one process alone died and no node is blamed"


def _step(fault: FaultClass) -> str:
    if fault in NODE_BOUND:
        return "only where the blamed node is not in use"
    return {
        F.CHECKPOINT: "from the next older checkpoint, again and again",
        F.PORT_CONFLICT: "once, with another port",
        F.STORAGE: "once after a pause, unless one node alone is to be left out",
        F.SCHEDULER: "once after a pause",
        F.OOM_GPU: "once, where no node is suspected",
        F.OOM_HOST: "once, where no node is suspected",
    }.get(fault, "once, unless a node is blamed surely enough to be left out")


def _swap(fault: FaultClass) -> str:
    rule = CLASS_RULES[fault].exclude
    if rule == "never":
        return NEVER + f"{fault.value} blames no node"
    if rule == "always":
        return "where the blamed nodes are known and there is a spare for each"
    return "where a node is to be left out, or is suspected and the rungs above failed; with a spare for each"


def _companion(fault: FaultClass) -> str:
    if CLASS_RULES[fault].exclude == "never":
        return NEVER + f"{fault.value} blames no node"
    return "as for a swap, where spares are too few: the missing nodes are asked for"


def _shrink(fault: FaultClass) -> str:
    if CLASS_RULES[fault].exclude == "never" and fault not in elastic.SIZE_FAULTS:
        return NEVER + f"{fault.value} blames no node"
    if CLASS_RULES[fault].exclude == "never":
        return "where a new size of the run provoked it"
    return "as for a swap, where nothing takes the place of the blamed nodes and a valid size is left"


_WHEN = {
    Rung.RANK: _rank,
    Rung.STEP: _step,
    Rung.SWAP: _swap,
    Rung.COMPANION: _companion,
    Rung.SHRINK: _shrink,
}


def _end(limits: PolicyLimits, fault: FaultClass) -> str:
    storm = f" or {limits.storm[0]} within {duration_text(limits.storm[1])}" if limits.storm else ""
    budget, ceiling = (
        limits.budget(fault),
        f"after {limits.retries} retries{storm} without net progress in all",
    )
    if budget >= UNLIMITED:
        return ceiling
    retries = "1 retry" if budget <= 1 else f"{budget} retries"
    return f"after {retries} for {fault.value} without progress, or {ceiling}"
