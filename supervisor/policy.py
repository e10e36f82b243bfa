"""What to do next, and why: a case in, a ruling with its reason out. (pure)

How it thinks. The rules stand in RULES in the order in which they are asked; the first that answers decides, and its
sentence is what the log, `explain` and the final line print. A person's wish comes first, then the script's own verdict,
then what cannot succeed, then the budgets, then the new attempt. Going on is the last rule, not the first.

Budgets. Each class may fail so often without progress (`grounds.CLASS_RULES`, settings `budget-<class>`); progress (a newer
complete checkpoint, or a step beyond the highest so far) refills them. Above all stands `retries`, the ceiling over
all classes, which nothing refills.
"""

from __future__ import annotations

from collections.abc import Callable

from ftrun.supervisor.grounds import CLASS_RULES, UNLIMITED, Case, ClassRule, Ruling
from ftrun.supervisor.model import Action, Blame, Decision, FaultClass
from ftrun.supervisor.placing import with_nodes

__all__ = ["RULES", "decide"]


def decide(case: Case) -> Ruling:
    """The first rule that answers, with exclusions, drains and budgets worked out."""
    for rule in RULES:
        decision = rule(case)
        if decision is not None:
            break
    else:  # pragma: no cover - the last rule always answers
        raise AssertionError("no rule answered")
    spent = dict(case.spent)
    retries = case.run.retries
    if decision.kind == "resubmit":
        retries += 1
        decision = with_nodes(case, decision)
    elif decision.kind == "keep" and case.diagnosis.fault is not FaultClass.HEALTHY:
        retries += 1
    if decision.spends:
        spent[decision.spends] = spent.get(decision.spends, 0) + 1
    return Ruling(decision, spent, retries)


def _stop(case: Case, reason: str, *notes: str) -> Decision:
    return Decision("stop", reason, advice=case.diagnosis.advice, notes=notes)


def _wished(case: Case) -> Decision | None:
    if case.run.wish == "cancel":
        return _stop(case, f"cancelled by {case.run.wish_by or 'request'}")
    if case.run.wish == "stop":
        return _stop(case, f"stopped by {case.run.wish_by or 'request'}")
    return None


def _finished(case: Case) -> Decision | None:
    if case.attempt.end_state != "COMPLETED":
        return None
    if case.attempt.derived_exit_code:
        return Decision(
            "finish",
            "the script exited 0",
            notes=(f"a step exited {case.attempt.derived_exit_code}: the script's verdict wins",),
        )
    return Decision("finish", "the script exited 0")


def _cancelled(case: Case) -> Decision | None:
    if case.diagnosis.fault is not FaultClass.CANCELLED or case.attempt.end_intended:
        return None
    return _stop(case, "the job was cancelled by a person")


def _watch_only(case: Case) -> Decision | None:
    if case.limits.retries == 0 and not case.attempt.requeued:
        return _stop(case, f"{_what(case)}; retries=0: watched and diagnosed, not resubmitted")
    return None


def _kept(case: Case) -> Decision | None:
    """Slurm put the job back into the queue for no fault of a node: it starts again by itself."""
    if not case.attempt.requeued or case.attempt.end_intended:
        return None
    harmless = {FaultClass.HEALTHY, FaultClass.PREEMPTED, FaultClass.TIMELIMIT, FaultClass.UNKNOWN}
    if case.limits.retries == 0:
        return Decision("keep", "requeued by Slurm; retries=0: left as it is")
    if (
        case.diagnosis.fault in harmless
        and not case.culprits
        and "held" not in case.attempt.end_reason.lower()
    ):
        if case.run.retries >= case.limits.retries:
            return None
        return Decision("keep", "requeued without a fault of a node: Slurm starts it again")
    return None


def _hopeless(case: Case) -> Decision | None:
    fault = case.diagnosis.fault
    if case.diagnosis.action is Action.STOP and not case.diagnosis.retry:
        return _stop(case, f"{_what(case)}: trying again cannot succeed")
    if case.limits.budget(fault) == 0 and not case.diagnosis.retry:
        return _stop(case, f"{_what(case)}: trying again cannot succeed")
    return None


def _time_limit(case: Case) -> Decision | None:
    if case.diagnosis.fault is not FaultClass.TIMELIMIT or case.progressed:
        return None
    before = case.before
    if before is not None and before.fault == FaultClass.TIMELIMIT.value:
        return _stop(
            case, "the time limit came twice without a newer checkpoint: raise --time or save more often"
        )
    return None


def _deterministic(case: Case) -> Decision | None:
    """The same signature at the same step on nodes that have nothing in common: it is not the nodes."""
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
    return _stop(case, f"{_what(case)}: the same failure twice at step {case.step}, on different nodes")


def _ceiling(case: Case) -> Decision | None:
    if case.run.retries >= case.limits.retries:
        return _stop(case, f"{_what(case)}; all {case.limits.retries} retries are used up")
    return None


def _budget(case: Case) -> Decision | None:
    fault = case.diagnosis.fault
    budget = max(case.limits.budget(fault), 1 if case.diagnosis.retry else 0)
    used = case.spent.get(fault.value, 0)
    if used >= budget:
        return _stop(
            case, f"{_what(case)}; {used} of {budget} retries for {fault.value} used without progress"
        )
    return None


def _older_checkpoint(case: Case) -> Decision | None:
    if case.diagnosis.fault is not FaultClass.CHECKPOINT:
        return None
    if case.attempt.resume_from:
        return Decision(
            "resubmit", f"{_what(case)}: resuming from an older checkpoint", older_checkpoint=True
        )
    if case.spent.get(FaultClass.CHECKPOINT.value, 0):
        return _stop(case, f"{_what(case)}; ftrun did not choose the checkpoint, so it cannot choose another")
    return Decision("resubmit", f"{_what(case)}: once more", spends=FaultClass.CHECKPOINT.value)


def _resubmit(case: Case) -> Decision:
    rule = CLASS_RULES[case.diagnosis.fault]
    spends = "" if rule.budget >= UNLIMITED else case.diagnosis.fault.value
    return Decision("resubmit", _what(case), spends=spends, delay_s=_delay_s(case, rule))


RULES: tuple[Callable[[Case], Decision | None], ...] = (
    _wished,
    _finished,
    _cancelled,
    _watch_only,
    _kept,
    _hopeless,
    _time_limit,
    _deterministic,
    _ceiling,
    _older_checkpoint,
    _budget,
    _resubmit,
)


def _what(case: Case) -> str:
    where = f" on {', '.join(case.culprits)}" if case.culprits else ""
    return f"{case.diagnosis.fault.value}: {case.diagnosis.title}{where}"


def _delay_s(case: Case, rule: ClassRule) -> float:
    """Nothing for a first failure with a named cause; doubling from then on, or from the start where waiting helps."""
    repeats = case.spent.get(case.diagnosis.fault.value, 0)
    if not repeats and not rule.back_off and case.diagnosis.action is not Action.WAIT:
        return 0.0
    return min(case.limits.backoff_s * 2.0 ** min(repeats, 20), case.limits.backoff_max_s)
