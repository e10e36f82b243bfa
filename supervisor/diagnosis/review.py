"""What is said of a cause that the log or Slurm names, once all else that is known stands beside it. (pure)

How it thinks. These rules are asked one after the other, and each may put a better diagnosis in the place
of the one so far. While a start is ended its ranks and Slurm say things as well, and those explain nothing;
a line that names a cause explains more than a silence does. But a cause that stops a run for good (the
program's mistake, memory, data, settings) needs an end of the script or of a rank by itself: programs print
such lines and go on (P7). What ftrun ended is then what it was ended for, after that line; the same line at
the same step again is the policy's to judge.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ftrun.slurm.records import replace
from ftrun.supervisor.diagnosis import checkpoint_blame
from ftrun.supervisor.diagnosis.class_defaults import UNSURE
from ftrun.supervisor.diagnosis.known_ends import CANCELLED_AGAIN, LEFT
from ftrun.supervisor.diagnosis.node_findings import HARDWARE, joined, while_alive
from ftrun.supervisor.diagnosis.suspicions import is_planned
from ftrun.supervisor.model.types import AT_LIMIT, AWAY, UNWATCHED, Action, Diagnosis, FaultClass, Source

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ftrun.supervisor.diagnosis.facts import Case
    from ftrun.supervisor.model.run import Attempt
    from ftrun.supervisor.model.types import Evidence

__all__ = [
    "COMPANION_OVER",
    "cancelled_by_us",
    "companion_over",
    "counted",
    "last_word",
    "left_as_asked",
    "nodes",
    "of_checkpoint",
    "put_back",
    "silent",
    "suspected",
    "told_inside",
    "worth_a_look",
]

COMPANION_OVER = "node.companion-over"

_REQUEUE, _LOST_NODE = "DUE TO JOB REQUEUE", "DUE TO NODE FAILURE"  # as slurmstepd says
_ENDED_JOB = re.compile(r"\*\*\* JOB (\d+) ON \S+ CANCELLED AT \S+(?i: due to ([^*]+?))? \*\*\*")

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
"""What srun says of steps that lost a companion, and what their ranks say."""

_VAGUE = frozenset({FaultClass.UNKNOWN, FaultClass.HANG, FaultClass.NETWORK})


def of_checkpoint(case: Case, found: Diagnosis) -> Diagnosis | None:
    """The start had resumed from a checkpoint and made no step: that one, or the program, may be to blame."""
    lines = (*(line for line, _ in case.log.causes), *case.log.spoken)
    return checkpoint_blame.judged(found, lines, case.facts.resumed, case.progress)


def counted(case: Case, found: Diagnosis) -> Diagnosis | None:
    """What the log has besides is counted, and why lines of it were set aside is told."""
    return replace(found, consequences=case.log.consequences, rests_on=(*found.rests_on, *case.log.words))


def cancelled_by_us(case: Case, found: Diagnosis) -> Diagnosis | None:
    """ftrun cancelled the job for no fault of it."""
    attempt = case.facts.attempt
    if attempt is None or not attempt.cancel_intended or attempt.end_intended:
        return None
    return _CANCELLED_BY_US if found.fault is FaultClass.CANCELLED else None


def put_back(case: Case, found: Diagnosis) -> Diagnosis | None:
    """slurmstepd says that the job was put back into the queue, and something else than a start came next.

    It went from there while nobody watched, or it was cancelled on its way: a job that Slurm requeues is
    PENDING then. Where nobody watched, slurmstepd's word of a cancel is all that is left of it.
    """
    attempt = case.facts.attempt
    if attempt is None or attempt.ended_by_us or attempt.cancel_intended:
        return None
    told = {words for words in (_REQUEUE, _LOST_NODE) for proof in found.because if words in proof.text}
    if told and attempt.launch.end.state == "CANCELLED":
        return CANCELLED_AGAIN
    word = last_word(attempt, case.facts.evidence)
    if word == "" and (attempt.launch.end.reason == UNWATCHED or attempt.launch.end.state == "GONE"):
        return _CANCELLED_UNWATCHED
    if attempt.launch.end.reason != UNWATCHED:
        return None
    lost = word is not None and "NODE FAILURE" in word and case.facts.requeues
    again = lost or (word is not None and "JOB REQUEUE" in word)
    return LEFT if again or _REQUEUE in told else None


def last_word(attempt: Attempt, evidence: Iterable[Evidence]) -> str | None:
    """Why Slurm ended the batch script, as slurmstepd says last: "" = scancel, None = it says nothing."""
    ends = [found for one in evidence for found in _ENDED_JOB.finditer(one.text) if found[1] == attempt.job]
    return (ends[-1][2] or "").upper() if ends else None


def suspected(case: Case, found: Diagnosis) -> Diagnosis | None:
    """ftrun ended the start because of a suspicion: it stands where the log explains nothing better. A lost
    node explains it better.
    """
    why = case.facts.suspicion
    if why is None or case.facts.silent:
        return None
    if is_planned(why) or _is_vague(found):
        return why
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
    """A companion that this start used is over, and nothing else explains the end: what srun says of its
    steps is not said of the job.

    An exception that nobody knows by name is what ranks say who lost a peer, too. None of the companion's
    nodes is blamed.
    """
    ended, gone = case.ended, case.facts.gone
    if ended is None or ended.by_us or ended.state not in ("FAILED", "GONE") or not gone or case.facts.silent:
        return None
    a_guess = found.fault is FaultClass.USER_CODE and found.confidence < UNSURE
    if found.fault not in _OF_STEPS and not a_guess:
        return None
    rests_on = (*(one.words for one in gone), "nothing else explains the end")
    return replace(_COMPANION_OVER, rests_on=rests_on, because=found.because)


def nodes(case: Case, found: Diagnosis) -> Diagnosis | None:
    """What the nodes say of themselves; who is lost says nothing."""
    told, ended = case.facts.nodes, case.ended
    if ended is None:
        return while_alive(found, told, (), case.facts.now_s)
    lost = (*ended.nodes_down, *case.facts.silent, *(node for one in case.facts.gone for node in one.nodes))
    return joined(found, replace(told, silent=frozenset(lost)), case.facts.now_s)


def silent(case: Case, found: Diagnosis) -> Diagnosis | None:
    """A node that does not answer a step is left, whatever else is found; it is drained where Slurm, too,
    finds it lost.
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


def left_as_asked(case: Case, found: Diagnosis) -> Diagnosis | None:
    """Nothing but our own leaving explains the end: a person asked for it, a node of it was drained, or the
    time limit was near; and the script had saved, or left by itself when it was asked to.
    """
    attempt = case.facts.attempt
    if attempt is None:
        return None
    for began, meant in ((AT_LIMIT, _ENDED_IN_TIME), (AWAY, _MOVED_OFF)):
        if attempt.ended_by_us and attempt.end_intended.startswith(began):
            # Whatever it prints when it is ended is the end's own doing; broken hardware is not.
            return None if found.fault in HARDWARE else replace(meant, because=found.because)
    if found.fault is FaultClass.HANG and not found.signature and case.facts.wish and attempt.ended_by_us:
        return replace(_LEFT_AS_ASKED, because=found.because)
    if found.fault is not FaultClass.UNKNOWN or not case.facts.near_limit:
        return None
    return replace(_LEFT_IN_TIME, because=found.because)


def told_inside(case: Case, found: Diagnosis) -> Diagnosis | None:
    """The agent that died with the job had named nodes of it, and the look from outside names none: it
    asked them while they were the job's.

    A word from inside the job: it leaves nodes out, and drains none.
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
        return None  # the folder is the user's


def worth_a_look(case: Case, found: Diagnosis) -> Diagnosis | None:
    """Of an unknown cause, the lines among the last ones that are new or odd."""
    lines = case.facts.last_words
    return replace(found, suspicious=lines) if lines and found.fault is FaultClass.UNKNOWN else None


def _is_vague(found: Diagnosis) -> bool:
    """It explains no more than that the start ended."""
    return found.fault in _NOTHING_BETTER and (not found.signature or found.fault is FaultClass.UNKNOWN)


_CANCELLED_BY_US = Diagnosis(
    fault=FaultClass.SCHEDULER,
    retry=True,
    action=Action.RESUBMIT,
    nodes=(),
    exclude=False,
    confidence=0.9,
    signature="slurm.cancelled-by-ftrun",
    title="cancelled by ftrun when its run was to end",
    rests_on=("a cancel of ours was journalled",),
    sources=(Source.SLURM,),
)

_CANCELLED_UNWATCHED = Diagnosis(
    fault=FaultClass.CANCELLED,
    retry=False,
    action=Action.STOP,
    nodes=(),
    exclude=False,
    confidence=0.8,
    signature="slurm.cancelled-unwatched",
    title="cancelled by a person, as the job's log tells",
    advice="If nobody cancelled it, ftrun resume goes on with the run.",
    rests_on=("slurmstepd: the job was cancelled, for no reason of Slurm's own", "not by ftrun"),
    sources=(Source.LOG,),
)

_COMPANION_OVER = Diagnosis(
    fault=FaultClass.NODE,
    retry=True,
    action=Action.RESUBMIT,
    nodes=(),
    exclude=False,
    confidence=0.8,
    signature=COMPANION_OVER,
    title="a companion is over",
    sources=(Source.SLURM,),
)

_LEFT_AS_ASKED = Diagnosis(
    fault=FaultClass.CANCELLED,
    retry=False,
    action=Action.STOP,
    nodes=(),
    exclude=False,
    confidence=0.9,
    signature="",
    title="ended by ftrun, as a person asked",
    rests_on=("a person asked for the end", "nothing else explains it"),
    sources=(Source.EXIT,),
)

_LEFT_IN_TIME = Diagnosis(
    fault=FaultClass.TIMELIMIT,
    retry=True,
    action=Action.RESUBMIT,
    nodes=(),
    exclude=False,
    confidence=0.7,
    signature="slurm.left-before-limit",
    title="left by itself when it was asked to save before its time limit",
    rests_on=("the time limit was near", "nothing else explains the end"),
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
