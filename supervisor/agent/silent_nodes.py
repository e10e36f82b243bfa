"""Which nodes of a live start do not answer, by all witnesses that there are. (I/O)

`SilentNodes.ask` runs a roll call without a sweep and stays on it while a node is missing and the start stands
still (`telemetry.node_silence`). Meanwhile it asks the guards of the missing nodes by a file, and reads what
their ranks last wrote. Guards that answer elsewhere show that this way works.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import field

from ftrun.slurm.records import dataclass, replace
from ftrun.supervisor.agent import node_liveness
from ftrun.supervisor.agent.batch_channel import Started
from ftrun.supervisor.agent.context import AgentContext
from ftrun.supervisor.agent.node_liveness import DOUBTED_MAX, SHUT_LONG_S, PingRequest
from ftrun.supervisor.telemetry import node_silence
from ftrun.supervisor.telemetry.heartbeats import BeatReader
from ftrun.supervisor.telemetry.node_silence import NodeSilence

GUARDS_S = 1.0  # after the question: then the guards of missing nodes are asked
GUARDS_EVERY_S = 0.5
BEATS_EVERY_S = 1.0
LATE_S = 2.0  # a later answer is a silence that the node came back from


@dataclass
class SilentNodes:
    """The roll calls of one start. `beats`: its beats, once somebody reads them."""

    ctx: AgentContext
    started: Started
    beats: BeatReader | None = None
    _back_s: dict[str, float] = field(default_factory=dict)
    _guards: Guards = field(init=False)
    _waited_s: dict[str, float] = field(default_factory=dict)  # the missing nodes of this roll call
    _verdicts: dict[str, bool | None] = field(default_factory=dict)
    _unwritten_s: dict[str, float] = field(default_factory=dict)
    _read_s: float = float("-inf")

    def __post_init__(self) -> None:
        self._guards = Guards(self.ctx.where.place, self.ctx.where.node)

    def ask(self, moves: Callable[[], bool]) -> tuple[str, ...] | None:
        """The lost nodes; None if unknown. Ends early when the start `moves`. Raises GivenUp, OSError."""
        if self.started.nodes == (self.ctx.where.node,):
            return ()
        self._waited_s, self._verdicts, self._unwritten_s, self._read_s = {}, {}, {}, float("-inf")
        self._guards.begin()
        ctx, where = self.ctx, self.ctx.where
        sweep = PingRequest(
            where.job,
            self.started.nodes,
            where.node,
            "",
            shut_s=SHUT_LONG_S,
            spans=ctx.spans,
            judge=self._judge,
            stop=moves,
        )
        if where.node not in sweep.nodes:
            sweep = replace(sweep, nodes=(where.node, *sweep.nodes))
        found = node_liveness.query_nodes(ctx.cluster, ctx.steps, ctx.clock, sweep, alive=ctx.alive)
        for node, waited_s in self._waited_s.items():
            if waited_s >= LATE_S and (node in found.answered or self._verdicts.get(node) is None):
                self._back_s[node] = max(waited_s, self._back_s.get(node, 0.0))
        if not found.known:
            return None
        silent = [node for node in found.silent if node in self.started.nodes]
        lost = tuple(node for node in silent if node in found.taken or self._verdicts.get(node))
        undecided = any(self._verdicts.get(node, False) is False for node in silent)
        return None if undecided and not lost else lost

    def _judge(self, node: str, silence: NodeSilence, missing: tuple[str, ...]) -> bool | None:
        """Whether this missing node is lost; None if it is seen to live."""
        self._waited_s[node] = silence.since_s
        if silence.since_s >= GUARDS_S and not self._guards.asked_s:
            heard = next((n for n in self.started.nodes[1:] if n not in missing), "")
            self._guards.ask(missing, heard, silence.since_s)
        self._look(silence.since_s)
        unwritten_s = self._unwritten_s.get(node)
        wrote = unwritten_s is not None and unwritten_s < silence.since_s - BEATS_EVERY_S
        verdict: bool | None = None
        if node not in self._guards.heard and not wrote:
            verdict = node_silence.is_lost(
                replace(
                    silence,
                    unwritten_s=unwritten_s,
                    guard_s=silence.since_s - self._guards.asked_s if self._guards.works else None,
                    back_s=self._back_s.get(node, 0.0),
                    ranks=len(self.beats.beats) if self.beats is not None else 1,
                )
            )
        self._verdicts[node] = verdict
        return verdict

    def _look(self, asked_s: float) -> None:
        """Read what guards and ranks wrote, now and then."""
        self._guards.look(asked_s)
        if self.beats is not None and asked_s - self._read_s >= BEATS_EVERY_S:
            self._read_s = asked_s
            self._unwritten_s = self.beats.unwritten_s(self._waited_s, self.ctx.clock.mono_s())


class Guards:
    """Asks the guards of some nodes by the link `asked`; see `hooks.ranks.fence_daemon`."""

    def __init__(self, place: str, node: str) -> None:
        self._place, self._node = place, node
        self._folder = os.path.join(place, "heard")
        self._number = 0
        self.begin()

    def begin(self) -> None:
        """Forget the last question."""
        self.asked_s = self._looked_s = self._next_s = 0.0
        self.heard: frozenset[str] = frozenset()
        self._named: tuple[str, ...] = ()

    @property
    def works(self) -> bool:
        """Whether a guard has answered that was asked beside those of the missing nodes."""
        return any(node in self.heard for node in self._named)

    def ask(self, missing: tuple[str, ...], heard: str, at_s: float) -> None:
        """Ask once: the guards of the missing nodes, of our own node, and of one that has answered.

        Where the link cannot be written (too many names) nothing is asked, and the next call tries again.
        """
        if self.asked_s or not 0 < len(missing) <= DOUBTED_MAX or at_s < self._next_s:
            return
        self._next_s = at_s + GUARDS_EVERY_S
        self._named = tuple(dict.fromkeys((self._node, heard or self._node)))
        with contextlib.suppress(OSError):
            os.makedirs(self._folder, mode=0o700, exist_ok=True)
            before = os.listdir(self._folder)
            link = os.path.join(self._place, "asked")
            told = [name.rpartition(".")[2] for name in before] + [_link_text(link).partition(" ")[0]]
            self._number = max([self._number, *(int(one) for one in told if one.isdigit())]) + 1
            for name in before:
                os.unlink(os.path.join(self._folder, name))
            with contextlib.suppress(FileNotFoundError):
                os.unlink(link + ".new")
            os.symlink(f"{self._number} {','.join((*self._named, *missing))}", link + ".new")
            os.rename(link + ".new", link)
            self.asked_s = at_s

    def look(self, asked_s: float) -> None:
        """Read who has answered, now and then."""
        if not self.asked_s or asked_s - self._looked_s < GUARDS_EVERY_S:
            return
        self._looked_s = asked_s
        with contextlib.suppress(OSError):
            end = f".{self._number}"
            names = os.listdir(self._folder)  # a name by itself may be remembered as absent
            self.heard = frozenset(name[: -len(end)] for name in names if name.endswith(end))


def _link_text(path: str) -> str:
    """What the link says; "" if it cannot be read."""
    try:
        return os.readlink(path)
    except OSError:
        return ""
