"""A steadily slow node is left behind at the next checkpoint, where a spare can take its place then. (I/O)"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ftrun.supervisor import suspicions
from ftrun.supervisor.agent_desk import Desk, say
from ftrun.supervisor.agent_eye import Eye, Suspicion
from ftrun.supervisor.agent_hang import Hangs
from ftrun.supervisor.agent_stop import Boundary

__all__ = ["Slow"]


class Slow:
    """Looks after one start. `against` says why no spare can take the place of these nodes now ("" = one can)."""

    def __init__(
        self,
        desk: Desk,
        eye: Eye,
        settings: Mapping[str, Any],
        hangs: Hangs,
        against: Callable[[Suspicion], str],
    ) -> None:
        self._desk, self._eye, self._settings = desk, eye, settings
        self._hangs, self._against = hangs, against
        self._boundary: Boundary | None = None

    @property
    def waits(self) -> bool:
        """A node is to be left at the next checkpoint."""
        return self._hangs.swap is not None

    def look(self) -> Suspicion | None:
        """Why this start is to be ended now; None where it is not. Raises OSError (journal), GivenUp."""
        swap = self._hangs.swap
        if swap is None:
            self._boundary = None
            return None
        wanted = Suspicion(suspicions.slow(swap.node, swap.reason), 0.0)
        if self._boundary is None:
            self._boundary = Boundary(self._desk, self._eye, self._settings)
        verdict = self._boundary.look()
        if not verdict.end:
            return None
        self._hangs.swap = None
        if (why := self._against(wanted) if verdict.saved else verdict.reason) != "":
            say(f"{wanted.diagnosis.nodes[0]} stays: {why}")
            return None
        return wanted

    def close(self) -> None:
        """Nothing is asked for any more."""
        if self._boundary is not None:
            self._boundary.close()
            self._boundary = None
