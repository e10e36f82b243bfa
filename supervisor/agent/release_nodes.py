"""Give nodes of the job back to Slurm: dead ones before Slurm ends the job, drained ones for repair. (I/O)

Slurm needs SlurmdTimeout to call a node down, and then ends every job on it that was not submitted with
--no-kill. A job that has given the node back by then goes on. So where Slurm would end this job, the agent
gives back all silent nodes right after its decision, in one update that lists every node that stays. It keeps
nodes that answer, good or bad: the next job on a bad node would suffer. A job with --no-kill needs none of
this, and it is better to keep a dead node than to hand it to another job. A refusal is final: Slurm will end
this job, so the agent leaves it to the supervisor.

The job keeps an excluded node that answers only until it is drained. The person who drained it wants to
repair it and cannot while a job holds it; once drained it can hurt no other job, and after the repair it may
come back through a companion. So while a start runs without such nodes, `Mending` looks from time to time,
notes the nodes that Slurm took away, and gives the drained ones back. This is a favour, not a need: it stops
after the first refusal, and a job that may need its one release for a dead node keeps it for that.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from ftrun.slurm.client.cluster import JobRow, JobState
from ftrun.slurm.client.errors import OptionError, SlurmError
from ftrun.supervisor.agent.context import AgentContext, log_line
from ftrun.supervisor.config.settings import number_of
from ftrun.supervisor.store import submission_context
from ftrun.supervisor.submission import plan

LOOK_EVERY_S = 30.0
FOR_REPAIR = "so that they can be mended: Slurm starts nothing on them any more"  # behind "given back"


def release_silent_nodes(ctx: AgentContext, silent: Collection[str]) -> str:
    """Give back the silent nodes of the job itself if Slurm would end the job for them. Returns why the job
    cannot go on; "" = it can. Raises OSError (journal), GivenUp.
    """
    gone = [node for node in ctx.where.nodes if node in silent]
    if not gone or survives_node_loss(ctx.where.run_dir):
        return ""
    try:
        row = ctx.cluster.jobs((ctx.where.job,)).get(ctx.where.job)
    except SlurmError as error:
        return _ends(error.message)
    if row is None:
        return _ends("Slurm does not show the job")
    gone = [node for node in gone if node in row.nodes]
    stay = [node for node in row.nodes if node not in gone]
    if not gone:
        return ""
    refused = _give_back(ctx, stay, gone)
    return _ends(refused) if refused else ""


@dataclass
class DrainedNodeRelease:
    """The unused nodes of the job during one launch."""

    ctx: AgentContext
    settings: Mapping[str, Any]
    _next_s: float = 0.0
    _over: bool = False  # nothing is given back any more
    _every_s: float = field(init=False)

    def __post_init__(self) -> None:
        self._every_s = min(LOOK_EVERY_S, max(2.0, number_of(self.settings, "grow-min-interval") / 4.0))

    def look(self, used: Collection[str], aside: tuple[str, ...], *, busy: bool) -> tuple[str, ...]:
        """Those of `aside` that the job still has.

        `used` are the nodes of the running start, which are never touched. `busy`: the start is about to be
        ended, or another part of the agent needs the nodes. Raises OSError (journal), GivenUp.
        """
        ctx, mono_s = self.ctx, self.ctx.clock.mono_s()
        unused = [node for node in ctx.where.nodes if node not in used and node not in ctx.left]
        if not unused or mono_s < self._next_s:
            return aside
        self._next_s = mono_s + self._every_s
        try:
            row = ctx.cluster.jobs((ctx.where.job,)).get(ctx.where.job)
            if row is None or row.state is not JobState.RUNNING or ctx.where.node not in row.nodes:
                return aside
            ctx.left |= {node for node in unused if node not in row.nodes}
            held = [node for node in unused if node in aside and node in row.nodes]
            known = ctx.cluster.nodes(held) if held else {}
            ctx.drained = frozenset(node for node in held if node in known and known[node].drained)
            if not busy:
                self._give_back(row)
        except SlurmError as error:
            log_line(f"the nodes that are set aside cannot be looked at: {error.message}")
        return tuple(node for node in aside if node in ctx.nodes)

    def _give_back(self, row: JobRow) -> None:
        """Raises OSError (journal), GivenUp."""
        ctx = self.ctx
        gone = [node for node in row.nodes if node in ctx.drained and node != ctx.where.node]
        if self._over or not gone:
            return
        self._over = not survives_node_loss(ctx.where.run_dir)
        if self._over:
            return
        stay = [node for node in row.nodes if node not in gone]
        self._over = bool(_give_back(ctx, stay, gone, why=FOR_REPAIR))
        if not self._over:
            ctx.left |= {*gone}


def survives_node_loss(run_dir: str) -> bool:
    """Whether Slurm lets the jobs of a run go on after a lost node, by the options of the user and of ftrun.
    False if unknown.
    """
    try:
        return plan.survives_node_loss(*plan.load_options(run_dir))
    except (submission_context.ContextError, OptionError):
        return False


def _give_back(ctx: AgentContext, stay: list[str], gone: list[str], **more: str) -> str:
    """Why Slurm refused; "" = the nodes are given back. Raises OSError (journal), GivenUp."""
    ctx.journal.record("release.intended", nodes=stay, gone=gone, **more)
    refused = ctx.journal.act("release", lambda: _release(ctx, stay))
    if refused:
        ctx.journal.record("release.refused", message=refused, **more)
        return refused
    ctx.journal.record("release.done", nodes=stay, gone=gone, **more)
    return ""


def _release(ctx: AgentContext, stay: list[str]) -> str:
    """Why Slurm refused; "" = it did not."""
    ctx.alive()
    try:
        ctx.steps.keep_nodes(ctx.where.job, stay)
    except SlurmError as error:
        log_line(f"nodes cannot be given back: {error.message}")
        return error.message
    return ""


def _ends(message: str) -> str:
    return f"Slurm will end this job for its lost node, which could not be given back: {message}"
