"""A live attempt saves a checkpoint before it ends: stop, pause, time limit, preemption, fault. (I/O)

`policy.save_request` decides; this module carries out, one pass per snapshot.

Stop and pause: the script is asked, awaited, and then the job is ended.

Time limit: it is left to Slurm. The script is asked in time and goes on, and the limit itself ends it, for it
may finish before. If Slurm was told to send a signal (`--signal`), Slurm asks, perhaps a minute early: from
then on a new checkpoint is the answer, and only if none comes in time ftrun asks as well. One kind of script
is ended once it has answered: it shows its last step, cannot reach it before the limit, and has never saved
without being asked, so that all later work would be lost.

Preemption: from the first moment of GraceTime Slurm shows the end of the job nearer than its limit, in the
one query for all jobs; that it is a preemption, and not the end of a reservation, is asked once then. Slurm
sends TERM to the tasks of the steps, or the signal of `--signal` if the site has it so, and nothing at all to
a script without steps [tried on 22.05]. So the script is asked for a checkpoint as before any other end;
Slurm ends the job itself. A script that leaves in the grace time shows as COMPLETED or FAILED, and slurmstepd
calls its steps cancelled, as if by a user [tried]: it was preempted all the same, unless it had reached its
last step, or exits 0 and nothing had told it to leave.

Fault: a job without an agent is asked for a last checkpoint before its announced end (an agent does this
itself, inside the allocation). The end comes in any case: at once if the script does not listen, else when a
new checkpoint is complete or `fault-save-timeout` is over. A start that hangs reads no file, so only a signal
reaches it. A user's requests, and ends that already have their checkpoint, are not delayed.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ftrun.slurm.client.cluster import JobRow, JobState
from ftrun.supervisor.config.settings import number_of
from ftrun.supervisor.context.cluster_view import newest_checkpoint
from ftrun.supervisor.context.run_context import RunContext
from ftrun.supervisor.controller import end_attempt, leave_drained_nodes, observe
from ftrun.supervisor.controller.checkpoint_request import (
    SLURM,
    awaited_verdict,
    handles_signal,
    newest_sight,
    reads_save_file,
    request_checkpoint,
    save_wait_s,
    was_requested,
    withdraw_request,
)
from ftrun.supervisor.model.states import State
from ftrun.supervisor.model.stop_conditions import HALT_FILE, BadStopConditions, StopConditions
from ftrun.supervisor.model.types import (
    MOVED_OFF,
    NEAR_TIME_LIMIT,
    WITHOUT_SCRIPT,
    CheckpointState,
    FaultClass,
)
from ftrun.supervisor.policy import estimates, save_request
from ftrun.supervisor.policy.save_request import Occasion
from ftrun.supervisor.store import checkpoints, flag_files
from ftrun.supervisor.submission import plan


@dataclass
class _Ends:
    """Planned ends about which Slurm was asked whether they are a preemption."""

    asked_for: set[float | None] = field(default_factory=set)


@dataclass
class _Signal:
    ahead_s: tuple[float | None] | None = None


def check_stop_file(ctx: RunContext) -> None:
    """Journal what `halt.json` says, and that its condition holds. Raises OSError (journal)."""
    if ctx.run.final:
        return
    halt = _read(ctx)
    if halt is not None and halt.token != ctx.run.halt.get("token", ""):
        ctx.record("halt.set", halt=halt.to_json())
        withdraw_request(ctx)
    known = StopConditions.from_json(ctx.run.halt)
    if not known.wanted or ctx.run.wish:
        return
    why = known.due(step=ctx.observations.step, now_s=ctx.snapshot.now_s, save_wait_s=save_wait_s(ctx))
    if why:
        ctx.record("halt.due", want=known.word, by=known.by, why=why)


def _read(ctx: RunContext) -> StopConditions | None:
    """What `halt.json` says; None if there is none that can be obeyed. An invalid file is reported once."""
    try:
        return flag_files.read_halt(ctx.run_dir)
    except BadStopConditions as error:
        if ctx.observations.intervals["bad stop conditions", str(error)].first():
            ctx.record("warned", message=f"{ctx.run_dir}/{HALT_FILE} is not obeyed: {error}")
        return None


def serve_live_attempt(ctx: RunContext, row: JobRow) -> None:
    """Do what a user, a preemption, a drain or the time limit asks of a live attempt. Raises SlurmError."""
    leave_drained_nodes.remove_stale_request(ctx)
    if ctx.run.wish == "cancel":
        end_attempt.announce_end(ctx, f"cancel by {ctx.run.wish_by or 'request'}")
    elif ctx.run.wish:
        stop_at_checkpoint(ctx)
    elif not handle_preemption(ctx, row):
        leave_drained_nodes.leave_if_free(ctx, row)
        if ctx.run.state is State.ENDING:
            return
        save_before_time_limit(ctx, row)


def stop_at_checkpoint(ctx: RunContext) -> None:
    """One pass over a live attempt that a user wants to stop or pause: ask it, wait, end it."""
    run, report = ctx.run, ctx.observations.report
    if report is not None and report.behind:
        return  # an old checkpoint would look new
    halt = StopConditions.from_json(run.halt)
    if not halt.wanted:  # a request without conditions
        halt = StopConditions(after_checkpoint=True)
    occasion = Occasion.PAUSE if run.wish == "pause" else Occasion.STOP
    if not was_requested(ctx, occasion) or run.leaving.get("halt") != halt.token:
        wait_s = halt.wait_s(
            now_s=ctx.snapshot.now_s, save_wait_s=save_wait_s(ctx), listens=handles_signal(ctx)
        )
        request_checkpoint(ctx, occasion, wait_s, halt=halt.token)
        return
    verdict = awaited_verdict(ctx)
    if verdict.end:
        end_attempt.announce_end(ctx, f"{run.wish} by {run.wish_by or 'request'}; {verdict.reason}")


def save_before_time_limit(ctx: RunContext, row: JobRow) -> None:
    """Have the script save when the time limit is near: Slurm asks it if told to, else ftrun. Raises
    SlurmError.
    """
    limit_s, end_s = row.time_limit_s, row.limit_end_s
    if ctx.watch_only or limit_s is None or end_s is None:
        return
    left_s = end_s - ctx.snapshot.now_s
    near = save_request.limit_is_near(limit_s, left_s, save_wait_s(ctx))
    if was_requested(ctx, Occasion.TIMELIMIT):
        _follow_time_limit_request(ctx, left_s, near=near)
        return
    if not (ctx.settings.get("checkpoint") or handles_signal(ctx)):
        return
    signal = ctx.observations.per_start(_Signal)
    if signal.ahead_s is None:
        signal.ahead_s = (plan.signal_ahead_s(ctx.run_dir),)
    (ahead_s,) = signal.ahead_s
    slurms = bool(ahead_s) and save_request.warning_is_due(ahead_s or 0.0, left_s)
    if not near and not slurms:
        return
    known = newest_sight(ctx)
    written_s = checkpoints.modified_s(known.path) if known.path else None
    by_itself = known.logged is not None or (written_s or 0.0) > (ctx.attempt.launch.started_at_s or 0.0)
    if slurms and written_s is not None and save_request.warning_is_due(ahead_s or 0.0, end_s - written_s):
        known = CheckpointState()  # the checkpoint for Slurm's signal is there already
    request_checkpoint(
        ctx,
        Occasion.TIMELIMIT,
        max(left_s, 0.0),
        by_signal=ahead_s is None,
        known=known.to_json(),
        unasked=by_itself,
        by=SLURM if slurms else "",
    )


def _follow_time_limit_request(ctx: RunContext, left_s: float, *, near: bool) -> None:
    """What becomes of a script that was asked to save before its time limit."""
    request = ctx.run.leaving
    if request["stage"] == "missed":
        return
    verdict = awaited_verdict(ctx)
    if not verdict.end and near and request.get("by") == SLURM:
        if not save_request.is_new(CheckpointState.from_json(request["known"]), newest_sight(ctx)):
            more = {"known": request["known"], "unasked": request["unasked"]}
            request_checkpoint(ctx, Occasion.TIMELIMIT, max(left_s, 0.0), by_signal=False, **more)
        return
    ends = estimates.estimate_run(ctx.run, ctx.snapshot.now_s)
    work_s = (ends.target - ends.step) * ends.step_s if ends is not None else None
    vain = save_request.work_is_lost(work_s=work_s, left_s=left_s, unasked=bool(request.get("unasked", True)))
    if verdict.saved and vain and newest_checkpoint(ctx) and ctx.run.state is State.RUNNING:
        end_attempt.announce_end(ctx, f"{NEAR_TIME_LIMIT}; {verdict.reason}")


def handle_preemption(ctx: RunContext, row: JobRow) -> bool:
    """Have a preempted script save, once in a launch. True while the job is in its grace time. Raises
    SlurmError, OSError (journal).
    """
    if ctx.watch_only or len(ctx.rows()) > 1 or not row.is_cut_short:
        return False
    if was_requested(ctx, Occasion.PREEMPT):
        awaited_verdict(ctx)
        return True
    asked_for = ctx.observations.per_launch(_Ends).asked_for
    if row.planned_end_s in asked_for:
        return False
    details = ctx.services.cluster.details(ctx.attempt.job)
    asked_for.add(row.planned_end_s)  # once per new end: many jobs may share a reservation
    if details is None or not details.is_preempted:
        return False
    left_s = max((row.planned_end_s or ctx.snapshot.now_s) - ctx.snapshot.now_s, 0.0)
    by_slurm = ctx.services.facts().preemption_signals and plan.signal_ahead_s(ctx.run_dir) is not None
    request_checkpoint(ctx, Occasion.PREEMPT, round(left_s, 1), by_signal=not by_slurm)
    return True


def awaits_fault_checkpoint(ctx: RunContext, row: JobRow) -> bool:
    """Whether the announced end waits for a last checkpoint. Raises SlurmError, OSError (journal)."""
    if ctx.run.wish or row.state is not JobState.RUNNING or len(ctx.rows()) > 1:
        return False
    if was_requested(ctx, Occasion.GASP):
        observe.read_logs(ctx)  # the log may show that it has saved
        return not awaited_verdict(ctx).end
    if not _checkpoint_is_wanted(ctx):
        return False
    wait_s = number_of(ctx.settings, "fault-save-timeout")
    request_checkpoint(ctx, Occasion.GASP, wait_s)
    return True


def _checkpoint_is_wanted(ctx: RunContext) -> bool:
    attempt, found = ctx.attempt, ctx.observations.provisional
    why = attempt.end_intended
    if attempt.cancel_intended or WITHOUT_SCRIPT in why:
        return False
    if why.startswith((NEAR_TIME_LIMIT, MOVED_OFF)):
        return False
    rows = ctx.snapshot.nodes or {}
    blamed = found.nodes if found is not None else ()
    gone = [n for n in attempt.used if n in blamed or (n in rows and not rows[n].responding)]
    hangs = attempt.hung is not None or found is None or found.fault is FaultClass.HANG
    wanted, _ = save_request.emergency_save(
        total=len(attempt.used),
        alive=len(attempt.used) - len(gone),
        listens=handles_signal(ctx) or (not hangs and reads_save_file(ctx)),
        gasp_wait_s=number_of(ctx.settings, "fault-save-timeout"),
    )
    return wanted
