"""Drains of bad nodes: by us where we may, else requests to the site's drain service. (I/O)

Drains are decided by the policy or by the agent of a live allocation and carried out one by one (P9). Slurm
is asked again just before the act, since other supervisors drain, too. A refusal is recorded and final; if no
answer came, the drain is repeated a few times: the decision is not lost while a controller is away, and a
drain that never succeeds does not hold the run up.

What the run's user may not do is requested from the site's drain service (`site-spool`), once for each node
and decision; where the site offers it (`site-priority`), so is a higher priority for the job that replaces
one lost with a broken node. Intent, act, fact: the id of the request is journalled before the request is
signed and left in the spool; after a crash the same id is left again, and the service answers an id once. The
answer is read while the run is looked after, and by `ftrun status`; the recovery does not depend on it: the
run avoids the node anyway.
"""

from __future__ import annotations

import dataclasses
import re
import secrets
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ftrun.slurm.client.errors import RefusedForGood, SlurmError
from ftrun.supervisor.context.cluster_view import cluster_view
from ftrun.supervisor.context.run_context import RunContext
from ftrun.supervisor.model.types import CLASS_RULES, FaultClass
from ftrun.supervisor.nodes import spool
from ftrun.supervisor.policy import policy_input

SETTING = "site-spool"
TRIES_MAX = 5


@dataclass
class _Tries:
    """How often the supervisor of this launch has asked Slurm to drain each node."""

    of: Counter[str] = field(default_factory=Counter)


def drain_decided(ctx: RunContext, decision: Mapping[str, Any] | None = None) -> None:
    """Drain the nodes that the decision (by default the run's) names and that are not drained yet, or request
    it. Raises SlurmError if the pass is worth repeating.
    """
    decided = ctx.run.decision if decision is None else decision
    for node in decided.get("drain", ()):
        tries = ctx.observations.per_launch(_Tries).of[node]
        if node not in ctx.run.drained and tries < TRIES_MAX:
            _drain(ctx, node, decided, last=tries + 1 >= TRIES_MAX)
    request_drains(ctx, decided)


def drain_for_agent(ctx: RunContext) -> None:
    """Drain what the agent of the present launch decided, while the job goes on without those nodes. Raises
    SlurmError.
    """
    attempt, refused = ctx.attempt, ctx.run.undrained
    if ctx.watch_only:
        return
    for incident in ctx.run.incidents:
        if incident.inside and (incident.attempt, incident.launch) == (attempt.number, attempt.launch.number):
            left = [n for n in incident.decision.get("drain", ()) if (incident.id, n) not in refused]
            drain_decided(ctx, {**incident.decision, "drain": left})


def _drain(ctx: RunContext, node: str, decision: Mapping[str, Any], *, last: bool) -> None:
    row = (ctx.snapshot.nodes or {}).get(node)
    if row is not None and row.drained and row.reason.startswith(f"ftrun: {ctx.run.id} "):
        ctx.record("drain.done", node=node, reason=row.reason)  # this run did it and could not record it
        return
    tries = ctx.observations.per_launch(_Tries).of
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(ctx.snapshot.now_s))
    reason = f"ftrun: {ctx.run.id} {decision.get('signature') or decision.get('class')} {stamp}"
    ctx.record("drain.intended", node=node, reason=reason)
    tries[node] += 1
    try:
        if _cap_is_reached(ctx):
            raise RefusedForGood("the drain cap was reached in the meantime")
        ctx.act("drain", partial(ctx.services.cluster.drain, node, reason))
    except SlurmError as error:
        if not isinstance(error, RefusedForGood) and not last:
            raise
        tries[node] = TRIES_MAX
        incident = str(decision.get("incident", ""))
        ctx.record("drain.refused", node=node, message=error.message, incident=incident)
    else:
        ctx.record("drain.done", node=node, reason=reason)


def _cap_is_reached(ctx: RunContext) -> bool:
    """Whether ftrun's drains have reached the cap by now, whoever made them. Raises SlurmError."""
    fresh = dataclasses.replace(ctx.snapshot, nodes=dict(ctx.services.cluster.nodes()))
    view = cluster_view(ctx, fresh)
    return view.ftrun_drains >= policy_input.limits_from(ctx.settings).drains(len(view.partition))


def request_drains(ctx: RunContext, decision: Mapping[str, Any]) -> None:
    """Leave a request for every node that the decision wants drained by the site. Raises LeaseLost, Stale."""
    for node in decision.get("ask", ()):
        about = {"node": node, "incident": str(decision.get("incident", ""))}
        _ask_once(ctx, about, decision, node=node)


def request_priority(ctx: RunContext) -> None:
    """Leave a request for the waiting job if another one was lost with a broken node. Raises LeaseLost,
    Stale.
    """
    run = ctx.run
    last = run.incidents[-1] if run.incidents else None
    lost = next((one for one in reversed(run.attempts[:-1]) if one.nodes), None)
    if not (ctx.settings.get(SETTING) and ctx.settings.get("site-priority")) or lost is None:
        return
    if last is None or last.attempt != lost.number or not CLASS_RULES[FaultClass(last.fault)].drain:
        return
    decision = {"class": last.fault, "signature": last.diagnosis.get("signature", "")}
    _ask_once(ctx, {"job": ctx.attempt.job}, decision, lost=lost.job)


def _ask_once(
    ctx: RunContext, about: Mapping[str, str], decision: Mapping[str, Any], *, node: str = "", lost: str = ""
) -> None:
    """Leave one request about this, announced first; one that was announced and never left is left now."""
    before = [
        (request_id, asked["step"])
        for request_id, asked in ctx.run.asked.items()
        if all(asked.get(key) == value for key, value in about.items())
    ]
    if before and before[-1][1] != "intended":
        return
    request_id = before[-1][0] if before else secrets.token_hex(16)
    if not before and lost:
        ctx.record("raise.asked", step="intended", id=request_id, node="", lost=lost)
    elif not before:
        ctx.record("drain.asked", step="intended", id=request_id, **about)
    _leave_request(ctx, request_id, decision, node=node, lost=lost)


def _leave_request(
    ctx: RunContext, request_id: str, decision: Mapping[str, Any], *, node: str = "", lost: str = ""
) -> None:
    kind = "raise.asked" if lost else "drain.asked"
    put = partial(_sign_and_leave, ctx, request_id, ctx.snapshot.now_s, decision, node=node, lost=lost)
    try:
        ctx.act("ask", put)
    except SlurmError as error:
        ctx.record(kind, step="failed", id=request_id, node=node, why=error.message)
    except OSError as error:
        why = f"{ctx.settings[SETTING]}: {error.strerror}"
        ctx.record(kind, step="failed", id=request_id, node=node, why=why)
    else:
        ctx.record(kind, step="left", id=request_id, node=node)


def _sign_and_leave(
    ctx: RunContext, request_id: str, now_s: float, decision: Mapping[str, Any], *, node: str, lost: str
) -> None:
    """Sign the request and leave it in the spool. Raises SlurmError (munge), OSError (spool)."""
    from ftrun.supervisor.nodes import drain_rules

    attempt, facts = ctx.attempt, ctx.services.facts()
    path = str(ctx.settings[SETTING])
    asked = drain_rules.DrainRequest(
        id=request_id,
        cluster=facts.name,
        node=node,
        job=re.split(r"[_+]", attempt.holder(node))[0],
        run=ctx.run.id,
        fault=str(decision.get("class", "")),
        signature=re.sub(r"[^\w.-]", "-", str(decision.get("signature") or decision.get("class", "")))[:64],
        seen_s=attempt.launch.end.slurm_at_s or attempt.launch.end.at_s or now_s,
        want="raise" if lost else "drain",
        lost=re.split(r"[_+]", lost)[0],
    )
    spool.leave_request(path, asked, facts.auth, facts.munge_socket)


def note_answers(ctx: RunContext) -> None:
    """Journal the new answers of the drain service. Raises OSError (journal)."""
    for request_id, told in spool.new_answers(ctx.run, ctx.services.clock.now_s()).items():
        kind = "drain.asked" if told["node"] else "raise.asked"
        ctx.record(kind, step="answered", id=request_id, **told)
