"""The pool of spares that a site or a user sets aside: where a companion is borrowed from, and given back to when it ends. (I/O)

How it thinks. A job has one partition, and a job in a reservation has nodes of that reservation only [tried on 22.05; with Flags=FLEX others, too]: so spares
of a job cannot come from a pool that its other nodes are not in. A companion can: it is a job of its own. So a pool is where companions
come from. It is for nodes that a fault took, and is not borrowed for growth. Where it has enough idle nodes they are taken, for
nobody waits for them; else the companion is asked of the job's own partition, as without a pool.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from ftrun.slurm.client.errors import SlurmError

if TYPE_CHECKING:
    from ftrun.slurm.client.cluster import Cluster, NodeRow
    from ftrun.supervisor.poolspec import Pool

__all__ = ["idle", "members"]

_AWAY = frozenset({"maint", "fail", "powering_down", "powered_down", "completing"})
_FREE = frozenset({"idle", "reserved"})


def members(cluster: Cluster, pool: Pool) -> frozenset[str]:
    """Its nodes; none where Slurm knows no such pool. Raises SlurmError."""
    if pool.kind == "reservation":
        return frozenset(cluster.reserved(pool.name))
    row = cluster.partitions().get(pool.name)
    return frozenset(row.nodes) if row is not None and row.up else frozenset()


def idle(cluster: Cluster, pool: Pool, nodes: Mapping[str, NodeRow], but: Collection[str]) -> tuple[str, ...]:
    """The healthy nodes of the pool that a companion could have now, less those in `but`; none where Slurm does not say."""
    try:
        found = members(cluster, pool)
    except SlurmError:
        return ()
    return tuple(sorted(node for node in found - set(but) if node in nodes and _is_free(nodes[node])))


def _is_free(row: NodeRow) -> bool:
    return row.state in _FREE and row.responding and not row.drained and not row.flags & _AWAY
