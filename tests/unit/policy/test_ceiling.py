"""Laws of the ceiling: net progress gives all retries back, a crash loop has few, a healthy month never meets it. (pure)"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ftrun.supervisor.config.settings import defaults, parse
from ftrun.supervisor.model.errors import SettingError
from ftrun.supervisor.model.run import Attempt, Incident, Launch, LaunchEnd, Run
from ftrun.supervisor.policy.policy_input import (
    MANY_NODES,
    OUTLIVED_S,
    RECENT_BUDGET,
    RECENT_S,
    PolicyLimits,
    Ruling,
    limits_from,
)
from tests.unit.cases import NODES, NOW, F, diagnosis, incident, rule

HOUR = 3600.0
MANY = tuple(f"n{number}" for number in range(MANY_NODES))


def failed(fault: F, at_s: float, attempt: int = 1, **changes: Any) -> Incident:
    """A failure after which the run was started again."""
    decision = {"kind": "resubmit", "checkpoint": changes.pop("checkpoint", "")}
    return incident(fault, attempt, decision=decision, decided_at_s=at_s, ended_at_s=at_s, **changes)


class Life:
    """A run without a cluster: each failure is ruled on, and the budgets after it stand for the next."""

    def __init__(self, **settings: Any) -> None:
        self.limits = limits_from({**defaults(), **settings})
        self.run = Run("r-0001", settings={**defaults(), **settings}, created_at_s=0.0)
        self.now_s = 0.0

    def fails(
        self, fault: F, after_s: float, *, step: int | None = None, checkpoint: str = "", **found: Any
    ) -> Ruling:
        """The ruling on a start that fails after so long; a new attempt follows at once."""
        number = len(self.run.attempts) + 1
        start_s, self.now_s = self.now_s, self.now_s + after_s
        end = LaunchEnd("FAILED", at_s=self.now_s)
        tried = Attempt(
            number, start_s, starts={0: start_s}, nodes=NODES, launch=Launch(started_at_s=start_s, end=end)
        )
        known = {
            name: getattr(self.run, name)
            for name in Run.__dataclass_fields__
            if name not in ("attempts", "id", "state")
        }
        ruling = rule(
            diagnosis(fault, **found), run={**known, "attempts": (*self.run.attempts, tried)},
            attempt={name: getattr(tried, name) for name in Attempt.__dataclass_fields__},
            limits=self.limits, step=step, checkpoint=checkpoint, now_s=self.now_s,
        )  # fmt: skip
        data = {"kind": ruling.decision.kind, "checkpoint": checkpoint, "spends": ruling.decision.spends}
        now = incident(
            fault, number, step=step, signature=found.get("signature", "a.signature"), decision=data,
            decided_at_s=self.now_s, ended_at_s=self.now_s,
        )  # fmt: skip
        progressed = bool(checkpoint) or (step is not None and step > (self.run.best_step or -1))
        self.run = replace(
            self.run, attempts=(*self.run.attempts, tried), incidents=(*self.run.incidents, now),
            spent=ruling.spent, retries=ruling.retries,
            progress_at_s=self.now_s if ruling.retries <= 1 and progressed else self.run.progress_at_s,
            best_step=step if progressed and step is not None else self.run.best_step,
            best_checkpoint=checkpoint or self.run.best_checkpoint,
        )  # fmt: skip
        return ruling

    def starts_until_stopped(self, *faults: F, after_s: float, most: int = 200, **more: Any) -> int:
        """How many starts a loop of these failures gets."""
        for count in range(1, most):
            if self.fails(faults[count % len(faults)], after_s, **more).decision.kind == "stop":
                return count
        return most


RETRIED = [F.HARDWARE_GPU, F.NODE, F.NETWORK, F.STORAGE, F.HANG, F.UNKNOWN, F.LIBRARY_BUG]


@given(st.lists(st.tuples(st.sampled_from(RETRIED), st.floats(900.0, 6 * HOUR)), min_size=30, max_size=40))
@settings(max_examples=10, deadline=None)
def test_a_run_that_saves_between_its_faults_is_never_stopped(faults: list[tuple[F, float]]) -> None:
    """However many faults, of whatever classes that pass: each comes after a newer checkpoint."""
    life = Life()
    for number, (fault, after_s) in enumerate(faults):
        ruling = life.fails(fault, after_s, step=10 * number + 9, checkpoint=f"/ck/step-{10 * number}")

        assert "resubmit" == ruling.decision.kind, ruling.decision.reason


@given(st.lists(st.sampled_from(RETRIED), min_size=1, max_size=7), st.floats(1.0, 300.0))
@settings(max_examples=25, deadline=None)
def test_a_crash_loop_ends(faults: list[F], after_s: float) -> None:
    """Whatever the failures of a run that gets nowhere are called, it has eleven starts in an hour at most."""
    assert Life().starts_until_stopped(*faults, after_s=after_s) <= 11


def test_a_loop_of_one_class_ends_as_early_as_ever_after_progress_too() -> None:
    """The same class at the same place twice is no coincidence, even an hour after a checkpoint."""
    life = Life()
    assert "resubmit" == life.fails(F.HARDWARE_GPU, HOUR, step=500, checkpoint="/ck/step-500").decision.kind

    assert 2 == life.starts_until_stopped(F.UNKNOWN, after_s=60.0, signature="")


def test_two_faults_of_a_class_between_two_checkpoints_are_a_coincidence() -> None:
    """A large run that made progress in the last hours goes on; a small one, one that made none, or a user's own number, does not."""
    before = failed(F.LIBRARY_BUG, NOW - 600, step=500)
    lately: dict[str, Any] = {
        "incidents": (before,),
        "spent": {"library-bug": 1},
        "best_step": 510,
        "retries": 1,
    }
    again: dict[str, Any] = {"step": 503, "attempt": {"nodes": MANY}}

    assert (
        "resubmit"
        == rule(diagnosis(F.LIBRARY_BUG), run={**lately, "progress_at_s": NOW - HOUR}, **again).decision.kind
    )
    for progress_at_s in (None, NOW - RECENT_S - 1):
        ruling = rule(diagnosis(F.LIBRARY_BUG), run={**lately, "progress_at_s": progress_at_s}, **again)
        assert "1 of 1 retries for library-bug" in ruling.decision.reason
    used = {**lately, "spent": {"library-bug": RECENT_BUDGET}, "progress_at_s": NOW - HOUR}
    assert (
        f"{RECENT_BUDGET} of {RECENT_BUDGET} retries"
        in rule(diagnosis(F.LIBRARY_BUG), run=used, **again).decision.reason
    )
    few = again | {"attempt": {"nodes": MANY[1:]}}
    small = rule(diagnosis(F.LIBRARY_BUG), run={**lately, "progress_at_s": NOW - HOUR}, **few)
    assert "1 of 1 retries for library-bug" in small.decision.reason
    own = PolicyLimits(budgets={"library-bug": 1})
    chosen = rule(diagnosis(F.LIBRARY_BUG), run={**lately, "progress_at_s": NOW - HOUR}, limits=own, **again)
    assert "stop" == chosen.decision.kind


@pytest.mark.parametrize(
    ("step", "checkpoint", "refilled"),
    [
        (520, "/ck/step-510", True),
        (520, "", False),  # steps that were not saved are lost
        (505, "/ck/step-510", True),
        (900, "/ck/step-500", False),  # written again: a start from nothing came as far as before
    ],
)
def test_net_progress_is_measured_against_the_whole_history(
    step: int, checkpoint: str, refilled: bool
) -> None:
    """A run that began from nothing again, or went back, has first to make good what it lost."""
    earlier = failed(F.NODE, NOW - 9000, step=511, checkpoint="/ck/step-500")
    run = {"incidents": (earlier,), "retries": 19, "settings": {"checkpoint": "/ck/*"}}

    ruling = rule(diagnosis(F.HARDWARE_GPU), run=run, step=step, checkpoint=checkpoint)

    assert (1 if refilled else 20) == ruling.retries
    # A growth gives the retries back, too, and is no incident: its checkpoint is only known as the best one.
    run |= {"incidents": (), "best_step": 511, "best_checkpoint": "/ck/step-500"}
    assert ruling.retries == rule(diagnosis(F.NODE), run=run, step=step, checkpoint=checkpoint).retries


def test_a_checkpoint_without_a_number_counts_with_the_steps() -> None:
    """`last.pt` is written anew in each start; only a higher step shows that it is further on."""
    run = {"incidents": (failed(F.NODE, NOW - 9000, step=511, checkpoint="/ck/last.pt"),), "retries": 19}

    assert 20 == rule(diagnosis(F.NODE), run=run, step=400, checkpoint="/ck/last.pt").retries
    assert 1 == rule(diagnosis(F.NODE), run=run, step=512, checkpoint="/ck/last.pt").retries


def test_a_storm_of_different_faults_ends_within_minutes() -> None:
    """Ten restarts in an hour without net progress are a storm, though each class has budget left."""
    life = Life()
    count = life.starts_until_stopped(F.HARDWARE_GPU, F.NODE, F.NETWORK, F.STORAGE, F.HANG, after_s=60.0)

    assert 11 == count
    assert 11 * 60.0 == life.now_s
    slow = Life()
    classes = (F.HARDWARE_GPU, F.NODE, F.NETWORK, F.HARDWARE_OTHER, F.SCHEDULER)
    assert 21 == slow.starts_until_stopped(*classes, after_s=900.0)
    assert 21 == Life(storm="never").starts_until_stopped(*classes, after_s=60.0)


def test_preemptions_count_for_nothing() -> None:
    """A preempted run comes back however often, and its preemptions bring no storm near."""
    life = Life()
    assert 50 == life.starts_until_stopped(F.PREEMPTED, after_s=30.0, most=50)
    assert "resubmit" == life.fails(F.NODE, 30.0).decision.kind
    assert 1 == life.run.retries


@given(st.lists(st.floats(OUTLIVED_S, 40 * HOUR), min_size=25, max_size=30), st.sampled_from(RETRIED))
@settings(max_examples=10, deadline=None)
def test_a_run_that_prints_nothing_goes_on_while_its_starts_last(lasted_s: list[float], fault: F) -> None:
    """No step, no checkpoint: starts that run for long, and for different times, are what a healthy run has."""
    life, kinds = Life(), []
    for index, after_s in enumerate(lasted_s):
        kinds.append(
            life.fails(fault, after_s * (1.0 if index % 2 else 2.0) ** (index % 3), signature=f"{index % 2}")
        )

    assert {"resubmit"} == {ruling.decision.kind for ruling in kinds}


@pytest.mark.parametrize("after_s", [20.0, 600.0, 3 * HOUR])
def test_a_run_that_prints_nothing_and_always_fails_alike_ends(after_s: float) -> None:
    """What always comes after the same time is a loop, be it three hours long."""
    assert Life().starts_until_stopped(F.UNKNOWN, after_s=after_s) <= 3


def test_a_deadline_stops_at_the_next_fault() -> None:
    """A start that runs is left alone; after the deadline none follows."""
    life = Life(deadline=3 * HOUR)
    assert "resubmit" == life.fails(F.NODE, HOUR, step=1, checkpoint="/ck/step-1").decision.kind

    late = life.fails(F.NODE, 2 * HOUR, step=2, checkpoint="/ck/step-2")

    assert "stop" == late.decision.kind
    assert "the deadline, 3.0 h after submission, has passed (--ft-deadline)" in late.decision.reason


def test_recovery_may_cost_so_much() -> None:
    """What faults have cost is counted in node-hours; above the cap the run stops though it made progress."""
    dear = failed(
        F.NODE, NOW - 4000, step=100, first_step=51, first_evidence_at_s=NOW - 5000,
        running_again_at_s=NOW - 3600, first_step_at_s=NOW - 3000,
    )  # fmt: skip
    attempts = (Attempt(1, NOW - 20_000, starts={0: NOW - 20_000}, step_s=40.0), Attempt(2, NOW - 3700))
    run = {"incidents": (dear,), "attempts": attempts, "created_at_s": NOW - 20_000}
    cost = (1000 + 600 + 50 * 40.0) * len(NODES) / 3600

    for cap, kind in ((cost + 0.1, "resubmit"), (cost - 0.1, "stop")):
        ruling = rule(diagnosis(F.NODE), run=run, limits=PolicyLimits(max_lost_node_h=cap), step=200)
        assert kind == ruling.decision.kind
    assert f"recovery has cost {cost:.1f} of" in ruling.decision.reason
    lifted = {**run, "resumed_at_s": NOW - 1000}
    assert (
        "resubmit"
        == rule(diagnosis(F.NODE), run=lifted, limits=PolicyLimits(max_lost_node_h=0.0)).decision.kind
    )


@pytest.mark.parametrize(
    ("key", "text", "words"),
    [
        ("storm", "10", "N/TIME such as 10/1h, or never, is wanted, not '10'"),
        ("storm", "0/1h", "of at least 1"),
        ("storm", "ten/1h", "a whole number"),
        ("storm", "10/soon", "a duration"),
        ("storm", "", "a value is wanted"),
        ("max-lost", "-1", "out of range"),
        ("max-lost", "much", "a number"),
        ("deadline", "friday", "a duration"),
    ],
)
def test_a_bad_limit_is_refused_in_one_line(key: str, text: str, words: str) -> None:
    """The line names the setting and what is wanted."""
    with pytest.raises(SettingError) as error:
        parse(key, text)

    assert str(error.value).startswith(f"{key}: ")
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_an_old_journal_gets_the_decisions_that_it_got() -> None:
    """A run whose records know of no net progress keeps its count, and no class budget is stretched."""
    old = {"retries": 20, "best_step": 500, "incidents": (failed(F.UNKNOWN, NOW - 600, step=400),)}

    assert "all 20 retries are used up" in rule(diagnosis(F.NODE), run=old, step=500).decision.reason
    spent = {**old, "retries": 3, "spent": {"unknown": 1}}
    assert "1 of 1 retries for unknown" in rule(diagnosis(F.UNKNOWN), run=spent, step=450).decision.reason


def test_two_nodes_that_break_at_one_step_are_no_bug() -> None:
    """Of thousands of nodes, two may break between the same two steps; the third time at that step is the job's own."""
    many = tuple(f"n{i}" for i in range(1, 201))
    first = failed(F.HARDWARE_GPU, NOW - 900, step=503, nodes=("n1",), attempt_nodes=many)
    lately: dict[str, Any] = {"progress_at_s": NOW - HOUR, "best_step": 503, "retries": 1}
    again = diagnosis(F.HARDWARE_GPU, nodes=("n2",))

    def ruled(attempt_nodes: tuple[str, ...], *incidents: Incident, **run: Any) -> str:
        ruling = rule(again, run={**run, "incidents": incidents}, attempt={"nodes": attempt_nodes}, step=503)
        return ruling.decision.reason if ruling.decision.kind == "stop" else ruling.decision.kind

    assert "resubmit" == ruled(many, first, **lately)
    third = replace(first, id="1.1", launch=1)
    assert "the same failure three times at step 503" in ruled(many, first, third, **lately)
    assert "the same failure twice" in ruled(many, first, best_step=503)
    assert "the same failure twice" in ruled(NODES, first, **lately)
