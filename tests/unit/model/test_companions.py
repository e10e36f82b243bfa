"""Laws of companions: what is known of one, who ends it, and what waits for its end. (I/O)"""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftrun.slurm.client.parse import has_token
from ftrun.supervisor.model import events
from ftrun.supervisor.model import run as model_run
from ftrun.supervisor.model.agent_events import companion_mark
from ftrun.supervisor.model.run import Companion
from ftrun.supervisor.model.states import State

TOKEN = "ftrun:train-0001:0badcafe"
STATES = ("intended", "submitted", "here", "failed", "ending", "ended", "gone")


def _record(
    kind: str, /, *, attempt: int = 1, launch: int = 0, at: float = 9.0, **data: Any
) -> model_run.Record:
    return {
        "v": 1, "seq": 0, "at": at, "kind": kind, "attempt": attempt, "job": "7", "launch": launch, "start": 1, "data": data,
    }  # fmt: skip


STARTED = (
    _record("run.created", attempt=0, token=TOKEN, name="train"),
    _record("attempt.opened"),
    _record("submit.intended", token=f"{TOKEN}:1"),
    _record("submit.done"),
    _record("job.started", nodes=["n0", "n1"], started_at_s=1.0),
)
LIFE = (
    _record("companion.intended", number=1, nodes=1, exclude=["n0"], mark=companion_mark(TOKEN, 1, 0, 1), why="n1 is dead", at=10.0),
    _record("companion.submitted", number=1, job="8", at=11.0),
    _record("companion.here", number=1, job="8", nodes=["n2"], at=12.0),
    _record("companion.failed", number=1, reason="it lost its node", at=13.0),
    _record("companion.ended.intended", number=1, job="8", reason="the launch is over", at=14.0),
    _record("companion.ended", number=1, job="8", reason="the launch is over", at=15.0),
    _record("companion.gone", number=1, job="8", at=16.0),
)  # fmt: skip


def _companion(*records: model_run.Record) -> Companion:
    attempt = events.fold("train-0001", (*STARTED, *records)).attempt
    assert attempt is not None
    (found,) = attempt.companions
    return found


@pytest.mark.parametrize(("length", "state"), list(enumerate(STATES, start=1)))
def test_each_record_of_a_companion_takes_it_one_state_on(length: int, state: str) -> None:
    """From the announcement of its sbatch until Slurm has it no more, each step is known by its own record."""
    assert state == _companion(*LIFE[:length]).state


def test_what_is_known_of_a_companion_is_all_that_its_records_said() -> None:
    """Job, nodes, mark, times and the last reason: enough to end it and to tell of it."""
    assert Companion(
        launch=0,
        number=1,
        nodes_asked=1,
        mark="train-0001:0badcafe:companion:1.0.1",
        asked_at_s=10.0,
        job="8",
        nodes=("n2",),
        state="gone",
        reason="the launch is over",
        here_at_s=12.0,
        gone_at_s=16.0,
        by_us=True,
    ) == _companion(*LIFE)


@given(st.permutations(LIFE[1:]))
def test_a_companion_only_goes_forward(rest: list[model_run.Record]) -> None:
    """Two write about it, and copies come late: the furthest state stays, and no order of records loses its job or its nodes."""
    seen = [STATES.index(_companion(LIFE[0], *rest[:length]).state) for length in range(len(rest) + 1)]
    whole = _companion(LIFE[0], *rest)

    assert seen == sorted(seen)
    assert (whole.job, whole.nodes, whole.here_at_s) == ("8", ("n2",), 12.0)


@given(st.lists(st.sampled_from(LIFE[:2]), max_size=4))
def test_a_record_that_is_copied_again_changes_nothing(again: list[model_run.Record]) -> None:
    """A companion is one, however often it is announced."""
    assert _companion(*LIFE[:3]) == _companion(*LIFE[:3], *again)


def test_a_companion_is_named_by_its_launch_and_its_number() -> None:
    """After a requeue the numbers begin anew: the first of the second launch is another one, and the nodes of the first are no more in reach."""
    again = [
        _record("companion.intended", launch=1, number=1, nodes=2, mark=companion_mark(TOKEN, 1, 1, 1)),
        _record("companion.here", launch=1, number=1, job="9", nodes=["n3"]),
    ]
    requeued = (
        _record("job.requeued", state="PENDING"),
        _record("decided", incident="1.0", kind="keep", reason="", spent={}, retries=1, exclude_until_s=0.0),
        _record("launch.kept", launch=1),
        _record("job.started", launch=1, nodes=["n0", "n1"], started_at_s=5.0),
    )
    attempt = events.fold("train-0001", (*STARTED, *LIFE[:3], *requeued, *again)).attempt

    assert attempt is not None
    assert [(one.launch, one.job, one.nodes) for one in attempt.companions] == [
        (0, "8", ("n2",)),
        (1, "9", ("n3",)),
    ]
    assert attempt.reach == ("n0", "n1", "n3")
    assert [attempt.holder(node) for node in ("n1", "n2", "n3", "elsewhere")] == [
        attempt.job,
        "8",
        "9",
        attempt.job,
    ]


def test_a_record_of_an_unknown_companion_changes_nothing() -> None:
    """What was never announced is nobody's companion, of this attempt or another."""
    for record in LIFE[1:]:
        stray = {**record, "attempt": 5}
        run = events.fold("train-0001", (*STARTED, record, stray))
        assert run.attempt is not None
        assert run.attempt.companions == ()


@pytest.mark.parametrize("state", State)
def test_companions_move_no_run(state: State) -> None:
    """The end of a companion is never taken for the end of its attempt."""
    run = model_run.Run("train-0001", state=state)
    for record in LIFE:
        assert events.apply(run, record).state is state


def test_no_mark_is_taken_for_another_or_for_a_token() -> None:
    """Neither the run's token nor the attempt's finds a companion, nor its mark another one, be it of a run of the same name."""
    tokens = [TOKEN, f"{TOKEN}:1", "ftrun", "ftrun:train-0001:0badf00d"]
    marks = [
        companion_mark(token, attempt, launch, number)
        for token in (TOKEN, "ftrun:train-0001:0badf00d", "ftrun:train-00011:0badcafe")
        for attempt, launch, number in itertools.product((1, 11), (0, 1), (1, 2, 12))
    ]
    for mark in marks:
        comment = f"mine, {mark}"
        assert not [token for token in tokens if has_token(comment, token)]
        assert [mark] == [one for one in marks if has_token(comment, one)]
