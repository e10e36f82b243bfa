"""Drains that were decided, by us or by the agent of a live allocation, carried out one by one (P9). (I/O)

Slurm is looked at again just before the act, since other supervisors drain, too. A refusal is told and is the end of it; an
answer that did not come is asked for again, a few times: the decision is not lost because a controller was away, and a
drain that never succeeds does not keep the run from going on.
"""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from ftrun.slurm.client.errors import RefusedForGood, SlurmError
from ftrun.supervisor import asking, grounds
from ftrun.supervisor.cluster_view import cluster_view

if TYPE_CHECKING:
    from ftrun.supervisor.run_context import RunContext
    from ftrun.supervisor.world import ClusterSnapshot

__all__ = ["drain_decided", "drain_for_agent"]

TRIES_MAX = 5


@dataclass
class _Tries:
    """How often this launch's supervisor has asked Slurm to drain a node."""

    of: Counter[str] = field(default_factory=Counter)


def drain_decided(ctx: RunContext, world: ClusterSnapshot, decision: Mapping[str, Any] | None = None) -> None:
    """Drain what the decision names (that of the run, unless another is given) and is not drained yet, or ask who may.

    Raises SlurmError where it is worth another look.
    """
    decided = ctx.run.decision if decision is None else decision
    for node in decided.get("drain", ()):
        tries = ctx.observations.per_launch(_Tries).of[node]
        if node not in ctx.run.drained and tries < TRIES_MAX:
            _drain(ctx, world, node, decided, last=tries + 1 >= TRIES_MAX)
    asking.request_drains(ctx, world, decided)


def drain_for_agent(ctx: RunContext, world: ClusterSnapshot) -> None:
    """What the agent of the present launch wants drained, while the job goes on without those nodes. Raises SlurmError."""
    attempt, refused = ctx.attempt, ctx.run.undrained
    if ctx.watch_only:
        return
    for incident in ctx.run.incidents:
        if incident.inside and (incident.attempt, incident.launch) == (attempt.number, attempt.launch.number):
            left = [n for n in incident.decision.get("drain", ()) if (incident.id, n) not in refused]
            drain_decided(ctx, world, {**incident.decision, "drain": left})


def _drain(
    ctx: RunContext, world: ClusterSnapshot, node: str, decision: Mapping[str, Any], *, last: bool
) -> None:
    row = (world.nodes or {}).get(node)
    if row is not None and row.drained and row.reason.startswith(f"ftrun: {ctx.run.id} "):
        ctx.record("drain.done", node=node, reason=row.reason)  # this run did it, and could not say so
        return
    tries = ctx.observations.per_launch(_Tries).of
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(world.now_s))
    reason = f"ftrun: {ctx.run.id} {decision.get('signature') or decision.get('class')} {stamp}"
    ctx.record("drain.intended", node=node, reason=reason)
    tries[node] += 1
    try:
        if _full(ctx, world):
            raise RefusedForGood("the drain cap was reached in the meantime")
        ctx.services.act("drain", world, partial(ctx.services.cluster.drain, node, reason))
    except SlurmError as error:
        if not isinstance(error, RefusedForGood) and not last:
            raise
        tries[node] = TRIES_MAX
        incident = str(decision.get("incident", ""))
        ctx.record("drain.refused", node=node, message=error.message, incident=incident)
    else:
        ctx.record("drain.done", node=node, reason=reason)


def _full(ctx: RunContext, world: ClusterSnapshot) -> bool:
    """As many nodes as may be bear ftrun's drains by now, whoever drained them. Raises SlurmError."""
    fresh = dataclasses.replace(world, nodes=dict(ctx.services.cluster.nodes()))
    view = cluster_view(ctx, fresh)
    return view.ftrun_drains >= grounds.limits_from(ctx.settings).drains(len(view.partition))
