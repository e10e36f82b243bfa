"""That an attempt is over, so that the next one may start: job and nodes (P6), its claim and token (P4). (I/O)

First the job must be over for Slurm, then each node of the launch by itself: it responds and has nothing left
of the job, or it has been silent for so long that its processes count as dead (the node is excluded then). A
site may name a command that cuts off a node which Slurm has given up (power, or a switch's port); where that
succeeded, nothing writes there any more, and nobody waits. A launch that ran while no supervisor watched is
assessed first: it may have completed. Then its claim is taken, so that a late job of it does not start.

Last, other jobs that bear the run's token are cancelled. sbatch may have made two jobs of one token, one of
them late; and a controller that lost its memory may bring back what was over. Where claims can be seen, such
a job exits by itself as soon as it starts. Where they cannot, it trains beside the attempt, and in the queue
it holds the run's place. So each run looks its token up before a submission and at its end, and while
attempts live, one query now and then serves all runs.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from ftrun.slurm.client.cluster import JobRow, JobState, NodeRow
from ftrun.slurm.client.parse import has_token
from ftrun.supervisor.context.cluster_view import GIVEN_UP
from ftrun.supervisor.context.run_context import RunContext
from ftrun.supervisor.controller import observe, user_hooks
from ftrun.supervisor.controller.user_hooks import FENCE, FENCED, DueHook
from ftrun.supervisor.model import types
from ftrun.supervisor.model.job_rows import base_job_id
from ftrun.supervisor.model.run import Companion
from ftrun.supervisor.model.states import State
from ftrun.supervisor.store import attempt_dir

SEARCH_EVERY_S = 30.0  # how often orphans of all runs are looked for while one of them lives
TOKEN_PREFIX = "ftrun"  # the head of every token
LIVE_STATES = frozenset({State.QUEUED, State.RUNNING, State.SUSPECT, State.ENDING})


def is_fenced(ctx: RunContext) -> bool:
    """Whether law P6 is met: the launch has ended and every node of it is clear.

    A node is clear if it responds without the job, or is silent, excluded and fenced.
    """
    if ctx.attempt.launch.over:
        return True
    if not _job_over(ctx) or _take_up_unseen_launch(ctx):
        return False
    if ctx.attempt.launch.end.reason == types.STARTED_TWICE and not _heard_since(ctx):
        return False
    if not all(_companion_over(ctx, one) for one in ctx.attempt.companions):
        return False
    if not all(_node_clear(ctx, node) for node in _ever_used(ctx)):
        return False
    fenced = sorted(silent_nodes(ctx))
    ctx.record("attempt.over", fenced=fenced)
    return True


def _ever_used(ctx: RunContext) -> set[str]:
    """The nodes of every launch of the attempt, unseen ones included, and of its companions.

    Slurm may have started the job again beside a node that only froze, or removed a lost node from a job that
    went on.
    """
    attempt, run_dir = ctx.attempt, ctx.run_dir
    launches = range(
        max(attempt.launch.number, attempt_dir.latest_claimed_launch(ctx.run_dir, ctx.attempt)) + 1
    )
    records = (attempt_dir.launch_record(run_dir, attempt.number, launch) for launch in launches)
    brought = {node for one in attempt.companions for node in one.nodes}
    return {*attempt.nodes, *brought, *(n for record in records if record is not None for n in record.nodes)}


def _companion_over(ctx: RunContext, one: Companion) -> bool:
    """Slurm no longer has the companion, or its nodes have been silent for so long that its processes
    count as dead.
    """
    rows = [(ctx.snapshot.nodes or {}).get(node) for node in one.nodes]
    silenced = bool(rows) and not any(row is not None and row.responding for row in rows)
    return one.gone or (silenced and all(_node_clear(ctx, node) for node in one.nodes))


def _heard_since(ctx: RunContext) -> bool:
    """Whether the nodes have been watched for long enough since the second start ended.

    That end says nothing of the first start: a node that died with it counts as responding for a while.
    """
    return ctx.observations.stopwatches["started twice"].held_s(ctx.snapshot.mono_s) >= fence_wait_s(ctx)


def _job_over(ctx: RunContext) -> bool:
    row, absence = ctx.row(), ctx.observations.stopwatches["absent"]
    if row is not None:
        absence.stop()
        return row.state.ended
    if ctx.attempt.launch.end.state == "GONE":
        return True
    if absence.held_s(ctx.snapshot.mono_s) < 60.0:
        return False
    over = all(row.state.ended for row in ctx.services.cluster.find(ctx.attempt.token))
    if not over:
        # The job that holds the claim is the attempt (P4): it is followed, since it may need its supervisor to end.
        _adopt_second_job(ctx)
    return over


def _take_up_unseen_launch(ctx: RunContext) -> bool:
    """Whether there was another launch than the known one; it is assessed before the attempt counts as over.

    The requeued job started again while no supervisor watched, and Slurm has forgotten it since; or sbatch
    made two jobs of one token, and the one that is over never had the claim.
    """
    if _adopt_second_job(ctx):
        return True
    launch = attempt_dir.latest_claimed_launch(ctx.run_dir, ctx.attempt)
    if ctx.row() is not None or launch <= ctx.attempt.launch.number:
        return False
    record = attempt_dir.launch_record(ctx.run_dir, ctx.attempt.number, launch)
    nodes = record.nodes if record is not None and record.nodes else ctx.attempt.nodes
    ctx.record("job.started", launch=launch, nodes=list(nodes), started_at_s=None, over=True)
    ctx.begin_launch(launch)
    return True


def _adopt_second_job(ctx: RunContext) -> bool:
    attempt, run_dir = ctx.attempt, ctx.run_dir
    holder = attempt_dir.claim_holder(run_dir, attempt.number)
    if holder is None or holder.job == attempt.job or attempt_dir.has_tasks(run_dir, attempt.number):
        return False
    record = attempt_dir.launch_record(run_dir, attempt.number, holder.launch)
    nodes = record.nodes if record is not None else ()
    observe.adopt_job(ctx, holder.job, attempt.launch.number)
    ctx.record("job.started", launch=holder.launch, nodes=list(nodes), started_at_s=None)
    ctx.begin_launch(holder.launch)
    return True


def _node_clear(ctx: RunContext, node: str) -> bool:
    assert ctx.snapshot.nodes is not None
    row = ctx.snapshot.nodes.get(node)
    if row is None:
        return True  # Slurm has no such node any more
    if row.responding:
        ctx.observations.silent.stop(node)
        return "completing" not in row.flags or _others_complete(ctx, node)
    silent_s = ctx.observations.silent[node].held_s(ctx.snapshot.mono_s)
    return silent_s >= fence_wait_s(ctx) or _is_cut_off(ctx, row)


def _is_cut_off(ctx: RunContext, row: NodeRow) -> bool:
    """Whether the site's command has cut off a silent node of the launch; starts it once Slurm has given the node up.

    It is run like the user's commands: journalled first, so once for each node and launch, beside the loop, with
    a limit. Where it fails, the wait goes on. Raises LeaseLost, Stale, OSError (journal).
    """
    if not ctx.settings.get(FENCE):
        return False
    key = f"{FENCE}.{ctx.attempt.number}.{ctx.attempt.launch.number}.{row.name}"
    if key not in ctx.run.hooks:
        if row.state in GIVEN_UP:
            facts = {"attempt": ctx.attempt.number, "nodes": (row.name,), "decision": "fence"}
            user_hooks.start(ctx, DueHook(key, FENCE, facts))
        return False
    if not ctx.run.hooks[key]:
        user_hooks.note_ends(ctx)
    return ctx.run.hooks[key] == FENCED


def _others_complete(ctx: RunContext, node: str) -> bool:
    """Whether it is another job that completes: COMPLETING is the node's flag for any job.

    Once ours has ended, or Slurm has forgotten it (which comes later), the flag is another job's.
    """
    row = ctx.row()
    done = row is None or row.state.ended
    return done and ctx.observations.stopwatches["completing", node].held_s(ctx.snapshot.mono_s) >= 5.0


def silent_nodes(ctx: RunContext) -> set[str]:
    """The nodes of the attempt that do not respond to Slurm."""
    assert ctx.snapshot.nodes is not None
    return {n for n in ctx.attempt.reach if n in ctx.snapshot.nodes and not ctx.snapshot.nodes[n].responding}


def fence_wait_s(ctx: RunContext) -> float:
    """How long a node must be silent before it counts as fenced: the setting, else SlurmdTimeout + 30 s."""
    value = ctx.settings.get("fence-wait", "")
    return float(value) if value not in ("", None) else ctx.services.facts().slurmd_timeout_s + 30.0


# ---------------------------------------------------------------------- claim and token


def is_closed(ctx: RunContext) -> bool:
    """Take the attempt's next claim, unless it is closed already.

    False if a launch of it claimed first: that launch is followed instead. Raises LeaseLost.
    """
    if ctx.attempt.closed:
        return True
    taken = close_attempt(ctx)
    if taken is not None:
        if not taken.closed:
            launch = f"launch {taken.launch} of attempt {ctx.attempt.number}"
            ctx.record("warned", message=f"{launch} claimed while it was being closed")
        return False
    ctx.record("attempt.closed")
    return True


def close_attempt(ctx: RunContext, *, started: bool = True) -> attempt_dir.Claim | None:
    """Take the newest attempt's next claim (see `attempt_dir.close`) after confirming the lease. Raises
    LeaseLost.
    """
    number = ctx.run.attempt.number if ctx.run.attempt is not None else 1
    ctx.services.prove()
    return attempt_dir.close_attempt(ctx.run_dir, number, ctx.services.lead.epoch, started=started)


def cancel_all(ctx: RunContext) -> bool:
    """Cancel every live job that bears the run's token. True if there was one. Raises SlurmError, Stale."""
    living = [row for row in ctx.services.cluster.find(ctx.run.token) if not row.state.ended]
    _cancel(ctx, living)
    return bool(living)


def cancel_seen(ctx: RunContext) -> None:
    """Cancel the orphans that this snapshot shows beside the present attempt. Raises SlurmError, Stale."""
    if ctx.run.state not in LIVE_STATES or ctx.watch_only or not ctx.attempt.job:
        return
    _cancel(ctx, [row for row in ctx.snapshot.tokens if _is_orphan(ctx, row)])


def _cancel(ctx: RunContext, rows: Iterable[JobRow]) -> None:
    """Cancel these jobs of the run, each announced and recorded."""
    for row in rows:
        job = row.raw_job_id or row.job_id
        own = job == ctx.attempt.job  # then its end counts as ours, too
        ctx.record("cancel.intended", what=f"stray job {job} ({row.comment})", own=own)
        ctx.act("cancel", partial(ctx.services.cluster.cancel, job))
        ctx.record("cancel.done", what=f"stray job {job}")


def _is_orphan(ctx: RunContext, row: JobRow) -> bool:
    attempt = ctx.attempt
    token = ctx.run.token
    if row.state.ended or row.state is JobState.COMPLETING or token not in row.comment:
        return False  # a cheap test first: with very many runs, most rows are others'
    if not has_token(row.comment, token):
        return False
    if base_job_id(row.job_id) == attempt.job or row.raw_job_id == attempt.job:
        return False
    if not has_token(row.comment, attempt.token):
        return True
    # Of two jobs of one submission the holder of the claim is the attempt; it may not be known yet.
    holder = attempt_dir.claim_holder(ctx.run_dir, attempt.number)
    return holder is not None and holder.job == attempt.job
