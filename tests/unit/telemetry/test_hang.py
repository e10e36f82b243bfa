"""When a start is held to hang, and by whose word. (pure)"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from ftrun.supervisor.model.types import HangState, HangVerdict
from ftrun.supervisor.telemetry import hang_rules, liveness
from ftrun.supervisor.telemetry.hang_rules import HangLimits
from ftrun.supervisor.telemetry.liveness import Activity, History, LivenessSample, Rank, Stacks, Witness

LIMITS = HangLimits()
WORKS = Activity(cpu=True, io=True, gpu=True)
RESTS = Activity(cpu=False, io=False, gpu=False)
SPINS = Activity(cpu=True, io=False, gpu=False)


class Watch:
    """One start that is looked at every second."""

    def __init__(self, limits: HangLimits = LIMITS) -> None:
        self.history, self.now_s, self.limits = History(), 1000.0, limits
        self.sight = LivenessSample(life="0.1", growth=0.0)
        self.taken = 0

    def look(self, **seen: Any) -> HangVerdict:
        """A second passes, and this is seen."""
        self.now_s += 1.0
        self.sight = replace(self.sight, stacks=None, **seen)
        self.history = liveness.observe(self.history, self.sight, self.now_s)
        return hang_rules.hang_verdict(self.history, self.now_s, self.limits)

    def step(self, every_s: int = 1, count: int = 1, per_line: int = 1) -> None:
        """So many lines with a step are printed."""
        for _ in range(count):
            for _ in range(every_s - 1):
                self.look()
            self.look(
                steps_seen=self.sight.steps_seen + 1,
                growth=self.now_s,
                median_step_s=every_s / per_line,
                phase="",
            )

    def still(
        self, seconds: int, moved: bool | None = None, waiting: str = "", ranks: int = 8, **seen: Any
    ) -> Iterator[HangVerdict]:
        """Nothing is printed for so long; stacks are taken whenever they are wanted."""
        wants = False
        for _ in range(seconds):
            if wants:
                self.taken += 1
                verdict = self.look(**seen)
                self.history = liveness.observe(
                    self.history,
                    replace(self.sight, stacks=Stacks(self.taken, moved, waiting, ranks=ranks)),
                    self.now_s,
                )
                verdict = hang_rules.hang_verdict(self.history, self.now_s, self.limits)
            else:
                verdict = self.look(**seen)
            wants = verdict.wants_stacks
            yield verdict

    def hangs_after(
        self, seconds: int, moved: bool | None = None, waiting: str = "", ranks: int = 8, **seen: Any
    ) -> float | None:
        """At which silence it is held to hang; None = not within so many seconds."""
        verdicts = self.still(seconds, moved, waiting, ranks, **seen)
        return next((one.quiet_s for one in verdicts if one.state is HangState.HUNG), None)


@pytest.fixture
def watch() -> Watch:
    """A start that has made a hundred steps, one a second."""
    made = Watch()
    made.look()
    made.step(count=100)
    return made


def test_a_silent_log_alone_is_never_a_hang(watch: Watch) -> None:
    """Whatever the silence, without a second witness it only makes suspicious (P7)."""
    assert None is watch.hangs_after(40_000)
    assert "nothing but silence" in watch.look().reason


def test_all_ranks_in_a_collective_that_does_not_move_hang_after_a_minute(watch: Watch) -> None:
    """The surest witness needs the least time: max(60 s, ten steps)."""
    assert watch.hangs_after(400, False, "collective", activity=SPINS) == pytest.approx(60, abs=8)


def test_ten_median_steps_are_waited_for() -> None:
    """A run whose steps take 20 s gets 200 s."""
    watch = Watch()
    watch.look()
    watch.step(20, 20)

    assert watch.hangs_after(400, False, "collective") == pytest.approx(200, abs=8)


def test_a_start_in_which_nothing_is_used_hangs_within_six_minutes(watch: Watch) -> None:
    """No processor, file, network or accelerator: the place where it waits need not be known."""
    found_s = watch.hangs_after(1000, False, activity=RESTS)

    assert found_s is not None
    assert 290 <= found_s <= 360


def test_idle_nodes_alone_are_witness_enough(watch: Watch) -> None:
    """Where stacks cannot be had, nothing being used is the second witness."""
    found_s = watch.hangs_after(1000, None, activity=RESTS)

    assert found_s is not None
    assert found_s <= 360


def test_an_accelerator_that_moves_memory_works(watch: Watch) -> None:
    """All ranks wait for their devices: that is a hang only where the devices do nothing."""
    busy = Activity(cpu=True, io=False, gpu=True)
    assert None is watch.hangs_after(3000, False, "device", activity=busy)
    watch.step(count=3)

    assert watch.hangs_after(400, False, "device", activity=SPINS) == pytest.approx(60, abs=8)


@pytest.mark.parametrize(
    ("moved", "waiting", "activity"),
    [
        (True, "", SPINS),
        (False, "", WORKS),
        (False, "collective", WORKS),
        (True, "collective", None),
        (True, "", RESTS),
    ],
    ids=[
        "stacks move",
        "files are read",
        "in a collective that works",
        "collectives come and go",
        "idle, but moving",
    ],
)
def test_a_sign_of_life_ends_nothing(
    watch: Watch, moved: bool, waiting: str, activity: Activity | None
) -> None:
    """A stack that moves, a file that is read, a device that works: a long evaluation without a word goes on."""
    assert None is watch.hangs_after(7000, moved, waiting, activity=activity)


@pytest.mark.parametrize(("waiting", "after_s"), [("device", 1800), ("", 3600)])
def test_many_samples_alike_are_a_witness_late(watch: Watch, waiting: str, after_s: float) -> None:
    """All stacks unmoved, and processors at work: half an hour for an accelerator, an hour elsewhere, as one long call into C looks so, too."""
    found_s = watch.hangs_after(4000, False, waiting, activity=Activity(cpu=True, io=False))

    assert found_s is not None
    assert after_s <= found_s <= after_s + 100


def test_one_rank_is_looked_at_more_often_than_many(watch: Watch) -> None:
    """What is found alike by chance is asked about again: a single rank needs twice as many samples as eight."""

    def samples(ranks: int) -> int:
        before = watch.taken
        assert watch.hangs_after(400, False, "collective", ranks, activity=SPINS) is not None
        return watch.taken - before

    many = samples(64)
    watch.step(count=3)

    assert samples(1) >= many + 5


def test_accelerators_that_spin_are_a_witness_wherever_the_stacks_are(watch: Watch) -> None:
    """Fully used without moving memory, and no stack moves: five minutes, for some kernels that compute look so, too."""
    spinning = Activity(cpu=True, io=False, gpu=False, spins=True)
    found_s = watch.hangs_after(1000, False, activity=spinning)

    assert found_s == pytest.approx(300, abs=8)


def test_accelerators_that_never_moved_memory_are_given_more_time(watch: Watch) -> None:
    """All wait for devices that are full and move nothing: a minute where they were seen to move memory before, else five."""
    spinning = Activity(cpu=True, io=False, gpu=False, spins=True)
    assert watch.hangs_after(1000, False, "device", activity=spinning) == pytest.approx(300, abs=8)
    watch.step(count=3)
    watch.look(activity=WORKS)
    watch.step(count=3)

    assert watch.hangs_after(400, False, "device", activity=spinning) == pytest.approx(60, abs=8)


def test_idleness_is_counted_from_the_last_use(watch: Watch) -> None:
    """A silence of five minutes that began with work is none of five minutes in which nothing was used."""
    assert None is watch.hangs_after(200, False, activity=WORKS)
    found_s = watch.hangs_after(1000, False, activity=RESTS)

    assert found_s is not None
    assert 500 <= found_s <= 560


def test_a_hang_after_a_long_healthy_silence_is_decided_within_minutes(watch: Watch) -> None:
    """An evaluation of an hour that ends in a hang of a collective does not buy that another half hour."""
    list(watch.still(3600, True, activity=WORKS))
    found_s = watch.hangs_after(1000, False, "collective", activity=SPINS)

    assert found_s is not None
    assert found_s - 3600 <= 360


def test_the_longest_silence_of_earlier_starts_is_remembered(watch: Watch) -> None:
    """A start that came back from a silence of forty minutes shows the next one's weak witnesses what is usual."""
    list(watch.still(2400, True))
    watch.step(count=1)
    watch.look(life="0.2", steps_seen=0)
    watch.step(count=100)

    assert watch.history.before_s == pytest.approx(2400, abs=5)
    assert watch.hangs_after(4000, False, "device", activity=Activity(cpu=True, io=False)) is None


def test_a_file_system_that_never_comes_back_is_found_after_an_hour(watch: Watch) -> None:
    """One that stands still for forty minutes ends nobody; a process that waits in the kernel for good does."""
    stuck = Activity(cpu=False, io=True, stuck=True)
    assert None is watch.hangs_after(2400, False, activity=stuck)
    found_s = watch.hangs_after(3000, False, activity=stuck)

    assert found_s == pytest.approx(3600, abs=8)


def test_beats_that_have_stopped_are_a_witness_late() -> None:
    """A loop that evaluates without a word makes no beats either: half an hour, and only where nothing speaks against it."""
    watch = Watch()
    watch.look()
    for n in range(1, 60):
        watch.look(ranks=(Rank(0, "n1", n, n, moved_s=watch.now_s),), steps_seen=n, growth=watch.now_s)

    assert watch.hangs_after(4000) == pytest.approx(1800, abs=8)


def test_output_without_steps_is_a_sign_of_life(watch: Watch) -> None:
    """A run that prints something every half minute is not ended for standing still, unless all wait in a collective."""

    def talking(second: int) -> HangVerdict:
        return watch.look(growth=second // 30 * 30.0, activity=RESTS)

    assert HangState.HUNG not in {talking(second).state for second in range(3000)}


def test_a_phase_has_an_allowance_of_its_own(watch: Watch) -> None:
    """What was announced may be idle for half an hour the first time, and for three times its longest then."""
    assert None is watch.hangs_after(1000, False, activity=RESTS, phase="eval")
    watch.step(count=20)
    assert 0 < watch.history.learnt["eval"] < 1100
    assert None is watch.hangs_after(2900, False, activity=RESTS, phase="eval")

    assert watch.hangs_after(200, False, activity=RESTS, phase="eval") is not None


def test_a_checkpoint_that_never_ended_makes_no_later_start_look_hung(watch: Watch) -> None:
    """What one start began and did not end is neither learnt nor remembered by the next."""
    list(watch.still(3000, True, phase="checkpoint"))
    assert watch.history.phase == "checkpoint"
    watch.look(life="0.2", phase="", steps_seen=0, growth=watch.now_s)

    assert (watch.history.phase, dict(watch.history.learnt)) == ("", {})
    assert watch.history.moves.longest_s == 0.0


def test_a_checkpoint_that_never_ends_is_found(watch: Watch) -> None:
    """An allowance ends: a phase that was begun and never ended hides no hang for good."""
    found_s = watch.hangs_after(4000, False, phase="checkpoint", activity=RESTS)

    assert found_s == pytest.approx(1800, abs=8)


def test_warm_up_has_its_grace() -> None:
    """Before the habit is known everything gets half an hour, and a start that never makes a step ends then."""
    watch = Watch()
    watch.look()
    watch.step(count=2)

    assert watch.hangs_after(4000, False, "collective", activity=RESTS) == pytest.approx(1800, abs=8)


def test_a_further_start_begins_anew(watch: Watch) -> None:
    """Habit and silence of one start are not those of the next."""
    watch.look(life="0.2", steps_seen=0)

    assert None is watch.hangs_after(1700, False, "collective", activity=RESTS)


def test_time_that_was_not_watched_does_not_count(watch: Watch) -> None:
    """Suspended jobs, logs that cannot be read and a watcher that slept add nothing to the silence."""
    list(watch.still(50, False, "collective", activity=SPINS))
    for seen in ({"running": False}, {"running": True, "readable": False}):
        quiet_s = watch.look(**seen).quiet_s
        for _ in range(3000):
            assert HangState.HEALTHY is watch.look().state
        assert watch.look().quiet_s == pytest.approx(quiet_s, abs=2)
    watch.look(readable=True)
    watch.now_s += 30_000

    assert watch.look().quiet_s < 70


def test_a_log_of_rare_lines_is_used_to_silence() -> None:
    """A line every ten minutes: a pause of ten minutes is not even suspicious."""
    watch = Watch()
    watch.look()
    watch.step(600, 12, per_line=1000)

    assert {HangState.HEALTHY, HangState.QUIET} >= {one.state for one in watch.still(800)}
    assert watch.hangs_after(1000, False, "collective") == pytest.approx(1200, abs=60)


def test_stacks_are_asked_for_now_and_then_only(watch: Watch) -> None:
    """An hour of silence costs some dozen samples."""
    wanted = sum(one.wants_stacks for one in watch.still(3600, True))

    assert 8 <= wanted <= 90


def test_the_reason_says_what_was_seen(watch: Watch) -> None:
    """Whoever reads the verdict knows the silence, the witness and the threshold."""
    verdict = next(one for one in watch.still(400, False, "collective") if one.state is HangState.HUNG)

    assert verdict.reason.startswith("no step for 6")
    assert "every rank waits in a collective" in verdict.reason
    assert verdict.threshold_s == 60.0


@pytest.mark.parametrize(
    ("ranks", "elsewhere", "named"),
    [
        ([(7, 10.0), (7, 10.0), (6, 9.0), (7, 10.0)], (), ("rank 2 (n2)",)),
        ([(7, 10.0), (7, 10.0), (7, 2.0), (7, 10.0)], (), ("rank 2 (n2)",)),
        ([(7, 10.0), (7, 10.0), (7, 9.0), (7, 10.0)], (), ()),
        ([(7, 10.0), (7, 10.0), (6, 9.0), (6, 10.0)], (), ()),
        ([(7, 10.0), (7, 10.0), (6, 10.0), (7, 10.0)], (3,), ("rank 3 (n3)",)),
    ],
    ids=["lowest step", "stopped first", "within a second", "half of all", "the stacks know better"],
)
def test_who_is_behind_is_named_where_it_can_be_told(
    ranks: list[tuple[int, float]], elsewhere: tuple[int, ...], named: tuple[str, ...]
) -> None:
    """Stacks first, then the lowest step, then the oldest beat; never half of all."""
    seen = tuple(Rank(at, f"n{at}", step, step, "", moved_s) for at, (step, moved_s) in enumerate(ranks))

    assert named == hang_rules.ranks_behind(seen, Witness(elsewhere=elsewhere))


def test_whoever_does_not_wait_for_the_others_is_behind() -> None:
    """All are at the same step, and all but one have said that they wait; where nobody says so, nobody is named by it."""
    phases = ("sync", "", "sync")
    seen = tuple(Rank(at, f"n{at}", 7, 7, phase, 10.0) for at, phase in enumerate(phases))

    assert hang_rules.ranks_behind(seen) == ("rank 1 (n1)",)
    assert hang_rules.ranks_behind(tuple(replace(rank, phase="") for rank in seen)) == ()


@pytest.mark.parametrize("number", [64, 512, 768, 1024, 4096])
def test_nobody_is_behind_by_the_turn_in_which_beats_are_read(number: int) -> None:
    """All ranks stop together; those of many ranks are read 256 at a look, every five seconds, so some are seen to stop earlier."""
    seen = tuple(
        Rank(rank, f"n{rank // 8}", 7, 9, "", 100.0 + 5.0 * (rank // max(1, min(256, number // 3))))
        for rank in range(number)
    )

    assert hang_rules.ranks_behind(seen) == ()


def test_a_rank_that_stopped_long_before_many_others_is_behind() -> None:
    """What the turn of reading does not explain still tells who stopped first."""
    seen = tuple(Rank(rank, f"n{rank // 8}", 7, 9, "", 10.0 if rank == 9 else 100.0) for rank in range(256))

    assert hang_rules.ranks_behind(seen) == ("rank 9 (n1)",)


def test_settings_make_the_limits() -> None:
    """hang=never looks for nothing; hang-max is never below hang-min."""
    assert hang_rules.hang_limits({"hang": "never"}) is None
    assert hang_rules.hang_limits({}) == LIMITS
    assert hang_rules.hang_limits({"hang-min": 9.0, "hang-max": 5.0}) == HangLimits(9.0, 9.0, 1800.0)
