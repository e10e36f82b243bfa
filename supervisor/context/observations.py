"""What one supervisor process knows of the present launch beyond the journal. (pure)

Everything here can be found out again; losing it only makes ftrun more patient. State that a single feature
needs lives in a slot that this feature declares: `per_launch` for a launch, `per_start` for one start of the
script inside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from ftrun.slurm.client.cluster import JobRow
from ftrun.slurm.client.parse import has_token
from ftrun.supervisor.diagnosis.launch_state import LaunchState
from ftrun.supervisor.model.run import Attempt
from ftrun.supervisor.model.timers import Intervals, Stopwatch, Stopwatches

BLIND_FOR_S = 30.0  # an outage; a shorter gap is a failed query
T = TypeVar("T")


class Slots:
    """One object of each class, made when it is first asked for.

    A feature declares the class. No other feature names it, so none can touch what is in it, and the holder
    of the slots knows no feature.
    """

    def __init__(self) -> None:
        self._made: dict[type, Any] = {}

    def of(self, kind: type[T], make: Callable[[], T] | None = None) -> T:
        """The object of this class; made by `make` where the class asks for arguments."""
        if kind not in self._made:
            self._made[kind] = kind() if make is None else make()
        return cast("T", self._made[kind])

    def close(self) -> None:
        """Close what can be closed."""
        for made in self._made.values():
            if hasattr(made, "close"):
                made.close()


@dataclass
class LaunchObservations(LaunchState):
    """The present launch as this process has seen it. Times are monotonic seconds."""

    start: int = 1  # the start of the script inside the launch that the rest describes
    known_as: tuple[str, ...] = ()  # user and name of the row that showed our token
    submitted_s: float | None = None  # time of submission of that row
    partition: str = ""  # as Slurm last showed it
    seen_s: float | None = None  # when Slurm last showed the job
    looked_s: float | None = None  # when the loop last asked Slurm, answered or not
    answered_s: float = 0.0  # how long Slurm has answered since the attempt was opened or this process began
    outages: int = 0  # snapshots for which Slurm did not answer
    blind: Stopwatch = field(default_factory=Stopwatch)
    silent: Stopwatches = field(
        default_factory=Stopwatches
    )  # node -> since when it does not respond to Slurm
    # Cache of `RunContext.rows`: the families and the attempt of the last call, and its rows.
    own: tuple[object, Attempt, tuple[JobRow, ...]] | None = None
    # Of this launch, each by its name, or by (name, key): since when a condition holds; when a thing was done last.
    stopwatches: Stopwatches = field(default_factory=Stopwatches)
    intervals: Intervals = field(default_factory=Intervals)
    launch_slots: Slots = field(default_factory=Slots)
    start_slots: Slots = field(default_factory=Slots)

    def per_launch(self, kind: type[T]) -> T:
        """The object of this class that lives as long as the launch."""
        return self.launch_slots.of(kind)

    def per_start(self, kind: type[T], make: Callable[[], T] | None = None) -> T:
        """The object of this class that lives as long as the present start of the script."""
        return self.start_slots.of(kind, make)

    def learn(self, family: Iterable[JobRow], token: str) -> None:
        """Remember how Slurm shows a job with our token, in case it no longer shows the token later."""
        for row in family:
            if has_token(row.comment, token):
                self.known_as = (row.user, row.name)
                self.submitted_s = row.submit_time_s
                return

    def looked(self, *, seen: bool, mono_s: float) -> None:
        """Account for one poll of Slurm. After a long outage the silence of nodes is measured anew (P6).

        A node may come back and fail again while Slurm cannot be seen.
        """
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
        """Close the log files."""
        self.launch_slots.close()
        self.start_slots.close()

    def at_launch(self, attempt: int, launch: int) -> LaunchObservations:
        """The observations for another launch or attempt: nothing that was seen of the last one counts."""
        self.close()
        kept = {name: getattr(self, name) for name in ("seen_s", "looked_s", "partition")}
        return LaunchObservations(attempt, launch, **kept)

    def at_start(self, start: int) -> LaunchObservations:
        """The observations for a later start in the same launch: nothing from the earlier logs counts."""
        self.start_slots.close()
        kept = ("attempt", "launch", "known_as", "submitted_s", "partition", "seen_s", "node_facts", "node_stamp", "blind",
                "silent", "stopwatches", "intervals", "launch_slots")  # fmt: skip
        return LaunchObservations(start=start, **{name: getattr(self, name) for name in kept})
