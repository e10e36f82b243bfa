"""Laws of runs whose nodes tell of faults, on a virtual Slurm: P7 for what is alive, the table of scenarios for what has ended. (I/O)"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ftrun.hooks.runtime import node_report
from ftrun.supervisor.nodes import ledger
from ftrun.supervisor.nodes.history import fold_entries
from ftrun.supervisor.store import node_reports
from tests.unit.lives import TIMED_OUT, Life

GPU = {
    "check": "gpu-check", "severity": "bad", "message": "7 of 8 GPUs answer", "fault": "hardware-gpu", "device": "3",
    "evidence": [], "value": 7.0, "unit": "GPUs",
}  # fmt: skip
BUG = ("Traceback (most recent call last):", '  File "train.py", line 3, in <module>', "KeyError: 'lr'")


def _tell(life: Life, node: str, kind: str = "watch", **changes: Any) -> None:
    """The node leaves a report in the attempt's folder, as the hooks do."""
    report = {
        "schema": 1,
        "kind": kind,
        "node": node,
        "at_s": life.engine.now(),
        "findings": [{**GPU, **changes}],
    }
    folder = node_reports.folder(life.run_dir, life.attempt.number)
    node_report.write_report(folder, life.attempt.launch.number, report)


def _running(tmp_path: Path, **options: Any) -> Life:
    life = Life(tmp_path, fault_grace=10.0, **options)
    life.until("running")
    life.train(1, 10)
    return life


def test_a_run_that_goes_on_beside_a_sick_node_is_left_alone(tmp_path: Path) -> None:
    """P7: a finding is a suspicion; the next step takes it back, and it does not come again for the same finding."""
    life = _running(tmp_path)
    _tell(life, life.launches[0].nodes[1])

    life.train(11, 60)

    assert "end.intended" not in life.kinds()
    assert life.kinds().count("fault.suspected") <= 1
    assert (life.run.state.value, life.attempt.number) == ("running", 1)


def test_a_run_that_stands_still_on_a_sick_node_goes_on_without_it(tmp_path: Path) -> None:
    """Scenario 3 with a fault that no line tells of: found by the watch, ended for want of progress, resumed elsewhere."""
    life = _running(tmp_path)
    sick = life.launches[0].nodes[1]
    _tell(life, sick)

    life.live(60)

    assert (life.run.incidents[0].fault, life.run.incidents[0].nodes) == ("hardware-gpu", (sick,))
    assert life.attempt.number == 2
    assert sick not in life.attempt.nodes
    assert life.run.incidents[0].first_evidence_at_s is not None


def test_a_long_evaluation_beside_a_sick_node_is_not_ended(tmp_path: Path) -> None:
    """Law 1: where only a node's report speaks against a run, whatever it prints is a sign of life; its silence then is not."""
    life = _running(tmp_path)
    sick = life.launches[0].nodes[1]
    _tell(life, sick)
    for batch in range(100):
        life.say(f"evaluating: batch {batch} of 100")
        life.live(3)
    assert "end.intended" not in life.kinds()

    life.live(60)

    assert life.run.incidents[0].nodes == (sick,)


def test_a_silent_run_on_well_nodes_is_not_ended(tmp_path: Path) -> None:
    """P7: silence alone is never a hang, and a node that is only slower than it should be makes it none."""
    life = _running(tmp_path)
    _tell(life, life.launches[0].nodes[1], severity="degraded")

    life.live(300)

    assert "end.intended" not in life.kinds()


def test_what_every_node_shows_ends_nothing(tmp_path: Path) -> None:
    """A check that fails everywhere is the site's, be it that the run stands still."""
    life = _running(tmp_path)
    for node in life.launches[0].nodes:
        _tell(life, node)

    life.live(300)

    assert "end.intended" not in life.kinds()


def test_a_strangers_report_means_nothing(tmp_path: Path) -> None:
    """Who writes into the folder cannot accuse a node that the attempt does not have."""
    life = _running(tmp_path, nodes=6)
    _tell(life, next(node for node in life.engine.nodes if node not in life.launches[0].nodes))

    life.live(300)

    assert "end.intended" not in life.kinds()
    assert life.run.evidence_seen == frozenset()


def test_a_time_out_is_explained_by_the_checks_after_it(tmp_path: Path) -> None:
    """Rank 0 complains, the node of another rank is sick: that one is left out, and a report alone drains nobody."""
    life = _running(tmp_path)
    sick = life.launches[0].nodes[1]
    life.say(TIMED_OUT)
    _tell(life, sick, "after")
    life.exit(1)
    life.live(60)

    incident = life.run.incidents[0]
    assert (incident.fault, incident.nodes) == ("hardware-gpu", (sick,))
    assert life.run.drained == ()
    assert life.attempt.number == 2
    assert sick not in life.attempt.nodes


def test_a_bug_stays_a_bug_on_a_sick_node(tmp_path: Path) -> None:
    """Our finer classes: what the log explains better than the machine is not tried again."""
    life = _running(tmp_path)
    life.say(*BUG)
    _tell(life, life.launches[0].nodes[1], "after")
    life.exit(1)
    life.live(60)

    assert (life.run.state.value, life.run.incidents[0].fault) == ("stopped", "user-code")


def test_a_new_supervisor_takes_up_what_the_nodes_told(tmp_path: Path) -> None:
    """Reports lie in the run's folder: who leads next reads them, and records nothing twice."""
    life = _running(tmp_path)
    sick = life.launches[0].nodes[1]
    _tell(life, sick)
    life.live(3)
    life.begin_anew()

    life.live(120)

    assert life.run.incidents[0].nodes == (sick,)
    told = [
        record
        for record in life.records()
        if record["kind"] == "evidence" and record["data"]["source"] == "report"
    ]
    assert len(told) == 1


def test_the_dead_are_blamed_and_not_the_survivors_that_share_a_finding(tmp_path: Path) -> None:
    """Two of four nodes lose power, the others have a small /dev/shm both: the dead have a strike each, and nobody else has one."""
    life = _running(tmp_path, nodes=8, wanted=4)
    first, *dead, last = life.launches[0].nodes
    for node in dead:
        life.engine.fail_node(node, "crash")
    for node in (first, last):
        _tell(life, node, "after", check="disk-size shm", fault="storage", device="/dev/shm", value=0.07)
    life.until("running", within_s=900)
    life.live(60)

    incident = life.run.incidents[0]
    assert (incident.fault, set(incident.nodes)) == ("node", set(dead))
    book = fold_entries(ledger.read_entries(life.home))
    assert {name for name, record in book.nodes.items() if record.strikes} == set(dead)


def test_a_finding_of_the_run_before_explains_no_fault(tmp_path: Path) -> None:
    """What a node showed after the first attempt, which failed for another reason, it shows after the second: it blames nobody then either."""
    life = _running(tmp_path, nodes=2)
    small = {"check": "disk-size shm", "fault": "storage", "device": "/dev/shm", "value": 0.07}
    port = "RuntimeError: [Errno 98] Address already in use"
    for line in (port, TIMED_OUT):
        life.until("running")
        number = life.attempt.number
        life.train(20 * number, 20 * number + 5)
        for node, row in zip(life.attempt.nodes, (small, {**small, "severity": "ok"}), strict=True):
            _tell(life, node, "after", **row)
        life.say(line)
        life.exit(1)
        while life.attempt.number == number and life.run.state.value != "stopped":
            life.live()

    assert [incident.fault for incident in life.run.incidents] == ["port-conflict", "hang"]
    assert life.run.incidents[1].nodes == ()
    assert any(word.startswith("there before") for word in life.run.incidents[1].diagnosis["rests_on"])


@pytest.mark.parametrize(
    ("says", "signal", "fault"),
    [(("Killed",), 0, "unknown"), ((), 9, "unknown"), ((*BUG[:2], "RuntimeError: odd"), 0, "user-code")],
)
def test_a_guess_after_good_steps_is_tried_once(
    tmp_path: Path, says: tuple[str, ...], signal: int, fault: str
) -> None:
    """A lone "Killed", signal 9, an exception after 25 steps: one more attempt, and then a stop that names the setting."""
    life = _running(tmp_path)
    life.train(11, 25)
    for tried in (1, 2):
        life.until("running")
        life.say(*says)
        life.exit(0 if signal else 137, signal)
        while life.attempt.number == tried and life.run.state.value != "stopped":
            life.live()

    assert [incident.fault for incident in life.run.incidents] == [fault, fault]
    assert (life.run.state.value, life.attempt.number) == ("stopped", 2)
    assert f"--ft-budget-{fault}" in life.run.final_reason
    assert "cannot succeed" not in life.run.final_reason
