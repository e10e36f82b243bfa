"""What to do next, and why: a run, a diagnosis and the cluster in, a ruling with its reason out. (pure)

How it thinks. The rules stand in RULES in the order in which they are asked; the first that answers decides, and its
sentence is what the log, `explain` and the final line print. A person's wish comes first, then the script's own verdict,
then what cannot succeed, then the budgets, then the new attempt. Going on is the last rule, not the first.

Budgets. Each class may fail so often without progress (CLASS_RULES, settings `budget-<class>`); progress (a newer
complete checkpoint, or a step beyond the highest so far) refills them. Above all stands `retries`, the ceiling over
all classes, which nothing refills.

Blame. A node is excluded when the class says so and the diagnosis names it; never one outside the attempt. What rests on
the log alone may exclude but never drains: a log is written by users. Exclusions stay under a cap, so that the job stays
schedulable; the newest culprit counts more than the oldest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ftrun.supervisor.events import Attempt, Incident, Run
from ftrun.supervisor.model import Action, Blame, Decision, Diagnosis, FaultClass, Source

__all__ = ["CLASS_RULES", "Case", "ClassRule", "ClusterView", "Limits", "Ruling", "decide"]

UNLIMITED = 1_000_000


@dataclass(frozen=True, slots=True)
class ClassRule:
    """Defaults of one class: attempts without progress, how culprits are treated, whether waiting helps.

    `exclude`: always | proven (a source no user can write, or the same culprit before) | never.
    """

    budget: int
    exclude: str = "never"
    drain: bool = False
    elsewhere: bool = False  # the second try goes to other nodes first
    back_off: bool = False  # the cause passes with time: wait from the first retry on


CLASS_RULES: Mapping[FaultClass, ClassRule] = {
    FaultClass.HARDWARE_GPU: ClassRule(5, exclude="always", drain=True, elsewhere=True),
    FaultClass.HARDWARE_OTHER: ClassRule(5, exclude="always", drain=True, elsewhere=True),
    FaultClass.NODE: ClassRule(5, exclude="always", drain=True),
    FaultClass.NETWORK: ClassRule(5, exclude="proven", elsewhere=True),
    FaultClass.STORAGE: ClassRule(3, exclude="proven", back_off=True),
    FaultClass.SCHEDULER: ClassRule(5, back_off=True),
    FaultClass.PREEMPTED: ClassRule(UNLIMITED),
    FaultClass.TIMELIMIT: ClassRule(UNLIMITED),
    FaultClass.HANG: ClassRule(3, exclude="proven", elsewhere=True),
    FaultClass.CHECKPOINT: ClassRule(UNLIMITED),
    FaultClass.PORT_CONFLICT: ClassRule(3),
    FaultClass.LIBRARY_BUG: ClassRule(1),
    FaultClass.UNKNOWN: ClassRule(1, elsewhere=True),
    FaultClass.OOM_GPU: ClassRule(0, exclude="always"),
    FaultClass.OOM_HOST: ClassRule(0, exclude="always"),
    FaultClass.USER_CODE: ClassRule(0),
    FaultClass.DATA: ClassRule(0),
    FaultClass.CONFIG: ClassRule(0),
    FaultClass.CANCELLED: ClassRule(0),
    FaultClass.HEALTHY: ClassRule(1),
}

PROOF_SOURCES = frozenset({Source.SLURM, Source.KERNEL, Source.CHECK})


@dataclass(frozen=True, slots=True)
class Limits:
    """The settings that the policy rests on. Shares are 0..1 of the partition's nodes."""

    retries: int = 20
    budgets: Mapping[str, int] = field(default_factory=dict)
    exclude_for_s: float = 86_400.0
    exclude_cap: float = 0.10
    drain: bool = True
    drain_cap: float = 0.05
    backoff_s: float = 5.0
    backoff_max_s: float = 600.0

    def budget(self, fault: FaultClass) -> int:
        """How often this class may fail without progress."""
        return self.budgets.get(fault.value, CLASS_RULES[fault].budget)


@dataclass(frozen=True, slots=True)
class ClusterView:
    """What the policy needs to know of the cluster at this moment; all empty where Slurm cannot be seen."""

    partition: tuple[str, ...] = ()  # every node the job could be placed on
    available: frozenset[str] = frozenset()  # of these: up and not drained
    nodes_needed: int = 1
    ftrun_drains: int = 0  # nodes of the partition that bear a drain reason of ftrun's
    may_drain: bool = False


@dataclass(frozen=True, slots=True)
class Case:
    """Everything one ruling rests on. `step` is the highest step seen in this attempt, `checkpoint` the newest complete one."""

    run: Run
    attempt: Attempt
    diagnosis: Diagnosis
    cluster: ClusterView
    limits: Limits
    now_s: float
    step: int | None = None
    checkpoint: str = ""

    @property
    def progressed(self) -> bool:
        """Training got further than ever before: a newer checkpoint or a higher step."""
        if self.checkpoint and self.checkpoint != self.run.best_checkpoint:
            return True
        return self.step is not None and (self.run.best_step is None or self.step > self.run.best_step)

    @property
    def culprits(self) -> tuple[str, ...]:
        """The blamed nodes that really belonged to the attempt."""
        return tuple(node for node in self.diagnosis.nodes if node in self.attempt.nodes)

    @property
    def spent(self) -> Mapping[str, int]:
        """The budgets used up, after a refill by progress."""
        return {} if self.progressed else self.run.spent

    @property
    def before(self) -> Incident | None:
        """The incident before this one."""
        earlier = [i for i in self.run.incidents if (i.attempt, i.launch) != (self.attempt.number, self.attempt.launch)]
        return earlier[-1] if earlier else None


@dataclass(frozen=True, slots=True)
class Ruling:
    """A decision and the budgets after it."""

    decision: Decision
    spent: Mapping[str, int]
    retries: int


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
        decision = _with_nodes(case, decision)
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
            "finish", "the script exited 0", notes=(f"a step exited {case.attempt.derived_exit_code}: the script's verdict wins",)
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
    if case.diagnosis.fault in harmless and not case.culprits and "held" not in case.attempt.end_reason.lower():
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
        return _stop(case, "the time limit came twice without a newer checkpoint: raise --time or save more often")
    return None


def _deterministic(case: Case) -> Decision | None:
    """The same signature at the same step on nodes that have nothing in common: it is not the nodes."""
    before = case.before
    if before is None or not case.diagnosis.signature or case.step is None:
        return None
    if case.diagnosis.fault in {FaultClass.PREEMPTED, FaultClass.TIMELIMIT, FaultClass.SCHEDULER, FaultClass.CHECKPOINT}:
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
        return _stop(case, f"{_what(case)}; {used} of {budget} retries for {fault.value} used without progress")
    return None


def _older_checkpoint(case: Case) -> Decision | None:
    if case.diagnosis.fault is not FaultClass.CHECKPOINT:
        return None
    if case.attempt.resume_from:
        return Decision("resubmit", f"{_what(case)}: resuming from an older checkpoint", older_checkpoint=True)
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


def _with_nodes(case: Case, decision: Decision) -> Decision:
    exclude, notes = _to_exclude(case)
    relax, kept_out = _under_cap(case, exclude)
    exclude = tuple(node for node in exclude if node not in kept_out)
    if kept_out:
        notes = (*notes, f"not excluded, to keep the job schedulable: {', '.join(kept_out)}")
    drain, drain_notes = _to_drain(case, exclude)
    avoid = _to_avoid(case, exclude)
    reason = decision.reason
    if exclude:
        reason += f"; without {', '.join(exclude)}"
    elif avoid:
        reason += "; on other nodes first"
    return replace(
        decision, reason=reason, exclude=exclude, relax=relax, avoid=avoid, drain=drain, notes=(*decision.notes, *notes, *drain_notes)
    )


def _to_exclude(case: Case) -> tuple[tuple[str, ...], tuple[str, ...]]:
    outside = tuple(node for node in case.diagnosis.nodes if node not in case.attempt.nodes)
    notes = tuple(f"{node} is not of this attempt: not blamed" for node in outside)
    rule = CLASS_RULES[case.diagnosis.fault].exclude
    if not case.culprits or rule == "never":
        return (), notes
    if len(case.culprits) == len(case.attempt.nodes) > 1:
        return (), (*notes, "every node of the attempt is affected: the job or the cluster, not a node")
    if rule == "proven" and not set(case.diagnosis.sources) & PROOF_SOURCES:
        earlier = {node for i in case.run.incidents if (i.attempt, i.launch) != (case.attempt.number, case.attempt.launch) for node in i.nodes}
        repeated = tuple(node for node in case.culprits if node in earlier)
        return repeated, (*notes, *(f"{n} is blamed for the first time, by the log alone" for n in case.culprits if n not in earlier))
    return case.culprits, notes


def _under_cap(case: Case, exclude: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(old exclusions to give up, new ones that cannot be had) so that the job can still be placed."""
    partition = case.cluster.partition
    if not partition:
        return (), ()
    spare = len(set(case.cluster.available) | set(exclude)) - case.cluster.nodes_needed
    room = max(0, min(max(1, int(case.limits.exclude_cap * len(partition))), spare))
    kept_out = exclude[room:]
    old = [e for e in case.run.excluded if e.until_s > case.now_s and e.node not in exclude]
    old.sort(key=lambda e: e.until_s, reverse=True)
    usable_old = [e for e in old if e.node in case.cluster.available]
    left = max(0, room - len(exclude))
    return tuple(e.node for e in usable_old[left:]), kept_out


def _to_drain(case: Case, exclude: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    rule = CLASS_RULES[case.diagnosis.fault]
    if not exclude or not rule.drain or not case.limits.drain:
        return (), ()
    if not set(case.diagnosis.sources) & PROOF_SOURCES:
        return (), ("not drained: only the job's own log says so",)
    if not case.cluster.may_drain:
        return (), ("not drained: this user may not",)
    cap = max(1, int(case.limits.drain_cap * len(case.cluster.partition)))
    room = max(0, cap - case.cluster.ftrun_drains)
    if room < len(exclude):
        return exclude[:room], (f"drain cap of {cap} nodes reached",)
    return exclude, ()


def _to_avoid(case: Case, exclude: tuple[str, ...]) -> tuple[str, ...]:
    """All nodes of the attempt, when the same class failed before without a culprit and others are free."""
    if exclude or not CLASS_RULES[case.diagnosis.fault].elsewhere:
        return ()
    gone = set(case.attempt.nodes) | set(case.run.excluded_at(case.now_s))
    others = case.cluster.available - gone
    return tuple(case.attempt.nodes) if len(others) >= case.cluster.nodes_needed else ()


def limits_from(settings: Mapping[str, Any]) -> Limits:
    """The policy's limits from the validated settings of a run (settings.py has defaults, units and meaning)."""
    default = Limits()
    budgets = {key.removeprefix("budget-"): int(value) for key, value in settings.items() if key.startswith("budget-") and value != ""}
    return Limits(
        retries=int(settings.get("retries", default.retries)),
        budgets=budgets,
        exclude_for_s=float(settings.get("exclude-for", default.exclude_for_s)),
        exclude_cap=_share(settings.get("exclude-cap", default.exclude_cap)),
        drain=settings.get("drain", "auto") != "never",
        drain_cap=_share(settings.get("drain-cap", default.drain_cap)),
        backoff_s=float(settings.get("backoff", default.backoff_s)),
        backoff_max_s=float(settings.get("backoff-max", default.backoff_max_s)),
    )


def _share(value: Any) -> float:
    text = str(value)
    return float(text.removesuffix("%")) / 100 if text.endswith("%") else float(text)
