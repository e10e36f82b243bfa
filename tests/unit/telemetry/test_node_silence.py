"""Laws of silent nodes: how long each set of witnesses must be silent before a node is lost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftrun.slurm.records import replace
from ftrun.supervisor.telemetry import node_silence
from ftrun.supervisor.telemetry.node_silence import NodeSilence, ask_after_s, is_lost

LONG_S = 600.0
TIMES = st.floats(0.0, 60.0)
MAYBE = st.none() | TIMES
SILENCES = st.builds(
    NodeSilence, TIMES, MAYBE, st.floats(0.0, 5.0), MAYBE, MAYBE, st.floats(0.0, 20.0), st.integers(1, 20_000)
)


@pytest.mark.parametrize(
    ("unwritten_s", "guard_s", "within_s"),
    [
        (None, None, node_silence.PATIENCE_S),
        (None, LONG_S, node_silence.PATIENCE_GUARDED_S),
        (LONG_S, None, node_silence.PATIENCE_BEATS_S),
        (LONG_S, LONG_S, node_silence.PATIENCE_BEATS_S),
    ],
)
def test_the_more_witnesses_are_silent_the_sooner_a_node_is_lost(
    unwritten_s: float | None, guard_s: float | None, within_s: float
) -> None:
    """Both steps are open all that time."""
    late = NodeSilence(within_s, within_s - 1.2, unwritten_s=unwritten_s, guard_s=guard_s)

    assert is_lost(late)
    assert not is_lost(replace(late, asked_s=within_s - 0.1))
    assert not is_lost(replace(late, direct_s=None))


def test_who_writes_or_may_still_write_is_not_lost() -> None:
    """Ranks that stand still write every 6 s; many ranks write more rarely. Guards look once a second."""
    silent = NodeSilence(LONG_S, LONG_S, unwritten_s=LONG_S, guard_s=LONG_S)

    assert is_lost(silent)
    assert not is_lost(replace(silent, unwritten_s=7.9))
    assert not is_lost(replace(silent, unwritten_s=15.0, ranks=16_384))
    assert not is_lost(replace(silent, guard_s=1.0))


def test_a_node_that_came_back_gets_twice_that_time() -> None:
    """And all nodes get three times what the slowest answer took."""
    silent = NodeSilence(15.0, 14.0, unwritten_s=LONG_S)

    assert is_lost(silent)
    assert not is_lost(replace(silent, back_s=8.0))
    assert not is_lost(replace(silent, slowest_s=6.0))


@given(SILENCES, TIMES)
def test_time_loses_nodes_and_never_finds_them(one: NodeSilence, more_s: float) -> None:
    """Who is lost stays lost while nothing is heard; and nobody is lost within the shortest patience."""
    later = replace(one, asked_s=one.asked_s + more_s, direct_s=one.direct_s and one.direct_s + more_s)

    assert not is_lost(one) or is_lost(later)
    assert not is_lost(replace(one, asked_s=node_silence.PATIENCE_BEATS_S - 0.1))


def test_a_start_is_asked_about_after_its_own_habit() -> None:
    """Its longest gap lengthens that, a fast start is not asked about at once."""
    assert ask_after_s(beats=False, step_s=0.1, longest_s=0.2) == node_silence.ASK_S
    assert ask_after_s(beats=True, step_s=0.1, longest_s=0.2) == node_silence.ASK_BEATS_S
    assert ask_after_s(beats=False, step_s=3.0, longest_s=100.0) == 200.0
    assert ask_after_s(beats=True, step_s=20.0, longest_s=20.0) == 60.0
