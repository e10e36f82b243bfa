"""What becomes of a second opinion: where nothing else is known, a guess with a name on it. (pure)

An opinion is text about text (`opinion/`). It becomes the diagnosis only where the cause is unknown or a guess, no
signature says what it was and no node is named: then it may move class and retry, and name one node of the start as a
suspect. Elsewhere it is shown and changes nothing. Its confidence stays below what could stop a run that had worked,
the policy pays for it from the budget of `unknown`, and no node is excluded or drained for it.
"""

from __future__ import annotations

from ftrun.slurm.records import replace
from ftrun.supervisor.diagnosis.class_defaults import CLASS_DEFAULTS, UNSURE
from ftrun.supervisor.diagnosis.evidence import Case
from ftrun.supervisor.model.types import Action, Blame, Diagnosis, FaultClass

CONFIDENCE = 0.4
"""Less than UNSURE: a guess never says that a retry cannot succeed."""

SAID_BY_SLURM = frozenset(
    {
        FaultClass.HEALTHY, FaultClass.CANCELLED, FaultClass.PREEMPTED, FaultClass.TIMELIMIT,
        FaultClass.CHECKPOINT, FaultClass.SCHEDULER,
    }
)  # fmt: skip
"""Ends that Slurm or ftrun itself has seen: nobody else is asked about them."""


def is_open(found: Diagnosis) -> bool:
    """Whether a second opinion may help: the cause is unknown, or little more than a guess."""
    if found.fault in SAID_BY_SLURM:
        return False
    return found.fault is FaultClass.UNKNOWN or found.confidence < UNSURE


def add_second_opinion(case: Case, found: Diagnosis) -> Diagnosis | None:
    """The diagnosis with the opinion; None where it was not asked for."""
    opinion = case.facts.second_opinion
    if opinion is None or not is_open(found):
        return None
    told = f"second opinion, a guess by {opinion.by or 'a language model'}: {opinion.words}"
    says_what = bool(found.signature) and found.fault is not FaultClass.UNKNOWN
    if says_what or found.nodes:
        return replace(found, rests_on=(*found.rests_on, f"{told} (shown only: evidence outweighs it)"))
    default = CLASS_DEFAULTS[opinion.fault]
    return replace(
        found,
        fault=opinion.fault,
        retry=opinion.retry,
        action=Action.RESUBMIT if opinion.retry else Action.STOP,
        nodes=(opinion.suspect,) if opinion.suspect else (),
        exclude=False,
        confidence=CONFIDENCE,
        title=f"{found.title}; a second opinion: {opinion.reason or opinion.fault.value}",
        blame=Blame.NODE if opinion.suspect else found.blame,
        advice=found.advice or default.advice,
        rests_on=(*found.rests_on, told),
        opinion=opinion,
    )
