"""Somebody drains a node of a live job: it moves off at a checkpoint where that costs nothing. (I/O)

How it thinks. What to do is `drainrule`'s; the nodes' states come with the look that is made for all runs anyway, and more is asked of Slurm only while
a node in use is drained. Where a spare can take its place the wish is left with the agent, which alone acts inside its allocation: it says by
`start.stays` where it cannot. Else the script is asked for a checkpoint as before any other end; when a new one is complete the job is ended,
if other nodes are free still. A script that does not listen is not waited for to save at once: its own next checkpoint does. What comes in
between (a pause, a time limit, a preemption, a fault, the node being given back) goes first, and the wish is dropped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ftrun.slurm.client.errors import RefusedForGood
from ftrun.supervisor import beside, drainrule, halting, leavefile, leaving, savenow, settle, store
from ftrun.supervisor.drainrule import Act, Course, Scene
from ftrun.supervisor.end_reasons import AWAY
from ftrun.supervisor.leaving import Occasion
from ftrun.supervisor.lifecycle import State

if TYPE_CHECKING:
    from ftrun.slurm.client.cluster import JobDetails, JobRow
    from ftrun.supervisor.keeper import Keeper
    from ftrun.supervisor.office import World

__all__ = ["look", "tidy", "unask"]

AGENT = "agent"
STEADY_S = 5.0  # for so long a node must have been drained
LOOK_EVERY_S = 15.0
PROMISED_FOR_S = 180.0  # so long a run that moves may need until its new job has the nodes
NO_FEATURES = ("", "(null)")
_GOING_ON = ("intended", "asked", "saved")


def look(keeper: Keeper, world: World, row: JobRow) -> None:
    """One look at a live attempt. Raises SlurmError, OSError (journal)."""
    if keeper.watch_only or len(keeper.rows(world)) > 1 or keeper.run.state is not State.RUNNING:
        return
    drained = drainrule.drained_by_others(keeper.attempt.used, world.nodes or {})
    if _under_way(keeper):
        _go_on(keeper, world, row, drained)
        return
    since = keeper.memory.since
    for key in [one for one in since if one.startswith("drained:") and one[8:] not in drained]:
        del since[key]
    steady = tuple(n for n in drained if keeper.memory.for_how_long(f"drained:{n}", world.mono_s) >= STEADY_S)
    if not steady or not keeper.memory.due("drain-course", world.mono_s, LOOK_EVERY_S):
        return
    told = _course(keeper, world, row, steady)
    if told.act is Act.TELL:
        _tell(keeper, world, steady, told.why)
    elif told.act is Act.SWAP:
        _wish_of_agent(keeper, world, steady)
    elif told.act is Act.LEAVE:
        attempt = keeper.attempt
        place = store.attempt_dir(keeper.run_dir, attempt.number)
        reads = savenow.is_read(place, f"{attempt.launch}.{attempt.start}")
        wait_s = halting.save_wait_s(keeper) if halting.listens(keeper) or reads else None
        halting.ask(keeper, world, Occasion.DRAIN, wait_s, nodes=steady)
        keeper.office.promised[keeper.run.id] = (world.mono_s, len(steady))


def unask(keeper: Keeper) -> None:
    """The agent is to leave these nodes no more: something else is wanted of the script."""
    leavefile.remove(store.attempt_dir(keeper.run_dir, keeper.attempt.number), keeper.attempt.launch)


def tidy(keeper: Keeper, world: World) -> None:
    """A wish stands beside the agent only as long as it is the run's: who took another up may have died before he took this one back."""
    wishes = _under_way(keeper) and keeper.run.leaving.get("by") == AGENT
    if not wishes and keeper.memory.due(
        f"leave-wish:{keeper.run.leaving.get('token', '')}", world.mono_s, float("inf")
    ):
        unask(keeper)


def _under_way(keeper: Keeper) -> bool:
    return halting.asked(keeper, Occasion.DRAIN) and keeper.run.leaving.get("stage") in _GOING_ON


def _go_on(keeper: Keeper, world: World, row: JobRow, drained: tuple[str, ...]) -> None:
    """The checkpoint, or the agent's move, is awaited."""
    told = keeper.run.leaving
    wanted = tuple(node for node in told.get("nodes", ()) if node in drained)
    if not wanted:
        why = "is used no more" if set(told["nodes"]) - set(keeper.attempt.used) else "is drained no more"
        _drop(keeper, f"{', '.join(told['nodes'])} {why}")
    elif told["stage"] == "saved":
        _drop(keeper, "it was not left in time")
    elif told.get("by") == AGENT:
        if not beside.in_charge(keeper, world) or keeper.attempt.ladder_off:
            _drop(keeper, "the agent can do nothing about it any more")
        elif told["stage"] == "intended":
            _leave_wish(keeper, world)
    else:
        _perhaps_leave(keeper, world, row, wanted)


def _perhaps_leave(keeper: Keeper, world: World, row: JobRow, wanted: tuple[str, ...]) -> None:
    verdict = halting.awaited(keeper, world)
    if not verdict.end:
        return
    now = _course(keeper, world, row, wanted) if verdict.saved else Course(Act.TELL, "it goes on")
    if now.act is Act.LEAVE and settle.newest_checkpoint(keeper):
        keeper.intend_end(f"{AWAY} {', '.join(wanted)}, drained{_reason(world, wanted)}; {verdict.reason}")
    else:
        _tell(keeper, world, wanted, now.why)


def _course(keeper: Keeper, world: World, row: JobRow, drained: tuple[str, ...]) -> Course:
    """What is to be done about these nodes. Raises SlurmError."""
    setting, attempt = str(keeper.settings.get("drained", "leave")), keeper.attempt
    if setting != "leave":
        return drainrule.course(Scene(setting, drained))
    nodes, view = world.nodes or {}, settle.cluster_view(keeper, world)
    out = {*keeper.run.excluded_at(world.now_s), *drained}
    own = {node for node in attempt.nodes if node in nodes and nodes[node].available}
    left_s = None if row.limit_end_s is None else row.limit_end_s - world.now_s
    near = left_s is not None and leaving.limit_is_near(
        row.time_limit_s or 0.0, left_s - leaving.EARLY_S, halting.save_wait_s(keeper)
    )
    told, details = keeper.run.leaving, _details(keeper)
    where = {part for node in attempt.nodes if node in nodes for part in nodes[node].partitions}
    return drainrule.course(
        Scene(
            setting,
            drained,
            spares=_spares(keeper, world),
            needed=view.nodes_needed,
            free=len((drainrule.at_once(view.idle, attempt.used, nodes) | own) - out)
            - _promised(keeper, world),
            held=drainrule.held_back(view.partition, nodes),
            partition=len(view.partition),
            ends_soon=near or halting.asked(keeper, Occasion.TIMELIMIT),
            tried=halting.asked(keeper, Occasion.DRAIN) and told.get("stage") == "missed",
            bound=details is not None and bool({*details.required} & {*drained}),
            constrained=details is not None and details.fields.get("Features", "") not in NO_FEATURES,
            contended=keeper.office.cluster.contended(where),
        )
    )


def _promised(keeper: Keeper, world: World) -> int:
    """How many idle nodes other runs are about to take for the same reason."""
    others = keeper.office.promised.items()
    return sum(
        nodes
        for run, (since_s, nodes) in others
        if run != keeper.run.id and world.mono_s - since_s < PROMISED_FOR_S
    )


def _spares(keeper: Keeper, world: World) -> int:
    """How many nodes of the job its agent could put in the place of others."""
    attempt, nodes = keeper.attempt, world.nodes or {}
    swaps = "swap" in str(keeper.settings.get("recover", "")).split(",")
    told = keeper.run.leaving
    refused = (
        halting.asked(keeper, Occasion.DRAIN) and told.get("by") == AGENT and told.get("stage") == "stays"
    )
    if (
        refused
        or not swaps
        or attempt.ladder_off
        or not attempt.inside
        or not beside.in_charge(keeper, world)
    ):
        return 0
    return sum(1 for node in attempt.unused if node in nodes and nodes[node].available)


def _details(keeper: Keeper) -> JobDetails | None:
    """What the user asked of Slurm: no new job could begin without it. Raises SlurmError."""
    try:
        return keeper.office.cluster.details(keeper.attempt.job)
    except RefusedForGood:
        return None


# ---------------------------------------------------------------------- the effects


def _wish_of_agent(keeper: Keeper, world: World, nodes: tuple[str, ...]) -> None:
    keeper.office.fresh(world)
    keeper.record(
        "leave.intended",
        token=str(int(world.now_s * 1000)),
        occasion=Occasion.DRAIN.value,
        wait_s=None,
        signal="",
        halt="",
        known={},
        unasked=True,
        by=AGENT,
        nodes=list(nodes),
    )
    _leave_wish(keeper, world)


def _leave_wish(keeper: Keeper, world: World) -> None:
    attempt, told, rows = keeper.attempt, keeper.run.leaving, world.nodes or {}
    aside = tuple(node for node in attempt.reach if node in rows and rows[node].drained)
    nodes = tuple(told["nodes"])
    wish = leavefile.Wish(told["token"], nodes, aside, f"drained{_reason(world, nodes)}")
    place = store.attempt_dir(keeper.run_dir, attempt.number)
    keeper.office.act("leave-wish", world, lambda: leavefile.write(place, attempt.launch, wish))
    keeper.record("leave.asked", token=told["token"])


def _drop(keeper: Keeper, why: str) -> None:
    keeper.record("leave.dropped", why=why)
    savenow.unask(keeper.run_dir, str(keeper.run.leaving.get("token", "")))
    unask(keeper)


def _tell(keeper: Keeper, world: World, nodes: tuple[str, ...], why: str) -> None:
    """Say once that the job stays where it is."""
    place = f"{keeper.attempt.number}.{keeper.attempt.launch}"
    message = f"launch {place}: {', '.join(nodes)} is drained{_reason(world, nodes)}, the job goes on there"
    if not any(one.startswith(message) for one in keeper.run.warnings):
        keeper.record("warned", message=f"{message}: {why}")


def _reason(world: World, nodes: tuple[str, ...]) -> str:
    rows = world.nodes or {}
    said = next((rows[node].reason for node in nodes if node in rows and rows[node].reason), "")
    return f" ({' '.join(said.split())[:80]})" if said else ""
