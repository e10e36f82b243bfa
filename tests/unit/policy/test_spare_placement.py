"""Laws of spares and segments by Slurm's topology, and of a switch below which nodes fail together."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftrun.slurm.client.topology import Topology, is_whole, topology_of
from ftrun.supervisor.config import node_counts, settings
from ftrun.supervisor.config.node_counts import Sizes, segment_size
from ftrun.supervisor.config.recovery_order import rung_rules_from
from ftrun.supervisor.config.rungs import Rung
from ftrun.supervisor.model.errors import SettingError
from ftrun.supervisor.model.run import Attempt, Launch, LaunchEnd, Run
from ftrun.supervisor.model.states import State
from ftrun.supervisor.model.types import Source
from ftrun.supervisor.policy import policy_input
from ftrun.supervisor.policy.correlated_failures import CHANCE_MAX, suspect_switch
from ftrun.supervisor.policy.decide import decide
from ftrun.supervisor.policy.ladder import AllocationState, RecoveryStep, choose_action
from ftrun.supervisor.policy.node_placement import nodes_to_exclude
from ftrun.supervisor.policy.policy_input import ClusterView, PolicyInput, PolicyLimits
from ftrun.supervisor.policy.spare_placement import are_in_rows, mend_segments, substitute_nodes
from tests.unit.cases import F, cluster, diagnosis, incident

NOW = 1_000_000.0


def tree(*leaves: str) -> Topology:
    """Leaf s0, s1, ... with these nodes, all below one switch."""
    names = {f"s{i}": nodes.split() for i, nodes in enumerate(leaves)}
    return topology_of("tree", names, dict.fromkeys(names, "top"))


PAIRS = tree("n1 n2", "n3 n4", "n5 n6", "n7 n8")


def case(topology: Topology, blamed: str, nodes: str, idle: str = "", **more: Any) -> PolicyInput:
    """Nodes of a job are lost for sure, of class `fault` and by `sources`."""
    attempt = Attempt(1, NOW - 1000, nodes=tuple(nodes.split()), launch=Launch(end=LaunchEnd(state="FAILED")))
    history = Run("r-0001", State.SETTLING, attempts=(attempt,), incidents=more.pop("incidents", ()))
    fault, sources = more.pop("fault", F.NODE), more.pop("sources", (Source.SLURM,))
    found = diagnosis(fault, nodes=tuple(blamed.split()), sources=sources, **more)
    view = cluster(
        nodes_needed=4, topology=topology, idle=frozenset(idle.split()), lost=frozenset(blamed.split())
    )
    return PolicyInput(history, attempt, found, view, PolicyLimits(), NOW)


def move(what: PolicyInput, active: str, spares: str = "", **place: Any) -> RecoveryStep:
    """What the ladder does; companions and sizes as `place` says."""
    own = {"spares": 2, "nodes": "2-8:2" if place.get("sizes") else ""}
    rungs = rung_rules_from({**settings.defaults(), **own})
    names = tuple(sorted({*active.split(), *spares.split()}))
    place = {"batch_node": "n1", **place}
    where = AllocationState(names, tuple(active.split()), tuple(spares.split()), **place)
    return choose_action(what, decide(what), rungs, where, {})


# ------------------------------------------------------------------ the nearest spare


def test_the_nearest_spare_takes_the_place() -> None:
    """The same leaf first, then what is fewer levels away, then the order of the spares."""
    assert substitute_nodes(("n1", "n3"), ("n3",), ("n8", "n4"), PAIRS) == ("n1", "n4")
    assert substitute_nodes(("n1", "n3"), ("n1", "n3"), ("n4", "n2"), PAIRS) == ("n2", "n4")
    assert substitute_nodes(("n1", "n3"), ("n3",), ("n8", "n6"), PAIRS) == ("n1", "n8")
    deep = topology_of("tree", {"a": ["x"], "b": ["y"], "c": ["z"]}, {"a": "r", "b": "r", "r": "t", "c": "t"})
    assert substitute_nodes(("x",), ("x",), ("z", "y"), deep) == ("y",)


def test_a_doubtful_spare_comes_after_every_other_however_near() -> None:
    """Health before bandwidth."""
    assert substitute_nodes(("n1", "n3"), ("n3",), ("n8", "n4"), PAIRS, {"n4"}) == ("n1", "n8")


@given(st.lists(st.integers(0, 11), unique=True, min_size=2), st.integers(0, 11), st.integers(0, 3))
def test_no_node_is_used_twice_and_the_well_keep_their_places(names: list[int], cut: int, lost: int) -> None:
    """Whatever the topology says."""
    nodes = [f"n{i}" for i in names]
    active, spares = nodes[: cut or 1], nodes[cut or 1 :]
    bad = active[:lost]
    found = substitute_nodes(active, bad, spares, tree("n0 n1 n2", "n3 n4 n5 n6", "n7"))
    assert (found is None) is (len(spares) < len(bad))
    if found is not None:
        assert len(set(found)) == len(active)
        assert [(a, b) for a, b in zip(active, found, strict=True) if a != b and a not in bad] == []
        assert not set(found) & set(bad)


def test_the_reason_says_where_the_spare_stands() -> None:
    """For people who wonder why the collective is slower now."""
    near = move(case(PAIRS, "n3", "n1 n3 n4 n8"), "n1 n3", "n8 n4")
    assert near.nodes == ("n1", "n4")
    assert near.reason.endswith("n4 in the place of n3, below the same switch")
    assert move(case(PAIRS, "n3", "n1 n3 n8"), "n1 n3", "n8").reason.endswith(", below another switch")
    assert move(case(Topology(), "n3", "n1 n3 n8"), "n1 n3", "n8").reason.endswith("n8 in the place of n3")


# ------------------------------------------------------------------ whole segments


@pytest.mark.parametrize(
    ("bad", "spares", "segments"),
    [
        ("n2", "", ((), ("n3", "n4"))),
        ("n2", "n5", ((), ("n3", "n4"))),
        ("n2", "n5 n6", (("n5", "n6"), ("n3", "n4"))),
        ("n2 n3", "n5 n6", (("n5", "n6"), ())),
        ("n2", "n5 n7 n6", (("n5", "n6"), ("n3", "n4"))),
    ],
)
def test_a_segment_that_is_not_whole_is_not_used(bad: str, spares: str, segments: tuple[Any, ...]) -> None:
    """Only nodes of one leaf make one whole again, or all of its places are taken by nodes of another."""
    found = mend_segments(("n1", "n2", "n3", "n4"), bad.split(), spares.split(), 2, PAIRS)
    assert found == segments


def test_a_spare_of_the_same_leaf_completes_a_segment_and_others_stay() -> None:
    """As NVL72 with 16 of 18 nodes in use."""
    wide = tree("n1 n2 n3", "n4 n5 n6")
    found = mend_segments(("n1", "n2", "n4", "n5"), ("n2", "n5"), ("n6", "n3"), 2, wide)
    assert found == (("n1", "n3"), ("n4", "n6"))


LEAVES = ("n0 n1 n2", "n3 n4", "n5 n6 n7 n8", "n9")


@given(st.permutations(range(10)), st.integers(1, 4), st.integers(1, 3), st.sets(st.integers(0, 9)))
def test_every_segment_that_is_used_is_whole_and_well(
    order: list[int], count: int, unit: int, lost: set[int]
) -> None:
    """And no node is in two."""
    nodes, topology = [f"n{i}" for i in order], tree(*LEAVES)
    active, bad = nodes[: count * unit], {f"n{i}" for i in lost}
    spares = [node for node in nodes[count * unit :] if node not in bad]
    used = [segment for segment in mend_segments(active, bad, spares, unit, topology) if segment]
    assert all(len(segment) == unit and is_whole(segment, topology) for segment in used)
    flat = [node for segment in used for node in segment]
    assert len(flat) == len(set(flat))
    assert not bad.intersection(flat)


def test_a_swap_makes_segments_whole_or_is_not_made() -> None:
    """One spare of another leaf helps nobody; two of one leaf replace the segment."""
    lost = case(PAIRS, "n4", "n1 n2 n3 n4 n5 n6 n7 n8")
    alone = move(lost, "n1 n2 n3 n4", "n5", segment=2, companion_off="no companion here")
    assert alone.rung is Rung.RESUBMIT
    assert "would not make each segment of 2 nodes whole" in dict(alone.path)["swap"]
    both = move(lost, "n1 n2 n3 n4", "n5 n6", segment=2)
    assert (both.rung, both.nodes) == (Rung.SWAP, ("n1", "n2", "n5", "n6"))
    assert move(lost, "n1 n2 n3 n4", "n5", companion_off="none").nodes == ("n1", "n2", "n3", "n5")


def test_a_run_shrinks_by_whole_segments() -> None:
    """Healthy neighbours of two leaves form none, as they would with `unit = node`."""
    lost = case(PAIRS, "n2 n4", "n1 n2 n3 n4 n5 n6")
    sizes = Sizes((2, 4, 6), 2)
    by_segment = move(lost, "n1 n2 n3 n4 n5 n6", sizes=sizes, segment=2, idle=0)
    assert (by_segment.rung, by_segment.nodes) == (Rung.SHRINK, ("n5", "n6"))
    assert move(lost, "n1 n2 n3 n4 n5 n6", sizes=sizes, idle=0).nodes == ("n5", "n6", "n1", "n3")


def test_ranks_of_a_segment_stay_in_a_row() -> None:
    """srun ranks nodes in Slurm's order: nodes that would stand between those of another segment are not used."""
    mixed = tree("n1 n4", "n2 n3 n5")
    lost = case(mixed, "n2", "n1 n2 n3 n4 n5")
    found = move(lost, "n2 n3", "n4 n5", segment=2)
    assert found.nodes == ("n3", "n5")
    assert not are_in_rows(("n1", "n2", "n3", "n4"), 2, mixed)


def test_a_companion_brings_what_makes_the_segment_whole() -> None:
    """Idle nodes of the same leaf, or a whole segment of another; else it is not asked for."""
    wide = tree("n1 n2", "n3 n4 n9", "n5 n6")
    found = move(case(wide, "n4", "n1 n2 n3 n4", "n5 n9"), "n1 n2 n3 n4", segment=2, idle=2)
    assert (found.rung, found.nodes, found.within) == (Rung.COMPANION, ("n1", "n2", "n3"), ("n9",))
    found = move(case(wide, "n4", "n1 n2 n3 n4", "n5 n6"), "n1 n2 n3 n4", segment=2, idle=2)
    assert (found.nodes, found.within, found.missing) == (("n1", "n2"), ("n5", "n6"), 2)
    found = move(case(wide, "n4", "n1 n2 n3 n4", "n5"), "n1 n2 n3 n4", segment=2, idle=1)
    assert found.rung is Rung.RESUBMIT
    assert "no idle nodes would make" in dict(found.path)["companion"]


@pytest.mark.parametrize(
    ("chosen", "size"),
    [
        ({}, 0),
        ({"unit": "node", "nodes": "2-8:2"}, 0),
        ({"unit": "segment", "nodes": "2-8:2"}, 2),
        ({"unit": "segment:4"}, 4),
        ({"unit": "segment:4", "nodes": "4-16:4"}, 4),
        ({"unit": "segment:2", "nodes": "4-16:4"}, 2),
    ],
)
def test_a_segment_has_the_nodes_of_a_unit(chosen: dict[str, str], size: int) -> None:
    """Or those that the setting says."""
    assert segment_size(chosen) == size


@pytest.mark.parametrize(
    ("chosen", "says"),
    [
        ({"unit": "segment"}, "--ft-unit=segment:NODES"),
        ({"unit": "segment", "nodes": "2-8"}, "--ft-unit=segment:NODES"),
        ({"unit": "segment:1"}, "not known"),
        ({"unit": "segment:x"}, "is no number of nodes"),
        ({"unit": "rack"}, "wants node, segment or segment:NODES"),
        ({"unit": "segment:3", "nodes": "2-8:2"}, "2, 4, 8 nodes are no whole segments of 3"),
    ],
)
def test_a_segment_that_cannot_be_is_refused(chosen: dict[str, str], says: str) -> None:
    """In one line that says what works."""
    with pytest.raises(SettingError, match=says.replace("[", r"\[")):
        segment_size(chosen)
    assert node_counts.segment_size({"unit": "node"}) == 0


# ------------------------------------------------------------------ a switch that is suspected

RACKS = tree(*(" ".join(f"r{rack}n{i}" for i in range(4)) for rack in range(8)))
ALL = tuple(RACKS.paths)


def test_nodes_that_fail_together_below_a_switch_suspect_it() -> None:
    """8 racks of 4: three of one rack are 8 x 4 of the 4,960 triples, two of one rack 48 of the 496 pairs."""
    three = suspect_switch(ALL[:3], ALL, RACKS)
    assert three is not None
    assert (three.name, three.failed, three.below, three.of) == ("s0", 3, 4, 32)
    assert three.chance == pytest.approx(8 * 4 / 4960)
    assert (
        "3 of 3 nodes that failed together are below it, as are 4 of the job's 32; by chance in 0.65 %"
        in three.sentence
    )
    assert suspect_switch(ALL[:2], ALL, RACKS) is None  # 9.7 %
    one_more = suspect_switch((*ALL[:3], ALL[9]), ALL, RACKS)
    assert one_more is not None
    assert one_more.chance == pytest.approx((8 * 4 * 28 + 8) / 35960)
    assert suspect_switch((*ALL[:2], *ALL[8:10]), ALL, RACKS) is None
    assert suspect_switch(ALL, ALL, RACKS) is None
    assert suspect_switch(ALL[:3], ALL, Topology()) is None
    assert suspect_switch(ALL[:3], ALL, tree(" ".join(ALL))) is None
    assert suspect_switch((), ALL, RACKS) is None


def test_the_chance_is_the_share_of_all_ways_to_fail() -> None:
    """Counted one by one on a small job."""
    small = tree("a b c", "d e f", "g h")
    nodes = tuple(small.paths)
    for count in (2, 3, 4):
        alike = {}
        for failed in combinations(nodes, count):
            most = max(sum(small.leaf(n) == leaf for n in failed) for leaf in small.leaves)
            alike[failed] = most
        for failed, most in alike.items():
            found = suspect_switch(failed, nodes, small)
            share = sum(other >= most for other in alike.values()) / len(alike)
            if found is not None:
                assert most >= count - (count > 2)
                assert found.chance == pytest.approx(share)
            elif most >= max(2, count - (count > 2)):
                assert share > CHANCE_MAX


def test_a_suspected_switch_costs_no_node_an_exclusion_or_a_drain() -> None:
    """Other switches' nodes are tried first, and the reason has the arithmetic."""
    what = case(RACKS, " ".join(ALL[:3]), " ".join(ALL))
    what = replace(
        what, cluster=replace(what.cluster, partition=ALL, available=frozenset(ALL[3:]), may_drain=True)
    )
    found = decide(what).decision
    assert (found.kind, found.exclude, found.drain, found.ask) == ("resubmit", (), (), ())
    assert set(RACKS.leaves["s0"]) <= set(found.avoid)
    assert "away from s0" in found.reason
    assert any("s0 is suspected" in note for note in found.notes)
    alone = decide(replace(what, diagnosis=replace(what.diagnosis, nodes=ALL[:1]))).decision
    assert alone.exclude == ALL[:1]


WIDE = tree(*(" ".join(f"w{rack:02}n{i}" for i in range(4)) for rack in range(16)))
MANY = tuple(WIDE.paths)
HURT = MANY[2:4]  # of 64 nodes in racks of 4: two of one rack are 4.8 % of the pairs


def placed(fault: F, *sources: Source, leave: int = 4, **more: Any) -> tuple[PolicyInput, ClusterView]:
    """Two nodes of one rack fail, and all but `leave` of the 64 are needed."""
    what = case(WIDE, " ".join(HURT), " ".join(MANY), fault=fault, sources=sources, **more)
    view = replace(
        what.cluster, partition=MANY, available=frozenset(MANY), may_drain=True, nodes_needed=64 - leave
    )
    return replace(what, cluster=view, limits=PolicyLimits(drain_cap=0.5)), view


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("fault", [F.HARDWARE_GPU, F.HARDWARE_OTHER])
def test_no_switch_takes_a_device_off_the_bus(fault: F, at_once: bool) -> None:
    """The nodes are left out and drained, and no neighbour in their place."""
    what, view = placed(fault, Source.CHECK)
    if not at_once:
        before = incident(fault, attempt=0, nodes=HURT[:1], ended_at_s=NOW - 100)
        run, found = replace(what.run, incidents=(before,)), replace(what.diagnosis, nodes=HURT[1:])
        what = replace(what, run=run, diagnosis=found)
    blamed = what.diagnosis.nodes
    decision = decide(what).decision
    assert what.switch is None
    assert (decision.exclude, decision.drain) == (blamed, blamed)
    assert nodes_to_exclude(view, decision.exclude, decision.avoid, ()) == blamed


@pytest.mark.parametrize("source", [Source.CHECK, Source.KERNEL])
@pytest.mark.parametrize("fault", [F.NODE, F.NETWORK])
def test_a_suspected_switch_protects_no_proven_node(fault: F, source: Source) -> None:
    """Slurm loses each node below a dead switch; a check or a kernel's log speaks of its own node alone."""
    what, _ = placed(fault, source, Source.SLURM)
    decision = decide(what).decision
    assert what.switch is not None
    assert decision.exclude == HURT
    assert decision.drain == (HURT if fault is F.NODE else ())
    assert set(decision.avoid) == {*WIDE.leaves["s0"]} - {*HURT}
    assert f"without {', '.join(HURT)}; away from s0" in decision.reason


@given(st.integers(0, 6))
def test_where_few_nodes_can_be_left_out_the_culprits_come_first(leave: int) -> None:
    """Not their neighbours below the switch, whatever their names are."""
    what, view = placed(F.NODE, Source.SLURM, leave=leave)
    avoid = decide(what).decision.avoid
    assert set(avoid[:2]) == set(HURT)
    named = nodes_to_exclude(view, (), avoid, ())
    assert len(named) == min(leave, 4)
    assert set(named) <= set(HURT) or set(named) > set(HURT)


def test_the_run_waits_for_no_node_to_be_away_from_a_switch() -> None:
    """Neighbours are avoided as far as other nodes are idle; a node that is not free costs nothing."""
    what, view = placed(F.NETWORK, Source.LOG, leave=3)
    for busy in (0, 1, 2):
        usable = frozenset(MANY[: 64 - busy])
        avoid = decide(replace(what, cluster=replace(view, available=usable))).decision.avoid
        assert len(usable.difference(avoid, view.lost)) >= min(61, len(usable - view.lost))
        assert set(HURT) <= set(avoid)


def test_a_case_suspects_its_switch_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not once for each node that is compared, of thousands: counted, through the decision and the ladder."""
    asked = []

    def counting(*given: Any) -> Any:
        asked.append(given)
        return suspect_switch(*given)

    monkeypatch.setattr(policy_input, "suspect_switch", counting)
    idle = " ".join(f"x{i}" for i in range(64))
    wide = tree(*(" ".join(nodes) for nodes in WIDE.leaves.values()), idle)
    what = case(wide, " ".join(HURT), " ".join(MANY), idle)
    assert what.switch is not None
    found = move(what, " ".join(MANY), segment=4, idle=64, batch_node=MANY[0])
    assert (found.rung, len(found.within)) == (Rung.COMPANION, 4)
    assert len(asked) == 1


def test_failures_within_minutes_count_as_one() -> None:
    """A switch that dies port by port."""
    earlier = tuple(
        incident(F.NODE, attempt=0, nodes=(node,), ended_at_s=NOW - 100 * i)
        for i, node in enumerate(ALL[:2], 1)
    )
    what = case(RACKS, ALL[2], " ".join(ALL), incidents=earlier)
    assert what.switch is not None
    assert what.switch.failed == 3
    long_ago = tuple(replace(one, ended_at_s=NOW - 4000) for one in earlier)
    assert case(RACKS, ALL[2], " ".join(ALL), incidents=long_ago).switch is None


def test_spares_below_a_suspected_switch_come_last() -> None:
    """They would be the next to go."""
    what = case(RACKS, " ".join(ALL[:3]), " ".join(ALL))
    found = move(what, " ".join(ALL[:8]), " ".join((ALL[3], *ALL[8:12])))
    assert found.rung is Rung.SWAP
    assert ALL[3] in found.nodes  # it is at work, and stays there
    found = move(what, " ".join((*ALL[:3], *ALL[4:8])), " ".join((ALL[3], *ALL[8:12])))
    assert ALL[3] not in found.nodes
    assert "s0 is suspected" in found.reason
