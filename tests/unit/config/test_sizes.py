"""The sizes of a run: what is read, what is refused, and how units and batches are reckoned. (pure)"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftrun.supervisor.config.node_counts import (
    GlobalBatch,
    Sizes,
    parse_sizes,
    plan_batch,
    whole_units,
)
from ftrun.supervisor.model.errors import SettingError


@pytest.mark.parametrize(
    ("said", "listed", "sizes"),
    [
        ("2-5", "", (2, 3, 4, 5)),
        ("2-8:2", "", (2, 4, 6, 8)),
        ("4-4", "", (4,)),
        ("", "8,2,4", (2, 4, 8)),
        ("2-8", "2, 4, 8", (2, 4, 8)),
        ("4-16:4", "4,16", (4, 16)),
    ],
)
def test_sizes_are_those_of_the_span_or_of_the_list(said: str, listed: str, sizes: tuple[int, ...]) -> None:
    """MIN-MAX counts by units; a list says them one by one."""
    read = parse_sizes(said, listed)
    assert read is not None
    assert (read.all, read.full) == (sizes, sizes[-1])


def test_a_run_without_sizes_is_not_elastic() -> None:
    """Nothing said, nothing meant."""
    assert parse_sizes("", "") is None


@pytest.mark.parametrize(
    ("said", "listed", "told"),
    [
        ("8", "", "MIN-MAX"),
        ("8-2", "", "2-8"),
        ("0-4", "", "'0' is no number"),
        ("2-x", "", "'x' is no number"),
        ("2-8:0", "", "'0' is no number"),
        ("2-9:2", "", "9 is no multiple"),
        ("3-8:2", "", "4-8:2"),
        ("2-99999999", "", "no number of nodes"),
        ("2-8", "1,8", "1 is not within"),
        ("2-8", "2,4", "the full size, 8"),
        ("2-8:2", "3,8", "3 is no multiple"),
        ("", "2,,4", "'' is no number"),
        ("2-\u0664", "", "no number"),
    ],
)
def test_a_wrong_span_is_refused_with_what_would_be_right(said: str, listed: str, told: str) -> None:
    """One line that names the setting."""
    with pytest.raises(SettingError, match=r"^nodes(-valid)?: ") as refused:
        parse_sizes(said, listed)
    assert told in str(refused.value)
    assert "\n" not in str(refused.value)


def test_the_largest_size_that_nodes_allow() -> None:
    """Down to none."""
    sizes = Sizes((2, 4, 8), 2)
    assert [sizes.at_most(n) for n in (1, 2, 3, 7, 8, 100)] == [0, 2, 2, 4, 8, 8]


def test_a_size_that_did_not_work_is_left_out_but_never_the_full_one() -> None:
    """A run can always come back to what its user asked for."""
    assert Sizes((2, 4, 8)).without({4, 8}).all == (2, 8)


def test_a_batch_is_dealt_out_to_the_replicas_of_each_size() -> None:
    """The product of steps, micro batch and replicas is the whole batch at every size."""
    sizes = Sizes((2, 4, 8))
    batch = plan_batch(sizes, 512, 4, per_node=8)
    assert batch is not None
    assert [batch.steps(size, 1) for size in sizes.all] == [8, 4, 2]


def test_a_unit_of_several_nodes_is_one_replica_unless_told_otherwise() -> None:
    """TP x PP over the unit: one replica."""
    assert (batch := plan_batch(Sizes((4, 8), 4), 64, 1, per_node=8)) is not None
    assert batch.replicas == 1
    assert (batch := plan_batch(Sizes((4, 8), 4), 64, 1, per_node=8, replicas=2)) is not None
    assert [batch.steps(size, 4) for size in (4, 8)] == [32, 16]


def test_a_batch_that_a_size_cannot_keep_is_refused_with_the_sizes_that_work() -> None:
    """The list can be typed as it is told."""
    with pytest.raises(SettingError, match="--ft-nodes-valid=2,4,8") as refused:
        plan_batch(Sizes((2, 3, 4, 5, 6, 7, 8)), 512, 4, per_node=8)
    assert "3, 5, 6, 7 nodes" in str(refused.value)


@pytest.mark.parametrize(
    ("whole", "micro", "per_node", "told"),
    [(64, 0, 8, "micro-batch"), (0, 4, 8, "global-batch"), (64, 4, 0, "--ft-replicas"), (7, 4, 8, "no size")],
)
def test_half_a_batch_is_refused(whole: int, micro: int, per_node: int, told: str) -> None:
    """What would have to be guessed is asked for."""
    with pytest.raises(SettingError, match=told):
        plan_batch(Sizes((1, 2)), whole, micro, per_node=per_node)


def test_a_sick_node_takes_its_unit_with_it_and_its_neighbours_are_free() -> None:
    """Units are counted along the ranks."""
    nodes = ("a", "b", "c", "d", "e", "f")
    assert whole_units(nodes, {"c"}, 2) == (("a", "b", "e", "f"), ("d",))
    assert whole_units(nodes, {"a", "f"}, 3) == ((), ("b", "c", "d", "e"))
    assert whole_units(nodes, {"b"}, 1) == (("a", "c", "d", "e", "f"), ())


@given(st.integers(1, 6), st.integers(1, 8), st.sets(st.integers(0, 47)))
def test_no_node_is_lost_and_no_unit_is_torn(unit: int, units: int, bad: set[int]) -> None:
    """Whatever is bad: what goes on is whole units of healthy nodes, and every other healthy node is free."""
    nodes = tuple(f"n{i}" for i in range(unit * units))
    names = {f"n{i}" for i in bad}
    stay, free = whole_units(nodes, names, unit)
    assert len(stay) % unit == 0
    assert {*stay, *free} == {*nodes} - names
    assert not {*stay} & {*free}


@given(st.integers(1, 64), st.integers(1, 8), st.integers(1, 16))
def test_steps_times_ranks_times_micro_is_the_whole_batch_or_nothing(
    size: int, micro: int, replicas: int
) -> None:
    """Never a batch of another size."""
    batch = GlobalBatch(1024, micro, replicas)
    steps = batch.steps(size, 1)
    assert steps == 0 or steps * micro * replicas * size == 1024
