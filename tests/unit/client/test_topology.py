"""The topology as Slurm's releases tell of it: leaves, distances, whole segments."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftrun.slurm.client.topology import (
    FAR,
    Topology,
    by_leaf,
    is_whole,
    parse_topology,
    topology_of,
    whole_segments,
)

# As `scontrol show topology` of 22.05 and 24.11 prints it for one topology.conf.
TREE = """\
SwitchName=s0 Level=0 LinkSpeed=1 Nodes=n[0-1]
SwitchName=s1 Level=0 LinkSpeed=1 Nodes=n[2-3]
SwitchName=s2 Level=0 LinkSpeed=1 Nodes=n[4-5]
SwitchName=row Level=1 LinkSpeed=1 Nodes=n[0-3] Switches=s[0-1]
SwitchName=top Level=2 LinkSpeed=1 Nodes=n[0-5] Switches=row,s2
"""
TREE_CONF = """\
# topology.conf
SwitchName=s0 Nodes=n[0-1]
SwitchName=s1 Nodes=n[2-3]  # the second
switchname=s2 nodes=n[4-5]
SwitchName=row Switches=s[0-1]
SwitchName=top Switches=row,s2
"""
BLOCK = """\
BlockName=b0 BlockIndex=0 Nodes=n[0-1] BlockSize=2
BlockName=b1 BlockIndex=1 Nodes=n[2-3] BlockSize=2
BlockName=b2 BlockIndex=2 Nodes=n[4-5] BlockSize=2
AggregatedBlock=b[0-1] BlockIndex=3 Nodes=n[0-3] BlockSize=4
"""
LEAVES = (("n0", "n1"), ("n2", "n3"), ("n4", "n5"))


@pytest.mark.parametrize("text", [TREE, TREE_CONF])
def test_leaf_switches_know_their_nodes_and_what_is_above(text: str) -> None:
    """The controller's words and those of topology.conf mean the same."""
    found = parse_topology(text)
    assert (found.kind, tuple(found.leaves.values())) == ("tree", LEAVES)
    assert found.paths["n2"] == ("s1", "row", "top")
    distances = [found.distance("n0", other) for other in ("n0", "n1", "n2", "n4")]
    assert distances == [0, 0, 1, 2]
    assert found.distance("n0", "stranger") == found.distance("stranger", "n0") == FAR


def test_blocks_and_aggregated_blocks_are_leaves_and_what_is_above() -> None:
    """A block without anything above it is far from all others."""
    found = parse_topology(BLOCK)
    assert (found.kind, tuple(found.leaves.values())) == ("block", LEAVES)
    assert [found.distance("n0", other) for other in ("n1", "n2", "n4")] == [0, 1, FAR]


@pytest.mark.parametrize(
    "text", ["", "no topology", "SwitchName=odd Level=0 Nodes=n[0-", "BlockSizes=4", "a=b=c ="]
)
def test_what_is_not_understood_is_no_topology(text: str) -> None:
    """Nothing is guessed, and all nodes are equally far apart."""
    assert parse_topology(text) == Topology()
    assert not parse_topology(text)


def test_a_loop_and_a_node_of_two_switches_harm_nothing() -> None:
    """The first switch has the node."""
    found = parse_topology(
        "SwitchName=a Nodes=n0\nSwitchName=b Nodes=n[0-1]\nSwitchName=c Switches=d\nSwitchName=d Switches=a,c\n"
    )
    assert found.leaves == {"a": ("n0",), "b": ("n1",)}
    assert found.leaf("n0") == "a"


def test_segments_are_of_one_leaf_each() -> None:
    """What is left of a leaf, and nodes of no leaf, make none."""
    found = parse_topology(TREE)
    assert whole_segments(("n3", "x", "n0", "n5", "n1", "y", "n4"), 2, found) == (("n0", "n1"), ("n5", "n4"))
    assert whole_segments(("n3", "n0"), 2, Topology()) == ()
    assert is_whole(("n3", "n2"), found)
    assert not is_whole(("n3", "n4"), found)
    assert is_whole(("n3", "n4"), Topology())
    assert by_leaf(("n3", "n0", "n2", "n1"), found) == ("n3", "n2", "n0", "n1")


@given(st.text(), st.lists(st.sampled_from(["n0", "n1", "n2", "n9"]), unique=True))
def test_any_text_is_read(text: str, nodes: list[str]) -> None:
    """And distances are the same both ways."""
    found = parse_topology(text + TREE[: len(text)])
    for one in nodes:
        assert all(found.distance(one, other) == found.distance(other, one) for other in nodes)


def test_distances_go_by_levels() -> None:
    """Of what stands above a leaf."""
    found = topology_of(
        "tree", {"a": ["x"], "b": ["y"], "c": ["z"]}, {"a": "r", "b": "r", "r": "t", "c": "t"}
    )
    assert [found.distance("x", other) for other in "xyz"] == [0, 1, 2]
    assert found.distance("z", "x") == 2
