"""What all parts of one agent share: where it is, whom it asks, and the sign of life that it owes. (I/O)

How it thinks. The agent has two threads. One does everything; the other, the watchdog, touches only what is on the node, so that a shared file system
that hangs can hold the first for ever and the job is answered all the same. Whoever waits calls `alive`: it shows both the watchdog and the
supervisor that work goes on, and it ends the work of an agent that the watchdog has given up: nothing is done by halves afterwards.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import field
from typing import Any

from ftrun.slurm.client.cluster import Cluster
from ftrun.slurm.commands.spanning import Span
from ftrun.slurm.commands.steps import InsideSteps
from ftrun.slurm.records import dataclass
from ftrun.supervisor import signatures
from ftrun.supervisor.agent_book import Book
from ftrun.supervisor.agent_deep import Begin
from ftrun.supervisor.agent_line import OwnNode, on_own_node
from ftrun.supervisor.agent_talk import Talk
from ftrun.supervisor.lease import Clock, SystemClock
from ftrun.supervisor.signatures import Catalog

__all__ = ["Desk", "GivenUp", "Where", "say"]

BEAT_EVERY_S = 5.0


class GivenUp(BaseException):
    """The watchdog has answered in our place: not one more act. Not an Exception: nothing may catch it on the way."""


@dataclass(frozen=True, slots=True)
class Where:
    """Which launch of which run this is, on which node; `place` is the attempt's folder, `nodes` all of the job's own."""

    run_dir: str
    place: str
    attempt: int
    launch: int
    job: str
    cluster: str
    node: str
    nodes: tuple[str, ...]

    @property
    def home(self) -> str:
        """$FTRUN_HOME: the run's folder is HOME/runs/ID."""
        return os.path.dirname(os.path.dirname(self.run_dir.rstrip("/")))


@dataclass
class Desk:
    """The parts at hand. `spans` are the companions that hold nodes for this job, `coming` those whose nodes no start may use yet, `expected` how many nodes
    were asked for so; `left` are nodes of the job that it holds no more: Slurm took them out, or they were given back; `drained` are those that it keeps aside and that Slurm would not give to anybody; `beside` is done now and
    then while anybody waits; `alive_s` is for the watchdog, which sets `given_up`."""

    where: Where
    talk: Talk
    book: Book
    cluster: Cluster
    steps: InsideSteps
    clock: Clock = field(default_factory=SystemClock)
    signal: Callable[[int, str], None] = field(default_factory=lambda: _signal_group)  # (process group, name)
    own_node: OwnNode = on_own_node
    reader: Begin | None = None  # begins what reads checkpoints to their end; None: nobody does
    alive_s: float = field(init=False)
    given_up: bool = False
    spans: tuple[Span, ...] = ()
    coming: tuple[Span, ...] = ()
    expected: int = 0
    left: frozenset[str] = frozenset()
    drained: frozenset[str] = frozenset()
    beside: Callable[[], None] | None = None
    _is_beside: bool = False
    _beat_s: float = float("-inf")
    _catalog: Catalog | None = None

    def __post_init__(self) -> None:
        self.alive_s = self.clock.mono_s()

    @property
    def nodes(self) -> tuple[str, ...]:
        """All nodes that the job has, in Slurm's order, and those of its companions behind them: one that left the job may be back as such a one."""
        lent = tuple(node for span in self.spans for node in span.nodes)
        away = self.left.union(lent)
        return (*(node for node in self.where.nodes if node not in away), *lent)

    def alive(self) -> None:
        """Work goes on. Raises GivenUp, OSError (the attempt's folder)."""
        if self.given_up:
            raise GivenUp
        self.alive_s = self.clock.mono_s()
        if self.alive_s - self._beat_s >= BEAT_EVERY_S:
            self._beat_s = self.alive_s
            with contextlib.suppress(
                OSError
            ):  # then the supervisor takes us for dead, and waits for the job's end
                self.book.beat()
        if self.beside is not None and not self._is_beside:
            self._is_beside = True
            try:
                self.beside()
            finally:
                self._is_beside = False

    def rest(self, seconds: float) -> None:
        """Sleep, and be alive. Raises as `alive`."""
        until_s = self.clock.mono_s() + seconds
        while True:
            self.alive()
            left_s = until_s - self.clock.mono_s()
            if left_s <= 0:
                return
            self.clock.sleep(min(0.2, left_s))

    def answer(self, number: int, **words: Any) -> None:
        """Tell batch.sh what comes after a start; the first answer counts. Raises OSError."""
        if not self.talk.answer(number, **words):
            say(f"start {number}: answered already")

    def catalog(self) -> Catalog:
        """The fault signatures, loaded at the first use. Raises CatalogError."""
        if self._catalog is None:
            extra = [folder for folder in os.environ.get("FTRUN_CATALOG", "").split(":") if folder]
            self._catalog = signatures.load(extra)
        return self._catalog


def _signal_group(pid: int, name: str) -> None:
    """To the script's process group; batch.sh made it one."""
    if pid > 1:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, getattr(signal, f"SIG{name}"))


def say(text: str) -> None:
    """A line in the agent's own log."""
    now = time.strftime("%Y-%m-%dT%H:%M:%S")
    print(f"{now} {text}", file=sys.stderr, flush=True)
