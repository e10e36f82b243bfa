"""Laws of what is said of companions. (pure)"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from ftrun.supervisor.cli.explain import _record_lines
from ftrun.supervisor.model.run import Attempt, Companion, Run
from ftrun.supervisor.model.states import AGENT_KINDS, CompanionState, State
from ftrun.supervisor.reports import view_run

ONE = Companion(
    launch=0, number=1, nodes_asked=2, mark="m", asked_at_s=10.0, job="17", nodes=("n5", "n6"), state="here", here_at_s=12.0
)  # fmt: skip


def _run(*companions: Companion) -> Run:
    attempt = Attempt(1, 0.0, job="16", nodes=("n1", "n2"), companions=companions)
    return Run("llm-0007", State.RUNNING, attempts=(attempt,))


def test_status_names_the_companions_that_slurm_may_still_have() -> None:
    """Job, nodes, since when and in which state; what is gone is told by `show` alone."""
    facts = view_run.run_facts(_run(ONE, replace(ONE, number=2, job="18", state="gone")), 20.0)

    assert [(c["job"], c["nodes"], c["since"], c["state"]) for c in facts["companions"]] == [
        ("17", ["n5", "n6"], 12.0, "here")
    ]
    assert [c["state"] for c in facts["attempts"][0]["companions"]] == ["here", "gone"]
    assert facts["companion_jobs"] == ["17", "18"]
    assert facts["jobs"] == ["16"]
    assert facts == json.loads(json.dumps(facts))


@pytest.mark.parametrize(
    ("state", "job", "nodes", "words"),
    [
        ("intended", "", (), "companion is requested (2 nodes)"),
        ("submitted", "17", (), "companion job 17 is in the queue (2 nodes)"),
        ("here", "17", ("n5", "n6"), "companion job 17 holds n[5-6]"),
        ("ended", "17", ("n5", "n6"), "companion job 17 is being ended, held n[5-6]"),
    ],
)
def test_few_words_say_what_a_companion_does(
    state: CompanionState, job: str, nodes: tuple[str, ...], words: str
) -> None:
    """In the line of `status` as in `show`."""
    row = view_run.run_facts(_run(replace(ONE, state=state, job=job, nodes=nodes)), 20.0)["companions"]
    assert words == view_run.companions_text(row)


DATA: dict[str, dict[str, Any]] = {
    "companion.intended": {"number": 1, "nodes": 2, "mark": "m", "why": "n2 is lost"},
    "companion.submitted": {"number": 1, "job": "17"},
    "companion.here": {"number": 1, "companion_job": "17", "nodes": ["n5", "n6"]},
    "companion.failed": {"number": 1, "reason": "QOSMaxNodePerUserLimit"},
    "companion.ended": {"number": 1, "companion_job": "17", "reason": "its launch is over"},
    "companion.gone": {"number": 1, "companion_job": "17", "state": "CANCELLED"},
}


@pytest.mark.parametrize("kind", sorted(kind for kind in AGENT_KINDS if kind.startswith("companion.")))
def test_every_record_of_a_companion_can_be_told(kind: str) -> None:
    """In the agent's words as in the supervisor's; an announcement of an end is told by the end."""
    record = {"kind": kind, "data": DATA.get(kind, {}), "job": "16", "attempt": 1, "start": 1}
    told = " ".join(_record_lines(record))

    assert ("companion 1" in told) == (kind in DATA)
    assert "16" not in told
    assert "17" in told or "job" not in json.dumps(DATA.get(kind, {}))
