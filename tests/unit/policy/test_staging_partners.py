"""Laws of the pairs: each node gives one copy and takes one, far from home, and what is there stays."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ftrun.supervisor.policy.staging import pair_nodes


def names(count: int) -> list[str]:
    return [f"n{number}" for number in range(count)]


@given(st.integers(0, 40), st.lists(st.integers(0, 5), min_size=40, max_size=40))
def test_everybody_gives_one_copy_and_takes_one(count: int, at: list[int]) -> None:
    """Whatever the switches: nobody keeps his own copy, nobody keeps two."""
    nodes = names(count)
    leaves = {
        f"s{leaf}": [n for n, where in zip(nodes, at, strict=False) if where == leaf] for leaf in set(at)
    }
    pairs = pair_nodes(nodes, leaves)
    if count < 2:
        assert pairs == {}
        return
    assert set(pairs) == set(pairs.values()) == set(nodes)
    assert all(giver != taker for giver, taker in pairs.items())
    assert len(pairs) == len(set(pairs.values()))


@given(st.lists(st.integers(1, 6), min_size=2, max_size=6))
def test_no_copy_stays_below_the_same_switch_where_that_can_be_had(sizes: list[int]) -> None:
    """It can as long as no switch has more than half of the nodes; else as many go elsewhere as there are places."""
    leaves = {f"s{leaf}": [f"s{leaf}n{n}" for n in range(size)] for leaf, size in enumerate(sizes)}
    leaf_of = {node: leaf for leaf, members in leaves.items() for node in members}
    nodes = list(leaf_of)
    pairs = pair_nodes(nodes, leaves)
    at_home = sum(leaf_of[giver] == leaf_of[taker] for giver, taker in pairs.items())
    assert at_home == max(0, 2 * max(sizes) - len(nodes))


@given(st.integers(3, 20), st.data())
def test_a_node_that_is_replaced_moves_few_copies(count: int, data: st.DataObject) -> None:
    """Only those that it gave or took, and one more at most."""
    nodes = names(count)
    before = pair_nodes(nodes)
    lost = data.draw(st.sampled_from(nodes))
    now = ["spare" if node == lost else node for node in nodes]
    pairs = pair_nodes(now, before=before)
    assert set(pairs) == set(pairs.values()) == set(now)
    assert all(giver != taker for giver, taker in pairs.items())
    assert sum(pairs[node] != before[node] for node in now if node in before) <= 2


def test_without_switches_a_copy_goes_half_way_round() -> None:
    """A neighbour in the list is most often one in the rack."""
    assert pair_nodes(names(4)) == {"n0": "n2", "n1": "n3", "n2": "n0", "n3": "n1"}
    assert pair_nodes(names(2)) == {"n0": "n1", "n1": "n0"}


def test_pairs_of_before_that_contradict_each_other_are_forgotten() -> None:
    """Nobody is made to keep two copies by what stands in a file."""
    assert sorted(pair_nodes(names(3), before={"n0": "n1", "n2": "n1"}).values()) == ["n0", "n1", "n2"]
