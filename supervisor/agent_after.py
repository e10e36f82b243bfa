"""What an agent learns when a start is over: who answers, what the checks find, the last lines. (I/O)

How it thinks. Late lines decide who was first, so nothing is judged before the log has been quiet for `settle`; that time is used. All nodes are
asked whether they are there and swept of what the start left, and beside it they, spares too, run the checks of a failure (`agent_checks`), unless nothing that
a check finds could change what the log says already: a sick node is not used once more, and a sick spare is none. A start that failed
at once is a mistake in the script, and nobody looks (as in batch.sh).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ftrun.slurm.records import dataclass
from ftrun.supervisor import agent_apart, agent_reach, agent_shrink, nodefacts, suspicions
from ftrun.supervisor.agent_checks import Checks
from ftrun.supervisor.agent_desk import Desk
from ftrun.supervisor.agent_eye import Eye, Suspicion
from ftrun.supervisor.agent_reach import Reach, Sweep
from ftrun.supervisor.agent_roll import QUIET_S, SHUT_LONG_S, SHUT_S
from ftrun.supervisor.agent_talk import Started
from ftrun.supervisor.model import Diagnosis

__all__ = ["Settled", "reach_all", "settled", "shut_s"]

LOOK_S = 0.1
KNOWN_QUIET_S = 1.0  # a node that was silent already while the start lived is hardly waited for
SHORT_S = 5.0  # as in batch.sh


@dataclass(frozen=True, slots=True)
class Settled:
    """Who answers, and whether the nodes were checked."""

    reach: Reach
    checked: bool


def settled(
    desk: Desk,
    eye: Eye,
    suspicion: Suspicion | None,
    settings: Mapping[str, Any],
    checks: Checks,
    *,
    aside: tuple[str, ...],
    judged: Callable[[Reach], Diagnosis],
    heard: Callable[[Reach], None] = lambda _: None,
) -> Settled:
    """Ask and check the nodes while the last lines come in, then wait until the log is quiet. `aside` are nodes that no later start uses,
    `judged` is the diagnosis so far, `heard` is told who answers as soon as that is known.

    Raises OSError (journal), GivenUp.
    """
    began_s = desk.clock.mono_s()
    lived_s = desk.clock.now_s() - (eye.started.launch.started_s or 0.0)
    worth = settings.get("after-checks") != "never" and lived_s >= SHORT_S
    lost = suspicion.diagnosis.nodes if suspicion is not None and _lost(suspicion) else ()
    hopeful = tuple(node for node in desk.nodes if node not in {*aside, *lost, *eye.unheard})
    if worth and nodefacts.worth_checking(judged(Reach(answered=hopeful, silent=lost))):
        checks.begin(hopeful)
    reach = _swept(desk, eye, lost, shut_s(desk, eye.started, settings, aside))
    heard(reach)
    nodes = tuple(node for node in reach.answered if node not in aside)
    worth = worth and reach.known and bool(nodes) and nodefacts.worth_checking(judged(reach))
    checked = worth and checks.finish(nodes, lambda: _alive(desk, eye))
    quiet_s, longest_s = float(settings.get("settle", 2.0)), float(settings.get("settle-max", 10.0))
    if lost:  # it has long been quiet, and what came since is our own doing
        return Settled(reach, checked)
    while True:
        desk.rest(LOOK_S)
        known = eye.look(fresh=True) is not None
        waited_s = desk.clock.mono_s() - began_s
        if waited_s >= longest_s or (min(waited_s, eye.quiet_s()) if known else waited_s) >= quiet_s:
            return Settled(reach, checked)


def reach_all(
    desk: Desk,
    token: str,
    eye: Eye | None = None,
    *,
    quiet_s: float = QUIET_S,
    lost: tuple[str, ...] = (),
    doubted: Callable[[tuple[str, ...]], None] = lambda _: None,
    shut_s: float = SHUT_S,
    nodes: tuple[str, ...] = (),
) -> Reach:
    """Ask all nodes of the job and its companions, or these, and sweep them of what is older than `token`; see `Sweep`. Raises GivenUp."""
    where = desk.where
    sweep = Sweep(
        where.home,
        where.place,
        token,
        where.job,
        nodes or desk.nodes,
        where.node,
        quiet_s,
        lost,
        doubted,
        shut_s,
        desk.spans,
    )
    return agent_reach.reach(
        desk.cluster,
        desk.steps,
        desk.clock,
        sweep,
        alive=lambda: _alive(desk, eye),
        own_node=desk.own_node,
    )


def shut_s(desk: Desk, started: Started, settings: Mapping[str, Any], aside: tuple[str, ...]) -> float:
    """How long a slurmd that refuses is waited for: where neither a spare, nor a companion, nor a smaller size is there, the loss of its node costs the job."""
    spare = not {*desk.nodes} <= {*started.nodes, *aside}
    replaceable = spare or agent_shrink.may(settings, len(started.nodes))
    return SHUT_S if replaceable or agent_apart.may(desk, settings, started.number) else SHUT_LONG_S


def _alive(desk: Desk, eye: Eye | None) -> None:
    desk.alive()
    if eye is not None:
        eye.look()


def _lost(suspicion: Suspicion) -> bool:
    return suspicion.diagnosis.signature == suspicions.LOST


def _swept(desk: Desk, eye: Eye, lost: tuple[str, ...], wait_s: float) -> Reach:
    where = desk.where
    token = f"{where.launch}.{eye.started.number + 1}"
    desk.book.record("sweep.intended", nodes=list(desk.nodes), token=token)
    found: list[Reach] = []
    quiet_s = KNOWN_QUIET_S if eye.unheard and not lost else QUIET_S
    desk.book.act(
        "sweep",
        lambda: found.append(reach_all(desk, token, eye, quiet_s=quiet_s, lost=lost, shut_s=wait_s)),
    )
    reach = found[0]
    desk.book.record(
        "sweep.done",
        answered=list(reach.answered),
        silent=list(reach.silent),
        unfit=reach.unfit,
        why=reach.why,
    )
    return reach
