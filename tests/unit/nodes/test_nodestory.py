"""Laws of what a run leaves in the ledger, and of what the ledger says to a run. (I/O)"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ftrun.supervisor.model.events import apply
from ftrun.supervisor.model.node_entry import NodeEntry
from ftrun.supervisor.model.run import Attempt, Incident, Launch, LaunchEnd, Run
from ftrun.supervisor.model.types import Source
from ftrun.supervisor.nodes import from_runs, ledger
from ftrun.supervisor.nodes.history import QuarantineRules, fold_entries
from ftrun.supervisor.nodes.ledger import NodeLedger
from ftrun.supervisor.policy.node_placement import nodes_to_exclude
from ftrun.supervisor.policy.policy_input import PolicyLimits
from ftrun.supervisor.store import journal
from tests.unit.cases import DAY, NODES, NOW, PARTITION, F, cluster, diagnosis, incident, rule

FROZEN = Path(__file__).resolve().parents[2] / "frozen" / "v1"
XID = "NVRM: Xid (PCI:0000:3b:00): 79, pid=8123, name=python, GPU has fallen off the bus"


def judged(**changes: Any) -> Incident:
    """A bad GPU on n2, left out for a day."""
    plain = incident(
        F.HARDWARE_GPU,
        nodes=("n2",),
        decided_at_s=NOW,
        decision={"kind": "resubmit", "exclude": ["n2"], "exclude_until_s": NOW + DAY},
        diagnosis={"because": [{"text": XID}], "exclude": True},
    )
    return replace(plain, **changes)


def run_of(*incidents: Incident, **changes: Any) -> Run:
    attempt = Attempt(1, NOW - 9000, nodes=NODES)
    return replace(Run("r-0001", token="t", attempts=(attempt,), incidents=incidents), **changes)


def told(run: Run) -> dict[str, list[NodeEntry]]:
    found: dict[str, list[NodeEntry]] = {}
    for entry in from_runs.entries_of(run):
        found.setdefault(entry.what, []).append(entry)
    return found


# ---------------------------------------------------------------------- what a run tells


def test_a_fault_that_costs_a_node_its_place_is_a_strike() -> None:
    """Incident and exclusion, with run, signature, device and the line that proves it: one strike."""
    run = run_of(judged())
    (fault,), (gone,) = told(run)["incident"], told(run)["excluded"]

    assert (("n2",), "r-0001", "hardware-gpu", "0000:3b:00") == (
        fault.nodes,
        fault.run,
        fault.fault,
        fault.device,
    )
    assert (XID, 4, True) == tuple(fault.detail[key] for key in ("evidence", "attempt_nodes", "strike"))
    assert NOW + DAY == gone.detail["until_s"]
    assert 1 == len(fold_entries([fault, gone]).nodes["n2"].strikes)


@pytest.mark.parametrize(
    ("what", "strikes"),
    [
        ({"decision": {"kind": "stop"}}, 1),  # it would have been left out, had the run gone on
        ({"decision": {"kind": "stop"}, "nodes": NODES}, 0),  # all of them: not theirs
        ({"decision": {"kind": "stop"}, "fault": F.NETWORK.value}, 0),  # not proven by this alone
        ({"decision": {"kind": "resubmit"}}, 0),  # it was not sure enough
        ({"decided_at_s": None}, 0),
        ({"fault": F.USER_CODE.value}, 0),
        ({"fault": "a-class-of-tomorrow"}, 0),
        ({"attempt_nodes": ("n7",)}, 0),  # a log may name any host
    ],
)
def test_only_what_is_a_nodes_own_is_held_against_it(what: dict[str, Any], strikes: int) -> None:
    """As the policy decides it, and also where the run stops."""
    book = fold_entries(from_runs.entries_of(run_of(judged(**what))))

    assert strikes == sum(len(record.strikes) for record in book.nodes.values())


@pytest.mark.parametrize(
    ("fault", "surely", "strikes"),
    [(F.NODE, True, {"n2", "n3"}), (F.NODE, False, {"n2"}), (F.NETWORK, True, {"n2"})],
)
def test_a_cap_that_is_full_excuses_no_lost_node(fault: F, surely: bool, strikes: set[str]) -> None:
    """Two nodes are lost, and the cap leaves out one: both have their strike, where the class leaves out all that it blames."""
    lost = judged(fault=fault.value, nodes=("n2", "n3"), diagnosis={"exclude": surely})

    book = fold_entries(from_runs.entries_of(run_of(lost)))

    assert strikes == {name for name, record in book.nodes.items() if record.strikes}


def test_a_run_that_only_observes_holds_nothing_against_anybody() -> None:
    """What it saw is remembered, without consequence."""
    found = told(run_of(judged(), settings={"observe": True}))

    assert ["incident"] == list(found)
    assert not found["incident"][0].detail["strike"]


def test_each_drain_is_told_when_it_is_done() -> None:
    """Two that were decided, one carried out: one entry now, the same and another one later."""
    decision = {
        "kind": "resubmit",
        "exclude": ["n2", "n3"],
        "drain": ["n2", "n3"],
        "exclude_until_s": NOW + DAY,
    }
    fault = judged(nodes=("n2", "n3"), decision=decision)
    first = told(run_of(fault, drained=("n2",)))["drained"]
    both = told(run_of(fault, drained=("n2", "n3")))["drained"]

    assert [("n2",)] == [entry.nodes for entry in first]
    assert [first[0], both[1]] == both


def test_the_hours_of_a_launch_are_slurms() -> None:
    """From Slurm's start to Slurm's end, on every node; of a launch that is over only."""
    ended = Attempt(
        1,
        NOW,
        nodes=NODES,
        launch=Launch(started_at_s=NOW, end=LaunchEnd(slurm_at_s=NOW + 7200, state="COMPLETED")),
    )

    (entry,) = told(run_of(attempts=(ended,)))["served"]
    assert (NODES, 2.0) == (entry.nodes, entry.detail["hours"])
    assert {} == told(run_of(attempts=(ended.ended_as(state=""),)))


@pytest.mark.parametrize("folder", sorted(path.name for path in FROZEN.iterdir() if path.is_dir()))
def test_a_journal_gives_the_same_entries_at_every_moment(folder: str) -> None:
    """Whoever takes over in the middle makes the same entries under the same ids; none is taken back or changed."""
    (run_dir,) = (path for path in (FROZEN / folder).iterdir() if path.is_dir())
    run, mark = Run(run_dir.name), from_runs.entries_mark(Run(""))
    before: dict[str, NodeEntry | None] = {}
    for record in journal.read_run(str(run_dir)):
        run = apply(run, record)
        now: dict[str, NodeEntry | None] = {entry.id: entry for entry in from_runs.entries_of(run)}
        assert before == {key: now.get(key) for key in before}
        assert now == before or mark != from_runs.entries_mark(run)
        before, mark = now, from_runs.entries_mark(run)
    assert before


# ---------------------------------------------------------------------- what nodes report


def report(node: str = "n2", uuid: str = "1" * 12, **changes: Any) -> dict[str, Any]:
    """Two cards, one of them hot."""
    seats = [
        f"{n} (00000000:{slot}:00.0) GPU-00000000-0000-0000-0000-{uuid}"
        for n, slot in enumerate(("3B", "86"))
    ]
    row = {
        "check": "gpu-check",
        "severity": "ok",
        "message": "2 GPU(s)",
        "fault": "",
        "device": "",
        "evidence": seats,
    }
    hot = {
        "check": "gpu-heat",
        "severity": "bad",
        "message": "97 C",
        "fault": "hardware-gpu",
        "device": "0 (0000:3b:00.0)",
    }
    told = {"schema": 1, "kind": "after", "node": node, "at_s": NOW, "worst": "bad", "findings": [row, hot]}
    return told | changes


def of_report(content: object, now_s: float = NOW) -> list[NodeEntry]:
    return from_runs.entries_of_report(run_of(), 1, 0, content, node="n2", now_s=now_s)


def test_a_report_tells_findings_and_which_card_sits_where() -> None:
    """A finding against the node is history; a card is its slot and UUID. Nothing of it is a strike."""
    check, *cards = of_report(report())

    assert ("check", "check-gpu-heat", "0000:3b:00") == (check.what, check.signature, check.device)
    assert ["0000:3b:00", "0000:86:00"] == [card.device for card in cards]
    assert {"GPU-00000000-0000-0000-0000-111111111111"} == {card.serial for card in cards}
    assert () == fold_entries(of_report(report())).nodes["n2"].strikes


@pytest.mark.parametrize(
    "odd",
    [
        None,
        [],
        "x",
        report("n3"),
        report(schema=2),
        report(findings=7),
        report(findings=[7, {"check": "gpu-check"}]),
    ],
    ids=str,
)
def test_a_report_that_is_none_tells_nothing(odd: object) -> None:
    """Anybody's JSON, another node's, a newer ftrun's."""
    assert [] == of_report(odd)


def test_a_report_from_the_future_is_of_now() -> None:
    """The clock of whoever wrote it changes no order."""
    assert {NOW} == {
        entry.at_s for at_s in (NOW + DAY, float("nan"), "soon") for entry in of_report(report(at_s=at_s))
    }


def test_a_card_that_was_replaced_takes_its_strikes_with_it(tmp_path: Path) -> None:
    """Its slot is blamed; a later run's report finds another card there. A card that is known to sit there is not noted again."""
    folder = tmp_path / "runs" / "r-0001" / "attempts" / "1" / "nodes"
    folder.mkdir(parents=True)
    ended = Attempt(1, NOW - 9000, nodes=NODES, launch=Launch(end=LaunchEnd(state="FAILED", at_s=NOW)))
    run = run_of(judged(), attempts=(ended,), last_at_s=NOW)
    strikes = []
    for number, uuid in enumerate(("1" * 12, "1" * 12, "2" * 12)):
        (folder / "after.0.n2.json").write_text(json.dumps(report(uuid=uuid, at_s=NOW + number)))
        again = replace(run, id="r-0001", token=f"t{number}", incidents=run.incidents if not number else ())
        NodeLedger(str(tmp_path), lambda: NOW + 9, lambda *_, **__: None).follow(again)
        strikes.append(len(fold_entries(ledger.read_entries(str(tmp_path))).nodes["n2"].strikes))

    assert [1, 1, 0] == strikes
    assert 4 == sum(entry.what == "device" for entry in ledger.read_entries(str(tmp_path)))


# ---------------------------------------------------------------------- a supervisor and its ledger


def book(home: Path, said: list[str]) -> NodeLedger:
    return NodeLedger(str(home), lambda: NOW, lambda event, **_: said.append(event))


def test_a_run_is_noted_once_by_whomever(tmp_path: Path) -> None:
    """Two supervisors, one after the other, and each more than once."""
    for _ in range(2):
        mine = book(tmp_path, [])
        for _ in range(3):
            mine.follow(run_of(judged()))

    (only,) = (tmp_path / "nodes").iterdir()
    assert 2 == len(only.read_text().splitlines())


def test_a_home_that_cannot_be_written_is_told_once_and_tried_again(tmp_path: Path) -> None:
    """The supervisor goes on; when there is room again, the entries come."""
    said: list[str] = []
    (tmp_path / "nodes").write_text("in the way")
    mine = book(tmp_path, said)
    mine.follow(run_of(judged()))
    mine.follow(run_of(judged()))
    (tmp_path / "nodes").unlink()
    mine.follow(run_of(judged()))

    assert ["ledger.not-written", "ledger.written-again"] == said
    assert 2 == len(ledger.read_entries(str(tmp_path)))


def test_what_is_older_than_the_ledger_keeps_is_not_noted_again(tmp_path: Path) -> None:
    """A run of last year whose folder still lies there."""
    old = judged(diagnosed_at_s=NOW - 400 * DAY, decided_at_s=NOW - 400 * DAY)
    book(tmp_path, []).follow(run_of(old))

    assert [] == ledger.read_entries(str(tmp_path))


def test_a_journal_that_makes_no_sense_stops_nobody(tmp_path: Path) -> None:
    """Told, once."""
    said: list[str] = []
    mine = book(tmp_path, said)
    odd = run_of(judged(diagnosis={"because": [7]}))
    mine.follow(odd)
    mine.follow(odd)

    assert ["ledger.not-understood"] == said


def test_the_book_is_folded_anew_when_there_is_something_new(tmp_path: Path) -> None:
    """And with the settings of the run that asks."""
    mine, asked = book(tmp_path, []), []

    def domains() -> dict[str, tuple[str, ...]]:
        asked.append(1)
        return {}

    mine.follow(run_of(judged()))
    first = mine.book(QuarantineRules.of({}), domains)
    assert first is mine.book(QuarantineRules.of({}), domains)
    assert ("n2",) == first.quarantined(NOW)
    assert () == mine.book(QuarantineRules.of({"exclude-for": 1.0}), domains).quarantined(NOW + 2)
    ledger.append_entries(str(tmp_path), NodeEntry(NOW + 1, "released", ("n2",), detail={"by": "ada"}))
    assert () == mine.book(QuarantineRules.of({}), domains).quarantined(NOW + 2)
    assert not asked, "one node that failed: nobody asks Slurm for its switches"


# ---------------------------------------------------------------------- who is avoided


def test_quarantined_nodes_are_avoided_under_the_cap() -> None:
    """Ten per cent of forty are four: the run's own exclusions first, then the worst of the others."""
    worst = ("n20", "n21", "n22", "n23", "n24")

    assert ("n20", "n21", "n22", "n23") == nodes_to_exclude(
        cluster(), (), (), (), quarantined=worst, cap=0.10
    )
    own = nodes_to_exclude(cluster(), ("n1", "n2", "n3"), (), (), quarantined=worst, cap=0.10)
    assert ("n1", "n2", "n20", "n3") == own
    assert ("n1", "n2", "n3", "n4") == nodes_to_exclude(cluster(), NODES, (), (), quarantined=worst, cap=0.10)


def test_what_is_tried_elsewhere_first_takes_no_place_of_the_quarantined() -> None:
    """The nodes of the last attempt, avoided once, are no exclusions."""
    named = nodes_to_exclude(cluster(), (), NODES, (), quarantined=("n20",), cap=0.05)

    assert ("n1", "n2", "n20", "n3", "n4") == named


def test_no_quarantine_makes_a_job_unschedulable() -> None:
    """Where every node is needed, or where nobody knows how many there are, none is avoided for it."""
    small = cluster(partition=NODES, available=frozenset(NODES), idle=frozenset())

    assert () == nodes_to_exclude(small, (), (), (), quarantined=NODES, cap=1.0)
    five = cluster(partition=PARTITION[:5], available=frozenset(PARTITION[:5]), idle=frozenset())
    assert ("n5",) == nodes_to_exclude(five, (), (), (), quarantined=("n5", "n4"), cap=1.0)
    assert () == nodes_to_exclude(replace(five, partition=()), (), (), (), quarantined=("n5",), cap=1.0)
    assert () == nodes_to_exclude(cluster(), (), (), (), quarantined=("elsewhere",), cap=1.0)


def test_a_fault_of_many_nodes_at_once_drains_nobody() -> None:
    """It is left out for this run, and the reason stands in the notes."""
    found = diagnosis(F.HARDWARE_GPU, nodes=("n2",), sources=(Source.LOG, Source.KERNEL))

    assert ("n2",) == rule(found, limits=PolicyLimits()).decision.drain
    shared = rule(found, limits=PolicyLimits(), common="the switch")
    assert (("n2",), ()) == (shared.decision.exclude, shared.decision.drain)
    assert "not drained: the switch" in shared.decision.notes
