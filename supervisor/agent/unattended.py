"""What the agent asks Slurm itself while no supervisor lives: drained nodes of the start, and preemption. (I/O)

A supervisor asks Slurm for all runs, and tells the agent. Where none lives (its login node is down, it was
killed), nobody sees a drain or the preemption of a script that calls no srun. Then the agent asks one question
in `ASK_EVERY_S`: the states of the nodes and the job's own row in turns. Whether a supervisor lives is read
from the lease: its counter moves. A thousand agents whose supervisor lives ask nothing.

What is found goes the usual way: a drain becomes the same request that a supervisor would have left (it removes
it when it is back, and judges by itself), a preemption is handled by `stop_start.PreemptionNotice`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from ftrun.slurm.client.errors import SlurmError
from ftrun.supervisor.agent.batch_channel import Started
from ftrun.supervisor.agent.context import AgentContext, log_line
from ftrun.supervisor.config.settings import text_of
from ftrun.supervisor.policy import drained_nodes
from ftrun.supervisor.store import flag_files
from ftrun.supervisor.store.flag_files import LeaveRequest
from ftrun.supervisor.store.lease import Holder, read_holder

ASK_EVERY_S = 60.0  # more than any lease, whose counter moves ten times in its term


class UnattendedJob:
    """Of one start. `cut_short`: Slurm means to end the job before its time."""

    def __init__(self, ctx: AgentContext, started: Started, settings: Mapping[str, Any]) -> None:
        self._ctx, self._started = ctx, started
        self._leaves = text_of(settings, "drained") == "leave"
        self._next_s = ctx.clock.mono_s()
        self._holder: Holder | None = None
        self._asks = 0
        self._drained: tuple[str, ...] = ()
        self.cut_short = False

    def look(self) -> None:
        """Ask one question if it is due and nobody else asks."""
        if self._ctx.clock.mono_s() < self._next_s:
            return
        self._next_s = self._ctx.clock.mono_s() + ASK_EVERY_S
        if self._is_attended():
            self._drained = ()
            return
        self._asks += 1
        try:
            if self._asks % 2:
                self._look_at_nodes()
            else:
                row = self._ctx.cluster.jobs((self._ctx.where.job,)).get(self._ctx.where.job)
                self.cut_short = row is not None and row.is_cut_short
        except SlurmError as error:
            log_line(f"no supervisor lives, and Slurm does not answer: {error.message}")

    def _is_attended(self) -> bool:
        """Whether a supervisor may live: its counter moved since the last look, or there was none yet."""
        before, self._holder = self._holder, _read_holder(self._ctx.where.home)
        if self._holder is None or self._holder.counter == "released" or not self._holder.epoch:
            return False
        return before is None or before != self._holder

    def _look_at_nodes(self) -> None:
        """Leave the request to leave nodes that were drained at two looks."""
        if not self._leaves:
            return
        rows, where = self._ctx.cluster.nodes(), self._ctx.where
        found = drained_nodes.drained_by_others(self._started.nodes, rows)
        steady = tuple(node for node in found if node in self._drained)
        self._drained = found
        if not steady or flag_files.read_leave(where.place, where.launch) is not None:
            return
        why = " ".join(rows[steady[0]].reason.split())[:80]
        aside = tuple(node for node in self._ctx.nodes if node in rows and rows[node].drained)
        token = f"agent-{self._started.token}-{','.join(steady)}"
        log_line(f"no supervisor lives: {', '.join(steady)} is drained ({why})")
        request = LeaveRequest(token, steady, aside, f"drained ({why})" if why else "drained")
        with contextlib.suppress(OSError):  # asked again in two minutes
            flag_files.write_leave(where.place, where.launch, request)


def _read_holder(home: str) -> Holder | None:
    """The lease; None where it cannot be read."""
    try:
        return read_holder(home)
    except OSError:
        return None
