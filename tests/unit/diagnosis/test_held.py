"""Laws of attempts that their preflight held, and of the view of many nodes: nobody is blamed for all, and it never goes round in circles. (I/O)"""

from __future__ import annotations

from typing import Any

import pytest

from ftrun.supervisor.cli import app
from ftrun.supervisor.diagnosis.facts import Facts
from ftrun.supervisor.diagnosis.rules import diagnose
from ftrun.supervisor.model import types
from ftrun.supervisor.model.errors import UserError
from ftrun.supervisor.model.types import Diagnosis, Topology
from ftrun.supervisor.nodes.check_summary import (
    EXIT_BAD,
    EXIT_UNSEEN,
    CheckedNode,
    matrix,
    summarize,
    summary_lines,
)
from ftrun.supervisor.policy import decide
from ftrun.supervisor.policy.decide import HOLDS_MAX
from ftrun.supervisor.policy.policy_input import HOLD_BUDGET, PolicyLimits
from ftrun.supervisor.signatures import catalog
from tests.unit.cases import NODES, F, cluster, rule

GPU = {"check": "gpu-ecc", "fault": "hardware-gpu", "device": "0000:3b:00.0", "message": "12 errors"}
LIMIT = {"check": "ulimit", "fault": "config", "device": "", "message": "memlock is low"}


def _record(**bad: Any) -> dict[str, Any]:
    return {"schema": 1, "launch": 0, "held": True, "nodes": 4, "bad": bad, "site": []}


def _found(**bad: Any) -> Diagnosis:
    told = types.parse_prelaunch_hold(_record(**bad), NODES)
    assert told
    return diagnose(Facts((), Topology(), catalog.load(), held=told, held_file="preflight.0"))


def test_an_attempt_that_was_held_costs_no_budget_and_no_retry() -> None:
    """The bad node is left out, nothing is drained, and only the ceiling of such attempts counts it; also when all retries are used."""
    ruling = rule(_found(n2=GPU), run={"retries": 20})

    assert ("resubmit", ("n2",), ()) == (ruling.decision.kind, ruling.decision.exclude, ruling.decision.drain)
    assert (20, {HOLD_BUDGET: 1}, 0.0) == (ruling.retries, dict(ruling.spent), ruling.decision.delay_s)
    assert not ruling.decision.anyway
    assert "n2" in ruling.decision.reason


def test_held_attempts_do_not_go_round_in_circles() -> None:
    """The last one that is allowed sends the next script on its way whatever is found; a record beyond that is no free retry."""
    last = rule(_found(n2=GPU), run={"spent": {HOLD_BUDGET: HOLDS_MAX - 1}})
    beyond = rule(_found(n2=GPU), run={"spent": {HOLD_BUDGET: HOLDS_MAX}})

    assert (True, True) == (last.decision.anyway, decide.are_checks_waived({"anyway": True}, {}))
    assert decide.are_checks_waived({}, last.spent)
    assert not decide.are_checks_waived({}, {HOLD_BUDGET: HOLDS_MAX - 1})
    assert (1, 1) == (beyond.retries, beyond.spent[F.HARDWARE_GPU.value])


def test_where_a_bad_node_cannot_be_left_out_the_next_script_starts_all_the_same() -> None:
    """Under the cap there is room for one of the two: so the next attempt may meet the other again."""
    view = cluster(partition=NODES, available=frozenset(NODES), idle=frozenset(), nodes_needed=3)
    ruling = rule(_found(n1=GPU, n2=GPU), view=view)

    assert ("resubmit", 1, True) == (
        ruling.decision.kind,
        len(ruling.decision.exclude),
        ruling.decision.anyway,
    )
    assert "cannot be left out" in ruling.decision.reason


def test_an_end_by_preflight_is_of_the_class_that_its_checks_name() -> None:
    """Of the node's where they disagree, or where their class leaves no node out."""
    assert F.HARDWARE_GPU is _found(n2=GPU).fault
    assert F.NODE is _found(n2=LIMIT).fault is _found(n1=GPU, n2=LIMIT).fault
    assert F.NODE is _found(n2={**GPU, "fault": "nonsense"}).fault
    assert "preflight.gpu-ecc" == _found(n2=GPU).signature


def test_a_record_speaks_of_the_nodes_of_its_attempt_only() -> None:
    """It is written by the job's user: other names, other forms and other schemas say nothing."""
    assert types.parse_prelaunch_hold(_record(elsewhere=GPU), NODES) is None
    assert types.parse_prelaunch_hold({**_record(n2=GPU), "held": "yes"}, NODES) is None
    assert types.parse_prelaunch_hold({**_record(n2=GPU), "schema": 2}, NODES) is None
    assert (
        types.parse_prelaunch_hold([], NODES)
        is types.parse_prelaunch_hold({**_record(), "bad": ["n2"]}, NODES)
        is None
    )
    assert ("n2",) == tuple(
        (types.parse_prelaunch_hold(_record(n2=GPU, elsewhere=GPU), NODES) or types.PrelaunchHold({}, 0)).bad
    )


def test_a_person_s_cancel_outweighs_a_preflight() -> None:
    """And retries=0 starts nothing."""
    assert "stop" == rule(_found(n2=GPU), run={"wish": "cancel"}).decision.kind
    assert "stop" == rule(_found(n2=GPU), limits=PolicyLimits(retries=0)).decision.kind


def _row(severity: str, message: str = "m", check: str = "c") -> dict[str, Any]:
    return {
        "check": check,
        "severity": severity,
        "message": message,
        "fault": "node",
        "device": "",
        "evidence": [],
    }


def test_of_many_nodes_what_is_alike_stands_in_one_line() -> None:
    """Names folded, the gravest first, what is well left out, those who were not seen by their reason."""
    seen = [
        CheckedNode(f"n{i}", "answered", [_row("bad" if i == 7 else "ok"), _row("degraded", "slow", "d")])
        for i in range(100)
    ]
    result = summarize(
        [
            *seen,
            CheckedNode("x1", "unreachable", why="no route"),
            CheckedNode("x2", "unreachable", why="no route"),
        ]
    )

    assert (["CHECK", "BAD", "DEGRADED"], [["c", "n7", None], ["d", None, "n[0-99]"]]) == matrix(result)
    told = summary_lines(result)
    assert ["bad      n7: c: m", "degraded n[0-99]: d: slow", "to be avoided: n7"] == told[:3]
    assert "not checked: x[1-2]: unreachable: no route" == told[-1]
    assert EXIT_BAD == result.exit_status


def test_the_exit_status_tells_bad_from_unseen() -> None:
    """Bad on all is still bad; a node that was not seen is no good news."""
    assert 0 == summarize([CheckedNode("n1", "answered", [_row("degraded")])]).exit_status
    assert EXIT_BAD == summarize([CheckedNode("n1", "answered", [_row("bad")])]).exit_status
    assert EXIT_UNSEEN == summarize([CheckedNode("n1", "answered"), CheckedNode("n2", "timeout")]).exit_status


@pytest.mark.parametrize(
    "words", [["--tier", "x"], ["no-such-check"], ["--checks", "/none"], ["-w", "n["], ["--at-once", "0"], []]
)
def test_wrong_usage_of_preflight_is_told_in_one_line(
    words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before any node is asked."""
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    with pytest.raises(UserError, match=r"\A[^\n]+\Z"):
        app.run(["preflight", *words])
