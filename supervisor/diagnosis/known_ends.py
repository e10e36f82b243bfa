"""Ends that explain themselves, whatever the log says. (pure)

The first of these rules that answers makes the final diagnosis. Either the script never started, or Slurm
itself killed it and the log only shows that; or each task of an array already has a diagnosis, and one of
them stands for all.

Held attempts: the checks before the script found a few bad nodes, so the job did not start its script. The
job wrote that record into a folder of its user, so it is a claim about the nodes of this attempt: the next
attempts leave these nodes out, and ftrun drains none. Such an attempt is no fault of the run, so it spends no
budget of a class and no retry. It has its own ceiling; beyond that, or where a bad node cannot be excluded,
the next attempt starts its script whatever the checks find: a job on doubtful nodes is better than one that
never runs.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ftrun.slurm.records import replace
from ftrun.supervisor.diagnosis.class_defaults import recorded_end
from ftrun.supervisor.diagnosis.node_findings import OF_NODES
from ftrun.supervisor.model.types import (
    LEFT_THE_QUEUE,
    LOST_TRACK,
    STARTED_TWICE,
    Action,
    Blame,
    Diagnosis,
    FaultClass,
    Proof,
    Source,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ftrun.supervisor.diagnosis.evidence import Case
    from ftrun.supervisor.model.run import Attempt
    from ftrun.supervisor.model.types import Evidence

_ENDED_JOB = re.compile(r"\*\*\* JOB (\d+) ON \S+ CANCELLED AT \S+(?i: due to ([^*]+?))? \*\*\*")

HELD = "preflight."
"""Signatures of attempts that their checks held are this plus the check's name."""

NOTHING_TO_LOAD = "checkpoint.none-usable"
NAMED_MAX = 8  # nodes whose findings are quoted as proof


def surest_task_diagnosis(case: Case) -> Diagnosis | None:
    """The surest task diagnosis that accuses a node, else the surest. It accuses the nodes of all tasks of
    its kind. Tasks that their checks held stand for all only where no script failed: they cost no budget.
    """
    if not case.facts.tasks:
        return None
    main = max(
        case.facts.tasks,
        key=lambda cause: (not cause.signature.startswith(HELD), cause.exclude, cause.confidence),
    )
    if len(case.facts.tasks) == 1:
        return main
    same = [cause for cause in case.facts.tasks if (cause.fault, cause.action) == (main.fault, main.action)]
    return replace(main, nodes=tuple(sorted({node for cause in same for node in cause.nodes})))


def refused_by_sbatch(case: Case) -> Diagnosis | None:
    """sbatch refused the attempt; its answer gives the cause."""
    told = case.facts.refusal
    if told is None:
        return None
    return recorded_end(
        FaultClass.SCHEDULER,
        "slurm.refused-for-good" if told.for_good else "slurm.refused-for-now",
        f"sbatch refused: {told.message}",
        retry=not told.for_good,
        action=Action.STOP if told.for_good else Action.WAIT,
        advice=f"Mend what sbatch complains about, then: ftrun resume {told.run}" if told.for_good else "",
    )


def started_twice(case: Case) -> Diagnosis | None:
    """Slurm started one launch a second time, and batch.sh refused that start, or Slurm ended it with the first one.

    That may look cancelled (seen on 22.05): a controller that takes over cancels the first start, which it does not know, and counts the
    end of that one for the second. A cancel by a person leaves a line of slurmstepd's in the log after the second start began.
    """
    attempt = case.facts.attempt
    if attempt is None or attempt.launch.end.reason != STARTED_TWICE:
        return None
    launch = attempt.launch
    began_s = max(launch.started_at_s or 0.0, launch.end.slurm_started_at_s or 0.0)
    later = [one for one in case.facts.evidence if one.at_s is None or one.at_s >= began_s]
    is_persons = launch.end.state == "CANCELLED" and slurmstepd_reason(attempt, later) == ""
    return None if is_persons else _STARTED_TWICE


def slurmstepd_reason(attempt: Attempt, evidence: Iterable[Evidence]) -> str | None:
    """Why Slurm ended the batch script, by slurmstepd's last line: "" = scancel, None = no such line."""
    ends = [found for one in evidence for found in _ENDED_JOB.finditer(one.text) if found[1] == attempt.job]
    return (ends[-1][2] or "").upper() if ends else None


def lost_track(case: Case) -> Diagnosis | None:
    """Slurm forgot that it had started the job, and queued it again."""
    attempt = case.facts.attempt
    lost = attempt is not None and attempt.launch.requeued and attempt.launch.end.reason == LOST_TRACK
    return _LOST_TRACK if lost else None


def left_the_queue(case: Case) -> Diagnosis | None:
    """The job left the queue unstarted, and nobody saw how."""
    attempt = case.facts.attempt
    return LEFT_QUEUE if attempt is not None and attempt.launch.end.reason == LEFT_THE_QUEUE else None


def cancelled_again(case: Case) -> Diagnosis | None:
    """A person cancelled the requeued job: what ended its last launch no longer matters."""
    attempt = case.facts.attempt
    if attempt is None or not attempt.launch.requeued or attempt.cancel_intended:
        return None
    return CANCELLED_AGAIN if attempt.launch.end.state == "CANCELLED" else None


def revoked(case: Case) -> Diagnosis | None:
    """Another cluster of the federation has the job. It may run there for days; another attempt would run
    beside it.
    """
    attempt = case.facts.attempt
    return _REVOKED if attempt is not None and attempt.launch.end.state == "REVOKED" else None


def held_by_checks(case: Case) -> Diagnosis | None:
    """The checks before the script held it. Class: the one that all findings share, else `node`."""
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


def no_loadable_checkpoint(case: Case) -> Diagnosis | None:
    """A job or array task found no checkpoint that it may load, and did not start its script."""
    why = case.facts.unloadable
    return replace(_NOTHING_TO_LOAD, title=why) if why else None


def held_by_hook(case: Case) -> Diagnosis | None:
    """The user's pre-hook failed, which was to keep the script from starting. It may have been its node."""
    how = case.facts.hook_hold
    if not how:
        return None
    return recorded_end(
        FaultClass.UNKNOWN,
        "pre-hook.failed",
        f"the script was not started: pre-hook {how}",
        ("pre-hook-failed=hold",),
        advice="its output is in pre-hook.*.log of the attempt's folder",
        sources=(Source.EXIT,),
    )


def tasks_given_up(case: Case) -> Diagnosis | None:
    """The end of an array when everything but the given-up tasks is done."""
    lots = case.facts.given_up
    if not lots:
        return None
    tasks = ",".join(str(task) for lot in lots for task in lot.tasks)
    return recorded_end(
        FaultClass(lots[0].fault),
        lots[0].signature,
        f"{lots[0].title} (task {tasks})",
        (f"tasks {tasks} were given up; all others are done",),
        retry=False,
        action=Action.STOP,
        sources=(),
    )


def _held_by(check: str) -> str:
    return HELD + check.replace(" ", "-")


_CLASSES = frozenset(fault.value for fault in FaultClass)

_STARTED_TWICE = recorded_end(
    FaultClass.SCHEDULER,
    "slurm.started-twice",
    "Slurm lost track of the job and started it a second time; the second start was refused",
    ("one launch of the job was started twice",),
    sources=(Source.SLURM, Source.EXIT),
)

_LOST_TRACK = recorded_end(
    FaultClass.HEALTHY,
    "slurm.lost-track",
    "Slurm forgot that it had started the job; what its log says of being killed is Slurm's doing",
    ("Slurm: PENDING again, and no restart counted",),
    retry=True,
)

LEFT_QUEUE = recorded_end(
    FaultClass.CANCELLED,
    "slurm.left-the-queue",
    "gone from the queue unstarted while nobody watched, as one that a person cancelled",
    ("Slurm had the time to forget the job", "no start of it was claimed"),
    confidence=0.6,  # Slurm has forgotten the job: nothing can be proven
    advice="If nobody cancelled it, ftrun resume goes on with the run.",
)

CANCELLED_AGAIN = recorded_end(
    FaultClass.CANCELLED,
    "slurm.cancelled-after-requeue",
    "cancelled by a person after it was requeued",
    ("Slurm: CANCELLED after a requeue, not by ftrun",),
    confidence=0.95,
)

_REVOKED = recorded_end(
    FaultClass.CANCELLED,
    "slurm.revoked",
    "taken to another cluster of its federation, where ftrun does not see it",
    ("Slurm: REVOKED",),
    confidence=0.95,
    advice="Submit with -M and the name of this cluster, so that Slurm starts the job here.",
)

_NOTHING_TO_LOAD = recorded_end(
    FaultClass.CHECKPOINT,
    NOTHING_TO_LOAD,
    "",
    retry=False,
    action=Action.STOP,
    advice="Mend one of them, or say --ft-checkpoint-fresh to begin from nothing.",
    sources=(Source.CHECKPOINT,),
)
