"""Laws of a run's life: which record may follow in which state, and nothing else. (pure)"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftrun.supervisor.model import states
from ftrun.supervisor.model.states import (
    FINAL_STATES,
    NON_MOVING_KINDS,
    PART_TRANSITIONS,
    TRANSITIONS,
    IllegalEvent,
    State,
    next_state,
)

SUPERVISOR = Path(__file__).resolve().parents[3] / "supervisor"
KINDS = sorted({kind for ways in TRANSITIONS.values() for kind in ways} | NON_MOVING_KINDS)
MOVING = [kind for kind in KINDS if kind not in NON_MOVING_KINDS]


STATES_OF_PARTS = {
    "submission": states.Submission,
    "end": states.EndState,
    "resize": states.ResizeState,
    "save": states.SaveStage,
    "companion": states.CompanionState,
}


def _recorded() -> set[str]:
    """Every kind that the code writes: the first argument of `.record(...)` and of `.append(...)` on a journal, the second of `record_end(...)`."""
    kinds = set()
    for path in SUPERVISOR.rglob("*.py"):
        if path.parent.name == "cluster":  # the journal of a cluster is one of its own
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or not node.args:
                continue
            on = ast.unparse(node.func.value)
            if node.func.attr == "record" or (node.func.attr == "append" and "journal" in on):
                kinds |= set(_texts(node.args[0]))
            if node.func.attr == "record_end":  # exit_status.record_end(ctx, kind, ...)
                kinds |= set(_texts(node.args[1]))
    return kinds


def _texts(node: ast.expr) -> list[str]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return [node.value]
    return [*_texts(node.body), *_texts(node.orelse)] if isinstance(node, ast.IfExp) else []


@pytest.mark.parametrize("state", State)
def test_a_record_follows_its_arrow_or_is_refused(state: State) -> None:
    """A kind with an arrow from a state leads where the table says; one without is refused by both names."""
    for kind in MOVING:
        if kind in TRANSITIONS[state]:
            assert TRANSITIONS[state][kind] is next_state(state, kind)
            continue
        with pytest.raises(IllegalEvent) as raised:
            next_state(state, kind)
        assert f"{kind!r} cannot happen to a run that is {state.value}" == str(raised.value)
        assert (state, kind) == (raised.value.state, raised.value.kind)


@pytest.mark.parametrize("state", State)
def test_what_only_tells_moves_nothing(state: State) -> None:
    """A late line or a warning may come in any state, also after the end."""
    assert {state} == {next_state(state, kind) for kind in NON_MOVING_KINDS}


@pytest.mark.parametrize("state", State)
def test_an_unheard_of_kind_is_refused_everywhere(state: State) -> None:
    """A record of another program, or of a newer release, is no reason to move."""
    with pytest.raises(IllegalEvent):
        next_state(state, "run.vanished")


def test_a_finished_run_is_finished() -> None:
    """No record leads out of `finished`."""
    assert {} == TRANSITIONS[State.FINISHED]


def test_a_stopped_run_goes_on_only_when_a_person_says_so() -> None:
    """The only way out of `stopped` is `run.resumed`; a pause that is given up stays in it."""
    ways = TRANSITIONS[State.STOPPED]
    assert {"run.resumed": State.RECOVERING, "run.given-up": State.STOPPED} == ways


@pytest.mark.parametrize("state", [s for s in State if s not in FINAL_STATES])
def test_every_state_can_come_to_an_end(state: State) -> None:
    """From wherever a run is, a final state can be reached: there is no dead end."""
    reached, frontier = {state}, [state]
    while frontier:
        for target in TRANSITIONS[frontier.pop()].values():
            if target not in reached:
                reached.add(target)
                frontier.append(target)

    assert reached & FINAL_STATES


def test_every_state_is_reached_and_every_state_has_its_row() -> None:
    """The table is whole: no state without a row, none but the first without a way in."""
    assert set(State) == set(TRANSITIONS)
    assert set(State) - {State.NEW} == {target for ways in TRANSITIONS.values() for target in ways.values()}


def test_a_new_attempt_is_opened_only_when_the_step_is_decided() -> None:
    """`attempt.opened` follows from the start or from `recovering`, never while a launch may still live."""
    assert {State.NEW, State.RECOVERING} == {s for s, ways in TRANSITIONS.items() if "attempt.opened" in ways}


def test_a_decision_follows_only_settled_logs() -> None:
    """`decided` comes from `settling` alone: nothing is judged before late lines had their time."""
    assert [State.SETTLING] == [s for s, ways in TRANSITIONS.items() if "decided" in ways]


def test_a_kind_either_moves_or_tells() -> None:
    """No kind stands in both tables."""
    assert set() == NON_MOVING_KINDS & {kind for ways in TRANSITIONS.values() for kind in ways}


def test_the_tables_and_the_code_know_the_same_kinds() -> None:
    """What is written can be folded, and what can be folded is written by somebody."""
    recorded = _recorded()

    assert set() == recorded - set(KINDS)
    assert set() == set(KINDS) - recorded


@pytest.mark.parametrize(("name", "literal"), STATES_OF_PARTS.items())
def test_the_table_of_a_part_is_whole(name: str, literal: Any) -> None:
    """Each of its states can be reached from the first one, and it names no other state and no unknown record."""
    part, known = PART_TRANSITIONS[name], set(get_args(literal))
    reached = {part.first}
    for _ in known:
        reached |= {move.after for move in part.moves if reached & set(move.before)}

    assert known == reached
    assert known >= {state for move in part.moves for state in move.before}
    assert set(KINDS) >= {move.kind for move in part.moves}
    assert set(PART_TRANSITIONS) == set(STATES_OF_PARTS)


@pytest.mark.parametrize("part", PART_TRANSITIONS.values(), ids=PART_TRANSITIONS)
def test_a_part_moves_by_its_table_alone(part: states.Part) -> None:
    """What is listed is allowed, staying is allowed, and another record's move is not."""
    assert all(part.allows(before, move.kind, move.after) for move in part.moves for before in move.before)
    assert part.allows(part.first, "warned", part.first)
    assert not any(part.allows(before, "warned", move.after) for move in part.moves for before in move.before)


@given(st.lists(st.sampled_from(KINDS), max_size=40))
def test_no_history_leaves_the_table(kinds: list[str]) -> None:
    """Whatever records come, the state is one of the table, and a final one is left by a person alone."""
    state = State.NEW
    for kind in kinds:
        try:
            after = next_state(state, kind)
        except IllegalEvent:
            continue
        assert after is state or kind in MOVING
        assert state not in FINAL_STATES or after is state or kind == "run.resumed"
        state = after
