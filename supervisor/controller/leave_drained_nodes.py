"""A node of a live job is being drained: the job leaves it at a checkpoint if that costs nothing. (I/O)

`policy.drained_nodes` decides. Node states come with the snapshot of all runs, and Slurm is asked for more
only while a node in use is drained. If a spare can replace the node, the request goes to the agent, which
alone acts inside its allocation and answers `start.stays` if it cannot. Else the script is asked for a
checkpoint as before any other end; when a new one is complete the job is ended, if other nodes are still
free. A script that does not listen is not expected to save at once: its next regular checkpoint counts.
Anything else that happens meanwhile (a pause, a time limit, a preemption, a fault, the node returned to
service) goes first, and the request is dropped.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ftrun.slurm.client.cluster import JobDetails, JobRow
from ftrun.slurm.client.errors import RefusedForGood
from ftrun.supervisor.config.settings import text_of
from ftrun.supervisor.context.cluster_view import cluster_view, newest_checkpoint
from ftrun.supervisor.context.run_context import RunContext
from ftrun.supervisor.controller import agent_link, checkpoint_request, end_attempt
from ftrun.supervisor.controller.checkpoint_request import (
    was_requested,
    withdraw_node_request,
    withdraw_request,
)
from ftrun.supervisor.model.states import State
from ftrun.supervisor.model.types import MOVED_OFF
from ftrun.supervisor.policy import drained_nodes, save_request
from ftrun.supervisor.policy.drained_nodes import DrainAction, DrainDecision, DrainInput
from ftrun.supervisor.policy.save_request import Occasion
from ftrun.supervisor.store import flag_files, run_dir

AGENT = "agent"
STEADY_S = 5.0  # how long a node must have been drained
LOOK_EVERY_S = 15.0
PROMISED_FOR_S = 180.0  # how long a run that moves may need until its new job has the nodes
NO_FEATURES = ("", "(null)")
_GOING_ON = ("intended", "asked", "saved")


@dataclass
class Promises:
    """Of all runs that are about to move: since when (monotonic), and how many idle nodes each will take."""

    nodes: dict[str, tuple[float, int]] = field(default_factory=dict)


def leave_if_free(ctx: RunContext, row: JobRow) -> None:
    """One pass over a live attempt. Raises SlurmError, OSError (journal)."""
    if ctx.watch_only or len(ctx.rows()) > 1 or ctx.run.state is not State.RUNNING:
        return
    drained = drained_nodes.drained_by_others(ctx.attempt.used, ctx.snapshot.nodes or {})
    if _under_way(ctx):
        _go_on(ctx, row, drained)
        return
    seen = ctx.observations
    for node in set(ctx.attempt.reach).difference(drained):
        seen.stopwatches.stop(("drained", node))
    steady = tuple(
        n for n in drained if seen.stopwatches["drained", n].held_s(ctx.snapshot.mono_s) >= STEADY_S
    )
    if not steady or not seen.intervals["drained"].due(ctx.snapshot.mono_s, LOOK_EVERY_S):
        return
    course = _course(ctx, row, steady)
    if course.act is DrainAction.WARN:
        _warn(ctx, steady, course.why)
    elif course.act is DrainAction.SWAP:
        _request_agent(ctx, steady)
    elif course.act is DrainAction.LEAVE:
        listens = checkpoint_request.handles_signal(ctx) or checkpoint_request.reads_save_file(ctx)
        wait_s = checkpoint_request.save_wait_s(ctx) if listens else None
        checkpoint_request.request_checkpoint(ctx, Occasion.DRAIN, wait_s, nodes=steady)
        ctx.services.shared(Promises).nodes[ctx.run.id] = (ctx.snapshot.mono_s, len(steady))


def remove_stale_request(ctx: RunContext) -> None:
    """Remove a request to the agent that is no longer the run's.

    A supervisor may have died before it withdrew it.
    """
    requested = _under_way(ctx) and ctx.run.leaving.get("by") == AGENT
    tidied = ctx.observations.intervals["leave tidied", ctx.run.leaving.get("token", "")]
    if not requested and tidied.first():
        withdraw_node_request(ctx)


def _under_way(ctx: RunContext) -> bool:
    return was_requested(ctx, Occasion.DRAIN) and ctx.run.leaving.get("stage") in _GOING_ON


def _go_on(ctx: RunContext, row: JobRow, drained: tuple[str, ...]) -> None:
    """The checkpoint, or the agent's move, is awaited."""
    request = ctx.run.leaving
    wanted = tuple(node for node in request.get("nodes", ()) if node in drained)
    if not wanted:
        why = "is used no more" if set(request["nodes"]) - set(ctx.attempt.used) else "is drained no more"
        _drop(ctx, f"{', '.join(request['nodes'])} {why}")
    elif request["stage"] == "saved":
        _drop(ctx, "it was not left in time")
    elif request.get("by") == AGENT:
        if not agent_link.agent_is_alive(ctx) or ctx.attempt.launch.ladder_off:
            _drop(ctx, "the agent can do nothing about it any more")
        elif request["stage"] == "intended":
            _leave_request(ctx)
    else:
        _leave_if_saved(ctx, row, wanted)


def _leave_if_saved(ctx: RunContext, row: JobRow, wanted: tuple[str, ...]) -> None:
    verdict = checkpoint_request.awaited_verdict(ctx)
    if not verdict.end:
        return
    now = _course(ctx, row, wanted) if verdict.saved else DrainDecision(DrainAction.WARN, "it goes on")
    if now.act is DrainAction.LEAVE and newest_checkpoint(ctx):
        end_attempt.announce_end(
            ctx, f"{MOVED_OFF} {', '.join(wanted)}, drained{_reason(ctx, wanted)}; {verdict.reason}"
        )
    else:
        _warn(ctx, wanted, now.why)


def _course(ctx: RunContext, row: JobRow, drained: tuple[str, ...]) -> DrainDecision:
    """What to do about these nodes. Raises SlurmError."""
    setting, attempt = text_of(ctx.settings, "drained"), ctx.attempt
    if setting != "leave":
        return drained_nodes.decide_drained(DrainInput(setting, drained))
    nodes, view = ctx.snapshot.nodes or {}, cluster_view(ctx, ctx.snapshot)
    out = {*ctx.run.excluded_at(ctx.snapshot.now_s), *drained}
    own = {node for node in attempt.nodes if node in nodes and nodes[node].available}
    left_s = None if row.limit_end_s is None else row.limit_end_s - ctx.snapshot.now_s
    near = left_s is not None and save_request.limit_is_near(
        row.time_limit_s or 0.0, left_s - save_request.EARLY_S, checkpoint_request.save_wait_s(ctx)
    )
    request, details = ctx.run.leaving, _details(ctx)
    where = {part for node in attempt.nodes if node in nodes for part in nodes[node].partitions}
    return drained_nodes.decide_drained(
        DrainInput(
            setting,
            drained,
            spares=_spares(ctx),
            needed=view.nodes_needed,
            free=len((drained_nodes.startable_nodes(view.idle, attempt.used, nodes) | own) - out)
            - _promised(ctx),
            held=drained_nodes.held_back_count(view.partition, nodes),
            partition=len(view.partition),
            ends_soon=near or was_requested(ctx, Occasion.TIMELIMIT),
            tried=was_requested(ctx, Occasion.DRAIN) and request.get("stage") == "missed",
            bound=details is not None and bool({*details.required} & {*drained}),
            constrained=details is not None and details.fields.get("Features", "") not in NO_FEATURES,
            contended=ctx.services.cluster.contended(where),
        )
    )


def _promised(ctx: RunContext) -> int:
    """How many idle nodes other runs are about to take for the same reason."""
    others = ctx.services.shared(Promises).nodes.items()
    return sum(
        nodes
        for run, (since_s, nodes) in others
        if run != ctx.run.id and ctx.snapshot.mono_s - since_s < PROMISED_FOR_S
    )


def _spares(ctx: RunContext) -> int:
    """How many nodes of the job its agent could use as replacements."""
    attempt, nodes = ctx.attempt, ctx.snapshot.nodes or {}
    swaps = "swap" in str(ctx.settings.get("recover", "")).split(",")
    request = ctx.run.leaving
    refused = (
        was_requested(ctx, Occasion.DRAIN) and request.get("by") == AGENT and request.get("stage") == "stays"
    )
    if (
        refused
        or not swaps
        or attempt.launch.ladder_off
        or not attempt.launch.inside
        or not agent_link.agent_is_alive(ctx)
    ):
        return 0
    return sum(1 for node in attempt.unused if node in nodes and nodes[node].available)


def _details(ctx: RunContext) -> JobDetails | None:
    """What the user asked of Slurm: without it no new job could begin. Raises SlurmError."""
    try:
        return ctx.services.cluster.details(ctx.attempt.job)
    except RefusedForGood:
        return None


def _request_agent(ctx: RunContext, nodes: tuple[str, ...]) -> None:
    ctx.fresh()
    ctx.record(
        "leave.intended",
        token=str(int(ctx.snapshot.now_s * 1000)),
        occasion=Occasion.DRAIN.value,
        wait_s=None,
        signal="",
        halt="",
        known={},
        unasked=True,
        by=AGENT,
        nodes=list(nodes),
    )
    _leave_request(ctx)


def _leave_request(ctx: RunContext) -> None:
    attempt, told, rows = ctx.attempt, ctx.run.leaving, ctx.snapshot.nodes or {}
    aside = tuple(node for node in attempt.reach if node in rows and rows[node].drained)
    nodes = tuple(told["nodes"])
    request = flag_files.LeaveRequest(told["token"], nodes, aside, f"drained{_reason(ctx, nodes)}")
    place = run_dir.attempt_dir(ctx.run_dir, attempt.number)
    ctx.act("leave-wish", lambda: flag_files.write_leave(place, attempt.launch.number, request))
    ctx.record("leave.asked", token=told["token"])


def _drop(ctx: RunContext, why: str) -> None:
    ctx.record("leave.dropped", why=why)
    withdraw_request(ctx)
    withdraw_node_request(ctx)


def _warn(ctx: RunContext, nodes: tuple[str, ...], why: str) -> None:
    """Warn once that the job stays where it is."""
    place = f"{ctx.attempt.number}.{ctx.attempt.launch.number}"
    message = f"launch {place}: {', '.join(nodes)} is drained{_reason(ctx, nodes)}, the job goes on there"
    if not any(one.startswith(message) for one in ctx.run.warnings):
        ctx.record("warned", message=f"{message}: {why}")


def _reason(ctx: RunContext, nodes: tuple[str, ...]) -> str:
    rows = ctx.snapshot.nodes or {}
    reason = next((rows[node].reason for node in nodes if node in rows and rows[node].reason), "")
    return f" ({' '.join(reason.split())[:80]})" if reason else ""
