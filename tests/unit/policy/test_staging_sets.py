"""Laws of what a start resumes from in memory."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ftrun.supervisor.policy.staging import (
    NONE,
    WAIT,
    HeldPart,
    choose_set,
    group_sets,
    is_cheap,
    parse_parts,
    transfer_plan,
)

NODES = ("n0", "n1", "n2")


def held(name: str, token: str = "0.1", size: int = 10, *, proven: bool = True, **at: str) -> list[HeldPart]:
    """Parts of a set: node -> the nodes that hold it, as words."""
    return [
        HeldPart(where, node, token, name, size, proven)
        for node, places in at.items()
        for where in places.split()
    ]


def test_the_newest_is_the_highest_step_and_then_the_latest_start() -> None:
    """A start that went back saves an old step anew; what it saved counts for that step."""
    parts = [*held("step-8", n0="n0"), *held("step-10", n0="n0"), *held("step-8", "0.2", n0="n0")]
    found = group_sets(parts, {"0.1": ["n0"], "0.2": ["n0"]})
    assert [(one.name, one.token) for one in found] == [
        ("step-10", "0.1"),
        ("step-8", "0.2"),
        ("step-8", "0.1"),
    ]


def test_a_set_is_at_hand_when_each_part_lies_somewhere() -> None:
    """On its own node, or as a copy; parts of nodes that took no part are none of it."""
    whole, torn = group_sets(
        [*held("step-9", n0="n0", n1="n2", n2="n2"), *held("step-8", n0="n0", n2="n2")], {"0.1": NODES}
    )
    assert (whole.name, whole.is_at_hand, torn.is_at_hand) == ("step-9", True, False)
    assert group_sets(held("step-9", "0.7", n0="n0"), {"0.1": NODES}) == []


def test_a_published_set_moves_only_the_parts_of_lost_nodes() -> None:
    """The others have theirs, and what they read of each other lies on disk."""
    (one,) = group_sets(held("step-9", n0="n0 n1", n1="n2", n2="n2 n0"), {"0.1": NODES})
    found = transfer_plan(one, ("n0", "n3", "n2"), published=True)
    assert found is not None
    assert (found.give, found.need) == ((("n2", "n1", "n3"),), {"n3": ("n1",)})
    same = transfer_plan(one, NODES, published=True)
    assert same is not None
    assert same.give == ()


def test_nodes_behind_a_lost_one_get_what_their_new_ranks_have_saved() -> None:
    """Ranks go by Slurm's order of the nodes: a spare behind all others makes those behind the lost node move up by one."""
    (one,) = group_sets(held("step-9", n0="n0", n1="n1 n2", n2="n2"), {"0.1": NODES})
    found = transfer_plan(one, ("n0", "n2", "n3"), published=True)
    assert found is not None
    assert (found.give, found.need) == ((("n2", "n2", "n3"),), {"n3": ("n2",)})


def test_a_set_that_is_not_published_must_come_to_everybody() -> None:
    """With fewer or more nodes, too: no file may be missing anywhere."""
    (one,) = group_sets(held("step-9", n0="n0", n1="n1", n2="n2 n0"), {"0.1": NODES})
    for active in (("n0", "n2"), ("n0", "n2", "n4", "n5")):
        found = transfer_plan(one, active, published=False)
        assert found is not None
        has = {node: {of for of, at in one.at.items() if node in at} for node in active}
        for _, of, receiver in found.give:
            has[receiver].add(of)
        assert all(has[node] == set(NODES) for node in active)
        assert is_cheap(found)


def test_what_nobody_vouched_for_or_is_not_whole_is_not_used_from_memory() -> None:
    """A rank that died in the middle leaves a part that only its layout can judge; that is done when it is published."""
    (one,) = group_sets(held("step-9", proven=False, n0="n0", n1="n1", n2="n2"), {"0.1": NODES})
    assert transfer_plan(one, NODES, published=False) is None
    (part,) = group_sets(held("step-9", n0="n0"), {"0.1": NODES})
    assert transfer_plan(part, NODES, published=False) is None


def test_a_lost_part_that_nobody_has_leaves_the_disk() -> None:
    """The node that came reads it there."""
    (one,) = group_sets(held("step-9", n0="n0", n2="n2"), {"0.1": NODES})
    found = transfer_plan(one, ("n0", "n3", "n2"), published=True)
    assert found is not None
    assert found.give == ()


def test_much_is_not_moved_while_it_may_still_be_published() -> None:
    """Neither many bytes nor many transfers."""
    (one,) = group_sets(held("step-9", size=3 << 30, n0="n0", n1="n1", n2="n2"), {"0.1": NODES})
    found = transfer_plan(one, NODES, published=False)
    assert found is not None
    assert not is_cheap(found)
    many = tuple(f"n{number}" for number in range(12))
    (one,) = group_sets([HeldPart(n, n, "0.1", "step-9", 10) for n in many], {"0.1": many})
    wide = transfer_plan(one, many, published=False)
    assert wide is not None
    assert not is_cheap(wide)


def test_the_newest_that_can_be_had_is_waited_for_and_no_longer_than_that() -> None:
    """What is published is taken at once; what costs much is waited for as long as it may be published; what can never come is passed over."""
    large, small = group_sets(
        [
            *held("step-9", size=3 << 30, n0="n0", n1="n1", n2="n2"),
            *held("step-8", n0="n0", n1="n1", n2="n2"),
        ],
        {"0.1": NODES},
    )
    both = [large, small]
    assert choose_set(both, NODES, published=["step-9"], hopeful=both, last=False) is large
    assert choose_set(both, NODES, published=["step-8"], hopeful=[large], last=False) == WAIT
    assert choose_set(both, NODES, published=["step-8"], hopeful=[large], last=True) is large
    assert choose_set([small], NODES, published=[], hopeful=[small], last=False) is small
    (torn,) = group_sets(held("step-10", n0="n0"), {"0.1": NODES})
    assert choose_set([torn, *both], NODES, published=["step-9"], hopeful=[], last=False) is large
    assert choose_set([torn, large], NODES, published=["step-9"], hopeful=[torn], last=False) == WAIT
    assert choose_set([torn], NODES, published=[], hopeful=[], last=True) == NONE


def test_a_set_that_is_one_file_is_had_from_any_node() -> None:
    """Replicas all have it."""
    parts = [HeldPart("n1", "n1", "0.1", "last.ckpt", 5, is_file=True)]
    (one,) = group_sets(parts, {"0.1": NODES})
    found = transfer_plan(one, ("n0", "n1"), published=False)
    assert found is not None
    assert found.give == (("n1", "n1", "n0"),)


@given(
    st.recursive(
        st.none() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_what_a_node_says_is_taken_as_far_as_it_makes_sense(told: object) -> None:
    """Whatever it prints."""
    assert parse_parts("n0", {"parts": told}) == []
    assert parse_parts("n0", told) == []
    good = ["n1", "0.1", "step-9", 7, True, False, 1.5]
    assert parse_parts("n0", {"parts": [told, good]}) == [
        HeldPart("n0", "n1", "0.1", "step-9", 7, True, False, 1.5)
    ]
