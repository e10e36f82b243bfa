"""Where a job stands when a start of it failed: its nodes, its companions' nodes, and the cluster around it. (I/O)"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ftrun.slurm.client.cluster import JobRow
from ftrun.slurm.client.errors import SlurmError
from ftrun.slurm.records import replace
from ftrun.supervisor import agent_case, grounds, ladder, nodereports, queueing
from ftrun.supervisor import pool as pools
from ftrun.supervisor.agent_desk import Desk
from ftrun.supervisor.agent_reach import Reach
from ftrun.supervisor.model import Diagnosis
from ftrun.supervisor.poolspec import pool_of
from ftrun.supervisor.run_types import Run
from ftrun.supervisor.sizes import sizes_of_settings

__all__ = ["others_wait", "place", "view"]


def place(
    desk: Desk,
    seen: agent_case.Seen,
    reach: Reach,
    diagnosis: Diagnosis,
    run: Run,
    *,
    aside: tuple[str, ...],
    off: str,
    around: grounds.ClusterView,
    companion_off: str = "",
) -> ladder.Place:
    """What the ladder has to know. `aside` are nodes that no later start may use, `off` is why nothing is started again here,
    `companion_off` why no companion's nodes can be used."""
    where = desk.where
    facts = nodereports.read(where.run_dir, where.attempt, where.launch, desk.nodes, start=seen.number)
    lost = {*reach.gone, *reach.silent}
    facts = replace(facts, silent=frozenset(lost))
    broken = [node for span in desk.spans if lost.intersection(span.nodes) for node in span.nodes]
    aside = tuple(dict.fromkeys((*aside, *broken)))  # a companion that lost a node is over as a whole
    spares = agent_case.usable(
        desk.nodes,
        active=seen.nodes,
        aside=aside,
        answered=reach.answered,
        unfit=reach.unfit,
        facts=facts,
        excluded=run.excluded_at(seen.now_s),
    )
    place = agent_case.place_of(
        seen,
        desk.nodes,
        spares,
        aside,
        batch_node=where.node,
        culprits=diagnosis.nodes,
        called=bool(desk.talk.calls(seen.number)),
        stuck=reach.unfit,
        off=off or ("" if reach.known else f"it is not known which nodes are well: {reach.why}"),
    )
    sizes = sizes_of_settings(run.settings)
    idle, borrowed = _to_be_had(desk, run, around, {*desk.nodes, *run.excluded_at(seen.now_s)})
    waiting = [node for node in desk.nodes if node not in {*seen.nodes, *aside} and node in reach.answered]
    return replace(
        place,
        spares_off=agent_case.spares_off(waiting, reach.unfit, facts),
        companion_off=companion_off,
        sizes=sizes.without(run.sizes_aside) if sizes is not None else None,
        idle=max(len(idle), borrowed) + desk.expected if around.partition else None,
        lent=frozenset(node for span in desk.spans for node in span.nodes),
        others_wait=sizes is not None and bool(idle) and others_wait(desk),
    )


def _to_be_had(
    desk: Desk, run: Run, around: grounds.ClusterView, but: set[str]
) -> tuple[frozenset[str], int]:
    """(the idle nodes that a companion could have, how many it could have of the pool): it is of the one or of the other."""
    pool = pool_of(str(run.settings.get("pool", "")))
    if pool is None:
        return around.idle - but, 0
    try:
        own = pools.members(desk.cluster, pool) if pool.kind == "reservation" else frozenset()
        return around.idle - but - own, len(pools.idle(desk.cluster, pool, desk.cluster.nodes(), but))
    except SlurmError:
        return around.idle - but, 0


def others_wait(desk: Desk) -> bool:
    """Whether jobs of others wait for nodes; where Slurm does not say, they do."""
    try:
        row = desk.cluster.jobs((desk.where.job,)).get(desk.where.job)
        return row is None or desk.cluster.contended(_partitions(row))
    except SlurmError:
        return True


def _partitions(row: JobRow | None) -> Sequence[str]:
    return row.partition.split(",") if row is not None else ()


def view(desk: Desk, settings: dict[str, Any], run: Run) -> grounds.ClusterView:
    """What Slurm says of the cluster, idle nodes with the job's own devices only; empty where it says nothing."""
    cluster, where = desk.cluster, desk.where
    try:
        row = cluster.jobs((where.job,)).get(where.job)
        nodes = cluster.nodes()
        found = grounds.ClusterView.of(
            cluster.partitions(),
            nodes,
            cluster.rights(),
            names=_partitions(row),
            lost=[node for node in desk.nodes if node in nodes and not nodes[node].responding],
            nodes_needed=len(where.nodes),
            may_ask=bool(settings.get("operator-spool")),
            nodes_least=queueing.least(run, sizes_of_settings(settings)),
        )
        return queueing.alike(found, nodes, run)
    except SlurmError:
        return grounds.ClusterView()
