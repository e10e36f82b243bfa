"""Laws of `escalate`: what ran out of memory or time gets more, twice at most, within the partition's limits, and only where asked. (pure)"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ftrun.supervisor.config.settings import parse, parse_escalation
from ftrun.supervisor.model.errors import SettingError
from ftrun.supervisor.policy.policy_input import AskedResource, PolicyLimits
from tests.unit.cases import NOW, F, diagnosis, incident, rule

BOTH = PolicyLimits(escalate={"mem": 1.5, "time": 2.0})
MEMORY = AskedResource("mem", 500.0, None)


@pytest.mark.parametrize(
    ("fault", "asked", "more", "words"),
    [
        (F.OOM_HOST, MEMORY, {"mem": "750M"}, "once more with --mem=750M in place of 500M (1 of 2)"),
        (
            F.OOM_HOST,
            AskedResource("mem-per-cpu", 101.0, None),
            {"mem-per-cpu": "152M"},
            "--mem-per-cpu=152M",
        ),
        (
            F.OOM_HOST,
            replace(MEMORY, most=600.0),
            {"mem": "600M"},
            "(1 of 2, the most that the partition allows)",
        ),
        (F.TIMELIMIT, AskedResource("time", 60.0, 1440.0), {"time": "120"}, "--time=120 in place of 60"),
    ],
)
def test_the_next_try_has_more(fault: F, asked: AskedResource, more: dict[str, str], words: str) -> None:
    """Options and reason say how much, and nothing is held against the node."""
    ruling = rule(diagnosis(fault, nodes=("n1",), exclude=True), limits=BOTH, asked=asked)

    assert ("resubmit", more, ()) == (
        ruling.decision.kind,
        dict(ruling.decision.more),
        ruling.decision.exclude,
    )
    assert words in ruling.decision.reason


def _used(count: int, option: str) -> dict[str, Any]:
    past = (
        incident(F.OOM_HOST, n + 1, decided_at_s=NOW - 100, decision={"more": {option: "1"}})
        for n in range(count)
    )
    return {"incidents": tuple(replace(one, id=f"{n}.9", launch=9) for n, one in enumerate(past))}


@pytest.mark.parametrize(
    ("limits", "asked", "run"),
    [
        (PolicyLimits(), MEMORY, {}),
        (PolicyLimits(escalate={"time": 2.0}), MEMORY, {}),
        (BOTH, None, {}),
        (BOTH, replace(MEMORY, most=500.0), {}),
        (BOTH, MEMORY, _used(2, "mem")),
        (replace(BOTH, deadline_s=1.0), MEMORY, {}),
        (replace(BOTH, retries=0), MEMORY, {}),
    ],
)
def test_else_it_stops_as_ever(
    limits: PolicyLimits, asked: AskedResource | None, run: dict[str, Any]
) -> None:
    """Not asked for, not told by Slurm, at the partition's limit, twice already, or at the ceiling."""
    assert "stop" == rule(diagnosis(F.OOM_HOST), limits=limits, asked=asked, run=run).decision.kind


def test_each_resource_has_its_own_two_tries_and_a_person_gives_them_back() -> None:
    """What was asked for of time says nothing of memory; `ftrun resume` begins anew."""
    for run in (_used(2, "time"), {**_used(2, "mem"), "resumed_at_s": NOW - 50}):
        assert {"mem": "750M"} == rule(
            diagnosis(F.OOM_HOST), limits=BOTH, asked=MEMORY, run=run
        ).decision.more


def test_a_time_limit_after_a_checkpoint_and_a_neighbours_theft_need_no_more() -> None:
    """The next attempt gets further by itself."""
    asked = AskedResource("time", 60.0, None)
    for found, checkpoint in (
        (diagnosis(F.TIMELIMIT), "/ck/step-5"),
        (diagnosis(F.OOM_HOST, retry=True), ""),
    ):
        ruling = rule(found, limits=BOTH, asked=asked, checkpoint=checkpoint)
        assert ("resubmit", {}) == (ruling.decision.kind, ruling.decision.more)


@pytest.mark.parametrize(
    "text", ["mem", "mem=2", "mem=0.5x", "mem=1x", "time=11x", "gpus=2x", "mem=2x,mem=3x", "mem=nanx"]
)
def test_a_bad_factor_is_refused_in_one_line(text: str) -> None:
    """The line says what is wanted."""
    with pytest.raises(SettingError) as error:
        parse("escalate", text)

    assert (
        f"escalate: mem=1.5x, time=2x or both are wanted, each of more than 1x and at most 10x, not {text!r}"
        == str(error.value)
    )
    assert {"mem": 1.5, "time": 2.0} == parse_escalation("mem=1.5x, time=2x")
