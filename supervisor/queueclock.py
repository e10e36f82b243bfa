"""How long a job has waited in the queue, counted so that no two clocks are compared. (pure)

How it thinks. Time passes between two looks at which Slurm answered, by the supervisor's own monotonic clock: what passes while Slurm is silent
or while no supervisor lives is nobody's waiting. The sum is noted in the journal now and then, seldom where it is long, and whoever
comes next goes on from the last note: a restart costs a minute, or a twentieth of a long wait.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["NOTED_EVERY_S", "STEP_MAX_S", "QueueClock"]

NOTED_EVERY_S = 60.0
NOTED_SHARE = 0.05
STEP_MAX_S = 300.0
"""Between two looks that follow each other no more counts: whoever was held up longer has not looked."""


@dataclass(slots=True)
class QueueClock:
    """The wait of one job as one supervisor counts it; seconds."""

    waited_s: float = 0.0
    noted_s: float = 0.0
    looked_s: float | None = (
        None  # by the monotonic clock, at the look before; None = Slurm was silent since, or there was none
    )

    def look(self, noted_s: float, mono_s: float) -> float:
        """A look at which Slurm showed the job in the queue; how long it has waited. `noted_s` is what the journal says."""
        self.waited_s = max(self.waited_s, noted_s)
        self.noted_s = noted_s
        if self.looked_s is not None:
            self.waited_s += min(max(0.0, mono_s - self.looked_s), STEP_MAX_S)
        self.looked_s = mono_s
        return self.waited_s

    def stop(self) -> None:
        """Slurm does not answer."""
        self.looked_s = None

    @property
    def due(self) -> bool:
        """The sum is to be noted."""
        return self.waited_s - self.noted_s >= max(NOTED_EVERY_S, NOTED_SHARE * self.waited_s)
