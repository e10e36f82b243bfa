"""What must hold at every moment of a soak, and how often it was looked at. (pure)"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from ftrun.supervisor.model.run import Run

__all__ = ["Book", "Sample", "bounded", "decisions", "forgotten", "innocent", "two_jobs"]

RSS_GROWTH_MAX_KIB = 30 << 10
FILES_GROWTH_MAX = 16
JOBS_FOR_S = 10.0  # a job that has found its attempt closed is gone by then


@dataclass(slots=True)
class Book:
    """Law -> how often it was looked at; and every breach, told once."""

    looks: dict[str, int] = field(default_factory=dict)
    breaches: dict[str, list[str]] = field(default_factory=dict)

    def note(self, law: str, breaches: Iterable[str]) -> list[str]:
        """One look at a law, and what was wrong; returns what had not been told before."""
        self.looks[law] = self.looks.get(law, 0) + 1
        told = self.breaches.setdefault(law, [])
        new = [breach for breach in breaches if breach not in told]
        told += new
        return new

    @property
    def violations(self) -> int:
        """How many breaches there were of all laws."""
        return sum(map(len, self.breaches.values()))


@dataclass(frozen=True, slots=True)
class Sample:
    """The supervisor at one moment: its resident memory and open files."""

    at_s: float
    rss_kib: int
    files: int


def bounded(samples: Sequence[Sample]) -> list[str]:
    """Memory and open files of the last tenth against the first tenth (each 5 samples at least)."""
    tenth = max(5, len(samples) // 10)
    if len(samples) < 2 * tenth:
        return []
    wrong = []
    for name, limit, values in (
        ("KiB resident", RSS_GROWTH_MAX_KIB, [one.rss_kib for one in samples]),
        ("open files", FILES_GROWTH_MAX, [one.files for one in samples]),
    ):
        first, last = median(values[:tenth]), median(values[-tenth:])
        if last - first > limit:
            wrong.append(f"the supervisor grew from {first:g} to {last:g} {name}")
    return wrong


def decisions(run: Run) -> dict[str, Any]:
    """What may never be forgotten or become another: which job an attempt was, what was decided about an incident."""
    jobs = {f"the job of attempt {one.number}": one.job for one in run.attempts if one.job}
    decided = {f"the decision on incident {one.id}": one.decision for one in run.incidents if one.decision}
    return {**jobs, **{key: dict(value) for key, value in decided.items()}}


def forgotten(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What was known once and is not any more, or is another thing."""
    return [
        f"{what} was {was!r}, is {now.get(what)!r}" for what, was in before.items() if now.get(what) != was
    ]


def innocent(reasons: Mapping[str, str], hurt: Iterable[str]) -> list[str]:
    """Nodes that bear a drain reason of ftrun's, and were never hurt."""
    known = set(hurt)
    return [
        f"{node} was never hurt: {reason}"
        for node, reason in reasons.items()
        if reason.startswith("ftrun:") and node not in known
    ]


def two_jobs(run: Run, running: Mapping[str, float]) -> list[str]:
    """Two attempts of a run whose jobs run at once. `running`: job -> for how many seconds it has been seen to run."""
    ours = [one.job for one in run.attempts if running.get(one.job, 0.0) > JOBS_FOR_S]
    return [f"jobs {', '.join(ours)} run at once"] if len(set(ours)) > 1 else []
