"""The false hangs and stragglers in small: some dozens of lives, and that the count is not blind. (I/O)"""

from __future__ import annotations

import pytest

from ftrun.slurm.records import replace
from ftrun.supervisor.telemetry import hang_rules
from tests.falsealarms import hangs, lives, silences, stragglers

RUNS = 50


def test_no_healthy_run_is_ended() -> None:
    """Evaluations, checkpoints, compiles, stalls, suspensions and buffered logs of healthy runs are no hangs."""
    tally = hangs.Tally()
    for seed in range(RUNS):
        hangs.healthy(tally, 20_000 + seed, hangs.limits(1.0))

    assert tally.runs == RUNS
    assert ({}, []) == (dict(tally.ended), tally.seeds)


def test_no_healthy_run_is_ended_from_afar() -> None:
    """Nor by a supervisor whose files are old, whose stacks come late or never, and which begins anew."""
    tally = hangs.Tally()
    for seed in range(RUNS // 2):
        hangs.healthy(tally, 20_000 + seed, hangs.limits(1.0, afar=True))

    assert ({}, []) == (dict(tally.ended), tally.seeds)


def test_hangs_that_can_be_seen_are_decided() -> None:
    """With beats, or stacks and a line now and then, a hang in a collective is decided, in most cases within two minutes."""
    inside = lives.HANGS["collective, found in the stacks"]
    found = []
    for seed in range(30_000, 30_040):
        life = lives.draw(seed, inside)
        if (life.beats or life.stacks) and life.every_s <= hangs.OFTEN_S:
            ended_s, _ = hangs.watch(life, hangs.limits(1.0))
            assert ended_s is not None
            assert life.hang_s is not None
            found.append((ended_s - life.hang_s) / max(60.0, 10.0 * life.step_s))

    assert found
    assert sorted(found)[len(found) // 2] < 2.0


@pytest.mark.parametrize("afar", [False, True], ids=["inside", "afar"])
def test_no_healthy_run_is_ended_for_lines_that_look_fatal(*, afar: bool) -> None:
    """P7: such a line may stand anywhere, and right before something long; whoever goes on lives."""
    tally = hangs.Tally()
    for seed in range(RUNS // 2):
        hangs.healthy(tally, 40_000 + seed, hangs.limits(1.0, afar=afar), alarms=True)

    assert ({}, []) == (dict(tally.ended), tally.seeds)


@pytest.mark.parametrize(
    "seeds", [range(50_000, 50_002), pytest.param(range(50_002, 50_012), marks=pytest.mark.drills)], ids=str
)
@pytest.mark.parametrize("kind", lives.HANGS)
def test_a_fatal_line_makes_no_hang_later(kind: str, seeds: range) -> None:
    """P7: what hangs after such a line is decided no later than the same without a word, and sooner now and then."""
    tally = hangs.Tally()
    for seed in seeds:
        silent, told = (
            hangs.hung(tally, seed, lives.HANGS[kind], hangs.limits(1.0), alarms=alarms)
            for alarms in (False, True)
        )
        assert silent is None or (told is not None and told <= silent + hangs.STILL_EVERY_S + 12.0), seed


def _confirmed(
    limits: hang_rules.HangLimits, title: str, end_wait_s: float, **_: bool
) -> hang_rules.HangLimits:
    return replace(limits, min_s=end_wait_s, grace_s=end_wait_s, fatal=title, confirmed=True)


def _watch_until_one_is_ended(tally: hangs.Tally, most: int) -> None:
    for seed in range(40_000, 40_000 + most):
        if not tally.ended:
            hangs.healthy(tally, seed, hangs.limits(1.0), alarms=True)


def test_a_fatal_line_taken_for_a_witness_ends_healthy_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The law above is no idle one: were the line a confirmation, lives would be ended in their long phases."""
    monkeypatch.setattr(hang_rules, "after_fatal_line", _confirmed)
    tally = hangs.Tally()
    _watch_until_one_is_ended(tally, 30)

    assert tally.ended


@pytest.mark.parametrize("rule", ["idle", "wait"])
def test_without_one_of_its_rules_a_fatal_line_ends_healthy_runs(
    rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How long nothing must be used, and how long all must be seen to wait: both bear weight."""
    if rule == "idle":
        monkeypatch.setattr(hang_rules, "WORST", 1.0)
    else:
        monkeypatch.setattr(hangs, "END_WAIT_S", 1.0)
    tally = hangs.Tally()
    _watch_until_one_is_ended(tally, 60)

    assert tally.ended


def test_the_count_is_not_blind() -> None:
    """With thresholds of a second healthy runs are ended, and counted."""
    tally = hangs.Tally()
    for seed in range(20):
        hangs.healthy(tally, seed, hang_rules.HangLimits(1.0, 2.0, 2.0))

    assert tally.ended


def test_a_seed_gives_the_same_life() -> None:
    """Whoever finds a false hang can find it again."""
    assert lives.draw(7) == lives.draw(7)


def test_no_healthy_node_is_told() -> None:
    """Jobs without a straggler cost no node anything; one that is four times slower is nearly always told."""
    assert 0 == stragglers.alarms(60, 1)[1]
    assert len(stragglers.delays(12, 1_000_000, 4.0)) >= 9


def test_no_healthy_run_loses_a_node() -> None:
    """Slow daemons, file systems that stall, killed guards, nodes that stand still for 6 s: none alone loses a node."""
    worlds = [silences.draw(seed) for seed in range(40_000, 40_300)]

    assert [None] * len(worlds) == [silences.watch(world) for world in worlds]
    assert sum(world.asked for world in worlds) > 50


def test_a_node_that_stays_frozen_is_lost() -> None:
    """The count above is not blind."""
    assert sum(silences.frozen(range(40_000, 40_060), 600.0)) > 30
