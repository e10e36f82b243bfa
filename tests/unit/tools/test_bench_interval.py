"""Laws of the bench's doubt: an interval that holds the median, narrower with more samples, and the same for the same samples. (pure)"""

from __future__ import annotations

import random
import statistics

from tests.bench.bench_healthy import interval


def _samples(count: int) -> list[float]:
    lots = random.Random(7)
    return [lots.gauss(1.0, 0.1) for _ in range(count)]


def test_the_interval_holds_the_median() -> None:
    """And the value that the samples were drawn around."""
    samples = _samples(100)
    low, high = interval(samples, 300)

    assert low <= statistics.median(samples) <= high
    assert low < 1.0 < high


def test_more_samples_leave_less_doubt() -> None:
    """A hundred times as many make it about ten times narrower."""
    few, many = interval(_samples(20), 300), interval(_samples(2000), 300)

    assert many[1] - many[0] < (few[1] - few[0]) / 3


def test_the_same_samples_tell_the_same() -> None:
    """A figure that is computed again is the same figure."""
    assert interval(_samples(50), 200) == interval(_samples(50), 200)
