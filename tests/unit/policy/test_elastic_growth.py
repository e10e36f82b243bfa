"""Laws of growing: only where it pays, never beyond the sizes, and never so often that a cluster whose nodes come and go makes the run thrash."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import pytest

from ftrun.supervisor.config.node_counts import Sizes, parse_sizes
from ftrun.supervisor.model.events import fold
from ftrun.supervisor.model.run import Attempt, Launch, Run, StartNote
from ftrun.supervisor.model.states import State
from ftrun.supervisor.policy import elastic, estimates
from ftrun.supervisor.policy.elastic import GrowthInput, ResizeHistory
from tests.unit.cases import F, incident

HOUR, DAY = 3600.0, 86_400.0
QUIET = ResizeHistory(DAY)
NODES = tuple(f"n{number:02d}" for number in range(64))


def scene(size: int = 3, sizes: str = "2-4", **own: Any) -> GrowthInput:
    """A run on three of four nodes, one idle node elsewhere, and all the time in the world."""
    known = parse_sizes(sizes, "")
    assert known is not None
    return replace(GrowthInput(size, known, QUIET, idle=1, between_s=10 * DAY), **own)


def test_it_grows_where_the_nodes_that_come_bring_more_than_the_restart_costs() -> None:
    """To the largest size that can be had, with the missing nodes of another job, and it says what is gained for what."""
    found = elastic.decide_growth(scene())

    assert (found.size, found.missing) == (4, 1)
    assert "1 more node for" in found.reason
    assert "the restart costs" in found.reason


@pytest.mark.parametrize(
    ("own", "word"),
    [
        ({"size": 4}, "full"),
        ({"wanted": False}, "never"),
        ({"busy": "the run is being stopped"}, "busy"),
        ({"saved": False}, "unsaved"),
        ({"past": ResizeHistory(100.0)}, "stays"),
        ({"past": ResizeHistory(3000.0, in_vain=1)}, "stays"),
        ({"idle": 0}, "nodes"),
        ({"idle": None}, "unknown"),
        ({"alone": "a fabric with a key per job"}, "alone"),
        ({"others_wait": True}, "others"),
        ({"past": ResizeHistory(DAY, 0, 1, 100.0)}, "failed"),
        ({"next_save_s": HOUR}, "far"),
        ({"left_s": 30.0}, "limit"),
        ({"left_s": 300.0}, "price"),
        ({"between_s": 60.0}, "price"),
        ({"restart_s": 10 * DAY}, "price"),
    ],
)
def test_whatever_speaks_against_it_is_told(own: dict[str, Any], word: str) -> None:
    """One reason at a time, in words, and a name by which the same reason is known again."""
    found = elastic.decide_growth(scene(**own))

    assert (found.size, found.word) == (0, word)
    assert found.reason
    assert "\n" not in found.reason


def test_free_nodes_of_the_allocation_are_taken_whatever_others_do() -> None:
    """They are the run's: no other job is asked, none waits for them, and a failed try says nothing of them."""
    for own in (
        {"others_wait": True},
        {"alone": "no other job"},
        {"idle": None},
        {"past": ResizeHistory(DAY, 0, 3, 1.0)},
    ):
        found = elastic.decide_growth(scene(free=1, **own))
        assert (found.size, found.missing) == (4, 0)


def test_a_unit_is_made_of_what_is_free_and_what_is_idle() -> None:
    """The healthy neighbour of a lost node and one node elsewhere are a unit of two again; one of them alone is none."""
    assert elastic.decide_growth(scene(2, "2-4:2", free=1, idle=1)).missing == 1
    assert elastic.decide_growth(scene(2, "2-4:2", free=2, idle=0)).missing == 0
    assert elastic.decide_growth(scene(2, "2-4:2", free=1, idle=0)).word == "nodes"


def test_where_the_larger_size_does_not_pay_the_free_nodes_still_may() -> None:
    """Nodes elsewhere would stand idle until the checkpoint; those of the allocation do so anyway."""
    found = elastic.decide_growth(scene(2, "2-4", free=1, idle=1, next_save_s=HOUR))

    assert (found.size, found.missing) == (3, 0)


@pytest.mark.parametrize("seed", range(200))
def test_a_size_is_always_one_of_the_sizes_and_larger(seed: int) -> None:
    """Whatever is known: never below the present size, never above the full one, never between two, and no more nodes than there are."""
    luck = Random(seed)
    unit = luck.choice((1, 2, 4))
    sizes = Sizes(range(unit * luck.randint(1, 4), unit * 12 + 1, unit), unit)
    past = ResizeHistory(luck.uniform(0, DAY), luck.randint(0, 3), luck.randint(0, 3), luck.uniform(0, DAY))
    seen = GrowthInput(
        luck.choice(sizes.all), sizes, past, luck.randint(0, 5), luck.choice((None, 0, 3, 40)), luck.choice(("", "no")),
        luck.random() < 0.3, luck.choice((None, 600.0, DAY)), luck.choice((600.0, DAY)), luck.choice((5.0, 600.0)),
        next_save_s=luck.choice((0.0, 200.0, 900.0)),
    )  # fmt: skip
    found = elastic.decide_growth(seen)

    assert found.size == 0 or (found.size in sizes.all and found.size > seen.size)
    assert found.size <= seen.size + seen.free + (seen.idle or 0)
    assert found.missing == (max(0, found.size - seen.size - seen.free) if found.size else 0)
    assert not found.missing or not (seen.alone or seen.others_wait)


def test_each_failed_try_doubles_the_wait_and_a_day_is_the_longest() -> None:
    """Five minutes, ten, twenty; and no wait grows without end."""
    for failed, wait_s in ((1, 300.0), (2, 600.0), (3, 1200.0), (40, DAY)):
        assert (
            elastic.decide_growth(scene(past=ResizeHistory(9 * DAY, 0, failed, wait_s - 1.0))).word
            == "failed"
        )
        assert elastic.decide_growth(scene(past=ResizeHistory(9 * DAY, 0, failed, wait_s + 1.0))).size == 4
    assert elastic.decide_growth(scene(past=ResizeHistory(DAY + 1.0, in_vain=1000))).size == 4


# ---------------------------------------------------------------------- what came before


def run(*sizes: tuple[float, int], failed: tuple[float, ...] = ()) -> Run:
    """A run with a start of so many nodes at each of these times."""
    begun = tuple(
        StartNote(0, number, NODES[:size], at_s) for number, (at_s, size) in enumerate(sizes, start=1)
    )
    attempt = Attempt(
        1, 0.0, nodes=NODES, begun=begun, growth_failed=failed, launch=Launch(running_seen_at_s=0.0)
    )
    return Run("llm-0001", State.RUNNING, attempts=(attempt,), last_at_s=sizes[-1][0])


def past(of: Run, now_s: float) -> ResizeHistory:
    return elastic.resize_history(of, now_s, 1800.0, 60.0)


def test_a_size_is_counted_from_the_start_that_changed_it() -> None:
    """Restarts at the same size in between do not keep a run from growing."""
    assert past(run((0.0, 4), (1000.0, 3), (2000.0, 3)), 3000.0).stayed_s == 2000.0


def test_a_growth_that_did_not_last_was_in_vain() -> None:
    """Each in a row counts, and one that paid begins anew."""
    up_and_down = [(0.0, 4), (10_000.0, 3), (12_000.0, 4), (12_300.0, 3), (16_000.0, 4), (16_100.0, 3)]
    assert past(run(*up_and_down), 17_000.0).in_vain == 2
    assert past(run(*up_and_down, (30_000.0, 4)), 30_100.0).in_vain == 2
    assert past(run(*up_and_down, (30_000.0, 4)), 40_000.0).in_vain == 0
    assert past(run(*up_and_down, (30_000.0, 4), (40_000.0, 3)), 40_001.0).in_vain == 0


def test_a_growth_by_little_must_last_for_longer() -> None:
    """One node more on sixty pays a restart of all of them slowly."""
    assert past(run((0.0, 60), (1000.0, 61), (5000.0, 60)), 6000.0).in_vain == 1
    assert past(run((0.0, 30), (1000.0, 60), (5000.0, 30)), 6000.0).in_vain == 0


def test_failed_tries_are_forgotten_after_a_growth_that_paid() -> None:
    """Only those since then count, and the wait is that from the last one."""
    tries = (50.0, 30_500.0, 31_000.0)
    assert past(run((0.0, 3), failed=tries), 31_100.0) == ResizeHistory(31_100.0, 0, 3, 100.0)
    assert past(run((0.0, 3), (100.0, 4), (30_000.0, 3), failed=tries), 31_100.0) == ResizeHistory(
        1100.0, 0, 2, 100.0
    )


def test_what_an_agent_says_of_growing_is_no_incident() -> None:
    """It spends nothing, blames nobody and is read by status; a try that failed is counted."""
    place = {"attempt": 1, "job": "7", "launch": 0, "start": 1}
    kinds = [
        ("run.created", {"settings": {"nodes": "2-4"}}),
        ("attempt.opened", {}),
        ("submit.done", {}),
        ("job.started", {"nodes": ["a", "b", "c"]}),
        ("agent.opened", {"active": ["a", "b", "c"]}),
        ("grow.stays", {"word": "nodes", "reason": "too few"}),
        ("grow.begun", {"size": 4, "missing": 1, "reason": "to 4"}),
        ("grow.dropped", {"reason": "no job", "failed": True}),
        (
            "start.decided",
            {"incident": "1.0.1", "rung": "grow", "nodes": ["a", "b", "c", "d"], "reason": "from 3 to 4"},
        ),
    ]
    told = fold(
        "x", ({"kind": kind, "at": float(at), "data": data, **place} for at, (kind, data) in enumerate(kinds))
    )

    assert (told.incidents, told.spent, told.retries, told.rungs, told.excluded) == ((), {}, 0, {}, ())
    assert told.attempt is not None
    assert (told.attempt.growth, told.attempt.growth_failed) == ("from 3 to 4", (7.0,))
    assert told.state is State.RUNNING


def test_a_restart_is_reckoned_by_those_of_the_run() -> None:
    """From the decision to the first new step, the median; of a run that had none, nothing is known."""
    assert estimates.restart_s(run((0.0, 4))) is None
    took = (
        replace(
            incident(F.NETWORK, ended_at_s=100.0),
            decision={"rung": "step"},
            decided_at_s=100.0,
            first_step_at_s=100.0 + s,
        )
        for s in (30.0, 40.0, 500.0)
    )
    assert estimates.restart_s(replace(run((0.0, 4)), incidents=tuple(took))) == 40.0


def test_node_hours_follow_the_sizes_of_the_starts() -> None:
    """Four nodes for an hour and three for two are ten node-hours."""
    assert estimates.node_hours(run((0.0, 4), (HOUR, 3)), 3 * HOUR) == pytest.approx(10.0)


# ---------------------------------------------------------------------- no thrash


@dataclass
class Month:
    """Thirty days of a run of 64 nodes under the real rule. Eight nodes come and go, each in `comes_s` and `goes_s` on average; one that goes while it is used
    costs a restart at the size that is left.
    """

    seed: int
    comes_s: float
    goes_s: float
    restart_s: float = 162.0
    between_s: float = 3 * HOUR
    starts: list[StartNote] = field(default_factory=list)
    planned: list[float] = field(default_factory=list)

    def live(self) -> None:
        """Looked at once a minute."""
        luck, sizes = Random(self.seed), Sizes(range(32, 65))
        there, size, now_s, changed_s = 8, 64, 0.0, 0.0
        self._begin(size, now_s)
        while now_s < 30 * DAY:
            now_s += 60.0
            there += there < 8 and luck.random() < 60.0 * (8 - there) / self.comes_s
            used = size - 56
            if there and luck.random() < 60.0 * there / self.goes_s:
                there -= 1
                if luck.random() < used / (there + 1):
                    size, changed_s = size - 1, now_s
                    self._begin(size, now_s)
            idle = there - (size - 56)
            if idle <= 0 or now_s - changed_s < 1800.0:
                continue
            past = elastic.resize_history(self.run(now_s), now_s, 1800.0, self.restart_s)
            seen = GrowthInput(
                size, sizes, past, idle=idle, restart_s=self.restart_s, between_s=self.between_s
            )
            if grown := elastic.decide_growth(seen).size:
                size, changed_s = grown, now_s
                self.planned.append(now_s)
                self._begin(size, now_s)

    def run(self, now_s: float) -> Run:
        """What the journal would tell."""
        attempt = Attempt(1, 0.0, begun=tuple(self.starts[-80:]), launch=Launch(running_seen_at_s=0.0))
        return Run("llm-0001", State.RUNNING, attempts=(attempt,), last_at_s=now_s)

    def _begin(self, size: int, at_s: float) -> None:
        self.starts.append(StartNote(0, len(self.starts) + 1, NODES[:size], at_s))


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.drills)])
@pytest.mark.parametrize(
    ("comes_s", "goes_s"),
    [
        (180.0, 180.0),
        pytest.param(300.0, 1200.0, marks=pytest.mark.drills),
        pytest.param(60.0, 3600.0, marks=pytest.mark.drills),
        pytest.param(1200.0, 7200.0, marks=pytest.mark.drills),
    ],
)
def test_a_cluster_that_flaps_makes_no_run_thrash(comes_s: float, goes_s: float, seed: int) -> None:
    """Nodes come and go every few minutes for a month: never two planned changes within grow-min-interval, some forty of them in all, and all
    restarts together, those that the vanishing nodes force included, cost less than 2 % of the time.
    """
    month = Month(seed, comes_s, goes_s)
    month.live()

    gaps = [after - before for before, after in itertools.pairwise(month.planned)]
    assert min(gaps) >= 1800.0
    assert 5 < len(month.planned) < 50
    assert (len(month.starts) - 1) * month.restart_s < 0.02 * 30 * DAY


def test_nodes_that_stay_are_taken_at_once_and_kept() -> None:
    """Where a node is away for some hours now and then, the run is at full size again half an hour after it is back."""
    month = Month(1, 4 * HOUR, 40 * DAY, between_s=5 * DAY)
    month.live()

    sizes = [len(one.nodes) for one in month.starts]
    assert len(month.planned) >= 5
    assert sizes[-1] >= 63
    assert sum(size == 64 for size in sizes) >= len(month.planned) // 2
