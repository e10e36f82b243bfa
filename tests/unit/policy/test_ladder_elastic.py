"""Laws of the rungs that change who takes part: a companion's nodes, and fewer of one's own. (pure)"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftrun.supervisor.config import settings
from ftrun.supervisor.config.node_counts import Sizes
from ftrun.supervisor.config.recovery_order import RungRules, rung_rules_from
from ftrun.supervisor.config.rungs import Rung
from ftrun.supervisor.model.run import Attempt, Launch, LaunchEnd, Run
from ftrun.supervisor.model.states import State
from ftrun.supervisor.model.types import Source
from ftrun.supervisor.policy.decide import decide
from ftrun.supervisor.policy.ladder import AllocationState, RecoveryStep, choose_action
from ftrun.supervisor.policy.policy_input import PolicyInput, PolicyLimits
from ftrun.supervisor.policy.what_if import NEVER, what_if
from tests.unit.cases import F, cluster, diagnosis

NOW = 1_000_000.0
ACTIVE = ("n1", "n2", "n3", "n4")
PLACE = AllocationState(ACTIVE, ACTIVE, batch_node="n1", idle=0)
SIZES = Sizes((2, 3, 4))
SMALLER = replace(PLACE, sizes=SIZES)
PAIRS = AllocationState(
    tuple(f"n{i}" for i in range(1, 9)), tuple(f"n{i}" for i in range(1, 9)), sizes=Sizes((2, 4, 6, 8), 2)
)


def rungs(*rules: str, **changes: Any) -> RungRules:
    own = {"spares": 2, "nodes": "2-4", "policy": list(rules)}
    return rung_rules_from(
        {**settings.defaults(), **own, **{k.replace("_", "-"): v for k, v in changes.items()}}
    )


def case(
    fault: F = F.NODE, *, nodes: tuple[str, ...] = ("n2",), step: int | None = None, **more: Any
) -> PolicyInput:
    """A start that failed with this class; its nodes are blamed for sure."""
    attempt = Attempt(1, NOW - 1000, nodes=(*PAIRS.nodes, "n9"), launch=Launch(end=LaunchEnd(state="FAILED")))
    history = Run("r-0001", State.SETTLING, attempts=(attempt,))
    found = diagnosis(fault, nodes=nodes, **{"sources": (Source.LOG, Source.KERNEL), **more})
    return PolicyInput(history, attempt, found, cluster(nodes_needed=4), PolicyLimits(), NOW, step)


def move(
    what: PolicyInput,
    place: AllocationState,
    used: Mapping[str, int] | None = None,
    ladder: RungRules | None = None,
) -> RecoveryStep:
    return choose_action(what, decide(what), ladder or rungs(), place, used or {})


def test_a_run_of_one_size_asks_for_the_missing_nodes_only() -> None:
    """Nobody gives back three good nodes because one is broken; it waits for one even where none is idle."""
    found = move(case(), PLACE)
    assert (found.rung, found.nodes, found.missing) == (Rung.COMPANION, ("n1", "n3", "n4"), 1)
    assert (found.aside, found.limit_s) == (("n2",), 300.0)


def test_a_start_has_a_node_of_its_own_job() -> None:
    """batch.sh would start none on companions' nodes alone, and the job would end for it: that is said before anybody is asked."""
    place = AllocationState(("n1", "n9"), ("n1", "n9"), batch_node="n1", idle=9, lent=frozenset({"n9"}))
    small = replace(place, sizes=Sizes((1, 2)))
    for one in (place, small):
        found = move(case(nodes=("n1",)), one, ladder=rungs(nodes="1-2"))
        assert found.rung is Rung.RESUBMIT
        assert "no node of the job itself" in dict(found.path)["companion"]
    assert "no node of the job itself" in dict(found.path)["shrink"]
    assert move(case(nodes=("n9",)), place).rung is Rung.COMPANION


def test_spares_stand_in_first_and_the_companion_brings_the_rest() -> None:
    """In the order of the ranks."""
    place = replace(PLACE, nodes=(*ACTIVE, "n5"), spares=("n5",))
    found = move(case(nodes=("n2", "n4")), place)
    assert (found.rung, found.nodes, found.missing) == (Rung.COMPANION, ("n1", "n5", "n3"), 1)
    assert move(case(), place).rung is Rung.SWAP
    assert move(case(), place).missing == 0


@pytest.mark.parametrize(
    ("changes", "nodes", "says"),
    [
        ({"companion_off": "it uses --mpi=pmix"}, ("n2",), "it uses --mpi=pmix"),
        ({"swap_off": "srun was not asked"}, ("n2",), "srun was not asked"),
        ({"nodes": ("n2", "n3", "n4")}, ("n2",), "n1, where the script runs, is gone"),
        ({}, ACTIVE, "no node is left to go on with"),
        ({}, (), "no node is blamed"),
    ],
)
def test_a_companion_that_could_not_help_is_not_asked_for(
    changes: dict[str, Any], nodes: tuple[str, ...], says: str
) -> None:
    """And the path says why."""
    found = move(case(nodes=nodes), replace(PLACE, **changes))
    assert found.rung is Rung.RESUBMIT
    assert says in dict(found.path)["companion"]


@pytest.mark.parametrize(
    ("idle", "rung"), [(None, Rung.SHRINK), (0, Rung.SHRINK), (1, Rung.COMPANION), (9, Rung.COMPANION)]
)
def test_who_may_go_on_smaller_waits_for_nobody(idle: int | None, rung: Rung) -> None:
    """A companion is asked for where it would begin at once."""
    assert move(case(), replace(SMALLER, idle=idle)).rung is rung


def test_who_cannot_get_smaller_any_more_waits_for_a_companion() -> None:
    """A run at its smallest size is like one that has no other."""
    place = replace(PLACE, sizes=Sizes((4, 8)), idle=0)
    assert move(case(), place).rung is Rung.COMPANION


def test_survivors_go_on_in_the_order_of_their_ranks() -> None:
    """The blamed node is in no later start's hands."""
    found = move(case(), SMALLER)
    assert (found.rung, found.nodes, found.aside) == (Rung.SHRINK, ("n1", "n3", "n4"), ("n2",))
    assert found.limit_s == 120.0
    assert found.missing == 0


@pytest.mark.parametrize(
    ("bad", "spares", "stay"),
    [
        (("n2",), (), ("n3", "n4", "n5", "n6", "n7", "n8")),
        (("n2", "n4"), (), ("n5", "n6", "n7", "n8", "n1", "n3")),
        (("n2", "n5"), (), ("n3", "n4", "n7", "n8", "n1", "n6")),
        (("n2", "n3", "n5"), (), ("n7", "n8", "n1", "n4")),
        (("n1", "n2"), (), ("n3", "n4", "n5", "n6", "n7", "n8")),
        (("n2", "n4", "n6"), ("n9",), ("n1", "n9", "n7", "n8", "n3", "n5")),
    ],
)
def test_whole_units_go_on_and_what_is_left_of_broken_ones_forms_new_ones(
    bad: tuple[str, ...], spares: tuple[str, ...], stay: tuple[str, ...]
) -> None:
    """A sick node takes its unit with it; its healthy neighbours fill others or are spares from then on."""
    place = replace(PAIRS, nodes=(*PAIRS.nodes, *spares), spares=spares, companion_off="no companion here")
    found = move(case(nodes=bad), place)
    assert (found.rung, found.nodes) == (Rung.SHRINK, stay)


def test_a_broken_units_neighbour_takes_a_place_at_the_next_fault() -> None:
    """It is a spare now."""
    place = replace(PAIRS, companion_off="no companion here")
    first = move(case(nodes=("n2",)), place)
    spare = tuple(node for node in place.nodes if node not in {*first.nodes, *first.aside})
    assert spare == ("n1",)
    after = replace(place, active=first.nodes, aside=first.aside, spares=spare)
    second = move(case(nodes=("n6",)), after, used=first.used)
    assert second.rung is Rung.RESUBMIT, "shrink was used for this class, and nothing above it is tried again"
    healed = move(case(nodes=("n6",), step=9), after, used=first.used)
    assert (healed.rung, healed.nodes) == (Rung.SWAP, ("n3", "n4", "n5", "n1", "n7", "n8"))


@pytest.mark.parametrize(
    ("changes", "nodes", "says"),
    [
        ({"sizes": None}, ("n2",), "--ft-nodes"),
        ({"sizes": Sizes((4,))}, ("n2",), "no valid size is left: 3 nodes are well"),
        ({"sizes": Sizes((3, 4))}, ("n2", "n3"), "no valid size is left: 2 nodes are well"),
        ({"shrink_off": "release refused"}, ("n2",), "release refused"),
        ({"swap_off": "srun was not asked"}, ("n2",), "srun was not asked"),
        ({"nodes": ("n2", "n3", "n4")}, ("n2",), "n1, where the script runs, is gone"),
        ({}, ACTIVE, "every node is blamed"),
        ({}, (), "no node is blamed"),
    ],
)
def test_a_run_that_has_no_smaller_size_is_submitted_again(
    changes: dict[str, Any], nodes: tuple[str, ...], says: str
) -> None:
    """Never below the smallest size, and never without the node on which the script runs."""
    place = replace(SMALLER, **{"companion_off": "no companion here", **changes})
    found = move(case(nodes=nodes), place)
    assert found.rung is Rung.RESUBMIT
    assert says in dict(found.path)["shrink"]


def test_a_new_job_that_would_begin_at_once_at_full_size_is_cheaper() -> None:
    """As long as nobody else waits for the nodes that it gives back, and no companion can bring them."""
    place = replace(SMALLER, companion_off="it uses --mpi=pmix", idle=1)
    found = move(case(), place)
    assert found.rung is Rung.RESUBMIT
    assert "a new job at full size would begin at once" in dict(found.path)["shrink"]
    assert move(case(), replace(place, others_wait=True)).rung is Rung.SHRINK
    assert move(case(), replace(place, idle=0)).rung is Rung.SHRINK
    assert move(case(), replace(place, idle=None)).rung is Rung.SHRINK
    assert move(case(), replace(place, companion_off="")).rung is Rung.COMPANION


def test_what_the_full_size_lacks_is_counted_from_the_full_size() -> None:
    """A run that is small already needs more idle nodes for a new job at full size than it has lost just now."""
    place = replace(
        SMALLER,
        active=("n1", "n3", "n4"),
        aside=("n2",),
        idle=1,
        companion_off="it uses --mpi=pmix",
    )
    assert move(case(nodes=("n3",)), place).nodes == ("n1", "n4")
    assert move(case(nodes=("n3",)), replace(place, idle=2)).rung is Rung.RESUBMIT


def test_going_smaller_again_is_another_try_and_its_budget_counts() -> None:
    """Each time with fewer nodes, so it ends by itself."""
    place = replace(SMALLER, companion_off="no companion here")
    first = move(case(), place)
    after = replace(place, active=first.nodes, aside=first.aside)
    second = move(case(nodes=("n3",)), after, used=first.used)
    assert (second.rung, second.nodes) == (Rung.SHRINK, ("n1", "n4"))
    spent = move(case(nodes=("n3",)), after, used=first.used, ladder=rungs(budget_shrink=1))
    assert "budget-shrink: 1 of 1 used" in dict(spent.path)["shrink"]
    third = replace(after, active=second.nodes, aside=second.aside)
    assert move(case(nodes=("n4",)), third, used=second.used).rung is Rung.RESUBMIT


def test_a_companion_that_came_to_nothing_is_followed_by_going_smaller() -> None:
    """Only further down."""
    place = replace(SMALLER, idle=4)
    first = move(case(), place)
    assert first.rung is Rung.COMPANION
    after = replace(place, companion_off="the companion did not come", idle=0)
    assert move(case(), after, used=first.used).rung is Rung.SHRINK


NAMES = st.sampled_from([f"n{i}" for i in range(1, 9)])


@st.composite
def _places(draw: st.DrawFn) -> AllocationState:
    nodes = tuple(f"n{i}" for i in range(1, draw(st.integers(2, 8)) + 1))
    unit = draw(st.sampled_from([1, 1, 2]))
    full = draw(st.integers(1, len(nodes) // unit)) * unit
    sizes = draw(st.none() | st.sets(st.integers(1, full // unit), max_size=4))
    active = nodes[: draw(st.integers(1, full))]
    return AllocationState(
        nodes,
        active,
        tuple(node for node in nodes if node not in active and draw(st.booleans())),
        sizes=Sizes(sorted({*(size * unit for size in sizes), full}), unit) if sizes is not None else None,
        batch_node="n1",
        idle=draw(st.none() | st.integers(0, 4)),
        others_wait=draw(st.booleans()),
        companion_off=draw(st.sampled_from(["", "it uses --mpi=pmix"])),
    )


@given(
    _places(),
    st.lists(
        st.tuples(st.sampled_from([F.NODE, F.NETWORK, F.HANG, F.USER_CODE]), st.sets(NAMES, max_size=3))
    ),
    st.integers(0, 2),
)
def test_sizes_stay_valid_and_a_run_of_faults_comes_to_rest(
    place: AllocationState, faults: list[tuple[F, set[str]]], budget: int
) -> None:
    """Never below the least, never a node set aside, never more nodes than before, budgets kept, every step told."""
    ladder, used = rungs(budget_companion=budget), dict[str, int]()
    for fault, nodes in faults:
        what = case(fault, nodes=tuple(sorted(nodes)))
        found = choose_action(what, decide(what), ladder, place, used)
        assert all(why for _, why in found.path)
        assert found.path[-1][0] == found.rung
        if found.rung is Rung.RESUBMIT:
            assert (found.nodes, found.missing) == ((), 0)
            return
        assert set(found.nodes) <= set(place.nodes)
        assert not set(found.nodes) & {*found.aside, *decide(what).decision.exclude}
        assert len(set(found.nodes)) == len(found.nodes)
        before = len(place.active)
        if found.rung is Rung.SHRINK:
            assert place.sizes is not None
            assert len(found.nodes) in place.sizes.all
            assert len(found.nodes) < before
        else:
            assert len(found.nodes) + found.missing == before
        assert (found.missing > 0) == (found.rung is Rung.COMPANION)
        assert found.used.get("companion", 0) <= budget
        used = dict(found.used)
        came = tuple(f"c{i}-{place.start}" for i in range(found.missing))
        place = replace(
            place,
            nodes=(*place.nodes, *came),
            active=(*found.nodes, *came),
            aside=found.aside,
            start=place.start + 1,
        )
    assert place.start < 50


@given(_places(), st.sampled_from([F.NODE, F.NETWORK, F.USER_CODE, F.OOM_GPU]), st.sets(NAMES, max_size=2))
def test_what_if_and_the_climb_agree(place: AllocationState, fault: F, nodes: set[str]) -> None:
    """A rung that is never taken by the one is not taken by the other."""
    what, chosen = case(fault, nodes=tuple(sorted(nodes))), {**settings.defaults(), "nodes": "1-8"}
    found = choose_action(what, decide(what), rung_rules_from(chosen), place, {})
    if found.rung is not Rung.RESUBMIT:
        assert not dict(what_if(chosen, fault))[found.rung].startswith(NEVER)
