"""One run: what the snapshot shows becomes records, and each state has one handler. (I/O)

`step(snapshot)` is level-based: it compares the journal with the snapshot and records the difference. It
never waits and never loops for long; work that needs time is taken up again at the next snapshot. While Slurm
cannot be seen nothing moves: no answer means neither "healthy" nor "dead".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ftrun.slurm.client.cluster import JobRow, JobState
from ftrun.supervisor.context.run_context import RunContext
from ftrun.supervisor.context.services import ClusterSnapshot, Services
from ftrun.supervisor.controller import (
    agent_link,
    arrays,
    assess,
    companions,
    dependents,
    drain,
    end_attempt,
    exit_status,
    fencing,
    finish,
    graceful_stop,
    hang,
    missing_jobs,
    node_history,
    observe,
    queued_job,
    resubmit,
    suspect,
    unanswered_submission,
    user_requests,
)
from ftrun.supervisor.model import job_rows, types
from ftrun.supervisor.model.states import State
from ftrun.supervisor.store import attempt_dir, flag_files
from ftrun.supervisor.store import run_dir as store_run_dir

SUBMITTER_PATIENCE_S = 180.0  # how long an `ftrun sbatch` on another host may pause between its records
AGENT_JOURNAL_EVERY_S = 1.0  # an agent's journal is on the shared file system
_HELD = frozenset({JobState.SPECIAL_EXIT, JobState.REQUEUE_HOLD})
STEPS_MAX = 6  # transitions of one run per snapshot


class RunReconciler:
    """Looks after one run. Raises JournalDamaged/JournalTooNew at creation."""

    def __init__(self, run_dir: str, services: Services) -> None:
        self.ctx = RunContext(run_dir, services)

    def close(self) -> None:
        """Close the open files."""
        self.ctx.close()

    def job_ids(self) -> tuple[str, ...]:
        """The jobs whose rows the next snapshot must contain."""
        run = self.ctx.run
        attempt, beside_it = run.attempt, companions.job_ids(run)
        if run.final or attempt is None or not attempt.job:
            return beside_it
        return (attempt.job, *beside_it)

    def step(self, snapshot: ClusterSnapshot) -> None:
        """Move on as far as the snapshot allows. Raises LeaseLost, Stale, OSError (journal)."""
        ctx = self.ctx
        ctx.snapshot = snapshot
        ctx.catch_up()
        if _submitter_is_writing(ctx) or not _submitter_is_shut_out(ctx):
            return
        ctx.shut_out_rival()
        final = ctx.run.final
        user_requests.take_requests(ctx)
        if ctx.run.state in (State.SETTLING, State.RECOVERING):
            flag_files.clear_save_requests(ctx.run_dir)  # the request was meant for a launch that is over
        graceful_stop.check_stop_file(ctx)
        ctx.observations.looked(seen=snapshot.jobs is not None, mono_s=snapshot.mono_s)
        if ctx.snapshot.jobs is None or ctx.snapshot.nodes is None:
            return
        if final and not ctx.run.final:
            return  # a request has just resumed it; the snapshot does not cover its job
        fencing.cancel_seen(ctx)
        dependents.move(ctx)
        companions.reconcile_companions(ctx)
        drain.note_answers(ctx)
        for _ in range(STEPS_MAX):
            before = (ctx.run.state, len(ctx.run.attempts))
            HANDLERS[ctx.run.state](ctx)
            if (ctx.run.state, len(ctx.run.attempts)) == before:
                return
            if ctx.run.state in (State.QUEUED, State.SUBMITTING):
                return  # the snapshot is older than this job
            ctx.fresh()

    def glance(self, snapshot: ClusterSnapshot) -> None:
        """Read the log of a live attempt between two snapshots.

        Records and announces; carries out nothing.
        """
        ctx = self.ctx
        ctx.snapshot = snapshot
        if ctx.writes and ctx.run.state in (State.RUNNING, State.SUSPECT):
            if ctx.observations.intervals["agent journal"].due(ctx.snapshot.mono_s, AGENT_JOURNAL_EVERY_S):
                agent_link.copy_journal(ctx)
                observe.note_start(ctx)
            _watch(ctx)


# ---------------------------------------------------------------------- submitting


def _submitter_is_writing(ctx: RunContext) -> bool:
    """Whether `ftrun sbatch` still writes.

    If we appended first, readers would ignore its later records (P8).
    """
    state, attempt = ctx.run.state, ctx.run.attempt
    first = attempt is None or (attempt.number == 1 and not ctx.run.incidents)
    early = state is State.NEW or (state is State.SUBMITTING and first)
    return early and not ctx.writes and not _submitter_is_gone(ctx)


def _submitter_is_gone(ctx: RunContext) -> bool:
    writer = str(ctx.run.submitter.get("writer", ""))
    if writer and store_run_dir.provably_dead(writer):
        return True
    unchanged = ctx.observations.stopwatches["submitter silent", frozenset(ctx.read_lengths.items())]
    return unchanged.held_s(ctx.snapshot.mono_s) >= SUBMITTER_PATIENCE_S


def _submitter_is_shut_out(ctx: RunContext) -> bool:
    """Whether an `ftrun sbatch` that opened no attempt can start no job any more.

    It may only have been suspended. Readers ignore what it writes after our first record, so attempt 1 is taken
    from it before that (P4). False if a job of it has the claim by now: then its records are there to be read.
    """
    if ctx.run.state is not State.NEW or ctx.writes:
        return True
    ctx.services.prove()
    store_run_dir.open_attempt(ctx.run_dir, 1)
    taken = fencing.close_attempt(ctx)
    return taken is None or taken.closed


def _new(ctx: RunContext) -> None:
    """`ftrun sbatch` died before it opened an attempt: no sbatch was called, and none can be."""
    reason = "ftrun sbatch was interrupted before it submitted"
    ctx.record("run.stopped", reason=reason, **{"class": "cancelled"})


# ---------------------------------------------------------------------- in Slurm's hands


def _queued(ctx: RunContext) -> None:
    row = ctx.row()
    if row is None:
        _missing(ctx)
        return
    missing_jobs.note_seen(ctx, row)
    if row.state.ended and row.restarts not in (None, ctx.attempt.launch.number):
        _started(ctx, row)  # another launch than expected: it ended between two snapshots, or in the queue
    elif row.state.ended:
        _ended(ctx, row)
    elif observe.adopt_claim_holder(ctx, row):
        pass  # its row comes with the next snapshot
    elif row.state.live:
        _started(ctx, row)
    elif row.state in _HELD and attempt_dir.script_has_ended(
        ctx.run_dir, ctx.attempt.number, ctx.attempt.launch.number
    ):
        observe.note_launch(ctx)  # it started, failed and was held between two snapshots
        exit_status.record_end(ctx, "job.requeued", row.state.value, row.reason, ())
    elif "launch failed requeued held" in row.reason.lower():
        ctx.record("job.requeued", state=row.state.value, reason=row.reason)
    elif ctx.run.wish:
        end_attempt.announce_end(ctx, f"{ctx.run.wish} by {ctx.run.wish_by or 'request'}")
    else:
        node_history.keep_off_quarantined(ctx, row)
        queued_job.review_queued_job(ctx, row)


def _missing(ctx: RunContext) -> None:
    row = missing_jobs.forgotten_end(ctx)
    if row is not None:
        _ended(ctx, row)
    else:
        missing_jobs.handle_missing_job(ctx)


def _started(ctx: RunContext, row: JobRow) -> None:
    launch = (
        row.restarts
        if row.restarts is not None
        else attempt_dir.latest_claimed_launch(ctx.run_dir, ctx.attempt)
    )
    ctx.record(
        "job.started",
        launch=launch,
        nodes=list(row.nodes),
        started_at_s=row.start_time_s,
        partition=row.partition,
        known_as=ctx.observations.known_as,
        submitted_s=ctx.observations.submitted_s,
        limit_s=row.time_limit_s,
    )
    ctx.begin_launch(launch)


def _running(ctx: RunContext) -> None:
    row = ctx.row()
    if row is None:
        _missing(ctx)
        return
    missing_jobs.note_seen(ctx, row)
    agent_link.copy_journal(ctx)
    observe.note_launch(ctx)
    if row.state.ended and not ctx.started_again(row):
        _ended(ctx, row)
        return
    drain.drain_for_agent(ctx)
    if len(ctx.rows()) > 1:
        arrays.note_failed(ctx)
    elif row.state.pending or ctx.started_again(row):  # a cancel in the queue: see `resubmit`
        lost_track = row.state.pending and row.restarts == ctx.attempt.launch.number
        reason = types.LOST_TRACK if lost_track else row.reason
        exit_status.record_end(ctx, "job.requeued", row.state.value, reason, ())
        return
    if row.state is JobState.RUNNING:
        _watch(ctx)
        hang.cancel_hung_tasks(ctx)
        if len(ctx.rows()) == 1 and ctx.run.state in (State.RUNNING, State.SUSPECT):
            agent_link.end_if_headless(ctx, row)
            agent_link.note_absence(ctx)
    if ctx.run.state in (State.RUNNING, State.SUSPECT):
        graceful_stop.serve_live_attempt(ctx, row)


def _watch(ctx: RunContext) -> None:
    report = observe.read_logs(ctx)
    if agent_link.agent_is_alive(ctx):
        suspect.hand_over_to_agent(ctx)
    elif any("_" in row.job_id for row in ctx.rows()):
        hang.detect_hung_tasks(ctx)
    elif report is not None:
        suspect.judge_live_start(ctx, report)  # not for an array: one broken task must not end it


def _ending(ctx: RunContext) -> None:
    row = ctx.row()
    if row is None:
        _missing(ctx)
        return
    missing_jobs.note_seen(ctx, row)
    if row.state.ended:
        _ended(ctx, row)
    elif row.state.live and ctx.started_again(row):  # the launch that we were ending is over
        exit_status.record_end(ctx, "job.requeued", row.state.value, row.reason, ())
    elif ctx.attempt.end_done:
        end_attempt.repeat_cancel(ctx)
    elif not graceful_stop.awaits_fault_checkpoint(ctx, row):
        end_attempt.cancel_job(ctx)


def _ended(ctx: RunContext, row: JobRow) -> None:
    if observe.adopt_claim_holder(ctx, row):
        return
    observe.note_launch(ctx)
    agent_link.note_absence(ctx, over=True)
    if ctx.submission.get("array"):
        arrays.note_failed(ctx)
    state, ours = row.state.value, ctx.attempt.ended_tasks
    theirs = row.state is JobState.CANCELLED and job_rows.cancelled_by_others(ctx.rows(), ours)
    if ctx.attempt.failed_tasks and row.state in (JobState.COMPLETED, JobState.CANCELLED) and not theirs:
        state = JobState.FAILED.value
    exit_status.record_end(ctx, "job.ended", state, row.reason, row.nodes, row=row)


HANDLERS: Mapping[State, Callable[[RunContext], None]] = {
    State.NEW: _new,
    State.SUBMITTING: unanswered_submission.resolve_submission,
    State.QUEUED: _queued,
    State.RUNNING: _running,
    State.SUSPECT: _running,
    State.ENDING: _ending,
    State.SETTLING: assess.assess_launch,
    State.RECOVERING: resubmit.recover,
    State.FINISHED: finish.stay_over,
    State.STOPPED: finish.stay_over,
}
"""The handler of each state."""
