"""Laws of who is put ahead in the queue: the successor of a job that a broken node took, as far as the site says, and nobody else. (pure)"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftrun.slurm.client.cluster import JobDetails, JobState, NodeRow, NodeUsage
from ftrun.supervisor.policy.priority_boost import (
    BadRule,
    BoostedJob,
    BoostRule,
    LostJob,
    cap_refusal,
    claim_refusal,
    is_already_boosted,
    parse_rule,
)

ANN = 1000
NOW_S = 10_000.0
RULE = BoostRule("nice", "1000", per_hour=3, per_user=2)


def job(number: str, attempt: int, state: JobState, **fields: str) -> JobDetails:
    shown = {"UserId": f"ann({ANN})", "NumNodes": "2", "Partition": "main", "Account": "a", "QOS": "normal"}
    shown |= {"TRES": "cpu=64,mem=1T,node=2,billing=64", "OverSubscribe": "OK"}
    return JobDetails(
        job_id=number, state=state, reason="", exit_code=0, exit_signal=0, derived_exit_code=0,
        restarts=0, nodes=(), excluded=(), required=(), std_out="", std_err="", dependency="",
        comment=f"mine ftrun:llm-1:0badcafe:{attempt}", requeue=False, batch_host="", time_limit_s=3600.0, user="ann",
        fields={**shown, **fields},
    )  # fmt: skip


WAITS = job("8", 2, JobState.PENDING)
LOST = job("7", 1, JobState.FAILED)
STAY = NodeUsage("7", ANN, ("n0", "n1"), NOW_S - 4000.0, NOW_S - 60.0)


def nodes(*away: str) -> Mapping[str, NodeRow]:
    def row(name: str) -> NodeRow:
        flags = frozenset({"drain"}) if name in away else frozenset()
        return NodeRow(name, "idle", flags, "", None, ("main",))

    return {name: row(name) for name in ("n0", "n1", "n2")}


def why(
    waits: JobDetails | None = WAITS, lost: JobDetails | None = LOST, *, away: str = "n1", **changes: Any
) -> str:
    stay = replace(STAY, **changes)
    return claim_refusal(ANN, "llm-1", waits, LostJob(lost, stay, nodes(away)), now_s=NOW_S, rule=RULE)


def test_the_successor_of_a_job_that_a_broken_node_took_has_a_claim() -> None:
    """Slurm calls the end the node's, or a node of it is out of service now."""
    assert why() == ""
    assert why(lost=replace(LOST, state=JobState.NODE_FAIL), away="") == ""


@pytest.mark.parametrize(
    ("waits", "lost", "changes", "says"),
    [
        (None, LOST, {}, "no such job"),
        (job("8", 2, JobState.PENDING, UserId="ben(1001)"), LOST, {}, "no such job"),
        (replace(WAITS, doubtful=frozenset({"TRES"})), LOST, {}, "(TRES)"),
        (WAITS, replace(LOST, doubtful=frozenset({"JobState", "UserId"})), {}, "(JobState, UserId)"),
        (job("8", 2, JobState.RUNNING), LOST, {}, "waits no longer"),
        (replace(WAITS, reason="JobHeldAdmin"), LOST, {}, "is held"),
        (job("8", 2, JobState.PENDING, Priority="0"), LOST, {}, "is held"),
        (WAITS, None, {}, "does not remember"),
        (WAITS, job("7", 1, JobState.FAILED, UserId="ben(1001)"), {}, "none of yours"),
        (job("8", 1, JobState.PENDING), LOST, {}, "no token"),
        (replace(WAITS, comment="ftrun:llm-2:0badcafe:2"), LOST, {}, "no token"),
        (replace(WAITS, comment="ftrun:llm-1:0badcaff:2"), LOST, {}, "no token"),
        (replace(WAITS, comment=""), LOST, {}, "no token"),
        (WAITS, job("7", 1, JobState.COMPLETED), {}, "not lost to a fault"),
        (WAITS, job("7", 1, JobState.PREEMPTED), {}, "not lost to a fault"),
        (WAITS, job("7", 1, JobState.TIMEOUT), {}, "not lost to a fault"),
        (WAITS, job("7", 1, JobState.RUNNING), {}, "not lost to a fault"),
        (WAITS, LOST, {"away": ""}, "in service"),
        (WAITS, LOST, {"away": "n2"}, "in service"),
        (job("8", 2, JobState.PENDING, NumNodes="3"), LOST, {}, "more nodes"),
        (job("8", 2, JobState.PENDING, NumNodes="1-3"), LOST, {}, "more nodes"),
        (job("8", 2, JobState.PENDING, ArrayJobId="8", ArrayTaskId="0-999"), LOST, {}, "not one job alone"),
        (job("8", 2, JobState.PENDING, HetJobId="8"), LOST, {}, "not one job alone"),
        (job("8", 2, JobState.PENDING, TRES="cpu=400,node=2,billing=400"), LOST, {}, "more cpu"),
        (job("8", 2, JobState.PENDING, ReqTRES="cpu=2,mem=1.50T", AllocTRES="(null)"), LOST, {}, "more mem"),
        (job("8", 2, JobState.PENDING, TRES="cpu=2,gres/gpu=1"), LOST, {}, "more gres/gpu"),
        (replace(WAITS, time_limit_s=86_400.0), LOST, {}, "more time"),
        (replace(WAITS, time_limit_s=None), LOST, {}, "more time"),
        (job("8", 2, JobState.PENDING, OverSubscribe="NO"), LOST, {}, "another OverSubscribe"),
        (job("8", 2, JobState.PENDING, QOS="high"), LOST, {}, "another QOS"),
        (job("8", 2, JobState.PENDING, Account="b"), LOST, {}, "another Account"),
        (job("8", 2, JobState.PENDING, Partition="big"), LOST, {}, "another partition"),
        (WAITS, LOST, {"start_s": NOW_S - 100.0}, "for 40 s only"),
        (WAITS, LOST, {"end_s": NOW_S - 3700.0}, "too long ago"),
    ],
)  # fmt: skip
def test_nobody_else_has(
    waits: JobDetails | None, lost: JobDetails | None, changes: dict[str, Any], says: str
) -> None:
    """Each no is one sentence."""
    told = why(waits, lost, **changes)
    assert says in told
    assert "\n" not in told


def test_a_job_whose_nodes_slurm_has_forgotten_is_told_apart_from_one_that_it_never_knew() -> None:
    """Slurm requeues a job for its lost node by default, and without accounting its record has no nodes then [tried on 22.05]."""
    told = claim_refusal(
        ANN,
        "llm-1",
        WAITS,
        LostJob(replace(LOST, state=JobState.CANCELLED), None, {}),
        now_s=NOW_S,
        rule=RULE,
    )
    assert "does not remember where job 7 ran" in told
    assert "accounting" in told


def test_a_job_without_a_limit_of_its_time_asks_for_no_more_than_another() -> None:
    """Slurm gives it a year when it starts [tried on 22.05]."""
    lost = replace(LOST, time_limit_s=365 * 86_400.0)
    assert why(replace(WAITS, time_limit_s=None), lost) == ""


def test_memory_that_slurm_does_not_deal_out_is_no_share() -> None:
    """It guesses what a waiting job will have, and shows none of what one had [tried on 22.05]."""
    lost = job("7", 1, JobState.FAILED, TRES="cpu=32,node=2,billing=32")
    assert why(job("8", 2, JobState.PENDING, TRES="cpu=2,mem=125G,node=2,billing=2"), lost) == ""


@pytest.mark.parametrize("flag", ["powering_down", "maint", "reserved"])
def test_a_node_that_sleeps_or_is_set_aside_took_nothing_from_anybody(flag: str) -> None:
    """A user who ends a job need only wait for the one, and knows of the other beforehand."""
    rows = {name: NodeRow(name, "idle", frozenset({flag}), "", None, ("main",)) for name in STAY.nodes}
    cancelled = replace(LOST, state=JobState.CANCELLED)

    told = claim_refusal(ANN, "llm-1", WAITS, LostJob(cancelled, STAY, rows), now_s=NOW_S, rule=RULE)
    assert "in service" in told


@given(st.lists(st.tuples(st.integers(1, 3), st.floats(0, 8000)), max_size=60))
def test_the_caps_hold_in_every_hour(asks: list[tuple[int, float]]) -> None:
    """Of all users together, of each, and each job once."""
    done: list[BoostedJob] = []
    for number, (uid, at_s) in enumerate(sorted(asks, key=lambda ask: ask[1])):
        if not cap_refusal(uid, str(number), done, at_s, RULE):
            done.append(BoostedJob(uid, str(number), at_s))
    for one in done:
        late = [other for other in done if 0 <= one.at_s - other.at_s < 3600]
        assert len(late) <= RULE.per_hour
        assert sum(other.uid == one.uid for other in late) <= RULE.per_user


def test_a_job_is_raised_once() -> None:
    """It cannot be asked higher and higher."""
    assert "before" in cap_refusal(ANN, "8", [BoostedJob(ANN, "8", NOW_S - 10)], NOW_S, RULE)


@pytest.mark.parametrize(
    ("said", "update", "there", "below"),
    [
        ("nice:-1000", "Nice=-1000", {"Nice": "-1000"}, {"Nice": "0"}),
        ("priority:5000", "Priority=5000", {"Priority": "6000"}, {"Priority": "4999"}),
        ("qos:urgent", "QOS=urgent", {"QOS": "urgent"}, {"QOS": "normal"}),
    ],
)
def test_nobody_is_put_above_what_the_site_says(
    said: str, update: str, there: dict[str, str], below: dict[str, str]
) -> None:
    """Nor back: who stands there already, or better, is left alone."""
    rule = parse_rule(said)
    assert rule.update == update
    assert is_already_boosted(job("8", 2, JobState.PENDING, **there), rule)
    assert not is_already_boosted(job("8", 2, JobState.PENDING, **below), rule)


@pytest.mark.parametrize("said", ["nice:1000", "nice", "nice:-1 Priority=9", "qos:a b", "top", "priority:-1"])
def test_a_rule_is_one_word_of_three(said: str) -> None:
    """It reaches a command of root."""
    with pytest.raises(BadRule, match="site-priority"):
        parse_rule(said)
    assert parse_rule("").how == ""
