"""Who is steadily slower than the others, and what is done about it. (pure)"""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from ftrun.supervisor.telemetry import straggler
from ftrun.supervisor.telemetry.straggler import History, Sample, Straggler, StragglerAction

STEPS = 10


class Job:
    """Nodes of two ranks each that make ten steps of a second in each window."""

    def __init__(self, nodes: int) -> None:
        self.own_s = [0.0] * (2 * nodes)
        self.history, self.window = History(), 0

    def go(
        self, windows: int, slow: Mapping[int, float] | None = None, steps: int = STEPS
    ) -> tuple[Straggler, ...]:
        """So many windows; `slow`: rank -> how many times as long it takes."""
        for _ in range(windows):
            self.window += 1
            for rank in range(len(self.own_s)):
                wobble = 1.0 + 0.01 * ((rank + self.window) % 3 - 1)
                self.own_s[rank] += steps * wobble * (slow or {}).get(rank, 1.0)
            samples = [Sample(r, f"n{r // 2}", one, self.window * steps) for r, one in enumerate(self.own_s)]
            self.history = straggler.observe(self.history, samples, self.window * straggler.WINDOW_S)
        return straggler.find_stragglers(self.history)


def test_equals_are_no_stragglers() -> None:
    """Small differences, however steady, name nobody."""
    assert () == Job(8).go(60)


@pytest.mark.parametrize("rank", [0, 5])
def test_who_becomes_slow_is_found_after_eight_windows(rank: int) -> None:
    """A rank that takes half as long again is told with its node, rank 0 as any other, and not sooner."""
    job = Job(4)
    job.go(20)
    assert () == job.go(7, {rank: 1.5})
    found = job.go(1, {rank: 1.5})

    assert [(f"n{rank // 2}", rank, False)] == [(one.node, one.rank, one.since_start) for one in found]
    assert found[0].ratio == pytest.approx(1.5, rel=0.05)


def test_less_than_the_ratio_is_nothing() -> None:
    """Below straggler-ratio nobody is slow."""
    job = Job(4)
    job.go(20)

    assert () == job.go(40, {3: 1.2})


def test_a_bad_minute_is_nothing() -> None:
    """One slow window in three makes no straggler."""
    job = Job(4)
    for window in range(60):
        assert () == job.go(1, {3: 4.0} if window % 3 == 0 else None)


def test_who_is_well_again_is_cleared_with_patience() -> None:
    """It stays a straggler until it was slow in three of ten windows or fewer."""
    job = Job(4)
    job.go(20)
    job.go(10, {3: 2.0})
    assert job.go(6)

    assert () == job.go(1)


def test_who_was_slow_from_the_start_may_be_so_by_design() -> None:
    """It is told as such, and costs its node nothing."""
    found = Job(8).go(30, {15: 1.6})

    assert [True] == [one.since_start for one in found]
    assert [StragglerAction.WARN] == [one.act for one in straggler.advise(found, "swap", spares=3)]


def test_half_of_all_is_no_outlier() -> None:
    """Where half of the ranks are slow, nobody can say which half is well."""
    job = Job(4)
    job.go(20)

    assert () == job.go(20, {0: 2.0, 1: 2.0, 2: 2.0, 3: 2.0})


def test_many_nodes_at_once_are_the_shape_of_the_job() -> None:
    """Three slow nodes of eight are no stragglers."""
    job = Job(8)
    job.go(20)

    assert () == job.go(20, {0: 2.0, 2: 2.0, 4: 2.0})


def test_a_restarted_rank_begins_a_new_window() -> None:
    """Times that fall are those of another process, and no window is judged by them."""
    job = Job(4)
    job.go(20)
    job.go(7, {3: 2.0})
    job.own_s = [0.0] * 8
    before = job.history.windows
    samples = [Sample(rank, f"n{rank // 2}", 1.0, 1) for rank in range(8)]
    after = straggler.observe(job.history, samples, 10_000.0)

    assert before == after.windows
    assert dict(after.base) == {one.rank: one for one in samples}


def test_a_window_without_steps_judges_nobody() -> None:
    """During an evaluation nobody makes steps, and the window goes on."""
    job = Job(4)
    job.go(20)
    before = job.history.windows
    job.go(20, {3: 9.0}, steps=0)

    assert before == job.history.windows


@pytest.mark.parametrize(
    ("setting", "spares", "act"),
    [
        ("warn", 2, StragglerAction.EXCLUDE),
        ("swap", 2, StragglerAction.SWAP),
        ("swap", 0, StragglerAction.EXCLUDE),
    ],
)
def test_what_is_done_is_the_settings(setting: str, spares: int, act: StragglerAction) -> None:
    """tell avoids it at the next start, swap takes a spare where there is one, and says so where there is none."""
    advice = straggler.advise([Straggler("n3", 6, 1.7, 9, since_start=False)], setting, spares=spares)

    assert [(act, "n3", 1.7)] == [(one.act, one.node, one.ratio) for one in advice]
    assert "rank 6 on n3 takes 1.70 times" in advice[0].reason
    assert (setting == "swap" and not spares) == ("no spare" in advice[0].reason)


def test_never_is_never() -> None:
    """straggler=never does nothing about anybody."""
    slow = [Straggler("n3", 6, 1.7, 9, since_start=False)]

    assert () == straggler.advise(slow, "never", spares=1, degraded={"n4": "a lane of its link is down"})


def test_a_degraded_node_is_dealt_with_alike_and_a_spare_is_given_once() -> None:
    """What checks call degraded is as a straggler; the last spare goes to the straggler."""
    slow = [Straggler("n3", 6, 1.7, 9, since_start=False)]
    advice = straggler.advise(
        slow, "swap", spares=1, degraded={"n4": "a lane of its link is down", "n3": "hot"}
    )

    assert [("n3", StragglerAction.SWAP), ("n4", StragglerAction.EXCLUDE)] == [
        (one.node, one.act) for one in advice
    ]
    assert "n4 is degraded: a lane of its link is down" in advice[1].reason


def test_a_window_is_as_long_as_it_is_set_to() -> None:
    """With straggler-window=6s ten minutes of the rule are one: eight slow windows are told, and no window ends sooner."""
    history, late = History(), 0.0
    for tick in range(1, 170):
        late += tick > 120
        own_s = [float(tick), float(tick), tick + late, float(tick)]
        samples = [Sample(rank, f"n{rank}", one, 2 * tick) for rank, one in enumerate(own_s)]
        history = straggler.observe(history, samples, float(tick), window_s=6.0)

        assert bool(straggler.find_stragglers(history)) == (tick >= 169)

    assert 28 == history.windows
