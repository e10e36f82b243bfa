"""What is known of the cluster and the checkpoints of one run, for the policy. (I/O)"""

from __future__ import annotations

import contextlib
import os

from ftrun.hooks.runtime.formats import parse_bytes
from ftrun.slurm.client.cluster import JobRow
from ftrun.slurm.client.errors import RefusedForGood
from ftrun.supervisor.config.node_counts import sizes_of_settings
from ftrun.supervisor.context.run_context import RunContext
from ftrun.supervisor.context.services import ClusterSnapshot
from ftrun.supervisor.diagnosis import resumable
from ftrun.supervisor.policy import policy_input, queue
from ftrun.supervisor.store import attempt_dir, checkpoints
from ftrun.supervisor.submission import in_allocation

SILENT_FOR_S = 15.0
GIVEN_UP = frozenset({"down", "error", "fail"})
"""States of nodes whose jobs Slurm has ended for its part."""


def cluster_view(ctx: RunContext, snapshot: ClusterSnapshot) -> policy_input.ClusterView:
    """What the policy may know of the cluster now. Raises SlurmError if Slurm does not answer: then the
    policy must not decide yet.
    """
    assert snapshot.nodes is not None
    row = ctx.row(snapshot)
    try:
        partitions = ctx.services.cluster.partitions()
        rights = ctx.services.cluster.rights()
    except RefusedForGood:  # a site may hide its partitions
        return policy_input.ClusterView(nodes_needed=_nodes_needed(ctx, row))
    names = _partition(ctx, row).split(",")
    return policy_input.ClusterView.of(
        partitions,
        snapshot.nodes,
        rights,
        names=names,
        lost=lost_nodes(ctx, snapshot),
        nodes_needed=_nodes_needed(ctx, row),
        sizes=queue.sizes_left(ctx.run, sizes_of_settings(ctx.settings)),
        may_ask=bool(ctx.settings.get("site-spool")),
        topology=ctx.services.cluster.topology(),
    )


def _nodes_needed(ctx: RunContext, row: JobRow | None) -> int:
    """The node count of the last attempt that ran, without spares.

    The present attempt may never have started.
    """
    if (sizes := sizes_of_settings(ctx.settings)) is not None:
        return queue.run_size(ctx.run, sizes)
    if ctx.settings.get("spares") and (asked := in_allocation.active_nodes_of_run(ctx.run_dir)):
        return int(asked)
    had = next((len(attempt.nodes) for attempt in reversed(ctx.run.attempts) if attempt.nodes), 1)
    return max(had, row.node_count if row is not None else 1)


def _partition(ctx: RunContext, row: JobRow | None) -> str:
    """The partition of the run, as Slurm shows it now or showed it last; "" if Slurm never showed the job."""
    if row is not None and row.partition:
        return row.partition
    told = [ctx.observations.partition, *(attempt.partition for attempt in reversed(ctx.run.attempts))]
    return next((name for name in told if name), "")


def lost_nodes(ctx: RunContext, snapshot: ClusterSnapshot) -> tuple[str, ...]:
    """The nodes of the attempt that Slurm has given up or that have been silent for long.

    A controller that has just come back shows every node as not responding for some seconds; that is no fault
    of the nodes.
    """
    assert snapshot.nodes is not None
    silent, found = ctx.observations.silent, []
    for node in ctx.attempt.reach:
        row = snapshot.nodes.get(node)
        if row is None or row.responding:
            silent.stop(node)
        elif silent[node].held_s(snapshot.mono_s) >= SILENT_FOR_S or row.state in GIVEN_UP:
            found.append(node)
    return tuple(found)


def asked_resource(ctx: RunContext, key: str) -> policy_input.AskedResource | None:
    """What the job asked for of `mem` or `time`, and its partition's limit; None where Slurm does not tell, or the job is
    an array or heterogeneous. Raises SlurmError.
    """
    details = ctx.services.cluster.details(ctx.attempt.job) if ctx.attempt.job.isdigit() else None
    if details is None or ctx.submission.get("array") or "HetJobId" in details.fields:
        return None
    try:
        partitions = ctx.services.cluster.partitions()
    except RefusedForGood:  # a site may hide its partitions
        partitions = {}
    mine = partitions.get(details.fields.get("Partition", ""))
    if key == "time":
        if details.time_limit_s is None:
            return None
        most_s = mine.max_time_s if mine is not None else None
        return policy_input.AskedResource(
            "time", details.time_limit_s / 60.0, None if most_s is None else most_s / 60.0
        )
    for field, option in (("MinMemoryNode", "mem"), ("MinMemoryCPU", "mem-per-cpu")):
        with contextlib.suppress(ValueError):
            if amount_bytes := parse_bytes(details.fields.get(field, "")):
                most = mine.max_memory_mib if mine is not None and option == "mem" else None
                return policy_input.AskedResource(option, amount_bytes / 2**20, most)
    return None


def newest_checkpoint(ctx: RunContext) -> str:
    """The newest checkpoint of the run by its name; "" if none is known.

    Cheap: callers use it while the run writes.
    """
    return resumable.newest_by_name(ctx.settings, ctx.run, ctx.cwd)


def newer_checkpoint(ctx: RunContext, newest: str) -> str:
    """`newest` if it is newer than every checkpoint known when this launch began; else "".

    Where Slurm ran the job again, `newest` may be a save of that later launch, which counts it itself, be it over by now:
    then what the later launch began from stands for it.
    """
    run, attempt = ctx.run, ctx.attempt
    later = attempt_dir.next_launch_record(ctx.run_dir, attempt.number, attempt.launch.number)
    if later is not None:
        newest = os.path.join(ctx.cwd, later.resume_from) if later.resume_from else ""
    resumed = (
        os.path.join(ctx.cwd, attempt.launch.start.resume_from) if attempt.launch.start.resume_from else ""
    )
    before = run.best_checkpoint or resumed
    since = attempt.launch.started_at_s or attempt.opened_at_s
    return newest if checkpoints.is_newer(newest, before, since) else ""
