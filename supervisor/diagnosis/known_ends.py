"""Ends that tell by themselves what they were, whatever the log says. (pure)

How it thinks. The first of these rules that answers makes the diagnosis, and nothing is added to it: the
script was never started, or it was and what its log says of being killed is Slurm's doing. Where an array's
tasks were judged each by itself, theirs stands for all.

An attempt whose script was not started, because the checks before it found a few of its nodes bad.
How it thinks. The job itself wrote down what was found, into a folder of its user's: a claim about the nodes of this very attempt, so it
leaves them out of the next ones and drains nothing. Such an attempt is no fault of the run, so it costs no budget of a class
and none of the retries; it has a ceiling of its own, and beyond it, or where a bad node cannot be left out, the next attempt starts its script
whatever its checks say: a job that runs on doubtful nodes is better than one that never runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ftrun.slurm.records import replace
from ftrun.supervisor.diagnosis.node_findings import OF_NODES
from ftrun.supervisor.model.types import (
    LEFT_THE_QUEUE,
    LOST_TRACK,
    STARTED_TWICE,
    Action,
    Blame,
    Decision,
    Diagnosis,
    FaultClass,
    Proof,
    Source,
)

if TYPE_CHECKING:
    from ftrun.supervisor.diagnosis.facts import Case

__all__ = [
    "CANCELLED_AGAIN",
    "CEILING",
    "HELD",
    "LEFT",
    "NOTHING_TO_LOAD",
    "SPENDS",
    "cancelled_again",
    "elsewhere",
    "given_up",
    "held",
    "in_full",
    "is_held",
    "left_the_queue",
    "lost_track",
    "of_tasks",
    "refused",
    "started_twice",
    "starts_anyway",
    "unloadable",
]


HELD = "preflight."
"""Signatures of ends by the checks before the script are this and the check's name."""

NOTHING_TO_LOAD = "checkpoint.none-usable"
NAMED_MAX = 8  # nodes whose findings prove that a script was held


def of_tasks(case: Case) -> Diagnosis | None:
    """The surest of those that accuse a node, else the surest; it accuses the nodes of all of its kind."""
    if not case.facts.tasks:
        return None
    main = max(case.facts.tasks, key=lambda cause: (cause.exclude, cause.confidence))
    if len(case.facts.tasks) == 1:
        return main
    same = [cause for cause in case.facts.tasks if (cause.fault, cause.action) == (main.fault, main.action)]
    return replace(main, nodes=tuple(sorted({node for cause in same for node in cause.nodes})))


def refused(case: Case) -> Diagnosis | None:
    """sbatch refused the attempt: the cause is in its answer."""
    told = case.facts.refusal
    if told is None:
        return None
    return Diagnosis(
        fault=FaultClass.SCHEDULER,
        retry=not told.for_good,
        action=Action.STOP if told.for_good else Action.WAIT,
        nodes=(),
        exclude=False,
        confidence=0.9,
        signature="slurm.refused-for-good" if told.for_good else "slurm.refused-for-now",
        title=f"sbatch refused: {told.message}",
        advice=f"Mend what sbatch complains about, then: ftrun resume {told.run}" if told.for_good else "",
        sources=(Source.SLURM,),
    )


def started_twice(case: Case) -> Diagnosis | None:
    """Slurm started one launch a second time, and that start was refused."""
    attempt = case.facts.attempt
    return _STARTED_TWICE if attempt is not None and attempt.launch.end.reason == STARTED_TWICE else None


def lost_track(case: Case) -> Diagnosis | None:
    """Slurm forgot that it had started the job, and queues it again."""
    attempt = case.facts.attempt
    lost = attempt is not None and attempt.launch.requeued and attempt.launch.end.reason == LOST_TRACK
    return _LOST_TRACK if lost else None


def left_the_queue(case: Case) -> Diagnosis | None:
    """It is gone from the queue, unstarted, and nobody saw how."""
    attempt = case.facts.attempt
    return LEFT if attempt is not None and attempt.launch.end.reason == LEFT_THE_QUEUE else None


def cancelled_again(case: Case) -> Diagnosis | None:
    """A person cancelled the requeued job: what its last launch died of does not matter any more."""
    attempt = case.facts.attempt
    if attempt is None or not attempt.launch.requeued or attempt.cancel_intended:
        return None
    return CANCELLED_AGAIN if attempt.launch.end.state == "CANCELLED" else None


def elsewhere(case: Case) -> Diagnosis | None:
    """Another cluster of its federation has the job; it may run there for days, and another attempt would
    be a second one beside it.
    """
    attempt = case.facts.attempt
    return _REVOKED if attempt is not None and attempt.launch.end.state == "REVOKED" else None


def held(case: Case) -> Diagnosis | None:
    """The checks before the script held it: of the class that they name, where they agree, else of the
    node's.
    """
    told = case.facts.held
    if told is None:
        return None
    first = next(iter(told.bad.values()))
    named = {
        FaultClass(one["fault"]) if one["fault"] in _CLASSES else FaultClass.NODE for one in told.bad.values()
    }
    fault = next(iter(named)) if len(named) == 1 else FaultClass.NODE
    proofs = (
        Proof(case.facts.held_file, 0, f"{node}: {one['check']}: {one['message']}", _held_by(one["check"]))
        for node, one in list(told.bad.items())[:NAMED_MAX]
    )
    return Diagnosis(
        fault=fault if fault in OF_NODES else FaultClass.NODE,
        retry=True,
        action=Action.EXCLUDE,
        nodes=tuple(told.bad),
        exclude=True,
        confidence=0.9,
        signature=_held_by(first["check"]),
        title=f"found before the script started: {first['check']}: {first['message']}",
        because=tuple(proofs),
        blame=Blame.NODE,
        rests_on=(f"a check that fails on {len(told.bad)} of {told.nodes} nodes",),
        sources=(Source.REPORT,),
    )


def unloadable(case: Case) -> Diagnosis | None:
    """A job, or a task of an array, found nothing that it may load, and did not start its script."""
    why = case.facts.unloadable
    return replace(_NOTHING_TO_LOAD, title=why) if why else None


def given_up(case: Case) -> Diagnosis | None:
    """What a run ends with when all but the tasks that were given up is done."""
    lots = case.facts.given_up
    if not lots:
        return None
    tasks = ",".join(str(task) for lot in lots for task in lot.tasks)
    return Diagnosis(
        fault=FaultClass(lots[0].fault),
        retry=False,
        action=Action.STOP,
        nodes=(),
        exclude=False,
        confidence=0.9,
        signature=lots[0].signature,
        title=f"{lots[0].title} (task {tasks})",
        rests_on=(f"tasks {tasks} were given up; all others are done",),
    )


def _held_by(check: str) -> str:
    return HELD + check.replace(" ", "-")


_CLASSES = frozenset(fault.value for fault in FaultClass)

_STARTED_TWICE = Diagnosis(
    fault=FaultClass.SCHEDULER,
    retry=True,
    action=Action.WAIT,
    nodes=(),
    exclude=False,
    confidence=0.9,
    signature="slurm.started-twice",
    title="Slurm lost track of the job and started it a second time; the second start was refused",
    advice="",
    rests_on=("one launch of the job was started twice",),
    sources=(Source.SLURM, Source.EXIT),
)

_LOST_TRACK = Diagnosis(
    fault=FaultClass.HEALTHY,
    retry=True,
    action=Action.NONE,
    nodes=(),
    exclude=False,
    confidence=0.9,
    signature="slurm.lost-track",
    title="Slurm forgot that it had started the job; what its log says of being killed is Slurm's doing",
    rests_on=("Slurm: PENDING again, and no restart counted",),
    sources=(Source.SLURM,),
)

LEFT = Diagnosis(
    fault=FaultClass.CANCELLED,
    retry=False,
    action=Action.STOP,
    nodes=(),
    exclude=False,
    confidence=0.6,  # what Slurm no longer knows cannot be proven
    signature="slurm.left-the-queue",
    title="gone from the queue unstarted while nobody watched, as one that a person cancelled",
    advice="If nobody cancelled it, ftrun resume goes on with the run.",
    rests_on=("Slurm had the time to forget the job", "no start of it was claimed"),
    sources=(Source.SLURM,),
)

CANCELLED_AGAIN = Diagnosis(
    fault=FaultClass.CANCELLED,
    retry=False,
    action=Action.STOP,
    nodes=(),
    exclude=False,
    confidence=0.95,
    signature="slurm.cancelled-after-requeue",
    title="cancelled by a person after it was requeued",
    rests_on=("Slurm: CANCELLED after a requeue, not by ftrun",),
    sources=(Source.SLURM,),
)

_REVOKED = Diagnosis(
    fault=FaultClass.CANCELLED,
    retry=False,
    action=Action.STOP,
    nodes=(),
    exclude=False,
    confidence=0.95,
    signature="slurm.revoked",
    title="taken to another cluster of its federation, where ftrun does not see it",
    advice="Submit with -M and the name of this cluster, so that Slurm starts the job here.",
    rests_on=("Slurm: REVOKED",),
    sources=(Source.SLURM,),
)

_NOTHING_TO_LOAD = Diagnosis(
    fault=FaultClass.CHECKPOINT,
    retry=False,
    action=Action.STOP,
    nodes=(),
    exclude=False,
    confidence=0.9,
    signature=NOTHING_TO_LOAD,
    title="",
    advice="Mend one of them, or say --ft-checkpoint-fresh to begin from nothing.",
    sources=(Source.CHECKPOINT,),
)

SPENDS = "preflight"
CEILING = 5
"""So many attempts in a row, without progress in between, may be held."""


def is_held(found: Diagnosis, spent: Mapping[str, int]) -> bool:
    """Whether this end is that of a preflight, and one more is allowed."""
    return found.signature.startswith(HELD) and spent.get(SPENDS, 0) < CEILING


def in_full(decision: Decision, culprits: tuple[str, ...], spent: Mapping[str, int]) -> Decision:
    """The decision, told to start the next script whatever its checks say where this one may find the same again."""
    kept = [node for node in culprits if node not in decision.exclude]
    if not kept and spent.get(SPENDS, 0) < CEILING:
        return decision
    why = f"{', '.join(kept)} cannot be left out" if kept else f"{CEILING} attempts were held"
    return replace(
        decision,
        anyway=True,
        reason=f"{decision.reason}; the next script starts whatever its checks say: {why}",
    )


def starts_anyway(decision: Mapping[str, Any], spent: Mapping[str, int]) -> bool:
    """Whether the next attempt is submitted so that its checks hold nothing."""
    return bool(decision.get("anyway")) or spent.get(SPENDS, 0) >= CEILING
