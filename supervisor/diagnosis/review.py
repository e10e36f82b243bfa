"""Reviews of a cause that the log or Slurm names, in the light of everything else that is known. (pure)

The rules run one after the other, and each may replace the diagnosis so far. While ftrun ends a start, its
ranks and Slurm print lines too; these explain nothing. A line that names a cause explains more than silence
does. But a cause that stops a run for good (the program's mistake, memory, data, settings) needs a script or
rank that ended by itself: programs print such lines and go on (P7). If ftrun ended the start after such a
line, the diagnosis is the suspicion for which ftrun ended it; whether the same line comes again at the same
step is for the policy to judge.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ftrun.slurm.records import replace
from ftrun.supervisor.diagnosis import checkpoint_blame
from ftrun.supervisor.diagnosis.class_defaults import UNSURE, recorded_end
from ftrun.supervisor.diagnosis.known_ends import CANCELLED_AGAIN, LEFT_QUEUE, slurmstepd_reason
from ftrun.supervisor.diagnosis.node_findings import HARDWARE, joined, while_alive
from ftrun.supervisor.diagnosis.rank_deaths import is_rank_death
from ftrun.supervisor.diagnosis.suspicions import is_planned
from ftrun.supervisor.model.types import (
    MOVED_OFF,
    NEAR_TIME_LIMIT,
    UNWATCHED,
    Action,
    Diagnosis,
    FaultClass,
    Source,
)

if TYPE_CHECKING:
    from ftrun.supervisor.diagnosis.evidence import Case


COMPANION_OVER = "node.companion-over"

_REQUEUE, _LOST_NODE = "DUE TO JOB REQUEUE", "DUE TO NODE FAILURE"  # as slurmstepd says

_NOTHING_BETTER = frozenset({FaultClass.UNKNOWN, FaultClass.HANG, FaultClass.HEALTHY})
_OF_STEPS = frozenset(
    {
        FaultClass.UNKNOWN,
        FaultClass.CANCELLED,
        FaultClass.TIMELIMIT,
        FaultClass.PREEMPTED,
        FaultClass.NETWORK,
        FaultClass.HANG,
    }
)
"""Classes that srun and the ranks report when a step loses a companion."""

_VAGUE = frozenset({FaultClass.UNKNOWN, FaultClass.HANG, FaultClass.NETWORK})


def review_checkpoint(case: Case, found: Diagnosis) -> Diagnosis | None:
    """The start resumed from a checkpoint and made no step: the checkpoint or the program may be to blame."""
    lines = (*(line for line, _ in case.log.causes), *case.log.spoken)
    return checkpoint_blame.blame_checkpoint(found, lines, case.facts.resumed, case.progress)


def cancelled_by_us(case: Case, found: Diagnosis) -> Diagnosis | None:
    """ftrun cancelled the job, for no fault of it."""
    attempt = case.facts.attempt
    if attempt is None or not attempt.cancel_intended or attempt.end_intended:
        return None
    return _CANCELLED_BY_US if found.fault is FaultClass.CANCELLED else None


def requeued_then_gone(case: Case, found: Diagnosis) -> Diagnosis | None:
    """slurmstepd says that the job was requeued, but no start followed.

    Either it left the queue while nobody watched, or a person cancelled it there: a requeued job is PENDING
    first. Where nobody watched, slurmstepd's line about a cancel is the only trace.
    """
    attempt = case.facts.attempt
    if attempt is None or attempt.ended_by_us or attempt.cancel_intended:
        return None
    told = {words for words in (_REQUEUE, _LOST_NODE) for proof in found.because if words in proof.text}
    if told and attempt.launch.end.state == "CANCELLED":
        return CANCELLED_AGAIN
    word = slurmstepd_reason(attempt, case.facts.evidence)
    if word == "" and (attempt.launch.end.reason == UNWATCHED or attempt.launch.end.state == "GONE"):
        return _CANCELLED_UNWATCHED
    if attempt.launch.end.reason != UNWATCHED:
        return None
    lost = word is not None and "NODE FAILURE" in word and case.facts.requeues
    again = lost or (word is not None and "JOB REQUEUE" in word)
    return LEFT_QUEUE if again or _REQUEUE in told else None


def ended_on_suspicion(case: Case, found: Diagnosis) -> Diagnosis | None:
    """ftrun ended the start on a suspicion. The suspicion stands where the log explains nothing better; a
    lost node explains it better.
    """
    why = case.facts.suspicion
    if why is None or case.facts.silent:
        return None
    told = case.facts.rank_ended and is_rank_death(found)
    if is_planned(why) or (_is_vague(found) and not told):
        words = () if is_planned(why) else case.log.words
        return replace(why, consequences=found.consequences, rests_on=(*why.rests_on, *words))
    if found.retry or case.facts.rank_ended or found.fault in _NOTHING_BETTER:
        return None
    return replace(
        why,
        title=f"{why.title} after: {found.title}",
        signature=found.signature,
        because=found.because,
        blame=why.blame if why.nodes else found.blame,
        loading=found.loading,
        rests_on=(
            *why.rests_on,
            f"ftrun ended the start: whether the program died of this {found.fault.value} line is not known",
        ),
    )


def companion_over(case: Case, found: Diagnosis) -> Diagnosis | None:
    """A companion that this start used is over, and nothing else explains the end: srun's words about its
    steps are no words about the job.

    Ranks that lose a peer may also print an exception without a signature. None of the companion's nodes is
    blamed.
    """
    ended, gone = case.ended, case.facts.gone
    if ended is None or ended.by_us or ended.state not in ("FAILED", "GONE") or not gone or case.facts.silent:
        return None
    a_guess = found.fault is FaultClass.USER_CODE and found.confidence < UNSURE
    if found.fault not in _OF_STEPS and not a_guess:
        return None
    rests_on = (*(one.words for one in gone), "nothing else explains the end")
    return replace(_COMPANION_OVER, rests_on=rests_on, because=found.because)


def add_node_findings(case: Case, found: Diagnosis) -> Diagnosis | None:
    """Adds the reports of the nodes. Reports of lost nodes do not count."""
    told, ended = case.facts.nodes, case.ended
    if ended is None:
        return while_alive(found, told, (), case.facts.now_s)
    lost = (*ended.nodes_down, *case.facts.silent, *(node for one in case.facts.gone for node in one.nodes))
    return joined(found, replace(told, silent=frozenset(lost)), case.facts.now_s)


def add_silent_nodes(case: Case, found: Diagnosis) -> Diagnosis | None:
    """Adds nodes that do not answer a step to those blamed. ftrun drains them only where Slurm finds them
    lost too.
    """
    names = case.facts.silent
    if not names:
        return None
    return replace(
        found,
        nodes=(*found.nodes, *(node for node in names if node not in found.nodes)),
        rests_on=(*found.rests_on, f"{', '.join(names)} did not answer a step that asked every node"),
        exclude=True,
        sources=tuple(Source.SILENCE if one is Source.SLURM else one for one in found.sources),
    )


def ended_as_requested(case: Case, found: Diagnosis) -> Diagnosis | None:
    """Only our own request explains the end: a person asked for it, a node was drained, or the time limit was
    near; and the script had saved, or it exited by itself when asked.
    """
    attempt = case.facts.attempt
    if attempt is None:
        return None
    for began, meant in ((NEAR_TIME_LIMIT, _ENDED_IN_TIME), (MOVED_OFF, _MOVED_OFF)):
        if attempt.ended_by_us and attempt.end_intended.startswith(began):
            # What it prints while it is being ended is no cause, except broken hardware.
            return None if found.fault in HARDWARE else replace(meant, because=found.because)
    if found.fault is FaultClass.HANG and not found.signature and case.facts.wish and attempt.ended_by_us:
        return replace(_LEFT_AS_ASKED, because=found.because)
    if found.fault is not FaultClass.UNKNOWN or not case.facts.near_limit:
        return None
    return replace(_LEFT_IN_TIME, because=found.because)


def agent_diagnosis(case: Case, found: Diagnosis) -> Diagnosis | None:
    """The agent that died with the job had named nodes, and the supervisor from outside names none: the agent
    asked the nodes while the job still had them.

    This is a claim from inside the job: the next attempt excludes the nodes, and ftrun drains none.
    """
    told, attempt = case.facts.told_inside, case.facts.attempt
    if attempt is None or found.fault not in _VAGUE or found.nodes:
        return None
    names = tuple(node for node in told.get("nodes", ()) if node in attempt.reach)
    if not names or len(names) != len(told["nodes"]):
        return None
    try:
        return replace(
            found,
            fault=FaultClass(told["class"]),
            retry=bool(told["retry"]),
            action=Action(told["action"]),
            nodes=names,
            exclude=bool(told["exclude"]),
            confidence=float(told["confidence"]),
            signature=str(told["signature"]),
            title=str(told["title"]),
            rests_on=(*found.rests_on, "the agent inside the job found it, before it ended"),
            sources=(Source.REPORT,),
        )
    except (LookupError, ValueError, TypeError):
        return None  # the user can write anything into that folder


def add_suspicious_lines(case: Case, found: Diagnosis) -> Diagnosis | None:
    """For an unknown cause: those of the last lines that are new or odd."""
    lines = case.facts.last_words
    return replace(found, suspicious=lines) if lines and found.fault is FaultClass.UNKNOWN else None


def _is_vague(found: Diagnosis) -> bool:
    """It says no more than that the start ended."""
    return found.fault in _NOTHING_BETTER and (not found.signature or found.fault is FaultClass.UNKNOWN)


_CANCELLED_BY_US = recorded_end(
    FaultClass.SCHEDULER,
    "slurm.cancelled-by-ftrun",
    "cancelled by ftrun when its run was to end",
    ("a cancel of ours was journalled",),
    action=Action.RESUBMIT,
)

_CANCELLED_UNWATCHED = recorded_end(
    FaultClass.CANCELLED,
    "slurm.cancelled-unwatched",
    "cancelled by a person, as the job's log tells",
    ("slurmstepd: the job was cancelled, for no reason of Slurm's own", "not by ftrun"),
    confidence=0.8,
    advice="If nobody cancelled it, ftrun resume goes on with the run.",
    sources=(Source.LOG,),
)

_COMPANION_OVER = recorded_end(
    FaultClass.NODE, COMPANION_OVER, "a companion is over", confidence=0.8, action=Action.RESUBMIT
)

_LEFT_AS_ASKED = recorded_end(
    FaultClass.CANCELLED,
    "",
    "ended by ftrun, as a person asked",
    ("a person asked for the end", "nothing else explains it"),
    sources=(Source.EXIT,),
)

_LEFT_IN_TIME = recorded_end(
    FaultClass.TIMELIMIT,
    "slurm.left-before-limit",
    "left by itself when it was asked to save before its time limit",
    ("the time limit was near", "nothing else explains the end"),
    confidence=0.7,
    sources=(Source.EXIT,),
)

_ENDED_IN_TIME = replace(
    _LEFT_IN_TIME,
    confidence=0.9,
    signature="slurm.ended-before-limit",
    title="ended by ftrun once it had saved: it could not be through before its time limit",
    rests_on=("the time limit was near", "a new checkpoint was complete", "ftrun ended it"),
)

_MOVED_OFF = replace(
    _ENDED_IN_TIME,
    fault=FaultClass.PREEMPTED,
    signature="slurm.moved-off-drained",
    title="ended by ftrun once it had saved: somebody had drained a node of it",
    rests_on=(
        "Slurm: a node of the job was drained, not by ftrun",
        "a new checkpoint was complete",
        "ftrun ended it",
    ),
)
