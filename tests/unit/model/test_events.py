"""Laws of the fold: every cut of every journal is a run, and nothing that was decided is forgotten. (pure)"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ftrun.supervisor.model import events
from ftrun.supervisor.model import run as model_run
from ftrun.supervisor.model.run import Attempt, Launch, StartNote
from ftrun.supervisor.model.states import FINAL_STATES, TRANSITIONS, IllegalEvent, State, next_state
from tests.unit import moves

TEXT = st.sampled_from(["", "a", "n1"])
NODES = st.lists(st.sampled_from(["n1", "n2", "n3"]), unique=True)
STEP = st.none() | st.integers(0, 50)
DATA = {
    "run.created": st.fixed_dictionaries({"name": TEXT, "token": TEXT}),
    "attempt.opened": st.fixed_dictionaries({"excluded": NODES}),
    "submit.intended": st.fixed_dictionaries({"token": TEXT}),
    "submit.done": st.fixed_dictionaries({"cluster": TEXT}),
    "submit.refused": st.fixed_dictionaries({"message": TEXT, "for_good": st.booleans()}),
    "submit.lost": st.fixed_dictionaries({"decision": st.just({"kind": "resubmit"})}),
    "job.started": st.fixed_dictionaries({"nodes": NODES, "started_at_s": st.floats(0, 9)}),
    "job.ended": st.fixed_dictionaries(
        {"state": st.sampled_from(["FAILED", "COMPLETED", "GONE"]), "nodes": NODES}
    ),
    "job.requeued": st.fixed_dictionaries({"state": st.just("PENDING"), "nodes": NODES}),
    "end.intended": st.fixed_dictionaries({"reason": TEXT}),
    "launch.progress": st.fixed_dictionaries({"step": STEP, "loss": st.none(), "first_step": st.booleans()}),
    "decided": st.fixed_dictionaries(
        {
            "kind": st.sampled_from(["resubmit", "keep"]),
            "reason": TEXT,
            "spent": st.dictionaries(st.sampled_from(["node", "hang"]), st.integers(0, 5)),
            "retries": st.integers(0, 20),
            "step": STEP,
            "checkpoint": TEXT,
            "exclude": NODES,
            "relax": NODES,
            "exclude_until_s": st.floats(10, 20),
            "incident": st.just("1.0"),
        }
    ),
    "run.finished": st.fixed_dictionaries({"reason": TEXT}),
    "run.stopped": st.fixed_dictionaries({"reason": TEXT}),
    "run.abandoned": st.fixed_dictionaries({"reason": TEXT}),
    "run.resumed": st.fixed_dictionaries({"decision": st.just({"kind": "resubmit"})}),
    "evidence": st.fixed_dictionaries({"key": TEXT}),
    "request.seen": st.fixed_dictionaries(
        {"name": TEXT, "want": st.sampled_from(["cancel", "stop", "resume", "?"])}
    ),
    "checkpoint.set-aside": st.fixed_dictionaries({"path": TEXT, "stamp": TEXT}),
    "attempt.over": st.just({}),
    "attempt.closed": st.just({}),
    "end.done": st.just({}),
    "warned": st.fixed_dictionaries({"message": TEXT}),
}
ANYWHERE = ("evidence", "request.seen", "warned")
OF_AN_ATTEMPT = ("launch.progress", "attempt.over", "attempt.closed", "end.done", "checkpoint.set-aside")


@st.composite
def journals(draw: st.DrawFn) -> list[model_run.Record]:
    """A journal as a supervisor may write it: every record follows from the state before it."""
    records: list[model_run.Record] = []
    state, attempt = State.NEW, 0
    for seq in range(draw(st.integers(1, 40))):
        kinds = ["run.created"] if not seq else [kind for kind in TRANSITIONS[state] if kind in DATA]
        kinds = [kind for kind in kinds if attempt or kind != "run.resumed"]
        kinds += ANYWHERE if seq else ()
        kinds += OF_AN_ATTEMPT if attempt else ()
        kind = draw(st.sampled_from(kinds)) if kinds else "warned"
        attempt += kind == "attempt.opened"
        if kind == "submit.intended" or (kind not in TRANSITIONS[state] and kind not in DATA):
            continue
        records.append(
            {
                "v": 1,
                "seq": seq,
                "at": float(seq),
                "kind": kind,
                "attempt": attempt,
                "job": str(attempt),
                "launch": 0,
                "data": draw(DATA[kind]),
            }
        )
        state = next_state(state, kind)
    return records


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(journals())
def test_every_cut_of_a_journal_is_a_run(records: list[model_run.Record]) -> None:
    """A crash may fall behind any record: what stands there folds, step by step or at once, to the same value."""
    run = model_run.Run("r-1")
    for end, record in enumerate(records, start=1):
        run = events.apply(run, record)
        assert run == events.fold("r-1", records[:end])


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(journals())
def test_what_is_spent_and_done_only_grows(records: list[model_run.Record]) -> None:
    """Attempts, jobs, requests seen and checkpoints set aside are never forgotten, and only a person resets the ceiling."""
    run = model_run.Run("r-1")
    for record in records:
        after = events.apply(run, record)
        assert after.attempts[: len(run.attempts) - 1] == run.attempts[:-1]
        assert after.job_ids[: len(run.job_ids)] == run.job_ids
        assert after.requests_seen[: len(run.requests_seen)] == run.requests_seen
        assert after.set_aside[: len(run.set_aside)] == run.set_aside
        if record["kind"] == "decided":
            assert after.retries == record["data"]["retries"]
        elif record["kind"] != "run.resumed":
            assert after.retries == run.retries
        run = after


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(journals())
def test_a_wish_stays_until_a_person_takes_it_back(records: list[model_run.Record]) -> None:
    """A cancel that was heard survives every record that ftrun writes."""
    run = model_run.Run("r-1")
    for record in records:
        after = events.apply(run, record)
        if run.wish and record["kind"] not in ("request.seen", "run.resumed"):
            assert after.wish == run.wish
        run = after


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(journals())
def test_exclusions_end_by_time_or_by_decision_alone(records: list[model_run.Record]) -> None:
    """A decision adds and gives up exclusions; nothing else touches them, and none outlives its time."""
    run = model_run.Run("r-1")
    for record in records:
        after = events.apply(run, record)
        if record["kind"] != "decided":
            assert after.excluded == run.excluded
        assert () == after.excluded_at(20.0)
        run = after


@pytest.mark.parametrize("state", sorted(FINAL_STATES))
def test_a_run_that_is_over_opens_no_attempt(state: State) -> None:
    """Not even by a record: the fold refuses it."""
    run = replace(model_run.Run("r-1"), state=state)

    with pytest.raises(IllegalEvent):
        events.apply(run, {"kind": "attempt.opened", "at": 1.0, "attempt": 2, "data": {}})


def test_every_start_of_the_script_counts_once() -> None:
    """Requeues and restarts in place are starts too: no two starts of a run are told the same FTRUN_RESTART."""
    again = [
        StartNote(0, 1, ("n0",), 1.0),
        StartNote(0, 2, ("n0",), 2.0),
        StartNote(1, 1, ("n0",), 3.0),
        StartNote(1, 2, ("n0",), 4.0),
    ]

    assert Attempt(1, 0.0).starts_made == 1
    assert Attempt(1, 0.0, launch=Launch(1)).starts_made == 2
    assert Attempt(1, 0.0, begun=tuple(again), launch=Launch(1)).starts_made == 4


@pytest.mark.parametrize("sent", [False, True])
def test_an_end_that_was_only_meant_says_nothing_of_a_later_launch(sent: bool) -> None:
    """Slurm started the job again before anybody cancelled it: only a cancel that went out may have ended that launch."""
    place = {"attempt": 1, "job": "7", "start": 1}
    kinds: list[tuple[int, str, dict[str, Any]]] = [
        (0, "run.created", {}),
        (0, "attempt.opened", {}),
        (0, "submit.intended", {"token": "t"}),
        (0, "submit.done", {}),
        (0, "job.started", {"nodes": ["a"]}),
        (0, "end.intended", {"reason": "cancel by ann"}),
        *([(0, "cancel.intended", {"what": "job 7", "own": True})] if sent else []),
        (0, "job.requeued", {"launch": 0, "state": "PENDING"}),
        (0, "run.stopped", {"reason": "cancelled by ann", "class": "cancelled"}),
        (0, "run.resumed", {"decision": {"kind": "resubmit", "resumed": True}}),
        (1, "job.started", {"nodes": ["a"], "over": True}),
    ]
    told = [
        {"kind": kind, "at": float(at), "data": data, **place, "launch": launch}
        for at, (launch, kind, data) in enumerate(kinds)
    ]
    attempt = events.fold("x", told).attempt

    assert attempt is not None
    assert (bool(attempt.end_intended), attempt.cancel_intended) == (sent, sent)
    assert not moves.unlisted_moves("x", told)


@pytest.mark.parametrize("knows", [False, True])
def test_what_an_agent_decided_before_the_launch_ahead_of_it_was_judged_adds_to_that_judgement(
    knows: bool,
) -> None:
    """A suspended supervisor judges a requeued launch while the next one's agent restarts: neither takes the other's retry back."""
    place = {"attempt": 1, "job": "7", "start": 1}
    port = {"rung": "step", "class": "port-conflict", "reason": "", "nodes": [], "used": {"step": 1}}
    blamed = {"class": "node", "signature": "", "title": "", "nodes": ["a"]}
    node = {"kind": "resubmit", "reason": "", "incident": "1.0.1", "class": "node", "spent": {"node": 1}}
    spent = {"node": 1} if knows else {}
    kinds: list[tuple[int, str, dict[str, Any]]] = [
        (0, "run.created", {}),
        (0, "attempt.opened", {}),
        (0, "submit.done", {}),
        (0, "job.started", {"nodes": ["a", "b"]}),
        (0, "job.requeued", {"launch": 0, "state": "PENDING"}),
        (0, "diagnosed", {"incident": "1.0.1", "diagnosis": blamed, "step": 4}),
        (0, "decided", {**node, "retries": 1, "step": 4, "progress_at_s": 6.0}),
        (1, "job.started", {"nodes": ["a", "b"], "over": True}),
        *(
            (1, kind, {**port, **more, "incident": f"1.1.{start}", "diagnosis": {**blamed, "class": "port-conflict"}})
            for start in (1, 2)
            for kind, more in (
                ("start.begun", {}),
                ("start.diagnosed", {"step": 4}),
                ("start.decided", {
                    "spent": {**spent, "port-conflict": start}, "retries": start + len(spent),
                    "progress_at_s": 6.0 if knows else None,
                }),
            )
        ),
    ]  # fmt: skip
    run = events.fold(
        "x",
        (
            {"kind": kind, "at": float(at), "data": data, **place, "launch": launch}
            for at, (launch, kind, data) in enumerate(kinds)
        ),
    )

    assert (run.retries, run.spent) == (3, {"node": 1, "port-conflict": 2})
    assert run.progress_at_s == 6.0
