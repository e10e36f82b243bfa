"""Which checkpoint a start loads: the order, and what is passed over. (pure)"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ftrun.hooks.checkpoints.model import COMPLETE, STATES, TORN, Found, Inspection
from ftrun.hooks.checkpoints.selection import choose, newness


def one(step: int | None, state: str = COMPLETE, written_s: float = 0.0, name: str = "") -> Inspection:
    """A judged checkpoint of a step."""
    return Inspection(Found(f"/ckpt/{name or step}", "torch", step), state, "so", written_s=written_s)


def test_the_highest_step_is_taken_however_old_it_is() -> None:
    """Steps outrank times: a checkpoint that was copied later is no newer."""
    choice = choose([one(100, written_s=9.0), one(200, written_s=1.0)])

    assert choice.chosen is not None
    assert 200 == choice.chosen.found.step
    assert () == choice.passed


def test_of_the_same_step_the_youngest_is_taken_and_then_the_last_by_name() -> None:
    """The order of batch.sh."""
    by_time = choose([one(1, written_s=1.0, name="b"), one(1, written_s=2.0, name="a")]).chosen
    by_name = choose([one(1, name="a"), one(1, name="b")]).chosen

    assert by_time is not None
    assert by_name is not None
    assert "/ckpt/a" == by_time.found.path
    assert "/ckpt/b" == by_name.found.path


def test_one_without_a_step_comes_after_all_that_have_one() -> None:
    """`last.pt` is taken only where nothing has a step."""
    assert newness(one(None, written_s=9.0)) < newness(one(0))


def test_what_is_passed_over_is_named_with_its_reason_newest_first() -> None:
    """Torn, set aside and complete: the third is taken, and the line says why not the others."""
    choice = choose([one(1), one(2), one(3, TORN)], aside=["/ckpt/2"])

    assert choice.chosen is not None
    assert 1 == choice.chosen.found.step
    assert [("/ckpt/3", "torn: so"), ("/ckpt/2", "set aside: a start failed to load it")] == list(
        choice.passed
    )


def test_nothing_to_choose_from_and_nothing_good_are_told_apart() -> None:
    """The first start has nothing; later ones may have nothing good."""
    assert "there is no checkpoint" == choose([]).why
    assert "none of them may be loaded" == choose([one(1, TORN)]).why


STEPS = st.none() | st.integers(0, 5)
MANY = st.lists(
    st.builds(one, STEPS, st.sampled_from(STATES), st.floats(0, 10), st.sampled_from("abcd")), max_size=8
)


@given(MANY, st.sets(st.sampled_from(["/ckpt/a", "/ckpt/b"])))
def test_what_is_taken_is_complete_and_nothing_newer_could_have_been(
    judged: list[Inspection], aside: set[str]
) -> None:
    """The choice and what was passed over are the upper end of the order, without a gap."""
    choice = choose(judged, aside=aside)
    ordered = sorted(judged, key=newness, reverse=True)

    assert [path for path, _ in choice.passed] == [j.found.path for j in ordered[: len(choice.passed)]]
    if choice.chosen is None:
        assert len(judged) == len(choice.passed)
    else:
        assert ordered[len(choice.passed)] == choice.chosen
        assert COMPLETE == choice.chosen.state
        assert choice.chosen.found.path not in aside
