"""Laws of a fault that a new size provokes: the size is blamed where it is new, and nothing else is. (pure)"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ftrun.supervisor.config.node_counts import Sizes
from ftrun.supervisor.config.recovery_order import rung_rules_from
from ftrun.supervisor.config.rungs import Rung
from ftrun.supervisor.config.settings import defaults
from ftrun.supervisor.model.run import Attempt, Launch, LaunchEnd, Run, Start, StartNote
from ftrun.supervisor.policy import elastic, start_decision
from ftrun.supervisor.policy.decide import decide
from ftrun.supervisor.policy.elastic import SIZE_FAULTS, size_to_exclude, sizes_tried
from ftrun.supervisor.policy.ladder import AllocationState, choose_action
from ftrun.supervisor.policy.policy_input import PolicyInput, PolicyLimits
from ftrun.supervisor.policy.queue import run_size
from tests.unit.cases import NODES, NOW, F, cluster, diagnosis, incident

SIZES = Sizes((2, 3, 4))
RAN = (Attempt(1, 0.0, last_step=40, nodes=NODES),)


def case(
    fault: F = F.USER_CODE, *, size: int = 3, before: tuple[Attempt, ...] = RAN, **changes: Any
) -> PolicyInput:
    """The end of an attempt of this size, after these."""
    attempt = Attempt(
        len(before) + 1, NOW, size=size, nodes=NODES[:3], launch=Launch(end=LaunchEnd(state="FAILED"))
    )
    run = {"best_step": 40, "settings": {**defaults(), "nodes": "2-4"}} | changes.pop("run", {})
    return PolicyInput(
        run=Run("r", attempts=(*before, attempt), **run),
        attempt=attempt,
        diagnosis=diagnosis(fault, **changes.pop("found", {})),
        cluster=cluster(),
        limits=PolicyLimits(),
        now_s=NOW,
        **changes,
    )


@pytest.mark.parametrize("fault", sorted(SIZE_FAULTS))
def test_the_first_start_at_a_new_size_that_fails_is_the_sizes_fault(fault: F) -> None:
    """It is put aside, and the run goes on; nobody is excluded for it, and no budget of a class pays."""
    ruling = decide(case(fault, found={"nodes": NODES[:1], "exclude": True}))
    decision = ruling.decision
    assert (decision.kind, decision.aside, decision.exclude, decision.spends) == ("resubmit", 3, (), "")
    assert "3 nodes" in decision.reason
    assert ruling.retries == 1


@pytest.mark.parametrize(
    ("what", "changed"),
    [
        ("the full size is the user's own", {"size": 4}),
        ("the full size is the user's own", {"size": 0}),
        ("nothing ran at another size", {"before": (Attempt(1, 0.0),)}),
        ("it got further", {"step": 41}),
        ("it has worked before", {"before": (*RAN, Attempt(2, 0.0, size=3, last_step=44))}),
        ("it is put aside already", {"run": {"sizes_aside": (3,)}}),
        ("no more retries", {"run": {"retries": 20}}),
        ("the run has but one size", {"run": {"settings": defaults()}}),
    ],
)
def test_what_is_not_the_sizes_fault_stops_as_ever(what: str, changed: dict[str, Any]) -> None:
    """A bug of the script is not excused by another number of nodes."""
    assert decide(case(**changed)).decision.kind == "stop", what


def test_a_fault_of_a_node_is_no_fault_of_the_size() -> None:
    """Whatever the size."""
    assert size_to_exclude(case(F.HARDWARE_GPU), SIZES) == 0
    assert size_to_exclude(case(F.UNKNOWN), SIZES) == 0


def test_the_ladder_does_not_start_again_at_a_size_that_is_to_blame() -> None:
    """The same nodes would show the same."""
    one = case()
    place = AllocationState(nodes=NODES[:3], active=NODES[:3], spares=())
    move = choose_action(one, decide(one), rung_rules_from(one.run.settings), place, {})
    assert move.rung is Rung.RESUBMIT
    assert "3 nodes are to blame" in move.reason + str(move.path)


def test_a_start_inside_a_job_has_a_size_of_its_own() -> None:
    """What made steps and what did not is told start by start; the size that is blamed is that of the last."""
    begun = (StartNote(0, 1, NODES, 0.0), StartNote(0, 2, NODES[:3], 1.0))
    stepped = incident(F.NODE, attempt=1, launch=0, start=1, step=40)
    last = Attempt(
        1,
        NOW,
        nodes=NODES,
        begun=begun,
        launch=Launch(end=LaunchEnd(state="FAILED"), start=Start(nodes=NODES[:3], number=2)),
    )
    run = Run(
        "r",
        attempts=(last,),
        incidents=(stepped,),
        best_step=40,
        settings={**defaults(), "nodes": "2-4"},
    )
    assert list(sizes_tried(run, SIZES)) == [((1, 0, 1), 4, True), ((1, 0, 2), 3, False)]
    one = PolicyInput(run, last, diagnosis(F.USER_CODE), cluster(), PolicyLimits(), NOW)
    assert size_to_exclude(one, SIZES) == 3
    assert run_size(run, SIZES) == 3
    assert run_size(replace(run, sizes_aside=(3,)), SIZES) == 4


def test_the_ladder_goes_on_at_the_next_size_inside_the_job() -> None:
    """The one that is to blame is passed over, and nobody is set aside."""
    one = case()
    place = AllocationState(nodes=NODES, active=NODES[:3], aside=NODES[3:], sizes=SIZES, idle=0)
    move = choose_action(one, decide(one), rung_rules_from(one.run.settings), place, {})
    assert (move.rung, move.nodes, move.aside) == (Rung.SHRINK, NODES[:2], NODES[3:])
    assert start_decision.decision_record("1.0.2", one, decide(one), move)["sizes_aside"] == [3]


@pytest.mark.parametrize("step", [None, 40])
@pytest.mark.parametrize("grown", [True, False])
def test_a_start_that_was_well_is_never_the_price_of_a_growth(grown: bool, step: int | None) -> None:
    """A size for which it was ended is left again, the full one too, and though it worked on other nodes; where a fault led to it, it stays the user's own."""
    begun = (
        StartNote(0, 1, NODES, 0.0),
        StartNote(0, 2, NODES[:2], 1.0, by_us=True, grown=grown),
        StartNote(0, 3, NODES, 2.0),
    )
    lost = incident(F.NODE, attempt=1, launch=0, start=1, step=step)
    last = Attempt(
        1,
        NOW,
        nodes=NODES,
        begun=begun,
        launch=Launch(end=LaunchEnd(state="FAILED"), start=Start(nodes=NODES, number=3)),
    )
    settings = {**defaults(), "nodes": "2-4"}
    run = Run("r", attempts=(last,), incidents=(lost,), best_step=40, settings=settings)
    one = PolicyInput(run, last, diagnosis(F.OOM_GPU), cluster(), PolicyLimits(), NOW)
    assert list(sizes_tried(run, SIZES))[1] == ((1, 0, 2), 2, grown)
    assert size_to_exclude(one, SIZES) == (4 if grown else 0)
    if grown:
        place = AllocationState(nodes=NODES, active=NODES, sizes=SIZES, idle=0)
        move = choose_action(one, decide(one), rung_rules_from(settings), place, {})
        assert (move.rung, move.nodes) == (Rung.SHRINK, NODES[:3])
        assert elastic.usable_sizes(SIZES, (4,)).full == 3
