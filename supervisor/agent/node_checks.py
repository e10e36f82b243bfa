"""The checks of nodes after a failure, under way while other things are found out. (I/O)

How it thinks. The checks take a second or two, since some of them look twice to see what changes. So they are begun as soon as a start is known to be over, or
srun says that its step ends and a node is missing: they ask only what says that a node itself is broken, which may be asked while ranks
are still there. They are waited for once it is known who takes part in what comes next; what was begun for others is let go. Whoever cannot have
heard of them, behind a node that is dead, is asked anew. A check that does not come back costs some seconds, once.

A node of a live start that Slurm itself has taken out of the job, where no srun would tell of it.
How it thinks. A job with --no-kill goes on without a node that Slurm lost. Where the ranks are below srun its words, or a start that stands still, have the nodes
asked. Where the script reaches its nodes by another way nobody may stop: the other ranks print on, or nothing was ever printed. So in such a job, and in no other,
Slurm is asked now and then which nodes the job still has. A controller that is coming up may say strange things for a moment: it must say the same twice,
with the job running and its first node in it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from ftrun.slurm.client.cluster import JobState
from ftrun.slurm.client.errors import SlurmError
from ftrun.slurm.commands.questions import Question
from ftrun.supervisor.agent.batch_channel import Started
from ftrun.supervisor.agent.context import Desk, Suspicion, say
from ftrun.supervisor.diagnosis import suspicions
from ftrun.supervisor.store.node_tools import node_line

__all__ = ["Checks", "Taken"]


CHECKED = "checked"
WITHIN_S = 10.0
LIMIT_S = 15.0
FRESH_S = 20.0  # what was begun longer ago belongs to an alarm that was none
TICK_S = 0.1


class Checks:
    """The checks after one start. Their reports are in the attempt's folder once `finish` says so."""

    def __init__(self, desk: Desk, started: Started, settings: Mapping[str, Any]) -> None:
        self._desk, self._started, self._settings = desk, started, settings
        self._asked: list[tuple[float, Question]] = []

    def begin(self, nodes: tuple[str, ...]) -> None:
        """Have those of these nodes check themselves that are not at it. A job's only node waits for `finish`."""
        mono_s = self._desk.clock.mono_s()
        for one in [one for one in self._asked if mono_s - one[0] > FRESH_S]:
            one[1].let_go()
            self._asked.remove(one)
        new = tuple(node for node in nodes if not any(node in one.nodes for _, one in self._asked))
        if new and len(self._desk.nodes) > 1:
            self._ask(new)

    def finish(self, nodes: tuple[str, ...], alive: Callable[[], None]) -> bool:
        """Wait until these nodes have checked themselves; False where none has. Raises GivenUp, OSError (journal)."""
        if len(self._desk.nodes) == 1:
            began_s = self._desk.clock.mono_s()
            told = self._desk.own_node(self._line(), self._desk.where.job, self._desk.where.node, LIMIT_S)
            done = nodes if told == (CHECKED,) else ()
        else:
            self.begin(nodes)
            began_s = min((at_s for at_s, _ in self._asked), default=self._desk.clock.mono_s())
            self._listen(0.0)
            unheard = tuple(node for node in nodes if not self._says(node))
            if unheard and self._asked[-1][0] < self._desk.clock.mono_s() - 1.0:
                self._ask(unheard)
            done = self._awaited(nodes, alive)
        took_s = self._desk.clock.mono_s() - began_s
        self._desk.book.record(
            "nodes.checked", asked=list(nodes), answered=list(done), took_s=round(took_s, 2)
        )
        return bool(done)

    def let_go(self) -> None:
        """Nobody waits for any of it."""
        for _, one in self._asked:
            one.let_go()
        self._asked = []

    def _ask(self, nodes: tuple[str, ...]) -> None:
        try:
            question = self._desk.steps.begin(self._desk.where.job, nodes, self._line())
        except SlurmError as error:
            say(f"the nodes are not checked: {error.message}")
            return
        self._asked.append((self._desk.clock.mono_s(), question))

    def _awaited(self, nodes: tuple[str, ...], alive: Callable[[], None]) -> tuple[str, ...]:
        give_up_s = self._desk.clock.mono_s() + LIMIT_S
        while True:
            done = tuple(node for node in nodes if self._says(node, CHECKED))
            if len(done) == len(nodes) or self._desk.clock.mono_s() > give_up_s:
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
        where, started = self._desk.where, self._started
        root = os.environ.get("FTRUN_WATCH_ROOT", "")
        words = ["post-failure-check", "--folder", os.path.join(where.place, "nodes")]
        words += ["--launch", str(where.launch)]
        words += ["--start", str(started.number), "--since", f"{started.launch.started_s or 0.0:.0f}"]
        words += ["--settings", str(self._settings.get("checks", "")), *(["--root", root] if root else [])]
        return node_line(where.home, [*words, "--within", f"{WITHIN_S:g}"], told=CHECKED)


LOOK_EVERY_S = 60.0
AGAIN_S = 10.0


class Taken:
    """Looks after one start."""

    def __init__(self, desk: Desk, started: Started) -> None:
        self._desk, self._started = desk, started
        self._next_s = desk.clock.mono_s() + LOOK_EVERY_S
        self._before: frozenset[str] = frozenset()
        self._before_s = 0.0

    def look(self) -> Suspicion | None:
        """Why this start is to be ended now; None where it is not. It asks Slurm, and waits for nothing else."""
        desk, mono_s = self._desk, self._desk.clock.mono_s()
        lent = {node for span in desk.spans for node in span.nodes}  # one that left the job may be back
        own = [node for node in self._started.nodes if node in desk.where.nodes and node not in lent]
        if mono_s < self._next_s or len(own) < 2:
            return None
        self._next_s = mono_s + LOOK_EVERY_S
        if desk.talk.calls(self._started.number):
            return None
        gone = self._gone(own)
        lost = tuple(node for node in own if node in gone & self._before)
        if not self._before:
            self._before_s = mono_s
        self._before = gone
        if lost:
            return Suspicion(suspicions.lost(lost), mono_s - self._before_s)
        if gone:
            self._next_s = mono_s + AGAIN_S
        return None

    def _gone(self, own: list[str]) -> frozenset[str]:
        where = self._desk.where
        try:
            row = self._desk.cluster.jobs((where.job,)).get(where.job)
        except SlurmError as error:
            say(f"it is not known which nodes the job has: {error.message}")
            return frozenset()
        if row is None or row.state is not JobState.RUNNING or where.node not in row.nodes:
            return frozenset()
        return frozenset(own).difference(row.nodes)
