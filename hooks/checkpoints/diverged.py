"""Which checkpoints a later start must not load because a diverged training wrote them. (pure)

A training that prints NaN diverged some time before, and what it saved since then is useless, however
complete. A `Divergence` covers the checkpoints from a step on (from a time on if steps are unknown) until the
training was over. A checkpoint that a later start writes at that step is good.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Optional

POISONED = "poisoned"
"""The state of a checkpoint that is complete, and that a diverged training wrote (for a run only)."""
UNKNOWN = "-"


class Divergence(NamedTuple):
    """One divergence: its name (a file name), the first step and time that are not trusted (Unix seconds;
    None: unknown), and when the diverged training was over.
    """

    name: str
    step: Optional[int]
    since_s: Optional[float]
    until_s: float


def why_diverged(step: Optional[int], written_s: float, poisons: Iterable[Divergence]) -> str:
    """Why a checkpoint of this step, written then, is not trusted; "" if it is."""
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
    """The form for jobs: a line `NAME STEP SINCE UNTIL` each, times in whole seconds, `-` for unknown."""
    return "\n".join(
        f"{one.name} {UNKNOWN if one.step is None else one.step} "
        f"{UNKNOWN if one.since_s is None else int(one.since_s)} {int(one.until_s) + 1}"
        for one in poisons
    )


def from_lines(text: str) -> tuple[Divergence, ...]:
    """The inverse of `to_lines`. Raises ValueError."""
    found = []
    for line in text.splitlines():
        name, step, since, until = line.split(" ")
        known = (None if step == UNKNOWN else int(step), None if since == UNKNOWN else float(since))
        found.append(Divergence(name, *known, float(until)))
    return tuple(found)
