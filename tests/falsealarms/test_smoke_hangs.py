"""The false hangs and stragglers in small: some dozens of lives, and that the count is not blind. (I/O)"""

from __future__ import annotations

from ftrun.supervisor import hang
from tests.falsealarms import hangs, lives, stragglers

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


def test_the_count_is_not_blind() -> None:
    """With thresholds of a second healthy runs are ended, and counted."""
    tally = hangs.Tally()
    for seed in range(20):
        hangs.healthy(tally, seed, hang.Limits(1.0, 2.0, 2.0))

    assert tally.ended


def test_a_seed_gives_the_same_life() -> None:
    """Whoever finds a false hang can find it again."""
    assert lives.draw(7) == lives.draw(7)


def test_no_healthy_node_is_told() -> None:
    """Jobs without a straggler cost no node anything; one that is four times slower is nearly always told."""
    assert 0 == stragglers.alarms(60, 1)[1]
    assert len(stragglers.delays(12, 1_000_000, 4.0)) >= 9
