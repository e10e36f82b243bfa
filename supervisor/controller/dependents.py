"""Jobs of the same user that depend on this run: they wait for the run, not for one attempt (P5). (I/O)

If ftrun ends an attempt, it holds the dependents first, so that our end starts none of them; once the next
attempt has a job, their dependency moves to it and they are released. While a run is paused they stay held.
Both steps are idempotent and are repeated after a crash until the journal says that they are done. A
dependent that is gone, or that its user changed meanwhile, is reported and never holds the run up.

A job id alone is no identity: a dependent with another submit time by now is another job and is left alone;
jobs that wait for an old id of ours that Slurm has reused wait for that other job.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from ftrun.slurm.client.errors import OutcomeUnknown, RefusedForGood, RefusedForNow, Unreachable
from ftrun.supervisor.context.run_context import RunContext
from ftrun.supervisor.model.job_rows import base_job_id, rows_of_attempt
from ftrun.supervisor.model.run import Run
from ftrun.supervisor.model.states import State
from ftrun.supervisor.store import submission_context
from ftrun.supervisor.submission.dependent_jobs import holdable, still_same

AGAIN_AFTER_S = 15.0


def hold(ctx: RunContext) -> None:
    """Hold the dependents of this attempt's job before we end it.

    Not if a user cancels: that end is intended.
    """
    if ctx.run.wish == "cancel":
        return
    cluster = ctx.services.cluster
    if not ctx.attempt.dependents_held:
        waiting, since = holdable(cluster, ctx.attempt.job)
        if not waiting:
            return
        ctx.record("dependents.held", jobs=sorted(waiting), waits=waiting, since=since)
    for job in _unchanged_jobs(ctx, ctx.attempt.dependents_held):
        _act_or_warn(ctx, "hold", job, partial(cluster.hold, job))


def _unchanged_jobs(ctx: RunContext, jobs: Iterable[str]) -> list[str]:
    """The held jobs whose ids Slurm has not reused. Raises SlurmError."""
    since = {job: at for attempt in ctx.run.attempts for job, at in attempt.dependents_since.items()}
    return still_same(ctx.services.cluster, jobs, since)


def move(ctx: RunContext) -> None:
    """Once attempt n has a job, make the dependents of earlier attempts depend on it."""
    attempt = ctx.attempt if ctx.run.attempt else None
    if attempt is None or attempt.number == 1 or attempt.dependents_moved or not attempt.job:
        return
    if ctx.run.state not in (State.QUEUED, State.RUNNING, State.SUSPECT):
        return
    if not ctx.observations.intervals["dependents moved", attempt.number].due(
        ctx.snapshot.mono_s, AGAIN_AFTER_S
    ):
        return
    moved: set[str] = set()
    who = f"what waits for {ctx.run.id}"
    try:
        for old in _earlier_jobs(ctx):
            moved |= _move_from(ctx, old)
        moved |= _release(ctx)
    except (Unreachable, OutcomeUnknown) as error:
        ctx.services.unseen(error.message, who=who, run=ctx.run.id)
        return
    ctx.services.seen(who=who, run=ctx.run.id)
    ctx.record("dependents.moved", jobs=sorted(moved), to=attempt.job)


def release(ctx: RunContext) -> None:
    """The run is over: release the held dependents; they see the run's real outcome."""
    if _held(ctx.run):
        ctx.record("dependents.moved", jobs=sorted(_release(ctx)), to="")


def are_left(run: Run) -> bool:
    """Whether a run is over and not paused, and dependents of it are still held."""
    return run.final and not run.paused and bool(_held(run))


def _held(run: Run) -> set[str]:
    return {job for attempt in run.attempts for job in attempt.dependents_held}


def _earlier_jobs(ctx: RunContext) -> list[str]:
    """The jobs that may still have dependents: from the last attempt that took over the others' on."""
    earlier = ctx.run.attempts[:-1]
    since = max((i for i, a in enumerate(earlier) if a.dependents_moved), default=0)
    return sorted({a.job for a in earlier[since:] if a.job} - {ctx.attempt.job})


def _move_from(ctx: RunContext, old: str) -> set[str]:
    """Move the dependents of one old job, held ones too, whose dependency Slurm may regard as fulfilled by
    now.
    """
    cluster, new = ctx.services.cluster, ctx.attempt.job
    written = {job: text for a in ctx.run.attempts if a.job == old for job, text in a.dependents_held.items()}
    written = {job: written[job] for job in _unchanged_jobs(ctx, written)}
    live = {} if _id_is_reused(ctx, old) else cluster.dependents(old)
    done = set()
    for job, text in sorted({**written, **live}.items()):
        deed = partial(cluster.set_dependency, job, submission_context.replace_job(text, old, new))
        if _act_or_warn(ctx, "dependency", job, deed):
            done.add(job)
    return done


def _id_is_reused(ctx: RunContext, old: str) -> bool:
    """Whether Slurm has reused the job id of an earlier attempt. Raises SlurmError."""
    shown = [row for row in ctx.services.cluster.jobs((old,)).values() if base_job_id(row.job_id) == old]
    user, mine = ctx.run.submitter.get("user", ""), [a for a in ctx.run.attempts if a.job == old]
    return bool(shown) and not any(rows_of_attempt(shown, attempt, user=user) for attempt in mine)


def _release(ctx: RunContext) -> set[str]:
    cluster = ctx.services.cluster
    return {
        job
        for job in _unchanged_jobs(ctx, sorted(_held(ctx.run)))
        if _act_or_warn(ctx, "release", job, partial(cluster.release, job))
    }


def _act_or_warn(ctx: RunContext, name: str, job: str, deed: Callable[[], None]) -> bool:
    """One effect on a dependent. False if Slurm refused it, which is reported. Raises Unreachable,
    OutcomeUnknown.
    """
    try:
        ctx.act(name, deed)
    except (RefusedForGood, RefusedForNow) as error:
        past_tense = {"hold": "held", "dependency": "moved to the new attempt", "release": "released"}[name]
        ctx.record(
            "warned",
            message=f"job {job}, which depends on this run, could not be {past_tense}: {error.message}",
        )
        return False
    return True
