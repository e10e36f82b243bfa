"""Laws of what becomes of a second opinion: a guess that moves little and harms nobody. (pure)"""

from __future__ import annotations

import pytest

from ftrun.supervisor.diagnosis.class_defaults import UNSURE
from ftrun.supervisor.diagnosis.evidence import case_of
from ftrun.supervisor.diagnosis.facts import Facts
from ftrun.supervisor.diagnosis.second_opinion import add_second_opinion, is_open
from ftrun.supervisor.model.types import Action, Diagnosis, FaultClass, Opinion, Source, Topology
from ftrun.supervisor.opinion.question import CLASSES
from ftrun.supervisor.signatures.catalog import load
from tests.unit.cases import NODES, F, cluster, diagnosis, rule

UNKNOWN = diagnosis(F.UNKNOWN, nodes=(), signature="", confidence=0.2, exclude=False, sources=(Source.SLURM,))


def opinion(fault: FaultClass = F.HARDWARE_GPU, *, retry: bool = True, suspect: str = "n2") -> Opinion:
    return Opinion(fault, retry, suspect, "its card is gone", "small-1")


def judged(found: Diagnosis, said: Opinion | None) -> Diagnosis | None:
    return add_second_opinion(case_of(Facts((), Topology(nodes=NODES), load(), second_opinion=said)), found)


def test_it_is_a_guess_with_a_name_on_it() -> None:
    """Class, retry and suspect; never surer than a guess, and told as what it is."""
    found = judged(UNKNOWN, opinion())
    assert found is not None
    assert (found.fault, found.retry, found.nodes, found.exclude) == (F.HARDWARE_GPU, True, ("n2",), False)
    assert found.confidence < UNSURE
    assert "second opinion, a guess by small-1" in found.rests_on[-1]
    assert found.opinion == opinion()
    assert Opinion.from_json(found.to_json()["opinion"]) == opinion()
    assert judged(UNKNOWN, None) is None


@pytest.mark.parametrize(
    "found",
    [
        diagnosis(F.NETWORK, nodes=("n1",), signature="a.signature", confidence=0.3),
        diagnosis(F.USER_CODE, nodes=(), signature="python-value-error", confidence=0.4),
        diagnosis(F.UNKNOWN, nodes=("n3",), signature="", confidence=0.2),
    ],
)
def test_it_overrides_no_signature_and_no_named_node(found: Diagnosis) -> None:
    """It is shown beside them; nothing else changes."""
    after = judged(found, opinion())
    assert after is not None
    assert "shown only" in after.rests_on[-1]
    assert (after.fault, after.retry, after.nodes, after.confidence, after.opinion) == (
        found.fault,
        found.retry,
        found.nodes,
        found.confidence,
        None,
    )


@pytest.mark.parametrize(
    ("found", "asked"),
    [
        (UNKNOWN, True),
        (diagnosis(F.NETWORK, confidence=0.49), True),
        (diagnosis(F.NETWORK, confidence=0.5), False),
        (diagnosis(F.HEALTHY, confidence=0.1), False),
        (diagnosis(F.CANCELLED, confidence=0.1), False),
        (diagnosis(F.PREEMPTED, confidence=0.1), False),
        (diagnosis(F.TIMELIMIT, confidence=0.1), False),
    ],
)
def test_it_is_asked_for_what_is_open_only(found: Diagnosis, asked: bool) -> None:
    """Unknown, or little more than a guess; never where Slurm has said it."""
    assert is_open(found) == asked
    assert asked or judged(found, opinion()) is None


@pytest.mark.parametrize("fault", CLASSES)
@pytest.mark.parametrize("retry", [True, False])
def test_whatever_it_says_one_retry_is_all_and_no_node_is_lost(fault: FaultClass, retry: bool) -> None:
    """Even where Slurm has lost that node, this user may drain, and an earlier opinion named it already."""
    found = judged(UNKNOWN, opinion(fault, retry=retry))
    assert found is not None
    for view in (cluster(), cluster(may_drain=False, may_ask=True)):
        ruling = rule(found, view=view, step=7)
        decision = ruling.decision
        assert (decision.exclude, decision.drain, decision.ask) == ((), (), ())
        assert (decision.kind, decision.spends) == ("resubmit", "unknown")
        assert ruling.spent == {"unknown": 1}
        assert decision.avoid == ("n2",)
        assert rule(found, view=view, run={"spent": {"unknown": 1}}).decision.kind == "stop"


def test_what_never_worked_and_will_not_is_stopped() -> None:
    """A guess may save a useless retry where nothing speaks against it; a setting tries again."""
    found = judged(UNKNOWN, opinion(F.USER_CODE, retry=False, suspect=""))
    assert found is not None
    assert found.action is Action.STOP
    decision = rule(found).decision
    assert decision.kind == "stop"
    assert "--ft-budget-unknown=1 tries again" in decision.reason
