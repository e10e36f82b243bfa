"""What one supervisor process knows of the present launch beyond the journal. (pure)

Only what can be found out again stands here: starting it anew makes ftrun more patient, and nothing else. What one feature alone needs
lives in a slot of its own: `per_launch` for a launch, `per_start` for one start of the script inside it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from ftrun.slurm.client.parse import bears
from ftrun.supervisor.diagnosis.launch_state import LaunchState
from ftrun.supervisor.model.timers import Slots, Stopwatch, Stopwatches

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ftrun.slurm.client.cluster import JobRow
    from ftrun.supervisor.model.run import Attempt

__all__ = ["LaunchObservations"]

BLIND_FOR_S = 30.0  # an outage; shorter ones are answers that failed
T = TypeVar("T")


@dataclass
class LaunchObservations(LaunchState):
    """The present launch as this process has seen it. Times are monotonic seconds."""

    start: int = 1  # which start of the script inside the launch the rest is about
    known_as: tuple[str, ...] = ()  # user and name of the row that showed our token ...
    submitted_s: float | None = None  # ... and its time of submission
    partition: str = ""  # as Slurm showed it last
    seen_s: float | None = None  # when Slurm showed the job last
    looked_s: float | None = None  # when Slurm was asked last, be it in vain
    answered_s: float = 0.0  # for so long it has answered, since the attempt was opened or this process began
    outages: int = 0  # looks that Slurm did not answer
    blind: Stopwatch = field(default_factory=Stopwatch)
    silent: Stopwatches = field(default_factory=Stopwatches)  # node -> since when Slurm does not hear it
    # The families and the attempt that were looked at last, and its rows among them.
    own: tuple[object, Attempt, tuple[JobRow, ...]] | None = None
    launch_slots: Slots = field(default_factory=Slots)
    start_slots: Slots = field(default_factory=Slots)

    def per_launch(self, kind: type[T]) -> T:
        """The object of this kind that lives as long as the launch."""
        return self.launch_slots.of(kind)

    def per_start(self, kind: type[T]) -> T:
        """The object of this kind that lives as long as the present start of the script."""
        return self.start_slots.of(kind)

    def learn(self, family: Iterable[JobRow], token: str) -> None:
        """What a job that shows our token is known as, if it should show it no more."""
        for row in family:
            if bears(row.comment, token):
                self.known_as = (row.user, row.name)
                self.submitted_s = row.submit_time_s
                return

    def looked(self, *, seen: bool, mono_s: float) -> None:
        """A node may come back and go again while Slurm cannot be seen: its silence counts anew after a long outage (P6)."""
        if seen and self.looked_s is not None and not self.blind.runs:
            self.answered_s += mono_s - self.looked_s
        self.looked_s = mono_s
        if not seen:
            self.outages += 1
            self.blind.held_s(mono_s)
            return
        if self.blind.held_s(mono_s) >= BLIND_FOR_S:
            self.silent.clear()
        self.blind.stop()

    def close(self) -> None:
        """Let go of log files."""
        self.launch_slots.close()
        self.start_slots.close()

    def at_launch(self, attempt: int, launch: int) -> LaunchObservations:
        """What counts at another launch or attempt: nothing that was seen of the last one."""
        self.close()
        kept = {name: getattr(self, name) for name in ("seen_s", "looked_s", "partition")}
        return LaunchObservations(attempt, launch, **kept)

    def at_start(self, start: int) -> LaunchObservations:
        """What counts at a later start of the script in the same launch: nothing that the logs showed of the last one."""
        self.start_slots.close()
        kept = ("attempt", "launch", "known_as", "submitted_s", "partition", "seen_s", "node_facts", "node_stamp", "blind",
                "silent", "launch_slots")  # fmt: skip
        return LaunchObservations(start=start, **{name: getattr(self, name) for name in kept})
