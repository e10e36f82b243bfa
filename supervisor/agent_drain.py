"""What Slurm wants of a live start: nodes that somebody drained are left behind at the next checkpoint, where spares can take their place. (I/O)

How it thinks. The supervisor sees the drain and leaves the wish beside the attempt (`leavefile`), since only the agent acts inside a live allocation.
The script is asked for a checkpoint; when a new one is complete and the ladder would swap now, the start is ended for it, and all goes on as after a
fault. Where the job is preempted (`agent_notice`), or has lost a node (`agent_taken`), that goes first. Where nothing is saved, or nothing can take the place, the start goes on, and the supervisor is told why: it may let a new job do it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ftrun.supervisor import leavefile, suspicions
from ftrun.supervisor.agent_desk import Desk, say
from ftrun.supervisor.agent_eye import Eye, Suspicion
from ftrun.supervisor.agent_notice import Notice
from ftrun.supervisor.agent_stop import Boundary
from ftrun.supervisor.agent_taken import Taken
from ftrun.supervisor.leavefile import Wish
from ftrun.supervisor.leaving import Occasion

__all__ = ["Drained"]

LOOK_EVERY_S = 3.0  # the wish is on the shared file system


class Drained:
    """Looks after one start. `against` says why no spare can take the place of these nodes now ("" = one can); its second argument are spares
    that are drained themselves."""

    def __init__(
        self,
        desk: Desk,
        eye: Eye,
        settings: Mapping[str, Any],
        against: Callable[[Suspicion, tuple[str, ...]], str],
    ) -> None:
        self._desk, self._eye, self._settings, self._against = desk, eye, settings, against
        self._next_s = 0.0
        self._wish: Wish | None = None
        self._boundary: Boundary | None = None
        self._answered: set[str] = set()
        self._notice = Notice(desk, eye, settings)
        self._taken = Taken(desk, eye.started)

    @property
    def waits(self) -> bool:
        """Nodes are to be left at the next checkpoint."""
        return self._wish is not None

    def look(self) -> Suspicion | None:
        """Why this start is to be ended now; None where it is not. Raises OSError (journal), GivenUp."""
        self._notice.look()
        if (lost := self._taken.look()) is not None:
            return lost
        where, mono_s = self._desk.where, self._desk.clock.mono_s()
        if mono_s >= self._next_s:
            self._next_s = mono_s + LOOK_EVERY_S
            found = leavefile.read(where.place, where.launch)
            if found is not None and (found.token in self._answered or not self._used(found)):
                found = None
            if found is None or (self._wish is not None and found.token != self._wish.token):
                self._withdraw()
            self._wish = found
        if self._wish is None:
            return None
        if self._boundary is None:
            self._boundary = Boundary(self._desk, self._eye, self._settings, Occasion.DRAIN, self._wish.why)
        verdict = self._boundary.look()
        if not verdict.end:
            return None
        found = leavefile.read(where.place, where.launch)
        if (
            found is None or found.token != self._wish.token
        ):  # since the last look: somebody wants something else
            self._withdraw()
            self._wish = None
            return None
        return self._moved(self._wish, verdict.reason, saved=verdict.saved)

    def _moved(self, wish: Wish, reason: str, *, saved: bool) -> Suspicion | None:
        self._answered.add(wish.token)
        self._wish = self._boundary = None
        nodes = self._used(wish)
        found = Suspicion(suspicions.drained(nodes, f"{', '.join(nodes)}: {wish.why}"), 0.0)
        out = tuple(node for node in wish.aside if node not in self._eye.started.nodes)
        why = self._against(found, out) if saved else reason
        if not why:
            return found
        say(f"{', '.join(nodes)} stays: {why}")
        self._desk.book.record("start.stays", token=wish.token, nodes=list(nodes), why=why, saved=saved)
        return None

    def _used(self, wish: Wish) -> tuple[str, ...]:
        return tuple(node for node in self._eye.started.nodes if node in wish.nodes)

    def close(self) -> None:
        """Nothing is asked for any more."""
        self._withdraw()
        self._notice.close()

    def _withdraw(self) -> None:
        if self._boundary is not None:
            self._boundary.close()
            self._boundary = None
