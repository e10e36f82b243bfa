"""Laws of the roll call of a live start: late answers, guards and beats save a node; nothing else loses it sooner."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, cast

import pytest

from ftrun.hooks.ranks.fence_daemon import FenceDaemon
from ftrun.supervisor.agent.silent_nodes import GUARDS_S, Guards
from ftrun.supervisor.telemetry import node_silence
from tests.falsealarms import lives
from tests.falsealarms.silences import KINDS, Trouble, World

NODES = ("n0", "n1", "n2")
FROZEN = KINDS["the whole node stands still"]
BUSY = KINDS["slurmd is busy"]
KILLED = KINDS["the guard was killed"]
WRITTEN = KINDS["a call holds the interpreter"]


def _world(*troubles: tuple[str, Any, float, float], beats: bool = False) -> World:
    """A run that stands still from second 100 on, for good."""
    life = lives.Life(1, 1.0, beats=beats, ranks=3)
    return World(1, life, NODES, [Trouble(*one) for one in troubles])


def _asked(world: World, at_s: float = 110.0) -> tuple[tuple[str, ...] | None, float]:
    return world.lost(at_s, 100.0, 1e9), world.now_s - at_s


@pytest.mark.parametrize("beats", [True, False])
def test_a_frozen_node_is_lost(*, beats: bool) -> None:
    """In 6.5 s where its ranks and its guard are silent as well, in 10 s by its guard."""
    found, took_s = _asked(_world(("n1", FROZEN, 100.0, 1e9), beats=beats))
    patience_s = node_silence.PATIENCE_BEATS_S if beats else node_silence.PATIENCE_GUARDED_S

    assert found == ("n1",)
    assert patience_s <= took_s < patience_s + 1.0


def test_without_a_guard_and_beats_a_lost_node_takes_longest() -> None:
    """No guard answers elsewhere: they may not run at all."""
    guards = [(node, KILLED, 0.0, 1e9) for node in NODES]
    found, took_s = _asked(_world(("n1", BUSY, 100.0, 1e9), *guards))

    assert found == ("n1",)
    assert took_s >= node_silence.PATIENCE_S


@pytest.mark.parametrize("beats", [True, False])
def test_a_guard_or_a_beat_that_is_heard_saves_a_node_whose_slurmd_is_silent(*, beats: bool) -> None:
    """And nobody waits for it any longer."""
    troubles = [("n1", BUSY, 100.0, 1e9)] + ([("n1", KILLED, 0.0, 1e9)] if beats else [])
    found, took_s = _asked(_world(*troubles, beats=beats))

    assert found == ()
    assert took_s < 8.0


def test_an_answer_counts_as_long_as_anybody_waits_and_is_remembered() -> None:
    """A node that came back after 6 s is not lost by 10 s of silence the next time."""
    world = _world(("n1", FROZEN, 100.0, 115.5), ("n1", FROZEN, 200.0, 210.8), beats=True)
    assert _asked(world)[0] == ()
    assert world.lost(200.5, 190.0, 1e9) == ()
    assert _world(("n1", FROZEN, 200.0, 210.8), beats=True).lost(200.5, 190.0, 1e9) == ("n1",)


def test_each_missing_node_is_judged_and_who_was_not_decided_is_not_lost() -> None:
    """Steps answer so late that the time runs out: nobody is lost, n2 by its guard and n1 undecided."""
    world = _world(("n1", FROZEN, 100.0, 1e9), ("n2", BUSY, 100.0, 1e9))
    world.answer_s = 9.5
    found, took_s = _asked(world)

    assert found is None
    assert took_s >= node_silence.PATIENCE_MAX_S
    assert world.silent._verdicts == {"n1": False, "n2": None}


def test_a_node_that_slurm_took_from_the_job_is_lost_without_a_question() -> None:
    """All others answer."""
    world = _world()
    cast("Any", world.silent.ctx.cluster).jobs(())["1"].nodes = ("n0", "n1")

    assert _asked(world)[0] == ("n2",)


def test_nothing_is_known_where_our_own_node_does_not_answer_or_the_start_moves() -> None:
    """The question failed, or is answered."""
    assert _asked(_world(("n0", FROZEN, 100.0, 1e9)))[0] is None
    assert _world(("n1", FROZEN, 100.0, 1e9)).lost(110.0, 100.0, 115.0) is None


def test_a_guard_answers_the_question_that_names_its_node(tmp_path: Path) -> None:
    """Once for each question; the agent names its own node and one that answered beside the missing ones."""
    guards = Guards(str(tmp_path), "n0")
    there = {node: FenceDaemon(str(tmp_path), "7", node, "0") for node in ("n0", "n1", "n2", "n3")}
    for round_ in range(1, 3):
        guards.begin()
        guards.ask(("n2",), "n1", GUARDS_S)
        for node in ("n0", "n1", "n3"):  # n2 is frozen
            there[node].look(float(round_))
        guards.look(GUARDS_S + 1.0)

        assert guards.works
        assert guards.heard == {"n0", "n1"}
        assert os.readlink(tmp_path / "asked") == f"{round_} n0,n1,n2"
    there["n2"].look(9.0)
    guards.look(GUARDS_S + 9.0)

    assert guards.heard == {"n0", "n1", "n2"}
    assert sorted(os.listdir(tmp_path / "heard")) == ["n0.2", "n1.2", "n2.2"]


def test_guards_that_answer_nowhere_say_nothing(tmp_path: Path) -> None:
    """They may not run yet; a folder that cannot be written costs the question only."""
    guards = Guards(str(tmp_path), "n0")
    guards.ask(("n2",), "n0", GUARDS_S)
    guards.look(5.0)
    assert not guards.works

    (tmp_path / "file").touch()
    lost = Guards(str(tmp_path / "file" / "there"), "n0")
    lost.ask(("n2",), "n0", GUARDS_S)
    lost.look(5.0)
    assert not lost.works
    assert not lost.asked_s


def test_guards_are_asked_as_soon_as_the_names_of_the_missing_nodes_fit(tmp_path: Path) -> None:
    """And the time of their silence begins then; a later start goes on with the numbers."""
    many = tuple(f"n{number}-{'x' * 58}" for number in range(100, 400))
    guards = Guards(str(tmp_path), "n0")
    for at_s, missing in ((1.0, many), (2.0, many[:64]), (3.0, many[:10])):
        guards.ask(missing, "n1", at_s)

    assert guards.asked_s == 3.0
    assert os.readlink(tmp_path / "asked") == f"2 n0,n1,{','.join(many[:10])}"
    assert os.listdir(tmp_path / "heard") == []
    later = Guards(str(tmp_path), "n0")
    later.ask(("n2",), "n1", 1.5)
    assert os.readlink(tmp_path / "asked") == "3 n0,n1,n2"
