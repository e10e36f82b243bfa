"""Formulas: the best checkpoint interval, the share of useful time, confidence intervals. (pure)

Young, "A first order approximation to the optimum checkpoint interval", CACM 17 (1974); Daly, "A higher
order estimate of the optimum checkpoint interval for restart dumps", FGCS 22 (2006). Both assume memoryless
faults and a checkpoint for which the program stands still. All times are seconds; an interval is the useful
work between two checkpoints, without their own time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

_T975 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
"""Student's t for 95 %, two-sided, by degrees of freedom from 1."""

_HALVINGS = 80


def young_s(cost_s: float, between_s: float) -> float:
    """The best interval to first order: a checkpoint of `cost_s`, a fault every `between_s` on average."""
    return math.sqrt(2.0 * cost_s * between_s)


def daly_s(cost_s: float, between_s: float) -> float:
    """Daly's best interval; `between_s` where a checkpoint costs twice as much or more."""
    if cost_s >= 2.0 * between_s:
        return between_s
    ratio = cost_s / (2.0 * between_s)
    return young_s(cost_s, between_s) * (1.0 + math.sqrt(ratio) / 3.0 + ratio / 9.0) - cost_s


def useful_share(interval_s: float, cost_s: float, between_s: float, restart_s: float) -> float:
    """The expected share of time in new useful steps, by Daly's complete model: restarts may fail, too."""
    if math.isinf(between_s):
        return interval_s / (interval_s + cost_s)
    cycle, again = (interval_s + cost_s) / between_s, restart_s / between_s
    if cycle > 500.0 or again > 500.0:
        return 0.0
    return interval_s / between_s * math.exp(-again) / math.expm1(cycle)


def mean_interval(values: Sequence[float]) -> tuple[float, float]:
    """(mean, half the width of its 95 % interval by Student's t); the width of a single value is infinite."""
    mean = sum(values) / len(values)
    free = len(values) - 1
    if not free:
        return mean, math.inf
    spread = math.sqrt(sum((value - mean) ** 2 for value in values) / free)
    quantile = _T975[free - 1] if free <= len(_T975) else 1.96 + 2.5 / free
    return mean, quantile * spread / math.sqrt(len(values))


def rate_interval(events: int, exposure: float) -> tuple[float, float]:
    """The exact 95 % interval (Garwood) of a rate: this many events in an exposure, such as node-hours.

    Both bounds are per unit of the exposure. With no event at all: from 0 to 3.69 events in that exposure.
    """
    if exposure <= 0.0:
        return 0.0, math.inf
    top = 2.0 * events + 20.0
    least = _root(lambda mean: 1.0 - _at_most(events - 1, mean) - 0.025, 0.0, top) if events else 0.0
    most = _root(lambda mean: 0.025 - _at_most(events, mean), 0.0, top)
    return least / exposure, most / exposure


def _at_most(events: int, mean: float) -> float:
    """The chance of at most this many events where `mean` are expected."""
    if mean <= 0.0:
        return 1.0
    return min(1.0, sum(math.exp(k * math.log(mean) - mean - math.lgamma(k + 1)) for k in range(events + 1)))


def _root(rising: Callable[[float], float], low: float, high: float) -> float:
    for _ in range(_HALVINGS):
        middle = (low + high) / 2.0
        low, high = (low, middle) if rising(middle) >= 0.0 else (middle, high)
    return (low + high) / 2.0
