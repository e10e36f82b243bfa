"""What an agent learns when a start is over: who answers, what the checks find, the last lines. (I/O)

How it thinks. Late lines decide who was first, so nothing is judged before the log has been quiet for `settle`; that time is used. First all nodes are
asked whether they are there and swept of what the start left. Then those that answered, spares too, run the checks of a failure, unless nothing that
a check finds could change what the log says already: a sick node is not used once more, and a sick spare is none. A start that failed
at once is a mistake in the script, and nobody looks (as in batch.sh). A check that does not come back costs some seconds, once.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ftrun.slurm.errors import SlurmError
from ftrun.supervisor import agent_case, agent_reach, nodefacts
from ftrun.supervisor.agent_desk import Desk, say
from ftrun.supervisor.agent_eye import Eye, Suspicion
from ftrun.supervisor.agent_line import node_line
from ftrun.supervisor.agent_reach import Reach, Sweep
from ftrun.supervisor.model import Diagnosis

__all__ = ["Settled", "reach_all", "settled"]

LOOK_S = 0.1
KNOWN_QUIET_S = 1.0  # a node that was silent already while the start lived is hardly waited for
SHORT_S = 5.0  # as in batch.sh
WITHIN_S = 10.0
LIMIT_S = 15.0


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
    *,
    aside: tuple[str, ...],
    judged: Callable[[Reach], Diagnosis],
) -> Settled:
    """Ask and check the nodes while the last lines come in, then wait until the log is quiet. `aside` are nodes that no later start uses,
    `judged` is the diagnosis so far.

    Raises OSError (journal), GivenUp.
    """
    began_s = desk.clock.mono_s()
    lived_s = desk.clock.now_s() - (eye.started.launch.started_s or 0.0)
    reach = _swept(desk, eye, suspicion)
    nodes = tuple(node for node in reach.answered if node not in aside)
    worth = settings.get("after-checks") != "never" and lived_s >= SHORT_S and reach.known and bool(nodes)
    checked = worth and nodefacts.worth_checking(judged(reach)) and _checked(desk, eye, settings, nodes)
    quiet_s, longest_s = float(settings.get("settle", 2.0)), float(settings.get("settle-max", 10.0))
    if _lost(suspicion):  # it has long been quiet, and what came since is our own doing
        return Settled(reach, checked)
    while True:
        desk.rest(LOOK_S)
        known = eye.look(fresh=True) is not None
        waited_s = desk.clock.mono_s() - began_s
        if waited_s >= longest_s or (min(waited_s, eye.quiet_s()) if known else waited_s) >= quiet_s:
            return Settled(reach, checked)


def reach_all(desk: Desk, token: str, eye: Eye | None = None, quiet_s: float = agent_reach.QUIET_S) -> Reach:
    """Ask all nodes of the job, and sweep them of what is older than `token`. Raises GivenUp."""
    where = desk.where

    def alive() -> None:
        desk.alive()
        if eye is not None:
            eye.look()

    sweep = Sweep(where.home, where.place, token, where.job, where.nodes, where.node, quiet_s)
    return agent_reach.reach(desk.cluster, desk.steps, sweep, alive=alive)


def _lost(suspicion: Suspicion | None) -> bool:
    return suspicion is not None and suspicion.diagnosis.signature == agent_case.LOST


def _swept(desk: Desk, eye: Eye, suspicion: Suspicion | None) -> Reach:
    where = desk.where
    token = f"{where.launch}.{eye.started.number + 1}"
    desk.book.record("sweep.intended", nodes=list(where.nodes), token=token)
    found: list[Reach] = []
    quiet_s = KNOWN_QUIET_S if _lost(suspicion) or eye.unheard else agent_reach.QUIET_S
    desk.book.act("sweep", lambda: found.append(reach_all(desk, token, eye, quiet_s)))
    reach = found[0]
    desk.book.record(
        "sweep.done",
        answered=list(reach.answered),
        silent=list(reach.silent),
        unfit=reach.unfit,
        why=reach.why,
    )
    return reach


def _checked(desk: Desk, eye: Eye, settings: Mapping[str, Any], nodes: tuple[str, ...]) -> bool:
    """Let these nodes check themselves; their reports are in the attempt's folder then. False where no node did."""
    where, began_s = desk.where, desk.clock.mono_s()
    root = os.environ.get("FTRUN_WATCH_ROOT", "")
    words = ["after", "--folder", os.path.join(where.place, "nodes"), "--launch", str(where.launch)]
    words += ["--start", str(eye.started.number), "--since", f"{eye.started.launch.started_s or 0.0:.0f}"]
    words += ["--settings", str(settings.get("checks", "")), *(["--root", root] if root else [])]
    line = node_line(where.home, [*words, "--within", f"{WITHIN_S:g}"], told="checked")

    def alive() -> None:
        desk.alive()
        eye.look()

    if len(where.nodes) == 1:
        answered = nodes if _here(line, where.node) else ()
    else:
        try:
            told = desk.steps.ask(where.job, nodes, line, limit_s=LIMIT_S, quiet_s=LIMIT_S, alive=alive)
        except SlurmError as error:
            say(f"the nodes are not checked: {error.message}")
            return False
        answered = tuple(node for node in nodes if told.answers.get(node))
    took_s = desk.clock.mono_s() - began_s
    desk.book.record("nodes.checked", asked=list(nodes), answered=list(answered), took_s=round(took_s, 2))
    return bool(answered)


def _here(line: str, node: str) -> bool:
    """Without Slurm, where the job's only node is the one that we live on."""
    env = {"PATH": "/usr/bin:/bin", "SLURMD_NODENAME": node}
    try:
        done = subprocess.run(
            ["/bin/sh", "-c", line],
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return False
    return done.stdout.endswith(b" checked\n")
