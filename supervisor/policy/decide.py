"""The policy: from one case to one decision with its reason. (pure)

RULES are asked in order and the first one that answers decides; its sentence is what the log, `explain` and
the final line print. The script's own verdict comes first, then a person's request, then what cannot succeed,
then the budgets, then the new attempt. Going on is the last rule, not the first. VETOES have the last word:
they turn a decision that must not be executed into one that may. A job that Slurm itself requeued is judged
while it waits: it may start without us, but not for free. Once it has started, only a person's request ends
it before it shows a fault of its own.

Budgets. Each class may fail so often without progress (CLASS_RULES, settings `budget-<class>`). Progress (a
newer complete checkpoint, or a step beyond the highest so far) refills the budget. The ceiling over all
classes stands in `policy_input`. A class without retries by default gets one where the diagnosis
proves that another try makes sense (a neighbour took the memory), and as many as the user asks for by
`budget-<class>`.

An attempt that its checks held is no fault of the run, so it spends no budget of a class and no retry. It has
its own ceiling; beyond that, or where a bad node cannot be excluded, the next attempt starts its script
whatever the checks find: a job on doubtful nodes is better than one that never runs.

A guess is no verdict. A diagnosis that is less than half sure never says that a retry cannot succeed. If the
script has worked before, in this launch or an earlier one, there is one retry. If it never made a step, the
run stops, and the reason says how sure the diagnosis is and which setting tries again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from ftrun.hooks.runtime.formats import counted, duration_text
from ftrun.slurm.records import replace
from ftrun.supervisor.config.node_counts import sizes_of_settings
from ftrun.supervisor.config.rungs import Rung
from ftrun.supervisor.diagnosis.checkpoint_blame import AGAIN
from ftrun.supervisor.diagnosis.class_defaults import UNSURE
from ftrun.supervisor.diagnosis.known_ends import HELD
from ftrun.supervisor.model import stop_conditions
from ftrun.supervisor.model.run import Run
from ftrun.supervisor.model.types import (
    CLASS_RULES,
    UNLIMITED,
    Action,
    Blame,
    ClassRule,
    Decision,
    Diagnosis,
    FaultClass,
)
from ftrun.supervisor.policy import elastic
from ftrun.supervisor.policy.node_placement import add_node_decisions
from ftrun.supervisor.policy.policy_input import BROKEN_NODES, HOLD_BUDGET, RECENT_BUDGET, PolicyInput, Ruling

ESCALATIONS_MAX = 2
HELD_STATES = frozenset({"SPECIAL_EXIT", "REQUEUE_HOLD"})
"""States of a job that waits in the queue until somebody releases it."""
HOLDS_MAX = 5
"""How many attempts in a row, without progress in between, the checks may hold."""


def decide(case: PolicyInput) -> Ruling:
    """The decision of the first rule that answers, with exclusions, drains and budgets."""
    for rule in RULES:
        decision = rule(case)
        if decision is not None:
            break
    else:  # pragma: no cover - the last rule always answers
        raise AssertionError("no rule answered")
    spent = dict(case.spent)
    retries = case.retries
    if decision.kind == "stop" and case.running_again and rule not in _LAST_WORDS:
        reason = f"{decision.reason}; yet Slurm has started the job again, and a launch that shows no fault is not ended"
        return _vetoed(case, Ruling(Decision("keep", reason), spent, retries))
    if decision.kind == "resubmit" and case.from_zero:
        lost = duration_text(case.trained_s)
        reason = f"{decision.reason}; no checkpoint may be loaded, and {lost} of training are lost by beginning from nothing"
        decision = replace(decision, reason=reason, fresh=True)
    if decision.kind == "resubmit":
        retries += 0 if decision.spends == HOLD_BUDGET or case.is_free else 1
        decision = decision if decision.aside or decision.more else add_node_decisions(case, decision)
    elif decision.kind == "keep" and case.diagnosis.fault is not FaultClass.HEALTHY:
        retries += 0 if case.is_free else 1
    if decision.spends:
        spent[decision.spends] = spent.get(decision.spends, 0) + 1
    if decision.spends == HOLD_BUDGET:
        decision = _with_checks_waived(decision, case.culprits, spent)
    return _vetoed(case, Ruling(decision, spent, retries))


def requested_stop(run: Run) -> Decision | None:
    """The stop that a person asked for, if any; checked before and after each decision."""
    word = {"cancel": "cancelled", "pause": "paused", "stop": "stopped"}.get(run.wish)
    return Decision("stop", f"{word} by {run.wish_by or 'request'}") if word else None


def _stop(case: PolicyInput, reason: str, *notes: str) -> Decision:
    return Decision("stop", reason, advice=case.diagnosis.advice, notes=notes)


def _requested(case: PolicyInput) -> Decision | None:
    wish = requested_stop(case.run)
    return replace(wish, advice=case.diagnosis.advice) if wish is not None else None


def _stopped_on_request(case: PolicyInput) -> Decision | None:
    """A script that was asked to save and exit, and exits 0, has not reached its end."""
    return _requested(case) if stop_conditions.stopped_on_request(case.run, case.attempt, case.step) else None


def _finished(case: PolicyInput) -> Decision | None:
    if case.attempt.launch.end.state != "COMPLETED":
        return None
    if case.run.given_up:
        return _stop(case, f"{case.summary}: not tried again; all other tasks are done")
    if case.attempt.launch.end.derived_exit_code:
        return Decision(
            "finish",
            "the script exited 0",
            notes=(f"a step exited {case.attempt.launch.end.derived_exit_code}: the script's verdict wins",),
        )
    return Decision("finish", "the script exited 0")


def _cancelled(case: PolicyInput) -> Decision | None:
    if case.diagnosis.fault is not FaultClass.CANCELLED or case.attempt.ended_by_us:
        return None
    if [case.attempt.number, case.attempt.launch.number] in case.run.decision.get("over", ()):
        return Decision("resubmit", "resumed by a person, after the job was cancelled")
    told = case.diagnosis.title if case.diagnosis.signature.startswith("slurm.") else "cancelled by a person"
    return _stop(case, f"the job was {told}")


def _watch_only(case: PolicyInput) -> Decision | None:
    """`retries=0`: ftrun starts nothing; a job that Slurm requeues is left to Slurm."""
    if case.limits.retries:
        return None
    if case.attempt.launch.requeued and not case.attempt.ended_by_us and not _held_by_slurm(case):
        return Decision("keep", "requeued by Slurm; retries=0: left as it is")
    held = f"; Slurm holds the job: scontrol release {case.attempt.job}" if _held_by_slurm(case) else ""
    return _stop(case, f"{case.summary}; retries=0: watched and diagnosed, not resubmitted{held}")


def _with_checks_waived(decision: Decision, culprits: tuple[str, ...], spent: Mapping[str, int]) -> Decision:
    """The decision, with the next script to be started whatever its checks find, where they could hold it
    again for the same nodes.
    """
    kept = [node for node in culprits if node not in decision.exclude]
    if not kept and spent.get(HOLD_BUDGET, 0) < HOLDS_MAX:
        return decision
    why = f"{', '.join(kept)} cannot be left out" if kept else f"{HOLDS_MAX} attempts were held"
    return replace(
        decision,
        anyway=True,
        reason=f"{decision.reason}; the next script starts whatever its checks say: {why}",
    )


def are_checks_waived(decision: Mapping[str, Any], spent: Mapping[str, int]) -> bool:
    """Whether the next attempt is submitted so that its checks cannot hold it."""
    return bool(decision.get("anyway")) or spent.get(HOLD_BUDGET, 0) >= HOLDS_MAX


def _held_by_checks(case: PolicyInput) -> Decision | None:
    """The script was not started: no fault of the run, so no budget of its classes is spent."""
    if not case.diagnosis.signature.startswith(HELD) or case.spent.get(HOLD_BUDGET, 0) >= HOLDS_MAX:
        return None
    return Decision("resubmit", case.summary, spends=HOLD_BUDGET)


def _with_more(case: PolicyInput) -> Decision | None:
    """The user said that a job which ran out of memory or time may have more (`escalate`)."""
    key = wanted_more(case.limits.escalate, case.diagnosis, saved=case.saved)
    if not key or case.asked is None or case.ceiling:
        return None
    option, amount, most = case.asked.option, case.asked.amount, case.asked.most
    lately = [one for one in case.earlier if (one.decided_at_s or 0.0) >= case.run.resumed_at_s]
    used = sum(option in one.decision.get("more", {}) for one in lately)
    wanted = amount * case.limits.escalate[key]
    given = math.floor(min(wanted, most)) if most is not None else math.ceil(wanted)
    if used >= ESCALATIONS_MAX or given <= amount:
        return None
    unit = "M" if key == "mem" else ""
    capped = ", the most that the partition allows" if most is not None and given < wanted else ""
    reason = f"once more with --{option}={given}{unit} in place of {amount:.0f}{unit} ({used + 1} of {ESCALATIONS_MAX}{capped})"
    spends = FaultClass.TIMELIMIT.value if key == "time" else ""
    return Decision("resubmit", f"{case.summary}: {reason}", spends=spends, more={option: f"{given}{unit}"})


def wanted_more(escalate: Mapping[str, float], found: Diagnosis, *, saved: bool) -> str:
    """mem or time, if the job ran out of it and the user lets it have more; else "". A neighbour that took the memory is
    no reason.
    """
    short = {FaultClass.OOM_HOST: "mem", FaultClass.TIMELIMIT: "time"}.get(found.fault, "")
    passes = found.retry if short == "mem" else saved
    return short if short in escalate and not passes else ""


def _time_limit(case: PolicyInput) -> Decision | None:
    """One time limit without a newer checkpoint may be bad luck; two mean a setting that cannot work."""
    if case.diagnosis.fault is not FaultClass.TIMELIMIT or case.saved:
        return None
    if not case.spent.get(FaultClass.TIMELIMIT.value, 0):
        return None
    advice = "raise --time or save checkpoints more often"
    came = "the time limit came twice without a newer checkpoint"
    if case.began_anew:
        came = "the time limit came twice, and the second start began anew"
        advice = (
            "save checkpoints and load them at the start (`ftrun init SCRIPT` proposes how), or raise --time"
        )
    return replace(_stop(case, f"{came}: {advice}"), advice=advice)


def _left_to_slurm(case: PolicyInput) -> Decision | None:
    """Slurm requeued the job without a node fault, or put it first without the bad node (`_is_expedited`): it starts again by
    itself.
    """
    if not case.attempt.launch.requeued or case.attempt.ended_by_us or _held_by_slurm(case):
        return None
    reason = "requeued without a fault of a node: Slurm starts it again"
    if _is_expedited(case):
        bad = ", ".join(case.culprits)
        reason = (
            f"{case.summary}; requeued as expedited: Slurm starts it before all other jobs, and not on {bad}"
        )
    if case.diagnosis.fault is FaultClass.HEALTHY:
        return Decision("keep", reason)  # requested by the script or a person: no fault, so nothing is spent
    harmless = {FaultClass.PREEMPTED, FaultClass.TIMELIMIT, FaultClass.UNKNOWN}
    if case.attempt.adopted:
        return None  # without batch.sh, it would begin from nothing
    if not _is_expedited(case) and (case.diagnosis.fault not in harmless or case.culprits):
        return None
    if case.ceiling or _used(case) >= _allowed(case):
        return None
    return Decision("keep", reason, spends=_spends(case))


def _is_expedited(case: PolicyInput) -> bool:
    """Slurm put the requeued job first, and starts nothing on the nodes that are to blame: a job of ours would come later."""
    culprits = set(case.culprits)
    return case.expedited and bool(culprits) and culprits.isdisjoint(case.cluster.available)


def _held_by_slurm(case: PolicyInput) -> bool:
    """Slurm gave up on a node, or on a script that ended with a code of the site's RequeueExitHold, and holds
    the job for good. A hold by a person is different, and respected: nothing is wrong then.
    """
    if case.attempt.launch.end.state in HELD_STATES and case.diagnosis.fault is not FaultClass.HEALTHY:
        return True
    words = case.attempt.launch.end.reason.lower().replace("_", "").replace(" ", "")
    return "launchfail" in words and "held" in words


def _size_is_to_blame(case: PolicyInput) -> Decision | None:
    size = elastic.size_to_exclude(case, sizes_of_settings(case.run.settings))
    if not size or case.ceiling:
        return None
    return Decision(
        "resubmit", f"{case.summary}: only at {counted(size, 'node')}, not used again", aside=size
    )


def _nothing_to_load(case: PolicyInput) -> Decision | None:
    """There are checkpoints, but none may be loaded. If much would be lost, only the user may decide to begin
    from nothing.
    """
    if not case.no_checkpoint or case.from_zero:
        return None
    lost = "what was there before the run began is not thrown away"
    if case.own_checkpoints:
        limit = duration_text(case.limits.from_zero_max_s)
        lost = f"{duration_text(case.trained_s)} of training are not thrown away (restart-from-zero-max: {limit})"
    advice = "Mend one of them, or say --ft-checkpoint-fresh to begin from nothing."
    return replace(_stop(case, f"{case.summary}; {case.no_checkpoint}; {lost}"), advice=advice)


def _once_more(case: PolicyInput) -> Decision | None:
    """The program worked before and now fails while loading. One more start from the same checkpoint tells
    which of the two is broken.
    """
    loading = case.diagnosis.loading
    if loading is None or loading.verdict != AGAIN or case.ceiling:
        return None
    return Decision("resubmit", f"{case.summary}: before the first step, once more from the same checkpoint")


def _hopeless(case: PolicyInput) -> Decision | None:
    if not _says_never(case) or _raised_by_user(case) or _goes_back(case):
        return None
    if case.from_zero and case.diagnosis.fault is FaultClass.CHECKPOINT:
        return None
    if not _unsure(case):
        return _stop(case, f"{case.summary}; trying again cannot succeed")
    if _has_worked(case) or case.paid_by.value in case.limits.budgets:
        return None
    again = f"and no step was ever seen; {_setting(case)}=1 tries again"
    return _stop(case, f"{case.summary}: only {case.diagnosis.confidence:.2f} sure, {again}")


def _says_never(case: PolicyInput) -> bool:
    found = case.diagnosis
    return not found.retry and (found.action is Action.STOP or not case.limits.budget(case.paid_by))


def _unsure(case: PolicyInput) -> bool:
    """The diagnosis rules out another try, but is only a guess."""
    return _says_never(case) and case.diagnosis.confidence < UNSURE


def _has_worked(case: PolicyInput) -> bool:
    return (
        case.step is not None
        or case.progressed
        or case.run.best_step is not None
        or bool(case.run.best_checkpoint)
    )


def _setting(case: PolicyInput) -> str:
    return f"--ft-budget-{case.paid_by.value}"


def _goes_back(case: PolicyInput) -> bool:
    """A diverged training gets another try from before the divergence: arithmetic is not always repeatable,
    and a device may be faulty.
    """
    return (
        bool(case.diverged and (case.older or case.from_zero))
        and case.diagnosis.fault is not FaultClass.CANCELLED
    )


def _raised_by_user(case: PolicyInput) -> bool:
    """The user gave a budget to a class that has none: the user knows better."""
    fault = case.paid_by
    if fault is FaultClass.CANCELLED:
        return False
    return not CLASS_RULES[fault].budget and case.limits.budget(fault) > 0


def _deterministic(case: PolicyInput) -> Decision | None:
    """The same signature at the same step on disjoint nodes: the nodes are not the cause."""
    before = case.before
    if before is None or not case.diagnosis.signature or case.step is None:
        return None
    if case.diagnosis.fault in {
        FaultClass.PREEMPTED,
        FaultClass.TIMELIMIT,
        FaultClass.SCHEDULER,
        FaultClass.CHECKPOINT,
    }:
        return None
    if (before.signature, before.step) != (case.diagnosis.signature, case.step):
        return None
    now, then = set(case.culprits or case.attempt.nodes), set(before.nodes or before.attempt_nodes)
    if now & then and case.diagnosis.blame is not Blame.JOB:
        return None
    times = 2
    if case.is_large and case.diagnosis.fault in BROKEN_NODES and case.is_recent:
        times = 3  # of thousands of nodes, two may break in one step
        if [(i.signature, i.step) for i in case.earlier[-2:]] != [(before.signature, before.step)] * 2:
            return None
    where = "the job's own, not a node's" if now & then else "on different nodes"
    often = "twice" if times == 2 else "three times"
    return _stop(case, f"{case.summary}: the same failure {often} at step {case.step}, {where}")


def _ceiling(case: PolicyInput) -> Decision | None:
    reached = case.ceiling
    return _stop(case, f"{case.summary}; {reached}") if reached else None


def _budget(case: PolicyInput) -> Decision | None:
    fault, used, allowed = case.paid_by, _used(case), _allowed(case)
    if used < allowed:
        return None
    if not allowed:
        return _stop(case, f"{case.summary}; budget-{fault.value}=0: not tried again")
    in_place = sum(case.run.rungs.get(f"{rung.value}:{fault.value}", 0) for rung in (Rung.RANK, Rung.STEP))
    free = f" and {in_place} restart{'s' if in_place > 1 else ''} in the same job" if in_place else ""
    used_up = f"{used} of {allowed} retries for {fault.value}{free} used without progress ({_setting(case)})"
    guess = f" (only {case.diagnosis.confidence:.2f} sure)" if _unsure(case) else ""
    return _stop(case, f"{case.summary}{guess}; {used_up}")


def _used(case: PolicyInput) -> int:
    return case.spent.get(case.paid_by.value, 0)


def _allowed(case: PolicyInput) -> int:
    fault = case.paid_by
    if not CLASS_RULES[fault].budget and (case.diagnosis.retry or _goes_back(case)):
        return max(case.limits.budget(fault), 1)
    if _unsure(case):
        return case.limits.budgets.get(fault.value, 1)
    allowed = case.limits.budget(fault)
    own = fault.value in case.limits.budgets  # the user's own number holds
    return max(allowed, RECENT_BUDGET) if allowed and not own and case.is_coincidence else allowed


def _spends(case: PolicyInput) -> str:
    """The class that pays; "" if it has no budget of its own. A time limit without a newer checkpoint
    counts.
    """
    fault = case.paid_by
    fruitless = fault is FaultClass.TIMELIMIT and not case.saved
    return fault.value if fruitless or case.limits.budget(fault) < UNLIMITED else ""


def _older_checkpoint(case: PolicyInput) -> Decision | None:
    """Skip a checkpoint that could not be loaded. The number of checkpoints is the budget, unless a setting
    is lower.
    """
    if case.diagnosis.fault is not FaultClass.CHECKPOINT:
        return None
    if case.attempt.launch.start.resume_from or case.from_zero:
        where = "beginning anew" if case.from_zero else "resuming from an older checkpoint"
        reason = f"{case.summary}: {where}"
        return Decision("resubmit", reason, older_checkpoint=True, spends=_spends(case))
    if _used(case):
        return _stop(
            case, f"{case.summary}; ftrun did not choose the checkpoint, so it cannot choose another"
        )
    return Decision("resubmit", f"{case.summary}: once more", spends=FaultClass.CHECKPOINT.value)


def _resubmit(case: PolicyInput) -> Decision:
    rule = CLASS_RULES[case.diagnosis.fault]
    back = case.older or "its beginning"
    reason = f"{case.summary}: {case.diverged}, back to {back}" if _goes_back(case) else case.summary
    if _unsure(case) and case.paid_by.value not in case.limits.budgets and not _goes_back(case):
        reason += f": only {case.diagnosis.confidence:.2f} sure, and it had worked: once more"
    return Decision("resubmit", reason, spends=_spends(case), delay_s=_delay_s(case, rule))


RULES: tuple[Callable[[PolicyInput], Decision | None], ...] = (
    _stopped_on_request,
    _finished,
    _requested,
    _cancelled,
    _watch_only,
    _held_by_checks,
    _with_more,
    _time_limit,
    _left_to_slurm,
    _size_is_to_blame,
    _nothing_to_load,
    _once_more,
    _hopeless,
    _deterministic,
    _ceiling,
    _budget,
    _older_checkpoint,
    _resubmit,
)


def _observed_only(case: PolicyInput, ruling: Ruling) -> Ruling | None:
    """`observe`: show what would be done. A job that Slurm requeues goes on."""
    decision = ruling.decision
    if not case.limits.observe or decision.kind not in ("resubmit", "keep"):
        return None
    if decision.kind == "keep":
        return replace(ruling, would=decision)
    stop = replace(decision, kind="stop", reason=f"observe: would resubmit: {decision.reason}")
    return replace(ruling, decision=stop, would=decision)


def _never_seen(case: PolicyInput, ruling: Ruling) -> Ruling | None:
    """The run left no record (P10): exit and progress are unknown, and another attempt would show no more.

    A node of the job that was lost explains that: it may have died before the job's script began.
    """
    decision = ruling.decision
    node_was_lost = case.diagnosis.fault is FaultClass.NODE and bool(case.culprits)
    if not case.unseen or node_was_lost or decision.kind != "resubmit":
        return None
    reason = f"{decision.reason}; not resubmitted: {case.unseen} was never seen from the nodes"
    return replace(ruling, decision=replace(decision, kind="stop", reason=reason), would=decision)


VETOES: tuple[Callable[[PolicyInput, Ruling], Ruling | None], ...] = (_observed_only, _never_seen)


def _vetoed(case: PolicyInput, ruling: Ruling) -> Ruling:
    return next((vetoed for veto in VETOES if (vetoed := veto(case, ruling)) is not None), ruling)


_LAST_WORDS = (_stopped_on_request, _finished, _requested, _cancelled)  # these hold whatever Slurm does


def _delay_s(case: PolicyInput, rule: ClassRule) -> float:
    """0 for a first failure with a named cause; then doubling, or doubling from the start where waiting
    helps.
    """
    repeats = _used(case)
    if not repeats and not rule.back_off and case.diagnosis.action is not Action.WAIT:
        return 0.0
    first_s = case.limits.backoff_s * max(rule.back_off, 1.0)
    return min(first_s * 2.0 ** min(repeats, 20), case.limits.backoff_max_s)
