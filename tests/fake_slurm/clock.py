"""A clock that only moves when it is told to, and what is to happen on it. (pure)

Events run in the order of their time, and of asking where that is equal. Nothing else moves the time, so a day passes as
fast as its events can be run. One clock may serve several things: a cluster, the supervisors that watch it, their faults.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

__all__ = ["Clock"]


class Clock:
    """Virtual Unix time in seconds."""

    def __init__(self, start_s: float = 1_700_000_000.0) -> None:
        self._now = start_s
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._sequence = 0
        self._until = start_s  # how far the innermost advance goes

    def now(self) -> float:
        """The present moment."""
        return self._now

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        """Do something later; a delay below 0 is none."""
        self._sequence += 1
        heapq.heappush(self._events, (self._now + max(0.0, delay_s), self._sequence, action))

    def advance(self, seconds: float) -> None:
        """Let time pass. An event may advance the clock itself (a call that takes long): time never goes back."""
        before, self._until = self._until, self._now + seconds
        while self.step():
            pass
        self._now = max(self._now, self._until)
        self._until = before

    def advance_until(self, condition: Callable[[], bool], limit_s: float) -> bool:
        """Let time pass from event to event until the condition holds; False when the limit passed first."""
        before, self._until = self._until, self._now + limit_s
        try:
            while not condition():
                if not self.step():
                    self._now = max(self._now, self._until)
                    return condition()
            return True
        finally:
            self._until = before

    def next_event_s(self) -> float | None:
        """When the next event is due; None = nothing will ever happen by itself."""
        return self._events[0][0] if self._events else None

    def step(self) -> bool:
        """The next event, where the advance that is under way comes to it; False where it does not. For what goes on in the middle of an event."""
        if not self._events or self._events[0][0] > self._until:
            return False
        due, _, action = heapq.heappop(self._events)
        self._now = max(self._now, due)
        action()
        return True
