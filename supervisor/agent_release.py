"""Giving nodes of the job back: a dead one before Slurm ends the job for it, and one that was set aside once somebody is to mend it. (I/O)

How it thinks. Slurm needs SlurmdTimeout to call a node down, and then ends every job on it that was not submitted with --no-kill. A job that no longer
holds the node by then is left alone. So where this job would be ended, and it goes on here, the nodes that do not answer are
given back right after the decision, all in one update that names everybody who stays. Nodes that answer are kept, good or bad: whoever got a bad one
next would suffer. A job with --no-kill needs none of it, and then a dead node is better kept than given to somebody's next job.

A refusal is final: Slurm will end this job, so it is left, and what follows is the supervisor's.

A bad node that answers stays aside in the job only until Slurm starts nothing on it any more. Whoever drained it wants to mend it, and cannot while it is held; given
back it hurts nobody, and once it is mended it may come back by a companion. So while a start works that does not use it, the job's nodes are
looked at now and then: those that are gone are noted, and the drained ones among those set aside are given back. This is a favour and no need: a refusal ends it
for this launch, and a job that may need its one release for a dead node keeps it for that.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from ftrun.slurm.client.cluster import JobRow, JobState
from ftrun.slurm.client.errors import SlurmError
from ftrun.slurm.client.options import OptionError
from ftrun.supervisor import context, submit
from ftrun.supervisor.agent_desk import Desk, say

__all__ = ["LOOK_EVERY_S", "Mending", "outlives", "release"]

LOOK_EVERY_S = 30.0
MENDED = "so that they can be mended: Slurm starts nothing on them any more"  # behind "given back"


def release(desk: Desk, silent: Collection[str]) -> str:
    """Give back the job's own nodes among the silent ones where it would be ended for them; why the job cannot go on, "" = it can.

    Raises OSError (journal), GivenUp.
    """
    gone = [node for node in desk.where.nodes if node in silent]
    if not gone or outlives(desk.where.run_dir):
        return ""
    try:
        row = desk.cluster.jobs((desk.where.job,)).get(desk.where.job)
    except SlurmError as error:
        return _ends(error.message)
    if row is None:
        return _ends("Slurm does not show the job")
    gone = [node for node in gone if node in row.nodes]
    stay = [node for node in row.nodes if node not in gone]
    if not gone:
        return ""
    refused = _give_back(desk, stay, gone)
    return _ends(refused) if refused else ""


@dataclass
class Mending:
    """The nodes of the job that no start uses, through one launch."""

    desk: Desk
    settings: Mapping[str, Any]
    _next_s: float = 0.0
    _over: bool = False  # nothing is given back any more
    _every_s: float = field(init=False)

    def __post_init__(self) -> None:
        self._every_s = min(LOOK_EVERY_S, max(2.0, float(self.settings.get("min-stay", 1800.0)) / 4.0))

    def look(self, used: Collection[str], aside: tuple[str, ...], *, busy: bool) -> tuple[str, ...]:
        """Those of `aside` that the job still has. `used` are the nodes of the start that works, which are never touched; `busy`: it is about to be ended, or
        others want something of the nodes. Raises OSError (journal), GivenUp."""
        desk, mono_s = self.desk, self.desk.clock.mono_s()
        unused = [node for node in desk.where.nodes if node not in used and node not in desk.left]
        if not unused or mono_s < self._next_s:
            return aside
        self._next_s = mono_s + self._every_s
        try:
            row = desk.cluster.jobs((desk.where.job,)).get(desk.where.job)
            if row is None or row.state is not JobState.RUNNING or desk.where.node not in row.nodes:
                return aside
            desk.left |= {node for node in unused if node not in row.nodes}
            held = [node for node in unused if node in aside and node in row.nodes]
            known = desk.cluster.nodes(held) if held else {}
            desk.drained = frozenset(node for node in held if node in known and known[node].drained)
            if not busy:
                self._give_back(row)
        except SlurmError as error:
            say(f"the nodes that are set aside cannot be looked at: {error.message}")
        return tuple(node for node in aside if node in desk.nodes)

    def _give_back(self, row: JobRow) -> None:
        """Raises OSError (journal), GivenUp."""
        desk = self.desk
        gone = [node for node in row.nodes if node in desk.drained and node != desk.where.node]
        if self._over or not gone:
            return
        self._over = not outlives(desk.where.run_dir)
        if self._over:
            return
        stay = [node for node in row.nodes if node not in gone]
        self._over = bool(_give_back(desk, stay, gone, why=MENDED))
        if not self._over:
            desk.left |= {*gone}


def outlives(run_dir: str) -> bool:
    """Whether Slurm lets the jobs of a run go on without a node that it lost, by what was asked for and by what ftrun adds. False where that is not known."""
    try:
        kept, env = context.load(run_dir), context.environment(run_dir)
        line, head = submit.split_kept(kept), submit.directive_lines(context.script(run_dir), kept)
    except (context.ContextError, OptionError):
        return False
    return submit.outlives(kept, line, head, env)


def _give_back(desk: Desk, stay: list[str], gone: list[str], **more: str) -> str:
    """Why Slurm refused; "" = they are given back. Raises OSError (journal), GivenUp."""
    desk.book.record("release.intended", nodes=stay, gone=gone, **more)
    refused: list[str] = []
    desk.book.act("release", lambda: _release(desk, stay, refused))
    if refused:
        desk.book.record("release.refused", message=refused[0], **more)
        return refused[0]
    desk.book.record("release.done", nodes=stay, gone=gone, **more)
    return ""


def _release(desk: Desk, stay: list[str], refused: list[str]) -> None:
    desk.alive()
    try:
        desk.steps.keep_nodes(desk.where.job, stay)
    except SlurmError as error:
        say(f"nodes cannot be given back: {error.message}")
        refused.append(error.message)


def _ends(message: str) -> str:
    return f"Slurm will end this job for its lost node, which could not be given back: {message}"
