"""What the losses in a log say of the health of a training. (pure)

How it thinks. Weights that hold one NaN never give a finite loss again, and a step that was skipped for a loss scale too high is followed by
losses as before. So no single line is a sign, but a line after which no healthy one came: since then the training is sick. A line is healthy where its loss is a number and
nothing else in it is not. A loss that jumped is another thing, since it may come down: a loss is calm where it is near the lowest of this launch.
"""

from __future__ import annotations

import copy
import math
from typing import NamedTuple

__all__ = ["CALM_RATIO", "Health", "Losses", "Seen"]

CALM_RATIO = 1.5  # of the lowest loss so far; losses below zero have no such measure, and are calm


class Health(NamedTuple):
    """Where the losses are now. Steps are the highest printed by then, None where none was.

    `sick`: the last loss is none; `sick_step`: where that began; `healthy_step`: the last healthy line; `before_step`: the healthy line before that
    one; `calm`: the last loss is near the lowest; `lines`: how many healthy lines there were.
    """

    sick: bool = False
    sick_step: int | None = None
    healthy_step: int | None = None
    before_step: int | None = None
    calm: bool = True
    lines: int = 0


class Seen(NamedTuple):
    """What one log's losses have shown. `calm_lines`: how many of them were near the lowest so far."""

    calm_lines: int = 0
    health: Health = Health()


class Losses:
    """Reads one log's losses, in order."""

    __slots__ = ("_before", "_calm", "_healthy", "_lines", "_lowest", "_sick", "_sick_step", "calm_lines")

    def __init__(self) -> None:
        self.calm_lines = 0
        self._lowest = math.inf
        self._calm, self._lines = True, 0
        self._sick = False
        self._sick_step: int | None = None
        self._healthy: int | None = None
        self._before: int | None = None

    @property
    def seen(self) -> Seen:
        """Where the losses are now."""
        health = Health(self._sick, self._sick_step, self._healthy, self._before, self._calm, self._lines)
        return Seen(self.calm_lines, health)

    def note(self, loss: float, step: int | None) -> None:
        """A line has this loss (not finite: the line says so of the loss or of a gradient) when `step` was the highest printed."""
        if loss - loss != 0:  # not finite; every step of every log comes by here
            if not self._sick:
                self._sick, self._sick_step = True, step
            return
        self._lowest = min(self._lowest, loss)
        self._calm = loss <= CALM_RATIO * self._lowest or self._lowest <= 0
        self.calm_lines += self._calm
        if step != self._healthy:
            self._before, self._healthy = self._healthy, step
        self._sick, self._sick_step = False, None
        self._lines += 1

    def copy(self) -> Losses:
        """One that goes its own way from here."""
        return copy.copy(self)
