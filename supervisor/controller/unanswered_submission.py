"""What became of a submission that got no clear answer. (I/O)

sbatch can fail to answer although Slurm made the job, so the supervisor looks the token up for a while.
Before an attempt counts as lost it is closed, and the holder of its claim by then is the answer (P4): a job
claims before anything else, so no sign of a start is more reliable.

If Slurm had the time to forget the job before the first lookup, a user may as well have cancelled the
unclaimed attempt in the queue, and a user's cancel is never undone (P5): the run stops and the user decides.
While Slurm answers no query it takes no cancel either: if the process that announced the sbatch still lives,
only the time in which Slurm answered counts.
"""

from __future__ import annotations

from ftrun.slurm.client import options
from ftrun.slurm.client.parse import has_token
from ftrun.supervisor.context.run_context import RunContext
from ftrun.supervisor.controller import exit_status, fencing, finish
from ftrun.supervisor.model.types import Decision
from ftrun.supervisor.store import attempt_dir, run_dir

LOOKUP_FOR_S = 30.0  # how long a submission with an unknown outcome is looked up


def resolve_submission(ctx: RunContext) -> None:
    """One pass over an attempt that is opened and not known to be submitted. Raises SlurmError, OSError
    (journal).
    """
    attempt = ctx.attempt
    if attempt.submission == "opened":
        _not_submitted(ctx, "sbatch was not called")
        return
    found = [row for row in ctx.services.cluster.find(attempt.token) if has_token(row.comment, attempt.token)]
    if found:
        _record_found_job(ctx, found[0].raw_job_id or found[0].job_id, seen=True)
    elif _looked_for_s(ctx) >= LOOKUP_FOR_S:
        _not_submitted(ctx, "no job bears its token")


def _record_found_job(ctx: RunContext, job: str, *, seen: bool) -> None:
    if ctx.attempt.adopted and not seen:
        _mark(ctx, job)
    ctx.record("submit.done", job_id=job, cluster=ctx.services.facts().name, found=True, seen=seen)
    run_dir.index_job(ctx.services.home, job, ctx.run.id)


def _mark(ctx: RunContext, job: str) -> None:
    """Write the token into the comment of an adopted job: `ftrun adopt` died between the claim and that. Raises SlurmError."""
    details = ctx.services.cluster.details(job)
    if details is None or details.state.ended or has_token(details.comment, ctx.attempt.token):
        return
    comment = options.comment_with(details.comment, ctx.attempt.token)
    ctx.act("mark", lambda: ctx.services.cluster.set_comment(job, comment))


def _looked_for_s(ctx: RunContext) -> float:
    """Seconds since this process's first lookup that Slurm answered."""
    return ctx.observations.stopwatches["submission looked up", ctx.attempt.token].held_s(ctx.snapshot.mono_s)


def _not_submitted(ctx: RunContext, why: str) -> None:
    """Close the attempt before it counts as lost: a late job of it then does not start (P4)."""
    job = attempt_dir.array_job(ctx.run_dir, ctx.attempt.number)
    if not job and (taken := fencing.close_attempt(ctx, started=False)) is not None:
        job = taken.job
    if job:
        _record_found_job(ctx, job, seen=False)  # by its claim: Slurm may have forgotten it long ago
    elif ctx.attempt.number == 1 and not ctx.run.incidents:
        reason = f"the submission did not come about: {why}"
        ctx.record("run.abandoned", reason=reason, **{"class": "scheduler"})
    elif _maybe_cancelled(ctx):
        reason = (
            f"nobody looked for the job of attempt {ctx.attempt.number} until Slurm could have forgotten it: "
            "a person may have cancelled it"
        )
        advice = f"If nobody cancelled it, ftrun resume {ctx.run.id} goes on with the run."
        signature = {"class": "cancelled", "signature": "slurm.unseen-submission"}
        finish.end_run(ctx, Decision("stop", reason, advice=advice), signature)
    else:
        last = ctx.run.incidents[-1].decision if ctx.run.incidents else {}
        decision = {"kind": "resubmit", "reason": why, "exclude": [], "class": last.get("class", "")}
        ctx.record("submit.lost", why=why, decision=decision | {"avoid": list(last.get("avoid", ()))})


def _maybe_cancelled(ctx: RunContext) -> bool:
    """Whether the first lookup came late enough for a user to cancel the job and Slurm to forget it."""
    if ctx.attempt.submission == "opened" or ctx.run.wish:
        return False
    if ctx.attempt.token in ctx.services.uncalled:  # no other process calls sbatch for it
        return False
    age_s, looked_for_s = ctx.services.facts().min_job_age_s, _looked_for_s(ctx)
    if ctx.observations.attempt == ctx.attempt.number:  # it was opened by this very process
        return ctx.observations.answered_s - looked_for_s >= age_s
    return exit_status.may_be_forgotten(ctx.attempt.intended_at_s, ctx.snapshot.now_s - looked_for_s, age_s)
