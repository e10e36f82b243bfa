"""Whether a training diverged, since when, and which checkpoints that spoils. (pure)

A checkpoint can be whole and worthless because of the weights in it. Three signs show that, each only while
nothing takes it back:

- The losses in the log (or the gradients' norms) are not finite, and no healthy line came since: the
  divergence is behind the last healthy line. No single line is a sign. Weights with one NaN never give a
  finite loss again, but after a step that was skipped for too high a loss scale the losses go on as before.
- The trainer stops itself over such a value (`STOPS`), even if the log shows no loss.
- The trainer's own detector reports a jump of the loss (`JUMPS`), and the loss did not come down again: a
  loss is calm where it is near the lowest of this launch.

What is spoilt: a loss is printed before its step changes the weights, so those saved at the last healthy step
may be spoilt, and only older ones are trusted. A detector reports a jump late, by a mean over many steps, so
there `JUMP_LINES` more logged lines are not trusted. The checkpoint that the start resumed from is trusted as
soon as the start has printed a healthy loss, and otherwise as little as its children. Without steps in the
log, times decide, with `MARGIN_S`.

What follows: the run goes back to an older checkpoint. Training that is not reproducible to the bit, or one
bad device, gets past the place. A run that comes to the same step again is deterministic, and the policy
stops it.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ftrun.hooks.checkpoints.diverged import Divergence
from ftrun.slurm.records import dataclass

if TYPE_CHECKING:
    from ftrun.supervisor.model.types import Evidence


CALM_RATIO = 1.5  # of the lowest loss so far; losses below zero count as calm


class LossHealth(NamedTuple):
    """Where the losses are now. Steps are the highest printed by then, None where none was.

    `sick`: the last loss is not finite. `sick_step`: where that began. `healthy_step`: the last healthy line.
    `before_step`: the healthy line before that. `calm`: the last loss is near the lowest. `lines`: the number
    of healthy lines.
    """

    sick: bool = False
    sick_step: int | None = None
    healthy_step: int | None = None
    before_step: int | None = None
    calm: bool = True
    lines: int = 0


class LossSummary(NamedTuple):
    """What one log's losses have shown. `calm_lines`: how many were near the lowest so far."""

    calm_lines: int = 0
    health: LossHealth = LossHealth()


class LossReader:
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
    def seen(self) -> LossSummary:
        """Where the losses are now."""
        health = LossHealth(self._sick, self._sick_step, self._healthy, self._before, self._calm, self._lines)
        return LossSummary(self.calm_lines, health)

    def note(self, loss: float, step: int | None) -> None:
        """A line has this loss (not finite: the loss or a gradient is not) when `step` was the highest
        printed.
        """
        if loss - loss != 0:  # not finite; every step of every log runs this line
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

    def copy(self) -> LossReader:
        """An independent copy."""
        return copy.copy(self)


NOT_FINITE = "loss-not-finite"
STOPS = frozenset(
    {
        "loss-not-finite-stop",
        "loss-not-finite-returned",
        "loss-scale-minimum",
        "megatron-unexpected-result",
        "megatron-grad-norm",
        "jax-nan",
        "torch-nan-detected",
    }
)
JUMPS = frozenset({"loss-spike"})
JUMP_LINES = 10
MARGIN_S = {"stop": 300.0, "jump": 1800.0}
"""Where only times are known: how long before the first sign a checkpoint must have been written."""


@dataclass(frozen=True, slots=True)
class DivergenceSign:
    """The first sign that nothing took back. `kind`: "stop" (not finite) or "jump"; steps as in `Health`;
    `at_s` in Unix seconds.
    """

    signature: str
    kind: str
    step: int | None
    healthy_step: int | None
    line_steps: int  # between two lines of the log
    at_s: float | None
    text: str


def find_divergence(evidence: Sequence[Evidence], health: LossHealth) -> DivergenceSign | None:
    """The sign of divergence in one start's log; None where its training was healthy to the end, as far as
    the log shows.
    """
    between = 1
    if health.healthy_step is not None and health.before_step is not None:
        between = max(1, health.healthy_step - health.before_step)
    jumps = [one for one in evidence if one.signature in JUMPS and not one.calm_after]
    stops = [one for one in evidence if one.signature in STOPS and not one.progress_after]
    if health.sick:
        said = [one for one in evidence if one.signature == NOT_FINITE and not one.calm_after]
        first = next(iter(said or stops), None)
        stop = _sign(first, "stop", health.sick_step, health, between)
    elif stops:
        stop = _sign(stops[0], "stop", stops[0].step, health, between)
    else:
        stop = None
    gone_on = health.lines > 0 and health.calm
    if (
        not jumps
        or (stop is None and gone_on)
        or (stop is None and jumps[0].progress_after and not health.lines)
    ):
        return stop
    return _sign(jumps[0], "jump", jumps[0].step, health, between)


def _sign(
    first: Evidence | None, kind: str, step: int | None, health: LossHealth, between: int
) -> DivergenceSign:
    return DivergenceSign(
        first.signature if first is not None else NOT_FINITE,
        kind,
        step,
        health.healthy_step,
        between,
        first.at_s if first is not None else None,
        first.text if first is not None else "",
    )


def poison_of(
    found: DivergenceSign,
    *,
    name: str,
    resumed_step: int | None,
    now_s: float,
    disk_s: float,
    youngest_s: float | None,
) -> Divergence:
    """Which of the run's checkpoints the divergence spoils. `name`: of the start. `resumed_step`: of the
    checkpoint that it resumed from.

    Checkpoints are written on other hosts than this one, and so is the file system's clock; so their times
    are only compared with each other. `now_s` is the time by the clock of `found.at_s`, `disk_s` the same
    moment by the file system's, `youngest_s` when the youngest checkpoint was written (None = there is none).
    """
    step = found.healthy_step if found.kind == "stop" else found.step
    if found.kind == "jump" and step is not None:
        step = max(0, step - JUMP_LINES * found.line_steps)
    elif step is not None and resumed_step is not None:
        step = max(step, resumed_step + 1)
    elif step is None:
        step = min((one for one in (found.step, resumed_step) if one is not None), default=None)
    ago_s = 0.0 if found.at_s is None else max(0.0, now_s - found.at_s)
    return Divergence(
        name, step, disk_s - ago_s - MARGIN_S[found.kind], disk_s if youngest_s is None else youngest_s
    )


def describe_divergence(found: DivergenceSign | None) -> str:
    """The sign in a few words; "" for none."""
    if found is None:
        return ""
    what = "the training diverged" if found.kind == "stop" else "the loss jumped and stayed high"
    return what + (f" at step {found.step}" if found.step is not None else "")


def divergence_data(found: DivergenceSign, spoilt: Divergence) -> dict[str, Any]:
    """The divergence as the journal records it."""
    bound = "what was written in the last minutes" if spoilt.step is None else f"step {spoilt.step} on"
    why = {
        "stop": "the weights of the last healthy line may be spoilt already",
        "jump": f"a jump is reported late: {JUMP_LINES} logged lines before it are not trusted",
    }[found.kind]
    return {
        "name": spoilt.name,
        "step": found.step,
        "before_step": spoilt.step,
        "since_s": spoilt.since_s,
        "until_s": spoilt.until_s,
        "signature": found.signature,
        "rule": f"not loaded: {bound} ({why})",
        "text": found.text[:400],
    }
