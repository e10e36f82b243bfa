"""Drains that were decided, by us or by the agent of a live allocation, carried out one by one (P9). (I/O)

Slurm is looked at again just before the act, since other supervisors drain, too. A refusal is told and is the end of it; an
answer that did not come is asked for again, a few times: the decision is not lost because a controller was away, and a
drain that never succeeds does not keep the run from going on.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from ftrun.slurm.client.errors import RefusedForGood, SlurmError
from ftrun.supervisor import asking, grounds, settle

if TYPE_CHECKING:
    from ftrun.supervisor.keeper import Keeper
    from ftrun.supervisor.office import World

__all__ = ["carry_out", "inside"]

TRIES_MAX = 5


def carry_out(keeper: Keeper, world: World, decision: Mapping[str, Any] | None = None) -> None:
    """Drain what the decision names (that of the run, unless another is given) and is not drained yet, or ask who may.

    Raises SlurmError where it is worth another look.
    """
    decided = keeper.run.decision if decision is None else decision
    for node in decided.get("drain", ()):
        tries = keeper.memory.since.get(f"drain:{node}", 0.0)
        if node not in keeper.run.drained and tries < TRIES_MAX:
            _drain(keeper, world, node, decided, last=tries + 1 >= TRIES_MAX)
    asking.ask(keeper, world, decided)


def inside(keeper: Keeper, world: World) -> None:
    """What the agent of the present launch wants drained, while the job goes on without those nodes. Raises SlurmError."""
    attempt, refused = keeper.attempt, keeper.run.undrained
    if keeper.watch_only:
        return
    for incident in keeper.run.incidents:
        if incident.inside and (incident.attempt, incident.launch) == (attempt.number, attempt.launch.number):
            left = [n for n in incident.decision.get("drain", ()) if (incident.id, n) not in refused]
            carry_out(keeper, world, {**incident.decision, "drain": left})


def _drain(keeper: Keeper, world: World, node: str, decision: Mapping[str, Any], *, last: bool) -> None:
    row = (world.nodes or {}).get(node)
    if row is not None and row.drained and row.reason.startswith(f"ftrun: {keeper.run.id} "):
        keeper.record("drain.done", node=node, reason=row.reason)  # this run did it, and could not say so
        return
    since = keeper.memory.since
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(world.now_s))
    reason = f"ftrun: {keeper.run.id} {decision.get('signature') or decision.get('class')} {stamp}"
    keeper.record("drain.intended", node=node, reason=reason)
    since[f"drain:{node}"] = since.get(f"drain:{node}", 0.0) + 1.0
    try:
        if _full(keeper, world):
            raise RefusedForGood("the drain cap was reached in the meantime")
        keeper.office.act("drain", world, partial(keeper.office.cluster.drain, node, reason))
    except SlurmError as error:
        if not isinstance(error, RefusedForGood) and not last:
            raise
        since[f"drain:{node}"] = TRIES_MAX
        incident = str(decision.get("incident", ""))
        keeper.record("drain.refused", node=node, message=error.message, incident=incident)
    else:
        keeper.record("drain.done", node=node, reason=reason)


def _full(keeper: Keeper, world: World) -> bool:
    """As many nodes as may be bear ftrun's drains by now, whoever drained them. Raises SlurmError."""
    fresh = dataclasses.replace(world, nodes=dict(keeper.office.cluster.nodes()))
    view = settle.cluster_view(keeper, fresh)
    return view.ftrun_drains >= grounds.limits_from(keeper.settings).drains(len(view.partition))
