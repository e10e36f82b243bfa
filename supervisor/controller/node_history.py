"""Keeps a first attempt, while it waits in the queue, off nodes that are quarantined. (I/O)

`ftrun sbatch` asks neither ledger nor Slurm, so the first job of a run knows nothing of other runs' bad
nodes. While it waits, the quarantined nodes are added to its list of excluded ones, once, under the rules of
every later attempt (`node_placement.left_out`). A job that starts at once keeps its nodes. Nodes that the
user requires are not excluded, nor are nodes of a reservation, which people chose.

None of this may keep a job from running. Slurm shows a job that it can no longer place as BadConstraints, or
its nodes as not available; then our nodes are taken off the list again and Slurm goes on with the job. The
list is read again before each change, and only our own nodes are added or removed, so that the user's changes
stay. The journal has them, so that the next supervisor can do the same.
"""

from __future__ import annotations

from dataclasses import field

from ftrun.slurm.client.cluster import JobRow, JobState
from ftrun.slurm.client.errors import RefusedForGood
from ftrun.slurm.records import dataclass, replace
from ftrun.supervisor.context.cluster_view import cluster_view
from ftrun.supervisor.context.run_context import RunContext
from ftrun.supervisor.context.services import Services
from ftrun.supervisor.policy import node_placement, policy_input
from ftrun.supervisor.store import journal

CANNOT_START = ("badconstraints", "reqnodenotavail", "nodesrequiredforjobaredown")


@dataclass(frozen=True, slots=True)
class PendingExclusion:
    """What was done about a waiting job.

    `before` is the earlier list, `nodes` what was added, `back` what is to be removed, `done` whether Slurm
    has it so.
    """

    before: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    back: tuple[str, ...] = ()
    done: bool = True


@dataclass
class _FirstJobs:
    """Of all runs: token -> what was done about the first job."""

    done: dict[str, PendingExclusion] = field(default_factory=dict)


def forget_pending_exclusions(services: Services) -> None:
    """Read the journals again: another supervisor may change the lists of waiting jobs."""
    services.shared(_FirstJobs).done.clear()


def keep_off_quarantined(ctx: RunContext, row: JobRow) -> None:
    """One pass over a job in the queue. Raises SlurmError if the pass is worth repeating."""
    attempt, known = ctx.attempt, ctx.services.shared(_FirstJobs).done
    first = attempt.number == 1 and not attempt.launch.number and attempt.launch.running_seen_at_s is None
    if not first or ctx.watch_only or row.state is not JobState.PENDING or _in_parts(ctx, row):
        return
    exclusion = known.get(ctx.run.token) or _from_journal(ctx)
    if exclusion is None:
        exclusion = _chosen(ctx, row)
        if exclusion.nodes:
            _announce(ctx, exclusion)
    elif exclusion.done and exclusion.nodes and _cannot_start(row):
        exclusion = replace(exclusion, nodes=(), back=exclusion.nodes, done=False)
        _announce(ctx, exclusion)
    if not exclusion.done:
        _carry_out(ctx, exclusion)
        exclusion = replace(exclusion, done=True)
    known[ctx.run.token] = exclusion


def _cannot_start(row: JobRow) -> bool:
    """Whether Slurm says that too few nodes are left for this job, rather than that they are busy."""
    reason = row.reason.lower().replace(" ", "").replace("_", "")
    return any(words in reason for words in CANNOT_START)


def _in_parts(ctx: RunContext, row: JobRow) -> bool:
    """Tasks of an array and components of a heterogeneous job have lists of their own.

    They are left alone.
    """
    return len(ctx.rows()) > 1 or not row.job_id.isdigit()


def _chosen(ctx: RunContext, row: JobRow) -> PendingExclusion:
    """The nodes to exclude; usually none, and then Slurm is not asked."""
    avoided = ctx.services.ledger.quarantined(ctx.run, ctx.snapshot.now_s)
    if not avoided:
        return PendingExclusion()
    view = cluster_view(ctx, ctx.snapshot)
    details = ctx.services.cluster.details(ctx.attempt.job)
    if details is None or details.state is not JobState.PENDING or len(view.partition) == 0:
        return PendingExclusion()
    if details.fields.get("Reservation", "(null)") not in ("", "(null)"):
        return PendingExclusion()
    cap = policy_input.limits_from(ctx.settings).exclude_cap
    free = [node for node in avoided if node not in (*details.required, *details.excluded)]
    view = replace(view, nodes_needed=max(view.nodes_needed, row.node_count, len(details.required)))
    own = [node for node in details.excluded if node in view.partition]
    view = replace(view, partition=tuple(node for node in view.partition if node not in own))
    view = replace(view, available=view.available - set(own), lost=view.lost - set(own))
    nodes = node_placement.nodes_to_exclude(view, (), (), (), quarantined=free, cap=cap)
    return PendingExclusion(details.excluded, nodes, done=not nodes)


def _announce(ctx: RunContext, exclusion: PendingExclusion) -> None:
    ctx.record("exclude.intended", nodes=list(exclusion.nodes), before=list(exclusion.before))


def _carry_out(ctx: RunContext, exclusion: PendingExclusion) -> None:
    """Change the list. A job that has started meanwhile keeps its nodes."""
    cluster, job = ctx.services.cluster, ctx.attempt.job
    details = cluster.details(job)
    now, required = (details.excluded, details.required) if details is not None else (exclusion.before, ())
    names = sorted({*now, *(set(exclusion.nodes) - set(required))} - set(exclusion.back))
    try:
        if names != sorted(now):
            ctx.act("exclude", lambda: cluster.exclude(job, names))
    except RefusedForGood as error:
        ctx.record("exclude.refused", message=error.message)
    else:
        ctx.record("exclude.done", nodes=list(exclusion.nodes))


def _from_journal(ctx: RunContext) -> PendingExclusion | None:
    """What an earlier supervisor did; None if none did anything."""
    exclusion: PendingExclusion | None = None
    for record in journal.read_run(ctx.run_dir):
        data = record["data"]
        if record["kind"] == "exclude.intended":
            nodes, added = tuple(data["nodes"]), exclusion.nodes if exclusion is not None else ()
            exclusion = PendingExclusion(tuple(data["before"]), nodes, () if nodes else added, done=False)
        elif record["kind"] in ("exclude.done", "exclude.refused") and exclusion is not None:
            exclusion = replace(exclusion, done=True)
    return exclusion
