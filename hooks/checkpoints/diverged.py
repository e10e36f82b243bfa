"""Checkpoints that a diverged training wrote: which ones a later start must not load. (pure)

A training that prints NaN has gone wrong some time before it says so, and whatever it saved from then on is as bad as it is,
however whole. One `Poison` is the span of one such training: checkpoints from a step on, or where steps are not known from a time on, that
were written before the training was over. One that is written anew later, by a start that went back and came past that step again, is good.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Optional

POISONED = "poisoned"
"""The state of a checkpoint that is complete, and that a diverged training wrote (for a run only)."""
UNKNOWN = "-"


class Divergence(NamedTuple):
    """One divergence: its name (a file name), the first step and the first time that are not trusted (Unix seconds; None where not known),
    and when the training that diverged was over."""

    name: str
    step: Optional[int]
    since_s: Optional[float]
    until_s: float


def why_diverged(step: Optional[int], written_s: float, poisons: Iterable[Divergence]) -> str:
    """Why a checkpoint of this step, written then, is not to be trusted; "" where it is."""
    for one in poisons:
        if written_s > one.until_s:
            continue
        if step is not None and one.step is not None:
            if step >= one.step:
                return f"step {step} is not older than the training's divergence (trusted before step {one.step})"
        elif one.since_s is None or written_s >= one.since_s:
            return "it was written when the training had diverged, or shortly before"
    return ""


def to_lines(poisons: Iterable[Divergence]) -> str:
    """As a job is told: a line `NAME STEP SINCE UNTIL` for each, times in whole seconds, `-` for what is not known."""
    return "\n".join(
        f"{one.name} {UNKNOWN if one.step is None else one.step} "
        f"{UNKNOWN if one.since_s is None else int(one.since_s)} {int(one.until_s) + 1}"
        for one in poisons
    )


def from_lines(text: str) -> tuple[Divergence, ...]:
    """What `lines` wrote. Raises ValueError."""
    found = []
    for line in text.splitlines():
        name, step, since, until = line.split(" ")
        known = (None if step == UNKNOWN else int(step), None if since == UNKNOWN else float(since))
        found.append(Divergence(name, *known, float(until)))
    return tuple(found)
