"""Laws of a first attempt that waits: kept off what is held against, never kept from running. (I/O)"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ftrun.slurm.client.errors import Unreachable
from ftrun.supervisor.model.node_entry import NodeEntry
from ftrun.supervisor.nodes import ledger
from ftrun.supervisor.store.crash_points import PlannedCrash
from tests.fake_slurm.records import Job
from tests.unit.lives import Life

CAP = {"exclude_cap": 0.5}


def waiting(folder: Path, *bad: str, **chosen: Any) -> Life:
    """A run in a full cluster of four, and nodes that an earlier run of the user holds something against."""
    life = Life(folder, **{**CAP, **chosen})
    for node in life.engine.nodes.values():
        node.slots = 0
    now_s = life.clock.now_s()
    for number, name in enumerate(bad):
        strike = NodeEntry(
            now_s - number, "excluded", (name,), id=f"e{number}", run=f"other-{number}", signature=name
        )
        assert ledger.append_entries(life.home, strike)
    return life


def only_job(life: Life) -> Job:
    (job,) = life.engine.jobs.values()
    return job


def make_room(life: Life) -> None:
    for node in life.engine.nodes.values():
        node.slots = 1
    life.engine.schedule_soon()


def test_a_waiting_job_is_kept_off_quarantined_nodes(tmp_path: Path) -> None:
    """Once, under the cap, beside the user's own list; then it starts elsewhere."""
    life = waiting(tmp_path, "n0")
    only_job(life).excluded = ("n3",)
    life.live(5)

    assert ("n0", "n3") == only_job(life).excluded
    assert 1 == life.kinds().count("exclude.intended")
    make_room(life)
    life.until("running")
    assert ("n1", "n2") == life.attempt.nodes


@pytest.mark.parametrize(
    "chosen",
    [{"quarantine": "never"}, {"observe": True}, {"retries": 0}, {"wanted": 4}],
    ids=["never", "observe", "watch-only", "every-node-is-needed"],
)
def test_a_job_is_left_as_it_is(tmp_path: Path, chosen: dict[str, Any]) -> None:
    """Where the user says so, where ftrun may only watch, and where the job needs every node."""
    life = waiting(tmp_path, "n0", **chosen)
    life.live(5)

    assert () == only_job(life).excluded
    assert "exclude.intended" not in life.kinds()


def test_without_anything_in_the_ledger_slurm_is_not_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The usual case costs no call."""
    life = waiting(tmp_path)

    def details(job_id: str) -> None:
        raise AssertionError(job_id)

    monkeypatch.setattr(life.cluster, "details", details)
    life.live(5)

    assert "run.failed-step" not in life.kinds()
    assert "queued" == life.run.state.value


@pytest.mark.parametrize(
    "reason",
    [
        "BadConstraints",
        "ReqNodeNotAvail, UnavailableNodes:n[1-2]",
        "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions",
    ],
)
def test_a_job_that_cannot_be_placed_so_gets_its_own_list_back(tmp_path: Path, reason: str) -> None:
    """Slurm says that the nodes do not suffice: quarantine gives way, once and for all."""
    life = waiting(tmp_path, "n0")
    only_job(life).excluded = ("n3",)
    life.live(3)
    only_job(life).reason = reason
    life.live(2)

    assert ("n3",) == only_job(life).excluded
    only_job(life).reason = "Resources"
    life.live(5)
    assert ("n3",) == only_job(life).excluded


@pytest.mark.parametrize("taken_over", [False, True])
def test_what_the_user_changes_meanwhile_stands(tmp_path: Path, taken_over: bool) -> None:
    """Only our own nodes are taken off again, by whoever leads then."""
    life = waiting(tmp_path, "n0")
    only_job(life).excluded = ("n3",)
    life.live(3)
    assert ("n0", "n3") == only_job(life).excluded
    only_job(life).excluded = ("n0", "n2")
    only_job(life).reason = "BadConstraints"
    if taken_over:
        life.supervisor.services.crash = dying_at("record:after:exclude.intended")
        with pytest.raises(PlannedCrash):
            life.live(2)
        life.begin_anew()
    life.live(3)

    assert ("n2",) == only_job(life).excluded


def test_a_change_between_intent_and_act_stands(tmp_path: Path) -> None:
    """The list is read anew before it is set."""
    life = waiting(tmp_path, "n0")
    life.supervisor.services.crash = dying_at("record:after:exclude.intended")
    with pytest.raises(PlannedCrash):
        life.live(3)
    only_job(life).excluded = ("n2",)
    life.begin_anew()
    life.live(3)

    assert ("n0", "n2") == only_job(life).excluded


@pytest.mark.parametrize(
    "point", ["record:after:exclude.intended", "exclude:before", "exclude:after", "record:after:exclude.done"]
)
@pytest.mark.parametrize("undo", [False, True])
def test_whoever_takes_over_goes_on(tmp_path: Path, point: str, undo: bool) -> None:
    """A supervisor that dies between any two steps, also when it takes the list back: the next one comes to the same."""
    life = waiting(tmp_path, "n0")
    if undo:
        life.live(3)
        only_job(life).reason = "BadConstraints"
    life.supervisor.services.crash = dying_at(point)
    with pytest.raises(PlannedCrash):
        life.live(5)
    life.begin_anew()
    life.live(5)

    assert (() if undo else ("n0",)) == only_job(life).excluded
    assert life.kinds().count("exclude.intended") == (2 if undo else 1)


def dying_at(point: str) -> Any:
    def crash(here: str) -> None:
        if here == point:
            raise PlannedCrash(point)

    return crash


def test_a_job_that_starts_meanwhile_keeps_its_place(tmp_path: Path) -> None:
    """Between the look and the act Slurm starts it: refused, told, and forgotten."""
    life = waiting(tmp_path, "n0")
    exclude = life.cluster.exclude

    def late(job_id: str, nodes: tuple[str, ...]) -> None:
        make_room(life)
        life.engine.advance(2)
        exclude(job_id, nodes)

    life.cluster.exclude = late  # type: ignore[method-assign, assignment]
    life.live(3)

    assert "exclude.refused" in life.kinds()
    assert "running" == life.run.state.value


def test_an_answer_that_does_not_come_is_asked_for_again(tmp_path: Path) -> None:
    """The controller is away for a moment: the intent is carried out at the next look."""
    life = waiting(tmp_path, "n0")
    exclude = life.cluster.exclude
    failed: list[str] = []

    def once(job_id: str, nodes: tuple[str, ...]) -> None:
        if not failed:
            failed.append(job_id)
            raise Unreachable("away")
        exclude(job_id, nodes)

    life.cluster.exclude = once  # type: ignore[method-assign, assignment]
    life.live(4)

    assert ("n0",) == only_job(life).excluded
    assert 1 == life.kinds().count("exclude.intended")


def test_who_led_before_and_leads_again_asks_the_journal(tmp_path: Path) -> None:
    """What this process remembers of its first term does not count: somebody else led in between."""
    life = waiting(tmp_path)
    life.live(3)
    first = life.supervisor
    strike = NodeEntry(life.clock.now_s(), "excluded", ("n0",), id="late", run="other", signature="s")
    ledger.append_entries(life.home, strike)
    life.begin_anew()
    life.live(3)
    assert ("n0",) == only_job(life).excluded
    life.supervisor.forget()
    life.supervisor.lease.release()
    assert first.lease.acquire()
    life.supervisor = first
    only_job(life).reason = "BadConstraints"
    life.live(3)

    assert () == only_job(life).excluded
