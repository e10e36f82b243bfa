"""Laws of joining what nodes say to what the log says: a minority, of this attempt, where the log is vague, and never a live run alone. (pure)"""

from __future__ import annotations

import dataclasses
import itertools
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftrun.supervisor.diagnosis import node_findings
from ftrun.supervisor.diagnosis.class_defaults import plain
from ftrun.supervisor.diagnosis.launch_state import is_fatal
from ftrun.supervisor.diagnosis.node_findings import (
    ENDED_FOR_OTHER_REASONS,
    NodeFacts,
    NodeFinding,
    facts_from_reports,
    joined,
    parse_report,
    while_alive,
)
from ftrun.supervisor.model.node_entry import NodeEntry, canonical_device
from ftrun.supervisor.model.types import Action, Diagnosis, FaultClass, Source
from ftrun.supervisor.policy import policy_input

NODES = ("n0", "n1", "n2", "n3")
NOW_S = 10_000.0
GPU = NodeFinding("n2", "after", "gpu-check", "bad", FaultClass.HARDWARE_GPU, "7 GPUs of 8 answer", "3")
MEMORY = NodeFinding(
    "n2", "watch", "edac", "bad", FaultClass.HARDWARE_OTHER, "1 uncorrected error", "mc0", 9990.0
)
LINK = NodeFinding(
    "n1", "watch", "ib-errors", "degraded", FaultClass.NETWORK, "symbol_error: 500 more", "mlx5_0/1"
)
PAGE = Path(__file__).resolve().parents[3] / "docs" / "nodes-in-a-run.md"


def _facts(*findings: NodeFinding, nodes: tuple[str, ...] = NODES) -> NodeFacts:
    return NodeFacts(nodes, findings)


def _by_log(
    fault: FaultClass, confidence: float = 0.8, names: tuple[str, ...] = (), **more: Any
) -> Diagnosis:
    told = plain(fault, f"the log says {fault.value}", ["a line"], confidence=confidence, names=names)
    return dataclasses.replace(told, signature="some-line", sources=(Source.LOG,), **more)


# ---------------------------------------------------------------------- the table


def test_the_table_has_each_combination_once() -> None:
    """Nothing is decided beside the table: of three yes-or-no facts there are eight rows."""
    keys = [(row.precheck_failed, row.hardware_bad, row.ended) for row in node_findings.TABLE]

    assert sorted(keys) == sorted(product((False, True), repeat=3))
    assert sorted(row.number for row in node_findings.TABLE if row.number) == [1, 2, 3, 4]


def test_no_row_ends_what_is_alive() -> None:
    """P7: whatever a check says, a live script is at most suspected."""
    alive = {row.act for row in node_findings.TABLE if not row.ended}

    assert alive <= {node_findings.Act.SUSPECT, node_findings.Act.START, node_findings.Act.WATCH}


def test_nodes_are_left_out_for_bad_hardware_only() -> None:
    """Where the hardware is good nobody is isolated, whatever failed."""
    isolating = [row for row in node_findings.TABLE if row.act is node_findings.Act.ISOLATE]

    assert all(row.hardware_bad and row.ended for row in isolating)


def test_the_page_shows_the_table_of_the_code() -> None:
    """docs/nodes-in-a-run.md has each row with its act and its reason, as the code has them."""
    text = PAGE.read_text(encoding="utf-8")

    for row in node_findings.TABLE:
        cells = (
            str(row.number or "-"),
            "failed" if row.precheck_failed else "passed",
            "bad" if row.hardware_bad else "good",
            "ended" if row.ended else "runs",
            row.act.value,
            row.why,
        )
        assert f"| {' | '.join(cells)} |" in text


# ---------------------------------------------------------------------- after the end


@pytest.mark.parametrize(
    "fault", [FaultClass.HANG, FaultClass.NETWORK, FaultClass.UNKNOWN, FaultClass.LIBRARY_BUG]
)
def test_a_bad_node_explains_a_vague_end(fault: FaultClass) -> None:
    """Scenario 3: a hang or a time-out plus a node whose GPUs are bad is that node's hardware."""
    found = joined(_by_log(fault), _facts(GPU), NOW_S)

    assert (found.fault, found.nodes, found.exclude) == (FaultClass.HARDWARE_GPU, ("n2",), True)
    assert set(found.sources) == {Source.LOG, Source.REPORT}
    assert found.signature == "check-gpu-check"
    assert any(f"the log alone says {fault.value}" in word for word in found.rests_on)
    assert any(word.startswith("scenario 3") for word in found.rests_on)


def test_log_and_machine_that_name_the_same_node_agree() -> None:
    """Two sources for one culprit are surer than one."""
    told = _by_log(FaultClass.HARDWARE_GPU, 0.7, ("n2",))

    found = joined(told, _facts(GPU), NOW_S)

    assert found.confidence > told.confidence
    assert (found.nodes, found.signature) == (("n2",), "some-line")
    assert Source.REPORT in found.sources


def test_a_slow_link_names_the_node_of_a_network_fault_without_one() -> None:
    """What is only degraded explains nothing, but tells where a fault of its own class is."""
    assert joined(_by_log(FaultClass.NETWORK), _facts(LINK), NOW_S).nodes == ("n1",)
    assert joined(_by_log(FaultClass.UNKNOWN), _facts(LINK), NOW_S).nodes == ()


@pytest.mark.parametrize(
    "fault", [FaultClass.USER_CODE, FaultClass.DATA, FaultClass.CONFIG, FaultClass.OOM_GPU]
)
def test_a_sick_node_excuses_no_bug(fault: FaultClass) -> None:
    """Scenario 3 with our finer classes: what the log explains better than the machine keeps its verdict, and both are told."""
    told = _by_log(fault, 0.9)

    found = joined(told, _facts(GPU), NOW_S)

    assert (found.fault, found.retry, found.nodes) == (fault, told.retry, ())
    assert any("not held to be the cause" in word for word in found.rests_on)


def test_an_unsure_crash_is_the_machines() -> None:
    """A segmentation fault that only its signal tells of gives way to memory that lost data on that very node."""
    found = joined(_by_log(FaultClass.USER_CODE, 0.35), _facts(MEMORY), NOW_S)

    assert (found.fault, found.nodes, found.retry) == (FaultClass.HARDWARE_OTHER, ("n2",), True)


def test_two_sick_nodes_are_both_left_out() -> None:
    """All faulty nodes are isolated: the one that the log names and the one that a check finds."""
    found = joined(_by_log(FaultClass.HARDWARE_GPU, 0.9, ("n0",)), _facts(GPU), NOW_S)

    assert found.nodes == ("n0", "n2")


@pytest.mark.parametrize("fault", sorted(ENDED_FOR_OTHER_REASONS))
def test_what_others_ended_is_not_the_machines(fault: FaultClass) -> None:
    """A cancel, a preemption, a time limit and a good end stay what they are."""
    told = _by_log(fault)

    assert joined(told, _facts(GPU), NOW_S) == told


@given(st.sampled_from(sorted(FaultClass)), st.integers(2, 6))
def test_what_all_nodes_show_costs_none(fault: FaultClass, count: int) -> None:
    """A check that fails everywhere is a finding about the site: it is told, and blames nobody."""
    nodes = tuple(f"n{number}" for number in range(count))
    told = _by_log(fault)
    shown = [dataclasses.replace(GPU, node=node) for node in nodes]

    found = joined(told, _facts(*shown, nodes=nodes), NOW_S)

    assert found.nodes == told.nodes
    assert any("every node fails gpu-check" in word for word in found.rests_on)


@given(
    st.sampled_from(sorted(FaultClass)),
    st.lists(st.sampled_from(["n0", "n1", "n2", "n3", "elsewhere"]), max_size=6),
    st.sampled_from(["bad", "degraded"]),
    st.floats(0.05, 0.99),
)
def test_at_most_half_and_never_a_stranger(
    fault: FaultClass, where: list[str], severity: str, sure: float
) -> None:
    """However many nodes report, no more than half of the attempt is blamed for one check, and no node outside it."""
    findings = [dataclasses.replace(GPU, node=node, severity=severity) for node in where]

    found = joined(_by_log(fault, sure), _facts(*findings), NOW_S)

    assert set(found.nodes) <= set(NODES)
    assert 2 * len(found.nodes) <= len(NODES)


def test_more_than_half_of_bad_nodes_blames_nobody() -> None:
    """Many nodes that are bad, each in its own way, share something: so much bad luck is unlikely."""
    checks = ("edac", "gpu-check", "mounts")
    findings = [
        dataclasses.replace(GPU, node=f"n{number}", check=check) for number, check in enumerate(checks)
    ]

    assert joined(_by_log(FaultClass.HANG), _facts(*findings), NOW_S).nodes == ()


def test_a_node_that_has_less_than_its_peers_is_found_by_comparison() -> None:
    """No node can tell alone that it has a GPU too few; the reports of its peers of the same make do."""
    make = {
        "check": "versions",
        "severity": "ok",
        "message": "",
        "fault": "",
        "device": "product",
        "evidence": ["DGX H100"],
    }
    reports = {
        node: {"schema": 1, "kind": "after", "node": node, "at_s": 1.0, "findings": [make,
            {"check": "gpu-check", "severity": "ok", "message": "", "fault": "", "device": "", "evidence": [],
             "value": 7.0 if node == "n3" else 8.0, "unit": "GPUs"}]}
        for node in NODES
    }  # fmt: skip

    facts = facts_from_reports(NODES, {"after": reports})

    assert facts.asked == set(NODES)
    assert joined(_by_log(FaultClass.HANG), facts, NOW_S).nodes == ("n3",)


def test_what_was_gone_long_before_the_end_is_no_cause() -> None:
    """A mount that hung an hour and more ago has nothing to do with this end."""
    gone = dataclasses.replace(MEMORY, until_s=NOW_S - 4000)

    assert joined(_by_log(FaultClass.HANG), _facts(gone), NOW_S).nodes == ()


def test_alone_a_node_is_blamed_for_broken_hardware_only() -> None:
    """Without a peer to compare with, a port that is down may be the site's way; a GPU that is gone is not."""
    port = dataclasses.replace(LINK, node="n0", kind="after", severity="bad")
    gpu = dataclasses.replace(GPU, node="n0")

    assert joined(_by_log(FaultClass.HANG), _facts(port, nodes=("n0",)), NOW_S).nodes == ()
    assert joined(_by_log(FaultClass.HANG), _facts(gpu, nodes=("n0",)), NOW_S).nodes == ("n0",)


# ---------------------------------------------------------------------- who is silent, and what stands

SHM = NodeFinding(
    "n0", "after", "disk-size shm", "bad", FaultClass.STORAGE, "0.1 GB", "/dev/shm", value=0.07, unit="GB"
)
LOST = dataclasses.replace(
    _by_log(FaultClass.NODE, 0.95, ("n2", "n3")), signature="", sources=(Source.SLURM,)
)


def _on(finding: NodeFinding, *nodes: str) -> tuple[NodeFinding, ...]:
    return tuple(dataclasses.replace(finding, node=node) for node in nodes)


@pytest.mark.parametrize(
    ("nodes", "silent", "asked", "shown_by", "blamed"),
    [
        (4, "n2 n3", "n0 n1", "n0 n1", ""),  # the survivors of two dead nodes share it
        (4, "", "n0 n1", "n0 n1", ""),  # nobody calls the others dead yet, and they gave no answer
        (4, "n3", "n0 n1 n2", "n0 n1", ""),  # most of three
        (4, "n3", "n0 n1 n2", "n0", "n0"),
        (4, "", "n0 n1 n2 n3", "n0 n1 n2 n3", ""),  # all share it
        (4, "", "n0 n1 n2 n3", "n0", "n0"),
        (2, "n1", "n0", "n0", ""),  # one of two answers: it has nobody to be compared with
        (2, "", "n0", "n0", ""),
        (2, "", "n0 n1", "n0", "n0"),
        (2, "", "n0 n1", "n0 n1", ""),
    ],
)  # fmt: skip
def test_who_is_silent_is_not_among_those_compared(
    nodes: int, silent: str, asked: str, shown_by: str, blamed: str
) -> None:
    """Half of four is no half where two of the four are dead: what all who answer show is the site's."""
    names = tuple(f"n{number}" for number in range(nodes))
    facts = NodeFacts(names, _on(SHM, *shown_by.split()), frozenset(asked.split()), frozenset(silent.split()))

    assert joined(_by_log(FaultClass.HANG), facts, NOW_S).nodes == tuple(blamed.split())


@pytest.mark.parametrize("finding", [SHM, GPU])
def test_survivors_that_share_a_finding_do_not_join_the_dead(finding: NodeFinding) -> None:
    """Two of four nodes are lost, the others show the same: the two that are lost are blamed, and nobody else."""
    facts = NodeFacts(NODES, _on(finding, "n0", "n1"), frozenset({"n0", "n1"}), frozenset({"n2", "n3"}))

    found = joined(LOST, facts, NOW_S)

    assert (found.fault, found.nodes, found.exclude) == (FaultClass.NODE, ("n2", "n3"), LOST.exclude)
    assert any(word.startswith(f"every node that answers fails {finding.check}") for word in found.rests_on)


def test_a_dead_node_that_complained_before_is_not_excused_by_its_silence() -> None:
    """Its watch told of broken hardware while it lived: that is why it died, and no survivor shows it."""
    facts = NodeFacts(NODES, (MEMORY,), frozenset({"n0", "n1"}), frozenset({"n2", "n3"}))

    assert joined(_by_log(FaultClass.HANG), facts, NOW_S).nodes == ("n2",)


def test_a_check_never_makes_the_blame_cover_all() -> None:
    """Of two nodes one is lost, and the other is sick: to blame both would let the lost one go free."""
    gpu = dataclasses.replace(GPU, node="n0")
    facts = NodeFacts(("n0", "n1"), (gpu,), frozenset({"n0"}), frozenset({"n1"}))
    lost = dataclasses.replace(LOST, nodes=("n1",))

    assert joined(lost, facts, NOW_S).nodes == ("n1",)


def _noted(finding: NodeFinding, run: str = "other", **changes: Any) -> NodeEntry:
    """A finding as the ledger keeps it, an hour old."""
    entry = NodeEntry(
        NOW_S - 3600, "check", (finding.node,), f"{run}:3.0:after:{finding.node}", run, f"check-{finding.check}",
        finding.fault.value, canonical_device(finding.device), "", {"worst": finding.severity, "value": finding.value},
    )  # fmt: skip
    return dataclasses.replace(entry, **changes)


ELSEWHERE = tuple(_noted(one) for one in _on(SHM, "n8", "n9"))
UNLIKE = NodeEntry(NOW_S - 3600, "served", ("n5", "n6", "n7"), "s", "other")


@pytest.mark.parametrize(
    ("finding", "entries", "stands"),
    [
        (SHM, (), False),
        (SHM, (_noted(SHM),), True),  # of this very node, in another run
        (SHM, (_noted(SHM, run="mine"),), True),  # in an earlier attempt
        (SHM, (_noted(SHM, run="mine", id="mine:4.0:after:n0"),), False),  # of this launch itself
        (SHM, (_noted(SHM, at_s=NOW_S - 20 * 86_400),), False),  # too long ago
        (SHM, (_noted(dataclasses.replace(SHM, severity="degraded")),), False),  # it was milder
        (SHM, (_noted(dataclasses.replace(SHM, value=8.0)),), False),  # there was more of it
        (SHM, (_noted(SHM), _noted(SHM, what="incident")), False),  # it was blamed for it before
        (dataclasses.replace(SHM, fresh=True), (_noted(SHM),), False),  # it came while the script ran
        (dataclasses.replace(SHM, kind="watch"), (_noted(SHM),), False),
        (SHM, ELSEWHERE, True),  # most nodes of other runs have it
        (SHM, ELSEWHERE[:1], False),
        (SHM, (*ELSEWHERE, UNLIKE), False),
        (GPU, tuple(_noted(one) for one in _on(GPU, "n8", "n9")), False),  # a broken card is not the site's
        (GPU, (_noted(GPU),), True),
    ],
)  # fmt: skip
def test_what_the_ledger_knew_before_is_no_cause(
    finding: NodeFinding, entries: tuple[NodeEntry, ...], stands: bool
) -> None:
    """A finding that was there before this launch, or on most nodes of other runs, never joins a fault; what got worse does."""
    facts = _facts(finding).noted_before(entries, "mine", "mine:4.0:", NOW_S)

    found = joined(_by_log(FaultClass.HANG), facts, NOW_S)

    assert found.nodes == (() if stands else (finding.node,))
    assert any(word.startswith("there before the fault") for word in found.rests_on) == stands


def _row(severity: str = "bad", **more: Any) -> dict[str, Any]:
    return {
        "check": "edac",
        "severity": severity,
        "message": "m",
        "fault": "hardware-other",
        "device": "mc0",
        **more,
    }


@pytest.mark.parametrize(
    ("before", "after", "since", "blamed"),
    [
        (_row(), _row(), (), ()),
        (_row(value=3.0), _row(value=3.0), (), ()),
        (_row(value=3.0), _row(value=4.0), (), ("n1",)),  # the counter rose
        (_row("degraded"), _row(), (), ("n1",)),
        (_row(), _row("degraded"), (), ()),
        (_row(device="mc1"), _row(), (), ("n1",)),
        (_row(value=5.0, unit="s"), _row(value=6.0, unit="s"), (), ()),  # how long an answer took
        (_row(), _row(), ("edac",), ("n1",)),  # the check counted from the script's start
    ],
)  # fmt: skip
def test_what_the_checks_before_the_script_knew_is_no_cause(
    before: dict[str, Any], after: dict[str, Any], since: tuple[str, ...], blamed: tuple[str, ...]
) -> None:
    """A script that ran on a node with a finding did not fail for it, unless it got worse."""
    head = {"schema": 1, "node": "n1", "at_s": 1.0}
    told = {
        "preflight": {"n1": head | {"kind": "preflight", "findings": [before]}},
        "after": {"n1": head | {"kind": "after", "findings": [after], "since": list(since)}},
    }

    facts = facts_from_reports(NODES, told)
    facts = dataclasses.replace(facts, asked=frozenset(NODES))

    assert joined(_by_log(FaultClass.HARDWARE_OTHER), facts, NOW_S).nodes == blamed


def test_what_training_went_on_after_is_no_cause_until_it_rises() -> None:
    """The watch found an error, steps followed: it explains no later end; one more error does."""
    first = dataclasses.replace(MEMORY, value=1.0)
    more = dataclasses.replace(MEMORY, value=2.0)

    assert joined(_by_log(FaultClass.HANG), _facts(first).survived({first.key}), NOW_S).nodes == ()
    assert joined(_by_log(FaultClass.HANG), _facts(more).survived({first.key}), NOW_S).nodes == ("n2",)


ORDERS = list(itertools.permutations(f"n{number}" for number in range(6)))


@given(
    st.sampled_from([FaultClass.HANG, FaultClass.NODE, FaultClass.NETWORK, FaultClass.USER_CODE]),
    st.lists(st.integers(0, 17), max_size=10),
    st.integers(0, 63),
    st.integers(0, 63),
    st.integers(0, 719),
)
def test_more_silence_never_means_more_blame(
    fault: FaultClass, shown: list[int], silent: int, named: int, order: int
) -> None:
    """Whoever falls silent, and in whatever order nodes are named: no node that answers is blamed that was not blamed before."""
    names = tuple(f"n{number}" for number in range(6))
    findings = tuple(dataclasses.replace((SHM, GPU, MEMORY)[at % 3], node=names[at // 3]) for at in shown)
    accused = tuple(name for at, name in enumerate(names) if named >> at & 1)
    told = _by_log(fault, 0.8, accused)
    gone = frozenset(name for at, name in enumerate(names) if silent >> at & 1)
    others = ORDERS[order]

    before = joined(told, NodeFacts(names, findings, frozenset(names)), NOW_S)
    after = joined(told, NodeFacts(others, findings, frozenset(names) - gone, gone), NOW_S)

    assert set(after.nodes) - gone <= set(before.nodes) | set(accused)


# ---------------------------------------------------------------------- while it runs


def test_a_live_run_is_suspected_for_a_bad_node_and_not_for_a_slow_one() -> None:
    """A node that is bad is as much as a fatal line; one that is worse than it should be is told and no more."""
    suspicion = while_alive(None, _facts(MEMORY), (), NOW_S)

    assert suspicion is not None
    assert is_fatal(suspicion)
    assert suspicion.nodes == ("n2",)
    assert while_alive(None, _facts(LINK), (), NOW_S) is None


def test_what_training_survived_is_no_suspicion_any_more() -> None:
    """P7: a step after the finding takes it back, and it does not come again at the next look."""
    assert while_alive(None, _facts(MEMORY), {MEMORY.key}, NOW_S) is None


def test_what_all_nodes_show_is_no_suspicion() -> None:
    """A site's own misconfiguration ends no run."""
    everywhere = [dataclasses.replace(MEMORY, node=node) for node in NODES]

    assert while_alive(None, _facts(*everywhere), (), NOW_S) is None


# ---------------------------------------------------------------------- reports are claims


def test_a_report_leaves_a_node_out_and_drains_none() -> None:
    """What the job's own user can write may cost the user's own run a node, and nobody else."""
    assert Source.REPORT in policy_input.EXCLUDE_SOURCES
    assert Source.REPORT not in policy_input.PROOF_SOURCES


def test_a_check_over_ssh_proves_only_what_it_saw() -> None:
    """What ftrun itself asked of a node may drain that node; one that a report accuses beside it makes all of it a claim."""
    asked = dataclasses.replace(GPU, source=Source.CHECK)
    claimed = dataclasses.replace(GPU, node="n3")

    assert Source.CHECK in joined(_by_log(FaultClass.HANG), _facts(asked), NOW_S).sources
    both = joined(_by_log(FaultClass.HANG), _facts(asked, claimed), NOW_S)
    assert set(both.nodes) == {"n2", "n3"}
    assert not set(both.sources) & policy_input.PROOF_SOURCES


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(max_size=8),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(
            st.sampled_from(["schema", "node", "findings", "severity", "fault", "check", "at_s", "kind", "value", "evidence"]), inner, max_size=6
        ),
        max_leaves=20,
    )
)  # fmt: skip
def test_any_text_for_a_report_is_harmless(report: object) -> None:
    """A report is written by anybody: what is no report says nothing."""
    assert all(one.node == "n0" for one in parse_report(report, node="n0"))
    assert facts_from_reports(("n0",), {"after": {"n0": report}}).nodes == ("n0",)


def test_a_report_speaks_for_its_own_node_and_for_classes_of_nodes() -> None:
    """A node cannot accuse another, nor say of itself that the script has a bug."""
    row = {"check": "x", "severity": "bad", "message": "m", "fault": "hardware-gpu", "device": "0"}
    report = {
        "schema": 1,
        "kind": "after",
        "node": "n0",
        "at_s": 5.0,
        "findings": [row, {**row, "fault": "user-code"}],
    }

    assert [one.fault for one in parse_report(report, node="n0")] == [FaultClass.HARDWARE_GPU]
    assert parse_report(report, node="n1") == ()
    assert parse_report({**report, "schema": 2}, node="n0") == ()


def test_a_finding_makes_another_attempt_worth_it() -> None:
    """Isolate and submit again: whatever class a finding has, the run goes on without the node."""
    found = joined(
        _by_log(FaultClass.HANG), _facts(dataclasses.replace(GPU, fault=FaultClass.STORAGE)), NOW_S
    )

    assert found.retry
    assert found.action is not Action.STOP
