"""How the time of one side was spent: in steps that were new and kept, in steps made again, in standing still. (pure)

How it thinks. The trainer notes each step with its time. What counts is how far the training is in the end: steps that a newer start had to make
again count once, and what is in nobody's memory and in no checkpoint at the end does not count at all. A step is
worth the usual time of a step, the median over all sides, so that a side gains nothing by being slow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any

__all__ = ["Spent", "alive_until_s", "lost", "spent", "usual_step_s"]

Lines = Sequence[Mapping[str, Any]]

QUIET_S = 60.0  # a side that made no step for so long at the end has nothing in memory that anybody will use


@dataclass(frozen=True, slots=True)
class Spent:
    """Seconds of one side. `kept`: steps that are there in the end; `again`: steps that were trained more than once, or for nothing."""

    wall_s: float
    kept: int
    again: int
    starts: int
    usual_step_s: float
    last_step_s: float | None  # when the last step was made, after the beginning

    @property
    def useful(self) -> float:
        """The share of the time that went into steps which were new and are kept; 0 to 1."""
        return min(1.0, self.kept * self.usual_step_s / self.wall_s) if self.wall_s > 0 else 0.0

    @property
    def repeated(self) -> float:
        """The share that went into steps made again."""
        return (
            min(1.0 - self.useful, self.again * self.usual_step_s / self.wall_s) if self.wall_s > 0 else 0.0
        )

    @property
    def idle(self) -> float:
        """The share in which no step was made."""
        return 1.0 - self.useful - self.repeated


def usual_step_s(books: Sequence[Lines]) -> float:
    """The median time between two steps of one start, over all sides; 0 where there are none."""
    took = [
        float(now["at"]) - float(before["at"])
        for steps in books
        for before, now in pairwise(steps)
        if int(now["step"]) == int(before["step"]) + 1 and now["job"] == before["job"]
    ]
    return median(took) if took else 0.0


def spent(
    steps: Lines, saves: Lines, ranks: Lines, *, began_s: float, ended_s: float, step_s: float
) -> Spent:
    """What a side made of the time from `began_s` to `ended_s` (Unix seconds)."""
    made = [line for line in steps if began_s <= float(line["at"]) <= ended_s]
    last = made[-1] if made else None
    if last is not None and ended_s - float(last["at"]) <= QUIET_S:
        kept = int(last["step"])
    else:
        kept = max((int(line["step"]) for line in saves if float(line["at"]) <= ended_s), default=0)
    starts = {(line["job"], line["start"]) for line in ranks if float(line["at"]) <= ended_s}
    return Spent(
        wall_s=ended_s - began_s,
        kept=kept,
        again=max(0, len(made) - kept),
        starts=len(starts),
        usual_step_s=step_s,
        last_step_s=round(float(last["at"]) - began_s, 1) if last is not None else None,
    )


def lost(steps: Lines, struck_s: Sequence[float], *, ended_s: float, step_s: float) -> list[float]:
    """For each blow (Unix seconds, in order): how many seconds until the next blow did not go into steps that had never been made before."""
    found: list[float] = []
    for struck, until in zip(struck_s, [*struck_s[1:], ended_s], strict=True):
        before = max((int(line["step"]) for line in steps if float(line["at"]) <= struck), default=0)
        after = max((int(line["step"]) for line in steps if float(line["at"]) <= until), default=0)
        found.append(round(max(0.0, until - struck - (after - before) * step_s), 1))
    return found


def alive_until_s(steps: Lines, *, began_s: float, ended_s: float) -> float | None:
    """When a side stood still for good, in seconds after the beginning; None where it was alive in the end."""
    last = max((float(line["at"]) for line in steps if float(line["at"]) <= ended_s), default=began_s)
    return None if ended_s - last <= QUIET_S else round(last - began_s, 1)
