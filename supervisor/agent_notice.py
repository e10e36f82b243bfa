"""A notice of preemption that nobody but the script's own log tells of. (I/O)

How it thinks. It is the supervisor that sees in Slurm's answers that a job is preempted, and asks its script to save. But it may look seldom, or be gone,
and a time of grace is short. Where Slurm sends TERM to the tasks, slurmstepd says in the log that a step was cancelled; a start that lives on after that is
worth a question. So, when the supervisor has had the time to ask and did not, Slurm is asked once, and the script is asked from here. Slurm ends the job.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ftrun.slurm.client.errors import SlurmError
from ftrun.supervisor.agent_desk import Desk, say
from ftrun.supervisor.agent_eye import Eye
from ftrun.supervisor.agent_stop import Boundary
from ftrun.supervisor.leaving import STEPS_CANCELLED, Occasion

__all__ = ["Notice"]

SUPERVISORS_S = 6.0  # so long the supervisor, which looks every few seconds, has to ask first


class Notice:
    """Looks after one start."""

    def __init__(self, desk: Desk, eye: Eye, settings: Mapping[str, Any]) -> None:
        self._desk, self._eye, self._settings = desk, eye, settings
        self._seen_s: float | None = None
        self._over = False
        self._boundary: Boundary | None = None

    def look(self) -> None:
        """Ask the script once, where Slurm wants its nodes and nobody has asked. Raises OSError (journal), GivenUp."""
        if self._boundary is not None:
            if self._boundary.look().end:
                self._boundary = None
            return
        report, mono_s = self._eye.memory.report, self._desk.clock.mono_s()
        if self._over or report is None:
            return
        if self._seen_s is None:
            if any(one.signature == STEPS_CANCELLED for one in report.evidence):
                self._seen_s = mono_s
        elif mono_s - self._seen_s >= SUPERVISORS_S:
            self._over = True
            if self._preempted() and not self._asked():
                why = "Slurm wants the nodes for another job"
                self._boundary = Boundary(self._desk, self._eye, self._settings, Occasion.PREEMPT, why)

    def _preempted(self) -> bool:
        job = self._desk.where.job
        try:
            row = self._desk.cluster.jobs((job,)).get(job)
            details = self._desk.cluster.details(job) if row is not None and row.is_cut_short else None
        except SlurmError as error:
            say(f"a step was cancelled, and Slurm does not say why: {error.message}")
            return False
        return details is not None and details.is_preempted  # else its end is nearer for another reason

    def _asked(self) -> bool:
        told, where = self._desk.book.run().leaving, self._desk.where
        place = (told.get("occasion"), told.get("attempt"), told.get("launch"))
        return place == (Occasion.PREEMPT.value, where.attempt, where.launch)

    def close(self) -> None:
        """Nothing is asked for any more."""
        if self._boundary is not None:
            self._boundary.close()
            self._boundary = None
