"""Every second of a run's life is spent on one thing, and the figures follow from that."""

from __future__ import annotations

from pathlib import Path

import pytest

from ftrun.supervisor.model import events
from ftrun.supervisor.reports import requeue_model
from ftrun.supervisor.reports.statistics import statistics_of
from ftrun.supervisor.reports.time_ledger import SLURM_ROUNDS_S, GrowingLedger, Spent, TimeLedger, ledger_of
from ftrun.supervisor.store import journal
from tests.unit.told_runs import Told, long_run

FROZEN = sorted(Path(__file__).parents[2].glob("frozen/v1/*/*/journal"))


def spent(ledger: TimeLedger) -> dict[str, float]:
    return {key.value: round(value, 6) for key, value in ledger.seconds().items() if value}


def assert_adds_up(ledger: TimeLedger, begin_s: float, end_s: float) -> None:
    """No gap and no overlap, from the first second to the last; nothing is held that is not told."""
    at_s = begin_s
    for one in ledger.intervals:
        assert one.begin_s == at_s
        assert one.end_s > at_s
        at_s = one.end_s
    assert at_s == pytest.approx(end_s, abs=1e-6)
    assert sum(ledger.seconds().values()) == pytest.approx(end_s - begin_s)
    held = sum(one.held * one.seconds for one in ledger.intervals)
    told = ledger.node_seconds()
    told.pop("smaller")
    assert sum(told.values()) == pytest.approx(held)


def test_a_life_with_one_fault_is_told_second_by_second() -> None:
    told = Told()
    told.opens(0)
    told.runs(60)  # a minute in the queue
    told.steps(90, 1)  # half a minute until the first step
    told.steps(150, 51)  # fifty steps of a second, ten seconds beyond
    told.fails(170, sign_s=160, step=61)
    told.opens(175)
    told.runs(200)
    told.steps(230, 42)  # it begins behind step 41: 20 steps are made again
    told.steps(290, 102)
    told.say(290, "job.ended", state="COMPLETED")
    told.say(291, "run.finished", reason="")
    ledger = told.ledger()
    assert_adds_up(ledger, 1000, 1291)
    assert spent(ledger) == {
        "queued": 60 + 25,
        "startup": 30 + 30,
        "productive": 50 + 10 + 41,
        "redone": 19,  # step 42 itself was made in the start-up
        "checkpoint": 10,
        "detection": 10 + 2,
        "recovery": 3,
        "ending": 1,
    }
    assert ledger.phases() == {"stop": 3}
    found = statistics_of([(events.fold("r", told.records), ledger)])
    (fault,) = found.faults
    assert (fault.repair_s, fault.redone_s, fault.steps_lost) == (12 + 3 + 25 + 30, 19, 20)
    assert found.goodput == pytest.approx(101 / 291)
    assert found.ettr == pytest.approx(111 / 291)
    assert found.by_class["node"].mttr_s == found.by_rung["resubmit"].mttr_s == 70
    assert found.mtbf_s == 60 + 101 + 19 + 10


def test_a_hang_counts_from_its_last_step() -> None:
    told = Told()
    told.opens(0)
    told.runs(0)
    told.steps(10, 1)
    told.steps(70, 61)
    told.fails(700, sign_s=670, step=71, fault="hang")
    assert spent(told.ledger(702)) == {
        "startup": 10, "productive": 70, "hung": 620, "detection": 2,
    }  # fmt: skip


def test_a_restart_inside_the_allocation_keeps_its_nodes_and_tells_its_phases() -> None:
    told = Told(spares=1)
    told.opens(0)
    told.runs(0, nodes=5)
    told.inside(0, "start.begun", nodes=["n0", "n1", "n2", "n3"])
    told.steps(20, 1)
    told.inside(50, "start.over", code=1, signal=0, by_us=False)
    diagnosis = {"class": "hardware-gpu", "signature": "s", "title": "t", "nodes": ["n1"]}
    told.inside(
        51, "start.diagnosed", incident="1.0.1", diagnosis=diagnosis, step=29, first_evidence_at_s=1048.0
    )
    ruling = {"incident": "1.0.1", "rung": "swap", "spent": {}, "retries": 1, "reason": ""}
    told.inside(52, "start.decided", **ruling, copied_s=59)
    told.inside(55, "start.stopped", incident="1.0.1", copied_s=59)
    told.inside(57, "start.placed", incident="1.0.1", copied_s=59)
    told.start = 2
    told.inside(58, "start.begun", nodes=["n0", "n4", "n2", "n3"], copied_s=59)
    told.steps(70, 32)
    told.steps(100, 62)
    ledger = told.ledger(100)
    assert_adds_up(ledger, 1000, 1100)
    assert spent(ledger) == {
        "startup": 20 + 12, "productive": 28 + 30, "detection": 2 + 2, "recovery": 6,
    }  # fmt: skip
    assert ledger.phases() == {"stop": 3, "place": 2, "launch": 1}
    hours = ledger.node_seconds()
    assert hours["spare"] == 100
    assert hours["productive"] == 4 * 58
    assert hours["smaller"] == 0


def test_a_smaller_start_lacks_what_its_user_asked_for() -> None:
    told = Told(nodes="2-4")
    told.opens(0, size=2)
    told.runs(0, nodes=2)
    told.steps(10, 1)
    told.steps(110, 101)
    ledger = told.ledger(110)
    assert ledger.asked == 4
    assert ledger.node_seconds()["smaller"] == 2 * 110


def test_a_run_that_never_shows_a_step_has_unmeasured_time_and_no_goodput() -> None:
    told = Told()
    told.opens(0)
    told.runs(5)
    told.say(105, "job.ended", state="COMPLETED")
    told.say(106, "run.finished", reason="")
    ledger = told.ledger()
    assert spent(ledger) == {"queued": 5, "unmeasured": 100, "ending": 1}
    found = statistics_of([(events.fold("r", told.records), ledger)])
    assert (found.goodput, found.ettr, found.mtbf_s) == (None, None, None)


def test_a_pause_is_no_time_of_ours() -> None:
    told = Told()
    told.opens(0)
    told.runs(0)
    told.steps(10, 1)
    told.say(50, "request.seen", name="x", want="pause", by="anna")
    told.say(60, "job.ended", state="CANCELLED")
    told.say(60, "run.stopped", reason="paused")
    told.say(1060, "run.resumed", decision={"kind": "resubmit", "paused": True})
    told.opens(1060)
    told.runs(1070)
    told.steps(1080, 52)
    told.steps(1100, 72)
    ledger = told.ledger(1100)
    assert_adds_up(ledger, 1000, 2100)
    assert spent(ledger)["paused"] == 1000
    found = statistics_of([(events.fold("r", told.records), ledger)])
    assert found.goodput == pytest.approx(70 / 100)


@pytest.mark.parametrize("jump_s", [-3600, 3600, 86_400])
def test_a_clock_that_jumped_makes_no_gap_and_no_negative_time(jump_s: float) -> None:
    told = Told()
    told.opens(0)
    told.runs(5)
    told.steps(10, 1)
    told.steps(70 + jump_s, 61)
    told.steps(130, 121)
    told.fails(140, sign_s=135, step=125)
    ledger = told.ledger(150)
    assert_adds_up(ledger, ledger.intervals[0].begin_s, ledger.intervals[-1].end_s)


@pytest.mark.parametrize("folder", FROZEN, ids=lambda path: path.parents[1].name)
def test_the_time_of_every_frozen_run_adds_up(folder: Path) -> None:
    records = journal.read_run(str(folder.parent))
    run = events.fold("r", records)
    ledger = ledger_of(run, records, records[-1]["at"])
    assert_adds_up(ledger, records[0]["at"], records[-1]["at"])
    for cut in range(1, len(records)):  # and at each record, while it lived
        part = records[:cut]
        found = ledger_of(events.fold("r", part), part, part[-1]["at"])
        if part[-1]["at"] > part[0]["at"]:
            assert_adds_up(found, part[0]["at"], max(one["at"] for one in part))


def test_a_plain_requeue_of_the_same_faults_is_worse_than_a_restart_inside() -> None:
    told = Told()
    told.opens(0)
    told.runs(0)
    at_s = 0.0
    for step in range(1, 7):
        told.steps(at_s + 10, step * 1000)
        told.steps(at_s + 7000, step * 1000 + 990, 7.0)
        told.fails(at_s + 7010, sign_s=at_s + 7005, step=step * 1000 + 991)
        told.opens(at_s + 7015)
        told.runs(at_s + 7020)
        at_s += 7020
    run, ledger = events.fold("r", told.records), told.ledger(at_s)
    found = statistics_of([(run, ledger)])
    modelled = requeue_model.goodput(run, found, ledger.asked)
    assert found.goodput is not None
    assert modelled is not None
    assert 0.5 < modelled < found.goodput
    assert found.by_class["node"].count == 5
    assert ledger.seconds()[Spent.QUEUED] == 5 * 6


@pytest.mark.parametrize("folder", FROZEN, ids=lambda path: "-".join(path.parts[-3:-1]))
def test_a_ledger_that_grows_never_takes_time_back_and_ends_as_the_whole_one(folder: Path) -> None:
    """Record by record, as a process sees it that follows the run."""
    records = journal.read_run(str(folder.parent))
    growing, before = GrowingLedger(), dict[str, float]()
    for count in range(1, len(records) + 1):
        run = events.fold("r", records[:count])
        growing.take(run, records[count - 1 : count])
        seconds, _ = growing.spent(run, float(records[count - 1]["at"]))
        for name, value in before.items():
            assert seconds[name] >= value - SLURM_ROUNDS_S, (count, records[count - 1]["kind"], name)
        before = seconds
    if run.final:
        assert before == pytest.approx(
            {k.value: v for k, v in ledger_of(run, records, 0.0).seconds().items()}
        )


def test_a_ledger_that_grows_over_thousands_of_steps_holds_few_records_and_agrees() -> None:
    told, end_s = long_run(20)
    growing, run = GrowingLedger(), told.run("r")
    for begin in range(0, len(told.records), 7):
        growing.take(events.fold("r", told.records[: begin + 7]), told.records[begin : begin + 7])
        assert len(growing._pending) <= 2 * GrowingLedger.PENDING
    seconds, node_seconds = growing.spent(run, 1000.0 + end_s)
    whole = told.ledger(end_s)
    assert sum(seconds.values()) == pytest.approx(whole.life_s, rel=0.02)
    assert seconds == pytest.approx({k.value: v for k, v in whole.seconds().items()}, rel=0.02, abs=60.0)
    assert node_seconds["productive"] == pytest.approx(whole.node_seconds()["productive"], rel=0.02)
