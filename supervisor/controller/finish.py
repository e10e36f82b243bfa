"""How a run ends and what is done then: last record, final log line, orphan jobs, dependents, claim. (I/O)

A run that stops gets a last line that people read and grep finds (`RUN stopped after attempt N: why`) in the job's own log. The line is written before the stop
is journalled, and not if it is already there: a supervisor that dies in between leaves one line, never none
and never two.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Mapping
from typing import Any

from ftrun.hooks.runtime.formats import DAY_S
from ftrun.slurm.client.cluster import JobRow
from ftrun.supervisor.context.run_context import RunContext
from ftrun.supervisor.controller import dependents, fencing
from ftrun.supervisor.model.run import Attempt, Run
from ftrun.supervisor.model.types import Decision, FaultClass, first_proof
from ftrun.supervisor.store import attempt_dir, checkpoints, flag_files

TAIL_BYTES = 1 << 16  # of the log, searched for an earlier final line
STRAYS_FOR_S = 600.0
STRAYS_EVERY_S = 15.0
ALIVE_FOR_S = 15.0  # Slurm shows the end of a cancelled job within this time


def end_run(ctx: RunContext, decision: Decision, data: dict[str, Any]) -> None:
    """End the run.

    Whatever of it could still start is found by its token, since a snapshot may lack a row, and cancelled.
    """
    if not ctx.watch_only:
        fencing.cancel_all(ctx)
    if decision.kind == "finish" or ctx.run.wish != "pause":  # dependents of a paused run keep waiting
        dependents.release(ctx)
    attempt = ctx.attempt
    last = ctx.run.incidents[-1] if ctx.run.incidents else None
    if decision.kind == "stop" and last is not None and last.fault == FaultClass.CHECKPOINT:
        present = (attempt.number, attempt.launch.number, attempt.launch.start.number)
        if (last.attempt, last.launch, last.start) == present:
            exclude_checkpoint(ctx)  # now, not when a user resumes the run: by then it may be repaired
    end = attempt.launch.end
    never_ran = (
        end.state == "CANCELLED" and end.exit_code == 0 and not end.exit_signal
    )  # `sbatch --wait` says 0
    code = end.exit_code or (0 if decision.kind == "finish" or never_ran else 1)
    fields = {**decision.to_json(), **data, "exit_code": code}
    if decision.kind == "finish":
        for note in decision.notes:
            ctx.record("warned", message=note)
        ctx.record("run.finished", **fields)
        return
    record_stopped(ctx, fields)


def record_stopped(ctx: RunContext, fields: Mapping[str, Any]) -> None:
    """Journal the end of a run that does not go on (`fields` as in run.stopped).

    The final line comes first.
    """
    _note_final_line(ctx, fields, paused=ctx.run.wish == "pause")
    ctx.record("run.stopped", **fields)


def record_given_up(ctx: RunContext, fields: Mapping[str, Any]) -> None:
    """The same for a paused run that does not come back."""
    _note_final_line(ctx, fields, paused=False)
    ctx.record("run.given-up", **fields)


def _note_final_line(ctx: RunContext, fields: Mapping[str, Any], *, paused: bool) -> None:
    ctx.services.prove()
    path = _write_final_line(ctx, fields, paused=paused)
    if path:
        ctx.record("final.line", path=path)


def _write_final_line(ctx: RunContext, fields: Mapping[str, Any], *, paused: bool) -> str:
    """Write the line. Returns the path of the log; "" if none can be written or the line is there already."""
    attempt = ctx.attempt
    tries = [(one.number, one.launch.number) for one in ctx.run.attempts]
    launch = attempt_dir.latest_launch_record(ctx.run_dir, tries)
    if launch is None or not launch.stdout.startswith("/") or launch.stdout.startswith("/dev/"):
        return ""
    head = f": {ctx.run.id} {'is paused' if paused else 'stopped'} after attempt {attempt.number}: "
    reason = " ".join(fields["reason"].split())
    proof = first_proof(ctx.run.incidents[-1].diagnosis) if ctx.run.incidents else ""
    reason += f"; proof: {proof}" if proof and fields.get("class") == ctx.run.incidents[-1].fault else ""
    moment = time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(ctx.snapshot.now_s))
    line = f"ftrun: {moment}{head}{reason}; more: ftrun explain {ctx.run.id}\n"
    try:
        fd = os.open(launch.stdout, os.O_RDWR | os.O_APPEND | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        found = os.fstat(fd)  # the name may now be a pipe or another file
        if not stat.S_ISREG(found.st_mode) or launch.stdout_ino not in {0, found.st_ino}:
            return ""
        tail = os.pread(fd, TAIL_BYTES, max(0, found.st_size - TAIL_BYTES))
        if head.encode() in tail:
            return ""
        os.write(
            fd, ("" if tail[-1:] in (b"", b"\n") else "\n").encode() + line.encode("utf-8", "surrogateescape")
        )
    except OSError:
        return ""
    finally:
        os.close(fd)
    return launch.stdout


def release_dependents(ctx: RunContext) -> None:
    """Release what still waits for a final run.

    An earlier release of ftrun recorded only what it could release.
    """
    if dependents.are_left(ctx.run):
        dependents.release(ctx)


def cancelled_in_queue(ctx: RunContext) -> None:
    """A user cancelled the job before it began: the run is over (P5)."""
    decision = Decision("stop", "the job was cancelled by a person while it waited in the queue")
    end_run(ctx, decision, {"class": "cancelled"})


def stay_over(ctx: RunContext) -> None:
    """Cancel a job of a final run that appears late: a submission of it never got an answer."""
    release_dependents(ctx)
    if not _has_unanswered(ctx.run) or ctx.watch_only:
        return
    seen = ctx.observations
    if seen.stopwatches["late job"].held_s(ctx.snapshot.mono_s) <= STRAYS_FOR_S and seen.intervals[
        "late job"
    ].due(ctx.snapshot.mono_s, STRAYS_EVERY_S):
        attempt = ctx.attempt
        if (
            _is_unanswered(attempt) and not attempt.closed
        ):  # a late job then ends before the user's script begins (P4)
            fencing.close_attempt(ctx)
            ctx.record("attempt.closed")
        fencing.cancel_all(ctx)


def awaits_late_job(ctx: RunContext) -> bool:
    """Whether a late job of a final run may still appear and must be cancelled."""
    if not _has_unanswered(ctx.run):
        return False
    # Measured by our own clock from our first sight; another host's time stamp only tells old runs from new.
    clock = ctx.services.clock
    awaited_s = ctx.observations.stopwatches["late job"].held_s(clock.mono_s())
    return awaited_s <= STRAYS_FOR_S and clock.now_s() - ctx.run.last_at_s < DAY_S


def _has_unanswered(run: Run) -> bool:
    """Whether Slurm may have a job of the run that nobody knows: of the last attempt, or of one that counts as lost."""
    return any(_is_unanswered(one) or one.submission == "lost" for one in run.attempts)


def _is_unanswered(attempt: Attempt) -> bool:
    return attempt.submission in ("unknown", "intended")


def resume_run(ctx: RunContext) -> None:
    """A user resumes a stopped run.

    Budgets are fresh, or kept if the run was only paused; exclusions stay. Launches that nobody followed and that are over
    by now are noted: whoever cancelled one did so before this word.
    """
    if ctx.run.attempt is None:
        ctx.record("warned", message="no attempt of this run was ever submitted: submit it anew")
        return
    flag_files.remove_halt(ctx.run_dir)
    decision = {"kind": "resubmit", "reason": "resumed by a person", "exclude": [], "resumed": True}
    if ctx.run.paused:
        decision["paused"] = True
    number, present = ctx.attempt.number, ctx.attempt.launch.number
    later = (one for one in attempt_dir.launch_numbers(ctx.run_dir, number) if one > present)
    if over := [[number, one] for one in later if attempt_dir.script_has_ended(ctx.run_dir, number, one)]:
        decision["over"] = over
    ctx.record("run.resumed", decision=decision)


def give_up_paused_run(ctx: RunContext, want: str, by: str) -> None:
    """A user does not want a paused run to come back: stop it and release what waits for it."""
    flag_files.remove_halt(ctx.run_dir)
    reason = f"{'cancelled' if want == 'cancel' else 'stopped'} by {by or 'request'}"
    fields = {"reason": reason, "want": want, "by": by, "class": ctx.run.final_class}
    record_given_up(ctx, fields)


def exclude_checkpoint(ctx: RunContext) -> None:
    """Exclude the checkpoint that this launch began with from later launches, unless it is written anew."""
    path = ctx.attempt.launch.start.resume_from
    path = os.path.normpath(os.path.join(ctx.cwd, path)) if path else ""
    aside = checkpoints.unchanged_since_set_aside(ctx.run.set_aside)
    if path and path not in aside:
        ctx.record("checkpoint.set-aside", path=path, stamp=checkpoints.content_stamp(path))


def follow_launch(ctx: RunContext, row: JobRow) -> None:
    """The job started (again) before it left the queue: follow the launch and drop what was meant to end it.

    A launch that shows no fault is not ended (P7), even on the blamed node, which may have been repaired
    since.
    """
    again = ctx.attempt.launch.number + (1 if ctx.attempt.launch.requeued else 0)
    launch = row.restarts if row.restarts is not None else again
    ctx.record(
        "job.started",
        launch=launch,
        nodes=list(row.nodes),
        started_at_s=row.start_time_s,
        partition=row.partition,
        stays=True,
    )
    ctx.begin_launch(launch)
