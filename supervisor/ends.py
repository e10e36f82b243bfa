"""How a launch ended, from what Slurm says and what the job itself left behind. (I/O)

How it thinks. Slurm's record is believed, but for three ends that are not what they look like. A job that Slurm forgot
ended as its own record says. A controller that lost its memory starts a job a second time under the same id and the
same count; batch.sh refuses that start and leaves `lost.<r>`, or slurmd refuses it (24.11: the credential was revoked with
the first start) and only Slurm's start time tells. What Slurm calls FAILED then is the end of a start that never ran: the
first start's own record counts, and where it left none it was lost. A job that found its attempt closed exits 0 without
running the script: that is no verdict of the script's.
"""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING, Any

from ftrun.slurm.client.parse import bears
from ftrun.slurm.records import replace
from ftrun.supervisor import archive, arrays, attempts, sense
from ftrun.supervisor.end_reasons import CLOSED, LEFT_THE_QUEUE, LOST_TRACK, STARTED_TWICE, UNWATCHED
from ftrun.supervisor.model import Action, Diagnosis, FaultClass, Source

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ftrun.slurm.client.cluster import JobRow
    from ftrun.supervisor.model import Evidence
    from ftrun.supervisor.run_context import RunContext
    from ftrun.supervisor.run_types import Attempt

__all__ = [
    "LEFT",
    "as_logged",
    "as_requeued",
    "forgettable",
    "incident_id",
    "launch_exit",
    "of_last_start",
    "told",
    "with_companions",
]

_REQUEUE, _LOST_NODE = "DUE TO JOB REQUEUE", "DUE TO NODE FAILURE"  # as slurmstepd says
_ENDED_JOB = re.compile(r"\*\*\* JOB (\d+) ON \S+ CANCELLED AT \S+(?i: due to ([^*]+?))? \*\*\*")
_ENDED_BY_SLURM = frozenset({9, 15})  # how an abandoned start is removed from its node


def record_end(
    ctx: RunContext,
    kind: str,
    state: str,
    reason: str,
    nodes: Sequence[str],
    *,
    launch: int | None = None,
    row: JobRow | None = None,
) -> None:
    """Journal the end of a launch (the present one if none is named); `row` is the ended job's where Slurm still shows it."""
    number = ctx.attempt.launch.number if launch is None else launch
    job, started_at_s = (row.raw_job_id or row.job_id, row.start_time_s) if row is not None else ("", None)
    data = launch_exit(ctx, state, reason, nodes, job=job, launch=number, started_at_s=started_at_s)
    data |= {"slurm_end_s": row.end_time_s if row is not None else None}
    ctx.observations.per_start(sense.EndedScript).log_quiet.stop()
    ctx.record(kind, launch=number, **data)


def launch_exit(
    ctx: RunContext,
    state: str,
    reason: str,
    nodes: Sequence[str],
    *,
    job: str,
    launch: int,
    started_at_s: float | None = None,
) -> dict[str, Any]:
    """What `job.ended` and `job.requeued` say: state, reason, nodes, exit_code, exit_signal, derived_exit_code, preempted.

    `state`, `reason` and `started_at_s` are Slurm's; `job` is the id to ask Slurm about, "" where it knows none. Raises
    SlurmError.
    """
    attempt, run_dir = ctx.attempt, ctx.run_dir
    if not nodes and launch != attempt.launch.number:
        unseen = attempts.launch_record(run_dir, attempt.number, launch)
        nodes = unseen.nodes if unseen is not None else ()
    data: dict[str, Any] = {"state": state, "reason": reason, "nodes": list(nodes or attempt.nodes)}
    details = ctx.services.cluster.details(job) if job else None
    written = attempts.exit_record(run_dir, attempt.number, launch)
    if details is not None and bears(details.comment, attempt.token):
        data |= {
            "exit_code": details.exit_code,
            "exit_signal": details.exit_signal,
            "derived_exit_code": details.derived_exit_code,
            "preempted": details.is_preempted,
        }
    elif (kept := archive.exit_of(ctx, job, launch)) and job:
        data |= kept
    elif written is not None:
        data |= {"exit_code": written.code, "exit_signal": written.signal}
    if state == "GONE" and written is not None and not written.code and not written.signal:
        data["state"] = "COMPLETED"
    if state == "GONE" and arrays.all_went_well(run_dir, attempt):
        data |= {"state": "COMPLETED", "exit_code": 0}
    if state in {"FAILED", "GONE"} and _second_start(ctx, launch, started_at_s):
        data |= _of_the_first_start(ctx, written, data["nodes"], launch)
    if state == "COMPLETED" and written is None and _is_closed(ctx):
        data |= {"state": "FAILED", "reason": CLOSED, "exit_code": None, "exit_signal": None}
    return data


def _second_start(ctx: RunContext, launch: int, started_at_s: float | None) -> bool:
    """Whether this end is that of a second start of one launch: batch.sh says so, or Slurm by another time of its start."""
    attempt, run_dir = ctx.attempt, ctx.run_dir
    if attempts.lost_record(run_dir, attempt.number, launch):
        return True
    first, last = attempt.starts.get(launch), started_at_s or attempt.launch.started_at_s
    if first is None or last is None or arrays.tasks_of(run_dir, attempt):
        return False  # an array has as many starts as tasks
    return last > first + 1 and attempts.exit_record(run_dir, attempt.number, launch) is None


def _of_the_first_start(
    ctx: RunContext, written: attempts.Exit | None, nodes: Sequence[str], launch: int
) -> dict[str, Any]:
    if written is not None and not {written.signal, written.code - 128} & _ENDED_BY_SLURM:
        state = "FAILED" if written.code or written.signal else "COMPLETED"
        return {"state": state, "exit_code": written.code, "exit_signal": written.signal}
    first = attempts.launch_record(ctx.run_dir, ctx.attempt.number, launch)
    both = {*nodes, *(first.nodes if first is not None else ())}  # it may still run there (P6)
    return {
        "state": "FAILED",
        "reason": STARTED_TWICE,
        "nodes": sorted(both),
        "exit_code": None,
        "exit_signal": None,
    }


def _is_closed(ctx: RunContext) -> bool:
    with contextlib.suppress(OSError):
        return any(claim.closed for claim in attempts.claims(ctx.run_dir, ctx.attempt.number))
    return ctx.attempt.closed


def told(attempt: Attempt) -> Diagnosis | None:
    """The diagnosis of an end that tells by itself what it was, whatever the log says; None for all others. (pure)"""
    if attempt.launch.end.reason == STARTED_TWICE:
        return _STARTED_TWICE
    if attempt.launch.requeued and attempt.launch.end.reason == LOST_TRACK:
        return _LOST_TRACK
    if attempt.launch.end.reason == LEFT_THE_QUEUE:
        return LEFT
    if attempt.launch.requeued and attempt.launch.end.state == "CANCELLED" and not attempt.cancel_intended:
        return _CANCELLED_AGAIN  # what its last launch died of does not matter any more
    if attempt.launch.end.state == "REVOKED":
        return _REVOKED  # it may run there for days: another attempt would be a second one beside it
    return None


def of_last_start(attempt: Attempt) -> Attempt:
    """The attempt as its last start alone made it: nodes that it did not use took no part, and what Slurm keeps of the failed
    steps of the job tells of the starts before it. (pure)"""
    derived = attempt.launch.end.derived_exit_code if attempt.launch.start.number == 1 else 0
    return replace(attempt.ended_as(derived_exit_code=derived), nodes=attempt.used)


def with_companions(attempt: Attempt, found: Diagnosis) -> Diagnosis:
    """`found`, unless nothing explains the end but that a companion was lost which this start used: what srun says of its steps is not said of the job. (pure)"""
    used = [
        one
        for one in attempt.companions
        if one.launch == attempt.launch.number and set(one.nodes) & set(attempt.used)
    ]
    lost = next((one for one in used if one.lost), None)
    if (
        lost is None
        or attempt.launch.end.state not in ("FAILED", "GONE")
        or attempt.ended_by_us
        or found.fault not in _OF_STEPS
    ):
        return found
    rests_on = (
        f"Slurm: companion job {lost.job} on {','.join(lost.nodes)} is {lost.end_state}",
        *_COMPANION_OVER.rests_on,
    )
    return replace(_COMPANION_OVER, rests_on=rests_on, because=found.because)


def incident_id(attempt: Attempt) -> str:
    """Where an agent looked after the launch, the start that failed is named as the agent names it: one fault counts once. (pure)"""
    launch = f"{attempt.number}.{attempt.launch.number}"
    return (
        f"{launch}.{attempt.launch.start.number}"
        if attempt.launch.inside or attempt.launch.start.number > 1
        else launch
    )


def as_logged(attempt: Attempt, evidence: Sequence[Evidence]) -> Attempt:
    """`attempt`, where nobody watched its end, by what slurmstepd wrote into its log: who exits 0 because it was told to leave
    has not finished; nor has a start that the agent inside ended. (pure)"""
    last = next((one for one in reversed(attempt.begun) if one.launch == attempt.launch.number), None)
    by_us = (
        last is not None and last.by_us and last.number == attempt.launch.start.number
    )  # a later one's agent may be dead
    if attempt.launch.end.state == "COMPLETED" and by_us:
        return replace(attempt.ended_as(state="FAILED"), end_intended="ended from inside", end_done=True)
    left = attempt.launch.end.state == "COMPLETED" and attempt.launch.end.reason == UNWATCHED
    return attempt.ended_as(state="GONE") if left and _last_word(attempt, evidence) is not None else attempt


def as_requeued(
    attempt: Attempt, found: Diagnosis, evidence: Sequence[Evidence], *, requeues: bool
) -> Diagnosis:
    """`found`, unless slurmstepd says that the job was put back into the queue, and something else than a start came next. (pure)

    It went from there while nobody watched, or it was cancelled on its way: a job that Slurm requeues is PENDING then. Where
    nobody watched, slurmstepd's word of a cancel is all that is left of it. `requeues`: what a lost node ends is requeued.
    """
    if attempt.cancel_intended and not attempt.end_intended and found.fault is FaultClass.CANCELLED:
        return _CANCELLED_BY_US
    if attempt.ended_by_us or attempt.cancel_intended:
        return found
    told = {words for words in (_REQUEUE, _LOST_NODE) for proof in found.because if words in proof.text}
    if told and attempt.launch.end.state == "CANCELLED":
        return _CANCELLED_AGAIN
    word = _last_word(attempt, evidence)
    if word == "" and (attempt.launch.end.reason == UNWATCHED or attempt.launch.end.state == "GONE"):
        return _CANCELLED_UNWATCHED
    if attempt.launch.end.reason != UNWATCHED:
        return found
    again = word is not None and ("JOB REQUEUE" in word or ("NODE FAILURE" in word and requeues))
    return LEFT if again or _REQUEUE in told else found


def _last_word(attempt: Attempt, evidence: Sequence[Evidence]) -> str | None:
    """Why Slurm ended the batch script, as slurmstepd says last: "" = scancel, None = it says nothing."""
    ends = [found for one in evidence for found in _ENDED_JOB.finditer(one.text) if found[1] == attempt.job]
    return (ends[-1][2] or "").upper() if ends else None


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


def forgettable(known_s: float | None, looked_s: float, min_job_age_s: float) -> bool:
    """Whether a job that was there at `known_s` (None: nobody knows when) could end and be forgotten by Slurm before this look. (pure)

    The two times may be of two hosts: where their clocks differ by that much, nobody can tell, and then it could.
    """
    return known_s is None or abs(looked_s - known_s) >= min_job_age_s


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
_COMPANION_OVER = Diagnosis(
    fault=FaultClass.NODE,
    retry=True,
    action=Action.RESUBMIT,
    nodes=(),
    exclude=False,
    confidence=0.8,
    signature="node.companion-over",  # as the agent inside the job calls it
    title="a companion is over",
    rests_on=("nothing else explains the end",),
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

_CANCELLED_AGAIN = Diagnosis(
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
