"""The position of the job after a failed start: nodes, spares, companions, and the cluster. (I/O)

`place` collects what the ladder needs to know, `view` is Slurm's snapshot of the cluster.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ftrun.slurm.client.cluster import JobRow
from ftrun.slurm.client.errors import SlurmError
from ftrun.slurm.records import replace
from ftrun.supervisor.agent.context import AgentContext
from ftrun.supervisor.agent.node_liveness import NodeAnswers
from ftrun.supervisor.config.node_counts import parse_pool, segment_size, sizes_of_settings
from ftrun.supervisor.config.settings import text_of
from ftrun.supervisor.model.run import Run
from ftrun.supervisor.model.types import Diagnosis
from ftrun.supervisor.policy import ladder, policy_input, queue, start_decision
from ftrun.supervisor.submission import companion


def describe_allocation(
    ctx: AgentContext,
    seen: start_decision.StartFacts,
    reach: NodeAnswers,
    diagnosis: Diagnosis,
    run: Run,
    *,
    aside: tuple[str, ...],
    off: str,
    around: policy_input.ClusterView,
    companion_off: str = "",
) -> ladder.AllocationState:
    """The input of the ladder: where the job stands.

    `aside` are nodes that no later start may use, `off` is why nothing is restarted here, `companion_off` why
    no companion's nodes can be used.
    """
    where = ctx.where
    facts = where.node_facts(ctx.nodes, start=seen.number)
    lost = {*reach.gone, *reach.silent}
    facts = replace(facts, silent=frozenset(lost))
    broken = [node for span in ctx.spans if lost.intersection(span.nodes) for node in span.nodes]
    aside = tuple(dict.fromkeys((*aside, *broken)))  # a companion that lost a node is over as a whole
    excluded = run.excluded_at(seen.now_s)
    spares = start_decision.usable_spares(
        ctx.nodes,
        active=seen.nodes,
        aside=aside,
        answered=reach.answered,
        unfit=reach.unfit,
        facts=facts,
        excluded=excluded,
    )
    place = start_decision.allocation_state(
        seen,
        ctx.nodes,
        spares,
        aside,
        batch_node=where.node,
        culprits=diagnosis.nodes,
        called=bool(ctx.channel.calls(seen.number)),
        stuck=reach.unfit,
        off=off or ("" if reach.known else f"it is not known which nodes are well: {reach.why}"),
    )
    sizes = sizes_of_settings(run.settings)
    idle, borrowed = _to_be_had(ctx, run, around, {*ctx.nodes, *excluded})
    used, answered = {*seen.nodes, *aside}, {*reach.answered}
    waiting = [node for node in ctx.nodes if node not in used and node in answered]
    return replace(
        place,
        spares_off=start_decision.spares_objection(waiting, reach.unfit, facts),
        companion_off=companion_off,
        sizes=sizes.without(run.sizes_aside) if sizes is not None else None,
        idle=max(len(idle), borrowed) + ctx.expected if around.partition else None,
        lent=frozenset(node for span in ctx.spans for node in span.nodes),
        others_wait=sizes is not None and bool(idle) and other_jobs_wait(ctx),
        doubtful=frozenset(excluded) | start_decision.degraded_nodes(facts),
        segment=segment_size(run.settings),
    )


def _to_be_had(
    ctx: AgentContext, run: Run, around: policy_input.ClusterView, but: set[str]
) -> tuple[frozenset[str], int]:
    """(idle nodes for a companion in the job's partitions, how many a companion could have from the pool). A
    companion uses only one of the two.
    """
    pool = parse_pool(text_of(run.settings, "pool"))
    if pool is None:
        return around.idle - but, 0
    try:
        own = companion.pool_nodes(ctx.cluster, pool) if pool.kind == "reservation" else frozenset()
        return around.idle - but - own, len(
            companion.idle_pool_nodes(ctx.cluster, pool, ctx.cluster.nodes(), but)
        )
    except SlurmError:
        return around.idle - but, 0


def other_jobs_wait(ctx: AgentContext) -> bool:
    """Whether jobs of others wait for nodes. If Slurm does not answer, assume yes."""
    try:
        row = ctx.cluster.jobs((ctx.where.job,)).get(ctx.where.job)
        return row is None or ctx.cluster.contended(_partitions(row))
    except SlurmError:
        return True


def _partitions(row: JobRow | None) -> Sequence[str]:
    return row.partition.split(",") if row is not None else ()


def view_cluster(ctx: AgentContext, settings: dict[str, Any], run: Run) -> policy_input.ClusterView:
    """The cluster as Slurm shows it, idle nodes only with the job's own devices; empty if Slurm does not
    answer.
    """
    cluster, where = ctx.cluster, ctx.where
    try:
        row = cluster.jobs((where.job,)).get(where.job)
        nodes = cluster.nodes()
        found = policy_input.ClusterView.of(
            cluster.partitions(),
            nodes,
            cluster.rights(),
            names=_partitions(row),
            lost=[node for node in ctx.nodes if node in nodes and not nodes[node].responding],
            nodes_needed=len(where.nodes),
            may_ask=bool(settings.get("site-spool")),
            sizes=queue.sizes_left(run, sizes_of_settings(settings)),
            topology=cluster.topology(),
        )
        return queue.with_same_devices(found, nodes, run)
    except SlurmError:
        return policy_input.ClusterView()
