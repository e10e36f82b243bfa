"""Companion jobs, seen from outside of the main job: note those that are gone, end the unwanted ones. (I/O)

While its agent lives a companion is the agent's business (P8): the supervisor only records that Slurm no
longer has it. The supervisor ends it once no agent can: its launch or its run is over, we ended its job, the
agent that requested it is dead and the start goes on without it, or the agent released it and Slurm did not
get that request. As with every effect, the end is announced, the cancel is sent and recorded, and repeated
until the job is gone.

If the agent died between sbatch and its record, the companion has no id: it is found by its mark, for as long
as an sbatch may be under way. Nothing waits for a later one: its own script sees that it is not wanted and runs
nothing of the user's. It would wait in the queue until then, so its mark is looked up for some minutes more, and
what bears it is cancelled.

A job id alone is no identity (P1): only a job that bears the companion's mark is cancelled; if a site
rewrites comments, one with the user and the name of the run's own job.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

from ftrun.slurm.client.cluster import JobRow, JobState
from ftrun.slurm.client.errors import RefusedForGood
from ftrun.slurm.client.parse import has_token
from ftrun.supervisor.context.run_context import RunContext
from ftrun.supervisor.model.agent_events import COMPANION_JOB_KEY
from ftrun.supervisor.model.job_rows import base_job_id
from ftrun.supervisor.model.run import Attempt, Companion, Run
from ftrun.supervisor.model.states import FINAL_STATES
from ftrun.supervisor.store import run_dir

ABSENT_FOR_S = 60.0  # two answers that lack it must be this far apart (P6)
FIND_FOR_S = 30.0  # how long an sbatch without a known outcome is looked up
FIND_EVERY_S = 3.0
AGAIN_EVERY_S = 30.0
LATE_FOR_S = 600.0  # how long a companion may come that nobody waits for any more
OLD_S = 86_400.0  # a run of which that is so long ago is left alone


def job_ids(run: Run) -> tuple[str, ...]:
    """The companions' jobs that the snapshot must contain. (pure)"""
    return tuple(one.job for _, one in _left(run) if one.job)


def are_left(run: Run) -> bool:
    """Whether companions that the supervisor must end are not known to be gone. (pure)"""
    return any(reason_to_end(run, attempt, one) for attempt, one in _left(run))


def awaits_late(ctx: RunContext) -> bool:
    """Whether Slurm may still make a companion that nobody waits for."""
    return any(_may_come(ctx, one) for _, one in _all(ctx.run))


@dataclass
class _Late:
    """Of all runs: mark -> since when (monotonic) this process looks it up."""

    since_s: dict[str, float] = field(default_factory=dict)


def _may_come(ctx: RunContext, one: Companion) -> bool:
    """Measured by our own clock from our first sight; the clock of the host that noted it only tells old runs from new."""
    if not (one.gone and one.unanswered) or one.job:
        return False
    clock = ctx.services.clock
    since_s = ctx.services.shared(_Late).since_s.setdefault(one.mark, clock.mono_s())
    old = abs(clock.now_s() - (one.gone_at_s or 0.0)) > OLD_S
    return not old and clock.mono_s() - since_s < LATE_FOR_S


def reason_to_end(run: Run, attempt: Attempt, one: Companion, held: Collection[str] = ()) -> str:
    """Why the supervisor ends this companion; "" while it must not. (pure)

    `held` are its nodes as Slurm shows them; no record may name them yet.
    """
    if run.state in FINAL_STATES:
        return "the run is over"
    if (
        run.attempt is None
        or attempt.number != run.attempt.number
        or one.launch != attempt.launch.number
        or attempt.launch.requeued
    ):
        return "its launch is over"
    if attempt.launch.end.state or attempt.launch.over or attempt.closed:
        return "its launch is over"
    if attempt.end_intended and attempt.end_done:
        return f"job {attempt.job} was ended"
    brought = {*one.nodes, *(node for node in held if node not in attempt.nodes)}
    if attempt.launch.no_agent and not brought & set(attempt.used):
        return "the agent that asked for it is dead, and no start uses it"
    return ""


def reconcile_companions(ctx: RunContext) -> None:
    """Record what is gone, and end what is unwanted. Raises SlurmError, Stale, OSError (journal)."""
    for place in [_place(*found) for found in _left(ctx.run)]:
        # Each record makes a new `run`, so look the companion up again.
        attempt, one = next(found for found in _left(ctx.run) if _place(*found) == place)
        if one.job and ctx.observations.intervals["companion indexed", one.job].first():
            run_dir.index_job(ctx.services.home, one.job, ctx.run.id)
        row = _row(ctx, one)
        held = row.nodes if row is not None else ()
        why = reason_to_end(ctx.run, attempt, one, held) or _released_but_alive(ctx, one)
        if one.job:
            _follow(ctx, attempt, one, why)
        elif why:
            _search(ctx, attempt, one)
    for _, one in _all(ctx.run):
        looked_up = ctx.observations.intervals["companion late", one.mark]
        if _may_come(ctx, one) and looked_up.due(ctx.snapshot.mono_s, AGAIN_EVERY_S):
            _cancel_twins(ctx, one)


def _released_but_alive(ctx: RunContext, one: Companion) -> str:
    """Why to end a companion that its agent has released and Slurm still has.

    The agent's scancel was lost.
    """
    kept = ctx.observations.stopwatches["companion kept", one.mark]
    if one.state not in ("ending", "ended"):
        kept.stop()
        return ""
    lasts = kept.held_s(ctx.snapshot.mono_s) >= AGAIN_EVERY_S
    return "nobody wants it any more" if lasts else ""


def _left(run: Run) -> Iterator[tuple[Attempt, Companion]]:
    return ((attempt, one) for attempt, one in _all(run) if not one.gone)


def _all(run: Run) -> Iterator[tuple[Attempt, Companion]]:
    return ((attempt, one) for attempt in run.attempts for one in attempt.companions)


def _place(attempt: Attempt, one: Companion) -> tuple[int, int, int]:
    return attempt.number, one.launch, one.number


def _row(ctx: RunContext, one: Companion) -> JobRow | None:
    return next((row for row in ctx.snapshot.families.get(one.job, ()) if row.job_id == one.job), None)


def _follow(ctx: RunContext, attempt: Attempt, one: Companion, why: str) -> None:
    row = _row(ctx, one)
    if row is None:
        if _is_gone(ctx, one):
            ctx.record(
                "companion.gone", **_about(attempt, one), state="", reason="Slurm does not know it any more"
            )
        return
    ctx.observations.stopwatches["companion away", one.mark].stop()
    if not _is_companion(ctx, one, row):
        ctx.record(
            "companion.gone", **_about(attempt, one), state="", reason=f"job {one.job} is another one by now"
        )
    elif row.state.ended:
        if not _cancel_twins(ctx, one):
            ctx.record("companion.gone", **_about(attempt, one), state=row.state.value)
    elif why:
        if row.nodes and not one.nodes:  # the next start must know where it was
            ctx.record("companion.here", **_about(attempt, one), nodes=list(row.nodes))
        if row.state is not JobState.COMPLETING:
            _end(ctx, attempt, one, why)


def _is_gone(ctx: RunContext, one: Companion) -> bool:
    """Whether two answers far enough apart lack it and its mark finds nothing alive; its twins are ended first.
    Raises SlurmError.
    """
    if ctx.observations.stopwatches["companion away", one.mark].held_s(ctx.snapshot.mono_s) < ABSENT_FOR_S:
        return False
    cluster = ctx.services.cluster
    if not cluster.ping() or _cancel_twins(ctx, one):
        return False
    return all(row.state.ended for row in cluster.find(one.mark))


def _cancel_twins(ctx: RunContext, one: Companion) -> bool:
    """Cancel, now and then until it is gone, another job with its mark. True if there is one. Raises
    SlurmError.

    A controller that answered late may have executed the sbatch twice, or after its mark was looked up.
    """
    cluster = ctx.services.cluster
    living = [
        row for row in cluster.find(one.mark) if has_token(row.comment, one.mark) and not row.state.ended
    ]
    twins = {base_job_id(row.raw_job_id or row.job_id) for row in living} - {one.job}
    if twins and ctx.observations.intervals["companion twins", one.mark].due(
        ctx.snapshot.mono_s, AGAIN_EVERY_S
    ):
        for job in sorted(twins):
            what = f"job {job}, which nobody wants of companion {one.mark}"
            ctx.record("cancel.intended", what=what, own=False)
            ctx.act("companion", functools.partial(cluster.cancel, job))
            ctx.record("cancel.done", what=what)
    return bool(twins)


def _is_companion(ctx: RunContext, one: Companion, row: JobRow) -> bool:
    if has_token(row.comment, one.mark):
        return True
    own = ctx.row() if ctx.run.attempt is not None else None
    known = ctx.attempt.known_as or ((own.user, own.name) if own is not None else ())
    rewritten = "ftrun:" not in row.comment and ":companion:" not in row.comment
    return rewritten and (row.user, row.name) == known


def _end(ctx: RunContext, attempt: Attempt, one: Companion, why: str) -> None:
    ended = ctx.observations.intervals["companion ended", one.mark]
    if one.state == "ended" and not ended.due(ctx.snapshot.mono_s, AGAIN_EVERY_S):
        return
    if one.state not in ("ending", "ended"):
        ctx.fresh()
        ctx.record("companion.ended.intended", **_about(attempt, one), reason=why)
    ended.last_s = ctx.snapshot.mono_s
    try:
        ctx.act("companion", lambda: ctx.services.cluster.cancel(one.job))
    except RefusedForGood as error:
        told = f"companion job {one.job} cannot be ended: {error.message}"
        if told not in ctx.run.warnings:
            ctx.record("warned", message=told)
        return
    if one.state != "ended":
        ctx.record("companion.ended", **_about(attempt, one), reason=why)


def _search(ctx: RunContext, attempt: Attempt, one: Companion) -> None:
    """Its sbatch was announced without a recorded answer: find it by its mark, or note that it was never
    made. Raises SlurmError.
    """
    since_s = ctx.observations.stopwatches["companion searched", one.mark].held_s(ctx.snapshot.mono_s)
    if not ctx.observations.intervals["companion searched", one.mark].due(ctx.snapshot.mono_s, FIND_EVERY_S):
        return
    found = [row for row in ctx.services.cluster.find(one.mark) if has_token(row.comment, one.mark)]
    if found:
        job = base_job_id(found[0].raw_job_id or found[0].job_id)
        ctx.record("companion.submitted", **{**_about(attempt, one), COMPANION_JOB_KEY: job}, found=True)
    elif one.state in ("failed", "ended") or since_s >= FIND_FOR_S:  # its agent knew the answer
        ctx.record(
            "companion.gone",
            **_about(attempt, one),
            state="",
            reason=one.reason or "no job bears its mark",
            unanswered=one.state not in ("failed", "ended"),
        )


def _about(attempt: Attempt, one: Companion) -> dict[str, Any]:
    where = {"attempt": attempt.number, "launch": one.launch, "number": one.number}
    return {**where, COMPANION_JOB_KEY: one.job}
