"""Laws of what `status`, `show`, `history` and `explain` say of a run. (pure)"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from ftrun.supervisor.model.events import fold
from ftrun.supervisor.model.run import Attempt, Exclusion, Run
from ftrun.supervisor.model.states import State
from ftrun.supervisor.model.types import FaultClass
from ftrun.supervisor.reports import view_run
from tests.unit.cases import NOW, incident

PLAIN = Run("llm-0007", State.RUNNING, attempts=(Attempt(1, NOW - 100, job="4711", nodes=("n1", "n2")),))


def _run(**changes: Any) -> Run:
    return replace(PLAIN, **changes)


@pytest.mark.parametrize("run", [Run("llm-0007"), PLAIN, _run(incidents=(incident(FaultClass.HANG),))])
def test_everything_said_is_plain_values(run: Run) -> None:
    """From the first moment of a run to its end, its facts go through JSON and come back the same."""
    facts = view_run.run_facts(run, NOW)

    assert facts == json.loads(json.dumps(facts))


def test_a_row_is_part_of_the_whole() -> None:
    """`show` says everything that `status` says, in the same words."""
    row, facts = view_run.run_row(PLAIN, NOW), view_run.run_facts(PLAIN, NOW)

    assert row == {key: facts[key] for key in row}


@pytest.mark.parametrize(("used", "ceiling", "left"), [(0, 20, 20), (3, 20, 17), (20, 20, 0), (5, 0, 0)])
def test_what_is_left_of_the_ceiling_is_never_negative(used: int, ceiling: int, left: int) -> None:
    """`retries_left` counts down to nothing, also where a setting is below what was used."""
    row = view_run.run_row(_run(retries=used, settings={"retries": ceiling}), NOW)

    assert (used, left) == (row["retries_used"], row["retries_left"])


@pytest.mark.parametrize(("last", "best", "shown"), [(7, 9, 7), (None, 9, 9), (None, None, None), (0, 9, 0)])
def test_the_step_is_the_present_attempts_as_soon_as_it_has_one(
    last: int | None, best: int | None, shown: int | None
) -> None:
    """Before its first step an attempt shows how far the run ever was."""
    run = _run(attempts=(Attempt(2, NOW, last_step=last),), best_step=best)

    assert shown == view_run.run_row(run, NOW)["step"]


def test_a_run_below_its_full_size_says_so_and_why_in_every_place() -> None:
    """`status` and `show` have the reason in the same words, and the attempt has the full size as the run has it."""
    place = {"attempt": 1, "job": "7", "launch": 0, "start": 1}
    kinds: list[tuple[str, dict[str, Any]]] = [
        ("run.created", {"settings": {"nodes": "2-4"}}),
        ("attempt.opened", {}),
        ("submit.done", {}),
        ("job.started", {"nodes": ["a", "b", "c"]}),
        ("agent.opened", {"active": ["a", "b", "c"]}),
        ("grow.stays", {"word": "nodes", "reason": "too few nodes are free"}),
    ]
    records = [{"kind": kind, "at": NOW, "data": data, **place} for kind, data in kinds]
    facts = view_run.run_facts(fold("llm-0007", records), NOW)

    assert view_run.growth_text(facts) == "below its full size: too few nodes are free"
    assert view_run.inside_text(facts["inside"]) == "on 3 of 4 nodes"
    assert facts["attempts"][0]["inside"] == facts["inside"]
    assert view_run.growth_text(view_run.run_row(PLAIN, NOW)) == ""


def test_expired_exclusions_are_not_shown() -> None:
    """Only what is avoided now is shown as avoided."""
    run = _run(excluded=(Exclusion("n1", NOW + 1, "bad"), Exclusion("n2", NOW - 1, "was bad")))

    assert ["n1"] == view_run.run_row(run, NOW)["excluded"]
    assert [{"node": "n1", "until": NOW + 1, "why": "bad"}] == view_run.run_facts(run, NOW)["exclusions"]


def test_the_reason_is_the_last_word() -> None:
    """What ended a run stands above what was decided last."""
    decided = _run(decision={"kind": "resubmit", "reason": "node: lost"})
    final = _run(decision={"reason": "node: lost"}, final_reason="all 20 retries are used up")

    assert "node: lost" == view_run.run_row(decided, NOW)["why"]
    assert "all 20 retries are used up" == view_run.run_row(final, NOW)["why"]


def test_budgets_show_what_is_used_and_what_there_is() -> None:
    """Classes with a budget, and those that were spent; no limit is shown as None; settings count."""
    run = _run(spent={"hang": 2, "preempted": 1}, settings={"budget-node": 9})

    table = view_run.budgets(run)

    assert {"used": 2, "of": 3} == table["hang"]
    assert {"used": 0, "of": 9} == table["node"]
    assert {"used": 1, "of": None} == table["preempted"]
    assert "user-code" not in table


def test_phases_of_an_incident_are_seconds_or_unknown() -> None:
    """A phase that has not come is None; one that clocks turned round is 0, never negative."""
    fault = incident(
        FaultClass.NODE,
        first_evidence_at_s=100.0,
        ended_at_s=99.5,
        diagnosed_at_s=102.0,
        decided_at_s=102.25,
        running_again_at_s=None,
    )

    assert {
        "evidence_to_end": 0.0,
        "end_to_diagnosis": 2.5,
        "diagnosis_to_decision": 0.25,
        "decision_to_stopped": None,
        "stopped_to_placed": None,
        "placed_to_running": None,
        "decision_to_running": None,
        "running_to_first_step": None,
    } == view_run.incident_facts(fault)["seconds"]


def test_a_run_without_a_record_is_new() -> None:
    """Folding nothing gives a run that can be shown."""
    assert "new" == view_run.run_row(fold("llm-0001", []), NOW)["state"]


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        ("node: a node was lost on n1: a spare", "a spare"),
        ("node: a node was lost; trying again cannot succeed", "trying again cannot succeed"),
        ("node: a node was lost", ""),
        ("asked by a person", "asked by a person"),
    ],
)
def test_the_column_why_repeats_no_column_beside_it(reason: str, told: str) -> None:
    row = {"reason": reason, "class": "node", "title": "a node was lost", "nodes": ["n1"]}

    assert view_run.reason_text(row) == told


def test_a_stopped_run_shows_its_proof_and_how_to_go_on() -> None:
    """The line that proves it, what to mend, and the next command; a run that goes on shows none of them."""
    line = {"file": "/w/a.out", "line": 3, "text": "KeyError: 'x'", "signature": "python-key"}
    fault = {"diagnosis": {"class": "user-code", "because": [line], "advice": "Correct the program."}}
    facts = {"run": "a-0001", "state": "stopped", "paused": False, "incidents": [fault]}

    proof, advice, then = view_run.end_lines(facts)

    assert proof == "proof: /w/a.out:3: KeyError: 'x'"
    assert advice == "advice: Correct the program."
    assert "ftrun resume a-0001" in then
    assert view_run.end_lines(facts | {"state": "running"}) == []
