"""Laws of sweeps of idle nodes, and of a check that fails everywhere."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest

from ftrun.slurm.client.cluster import NodeRow, PartitionRow
from ftrun.slurm.records import replace
from ftrun.supervisor.nodes import recheck_rules
from ftrun.supervisor.nodes.recheck_rules import CheckReport
from ftrun.supervisor.site import sweep
from ftrun.supervisor.site.standing import Event
from ftrun.supervisor.store import site_nodes
from tests.unit.site.test_drain_service import AWAY, BAD, SICK, WELL, row
from tests.unit.site.test_service import Town

NODES = ("n0", "n1", "n2", "n3")
PAIRS_BAD = {
    "check": "pairs",
    "severity": "bad",
    "message": "no way",
    "fault": "network",
    "device": "",
    "evidence": [],
}


def full(report: CheckReport) -> CheckReport:
    """The report with all fields of findings, as nodes send them."""
    return replace(report, findings=[{"device": "", "evidence": [], **one} for one in report.findings])


def swept(
    truth: Mapping[str, CheckReport | Sequence[CheckReport]],
    between: Mapping[str, Mapping[str, Any]] | None = None,
    *,
    way: bool = False,
) -> tuple[dict[str, list[str]], Any]:
    """(bad node -> its checks, the result); a sequence is what each look at a node shows."""
    looks: dict[str, int] = {}

    def look(nodes: Sequence[str]) -> Mapping[str, CheckReport]:
        found = {}
        for node in nodes:
            told, number = truth.get(node, WELL), looks.get(node, 0)
            found[node] = full(told if isinstance(told, CheckReport) else told[number])
            looks[node] = number + 1
        if way:
            time.sleep(1.5 * sweep.POLL_S)
        return found

    result, gave_way = sweep.sweep_nodes(NODES, look, lambda _nodes: between or {}, lambda: way)
    assert gave_way == way
    return {node: [str(one["check"]) for one in rows] for node, rows in result.verdict.bad.items()}, result


def test_a_sweep_blames_the_node_that_differs_from_its_peers() -> None:
    """By its checks, twice, or by the network between them."""
    assert swept({"n1": SICK})[0] == {"n1": ["gpu-check"]}
    assert swept({}, {"n2": PAIRS_BAD})[0] == {"n2": ["pairs"]}
    assert swept({"n1": [SICK, WELL]})[0] == {}
    assert swept({"n1": AWAY})[0] == {}


def test_a_check_that_fails_everywhere_is_called_wrong_and_blames_nobody() -> None:
    """The result names the check; the ledger gets no sick node."""
    bad, result = swept(dict.fromkeys(NODES, SICK))
    assert (bad, result.verdict.site) == ({}, ("gpu-check",))
    assert {one.detail["result"] for one in sweep.events_of(result, 1.0)} == {"well"}


def test_a_sweep_that_gives_way_keeps_what_it_found() -> None:
    """No second look and no test of pairs after that; so nothing is bad."""
    assert swept({"n1": SICK}, {"n2": PAIRS_BAD}, way=True)[0] == {}


def test_a_test_of_pairs_that_gave_way_proves_nothing() -> None:
    """A job started on the nodes meanwhile; what was seen twice before that counts."""
    way: list[bool] = []

    def look(nodes: Sequence[str]) -> Mapping[str, CheckReport]:
        return {node: full(SICK if node == "n1" else WELL) for node in nodes}

    def pairs(_nodes: Sequence[str]) -> Mapping[str, Mapping[str, Any]]:
        way.append(True)
        time.sleep(2.0 * sweep.POLL_S)
        return {"n2": PAIRS_BAD}

    result, gave_way = sweep.sweep_nodes(NODES, look, pairs, lambda: bool(way))
    assert (gave_way, list(result.verdict.bad)) == (True, ["n1"])
    assert len(sweep.events_of(result, 1.0)) == len(NODES)


def test_a_node_that_was_bad_once_when_the_sweep_gave_way_stays_due() -> None:
    """The ledger is told nothing of it: neither sick nor well."""
    _, result = swept({"n1": SICK}, way=True)
    assert [one.node for one in sweep.events_of(result, 1.0)] == ["n0", "n2", "n3"]


def test_whoever_waits_in_any_partition_of_the_nodes_goes_first() -> None:
    """Partitions overlap: a job of another one waits for the same nodes."""
    parts = {
        "all": PartitionRow("all", True, True, ("a1", "a2", "b1")),
        "a": PartitionRow("a", True, False, ("a1", "a2")),
        "b": PartitionRow("b", False, False, ("b1",)),
    }
    assert sweep.sharing(parts, ["a2"]) == ["a", "all"]
    assert sweep.sharing(parts, ["a1", "b1"]) == ["a", "all", "b"]


def test_only_what_idles_and_is_nobodys_is_due_and_the_longest_unswept_first() -> None:
    """One partition at a time; named nodes are due at once, if they idle."""
    rows = {name: row(name) for name in ("a1", "a2", "a3", "b1")}
    rows |= {
        "a4": row("a4", reason="by hand"), "a5": row("a5", state="mixed"),
        "a6": NodeRow("a6", "idle", frozenset({"planned"}), "", None, ("main",)),
        "a7": NodeRow("a7", "idle", frozenset({"powered_down"}), "", None, ("main",)),
    }  # fmt: skip
    parts = {
        "a": PartitionRow("a", True, True, tuple(f"a{i}" for i in range(1, 8))),
        "b": PartitionRow("b", True, False, ("b1",)),
    }
    now = 1e6
    before = {"a1": now - 50.0, "a3": now - 900.0, "b1": now - 1000.0}
    due = sweep.due_nodes(rows, parts, before, now, most=8, every_s=100.0)
    assert due == ("a", ("a2", "a3"))
    assert sweep.due_nodes(rows, parts, {**before, "a2": now}, now, most=8, every_s=100.0) == ("b", ("b1",))
    assert sweep.due_nodes(rows, parts, before, now, most=1, every_s=0.0) == ("a", ("a2",))
    assert sweep.due_nodes(rows, parts, before, now, most=8, only=("a1", "a4", "a5")) == ("a", ("a1",))
    assert sweep.due_nodes(rows, parts, dict.fromkeys(rows, now), now, most=8) == ("", ())


@pytest.fixture
def town(tmp_path: Path) -> Town:
    site_nodes._cache.clear()
    return Town(tmp_path, Random(1))


def left(town: Town, *findings: Mapping[str, Any]) -> None:
    """A sweep of n0 that found this."""
    found = "sick" if findings else "well"
    with town.serving() as service:
        told = Event(
            "swept:n0", "n0", town.engine.now(), "swept", {"result": found, "findings": list(findings)}
        )
        service.database.add_events(told)
    town.engine.advance(5.0)


def test_the_service_drains_what_a_sweep_found_sick_once_and_within_its_caps(town: Town) -> None:
    """Whatever a quick check would say; a fault for which no node is drained places it last; a cap too, until it permits."""
    left(town)
    assert town.once() == []
    town.limits = replace(town.limits, per_hour=0)
    left(town, BAD)
    assert [(one.node, one.verdict) for one in town.once()] == [("n0", "quarantined")]
    assert (town.ours(), town.placed_last(), town.once()) == (set(), ["n0"], [])
    town.limits = replace(town.limits, per_hour=9)
    town.engine.advance(3700.0)
    assert [(one.node, one.verdict) for one in town.once()] == [("n0", "drained")]
    assert town.cluster.nodes()["n0"].reason.startswith("ftrun: sweep gpu-check ")
    town.cluster.resume("n0", town.cluster.nodes()["n0"].reason)
    town.engine.advance(3700.0)
    assert town.once() == []
    left(town, PAIRS_BAD)
    assert [(one.node, one.verdict) for one in town.once()] == [("n0", "quarantined")]
    town.engine.advance(3700.0)
    assert town.once() == []


def test_a_node_that_a_newer_sweep_found_well_is_left_alone(town: Town) -> None:
    """Also where that sweep ends between the service's reading of the ledger and its deed."""
    left(town, BAD)
    with town.serving() as service:
        folded = service._fold

        def fold_then_swept_anew() -> None:
            folded()
            told = {"result": "well", "findings": []}
            service.database.add_events(Event("swept:n0", "n0", town.engine.now(), "swept", told))

        service._fold = fold_then_swept_anew
        assert service.round() == []
    assert (town.ours(), town.placed_last()) == (set(), [])


def test_observing_and_old_sweeps_drain_nothing(town: Town) -> None:
    """What a sweep of days ago found was of that day."""
    left(town, BAD)
    assert [one.verdict for one in town.once(observe=True)] == ["observed"]
    town.engine.advance(100.0)
    left(town, BAD)
    town.engine.advance(2 * 86_400.0)
    assert town.once() == []
    assert town.ours() == set()


@pytest.mark.parametrize(
    ("peers", "shared"),
    [
        ([SICK, SICK], True),
        ([SICK, SICK, AWAY], True),
        ([SICK, WELL], False),
        ([SICK, AWAY], False),
        ([], False),
    ],
)
def test_a_check_that_fails_on_every_peer_in_service_holds_no_drained_node(
    peers: list[CheckReport], *, shared: bool
) -> None:
    """Two of them at least; what the node alone shows holds it still."""
    own = {**BAD, "check": "edac"}
    beside = {f"p{number}": peer for number, peer in enumerate(peers)}
    found = recheck_rules.without_common(CheckReport("answered", (BAD, own)), beside)
    assert [one["severity"] for one in found.findings] == ["note" if shared else "bad", "bad"]
    rules, memory = (
        recheck_rules.RecheckRules(passes=1),
        recheck_rules.RecheckState(reason="x", told=("gpu-check",)),
    )
    verdict = recheck_rules.assess_check(
        memory, recheck_rules.without_common(CheckReport("answered", (BAD,)), beside), rules
    )
    assert (verdict.act == "return", "the check is wrong" in verdict.why) == (shared, shared)
