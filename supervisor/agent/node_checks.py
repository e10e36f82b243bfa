"""Health checks of the nodes after a failed start, run in parallel with the rest of the diagnosis. (I/O)

The checks take a second or two, because some compare two samples. So the agent starts them as soon as a start
is over, or when srun ends its step while a node is missing: they look only for faults of the node itself,
which does not disturb ranks that still run. The agent waits for them once it knows which nodes take part in
the next start, and drops the others. It asks again any node that may not have received the question because
it sits behind a dead node in Slurm's tree. A check that never returns costs some seconds, once.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from ftrun.slurm.client.errors import SlurmError
from ftrun.slurm.commands.node_queries import NodeQuery
from ftrun.supervisor.agent.batch_channel import Started
from ftrun.supervisor.agent.context import AgentContext, log_line
from ftrun.supervisor.config.settings import text_of
from ftrun.supervisor.store.node_tools import node_command

CHECKED = "checked"
WITHIN_S = 10.0
LIMIT_S = 15.0
FRESH_S = 20.0  # older checks belong to a false alarm
TICK_S = 0.1


class FailureChecks:
    """The checks after one start. Their reports are in the attempt's folder when `finish` returns True."""

    def __init__(self, ctx: AgentContext, started: Started, settings: Mapping[str, Any]) -> None:
        self._ctx, self._started, self._settings = ctx, started, settings
        self._asked: list[tuple[float, NodeQuery]] = []

    def begin(self, nodes: tuple[str, ...]) -> None:
        """Start the checks on these nodes where none run yet. A job of one node waits for `finish`."""
        mono_s = self._ctx.clock.mono_s()
        for one in [one for one in self._asked if mono_s - one[0] > FRESH_S]:
            one[1].let_go()
            self._asked.remove(one)
        known = {node for _, one in self._asked for node in one.nodes}
        new = tuple(node for node in nodes if node not in known)
        if new and len(self._ctx.nodes) > 1:
            self._ask(new)

    def finish(self, nodes: tuple[str, ...], alive: Callable[[], None]) -> bool:
        """Wait until these nodes have checked themselves; False if none has. Raises GivenUp, OSError
        (journal).
        """
        if len(self._ctx.nodes) == 1:
            began_s = self._ctx.clock.mono_s()
            told = self._ctx.own_node(self._line(), self._ctx.where.job, self._ctx.where.node, LIMIT_S)
            done = nodes if told == (CHECKED,) else ()
        else:
            self.begin(nodes)
            began_s = min((at_s for at_s, _ in self._asked), default=self._ctx.clock.mono_s())
            self._listen(0.0)
            unheard = tuple(node for node in nodes if not self._says(node))
            if unheard and self._asked[-1][0] < self._ctx.clock.mono_s() - 1.0:
                self._ask(unheard)
            done = self._awaited(nodes, alive)
        took_s = self._ctx.clock.mono_s() - began_s
        self._ctx.journal.record(
            "nodes.checked", asked=list(nodes), answered=list(done), took_s=round(took_s, 2)
        )
        return bool(done)

    def let_go(self) -> None:
        """Drop all checks that still run."""
        for _, one in self._asked:
            one.let_go()
        self._asked = []

    def _ask(self, nodes: tuple[str, ...]) -> None:
        try:
            question = self._ctx.steps.begin(self._ctx.where.job, nodes, self._line())
        except SlurmError as error:
            log_line(f"the nodes are not checked: {error.message}")
            return
        self._asked.append((self._ctx.clock.mono_s(), question))

    def _awaited(self, nodes: tuple[str, ...], alive: Callable[[], None]) -> tuple[str, ...]:
        give_up_s = self._ctx.clock.mono_s() + LIMIT_S
        while True:
            done = tuple(node for node in nodes if self._says(node, CHECKED))
            if len(done) == len(nodes) or self._ctx.clock.mono_s() > give_up_s:
                return done
            if all(one.over or one.reached.ended >= set(one.nodes) for _, one in self._asked):
                return done
            alive()
            self._listen(TICK_S)

    def _listen(self, wait_s: float) -> None:
        for _, one in self._asked:
            over = one.over
            one.listen(wait_s)
            wait_s = wait_s if over else 0.0

    def _says(self, node: str, word: str = "") -> bool:
        found = (one.reached.answers.get(node) for _, one in self._asked)
        return any(words is not None and (not word or word in words) for words in found)

    def _line(self) -> str:
        where, started = self._ctx.where, self._started
        root = os.environ.get("FTRUN_WATCH_ROOT", "")
        words = ["post-failure-check", "--folder", os.path.join(where.place, "nodes")]
        words += ["--launch", str(where.launch)]
        words += ["--start", str(started.number), "--since", f"{started.launch.started_s or 0.0:.0f}"]
        words += ["--settings", text_of(self._settings, "checks"), *(["--root", root] if root else [])]
        return node_command(where.home, [*words, "--within", f"{WITHIN_S:g}"], told=CHECKED)
