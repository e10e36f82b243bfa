"""The publisher of notices: each event is told at most once and none is lost without a word, wherever its process is cut; no URL leaves by any other way."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from ftrun.supervisor.model import events
from ftrun.supervisor.model.errors import UnreadableRun
from ftrun.supervisor.notices import delivery, notice
from ftrun.supervisor.notices.addresses import Address
from ftrun.supervisor.notices.message import Letter
from ftrun.supervisor.notices.notice import KINDS
from ftrun.supervisor.notices.schedule import Rules
from ftrun.supervisor.publish import notices as module
from ftrun.supervisor.publish.notices import Notices
from ftrun.supervisor.publish.publisher import FollowedRun
from ftrun.supervisor.store import journal, lease
from tests.unit.notices.test_notice import faulty

SECRET = "s3cr3t"
ALL = Rules(now=frozenset(KINDS), per_hour=100)


class Cut(BaseException):
    """The process is gone."""


class World:
    """A home, a receiver that notes what arrives, and a process that can be cut at its n-th act."""

    def __init__(self, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.home, self.why = home, ""
        self.acts, self.cut_at = 0, -1
        self.file = home / "notify"
        self.file.write_text(f"https://hooks.example.org/{SECRET}\n")
        self.file.chmod(0o600)
        self.arrived: list[str] = []
        told = faulty()
        told.say(400, "job.ended", state="FAILED")
        told.say(402, "run.stopped", reason="the same fault again", **{"class": "node"})
        self.records = told.records
        monkeypatch.setattr(journal, "read_run", lambda _: self.records)
        monkeypatch.setattr(module, "Delivery", self._deliver)
        real = journal.append_record

        def append(fd: int, *records: Any) -> None:
            self._act()
            if self.cut_at == self.acts:  # in the middle of the line
                os.write(fd, journal.record_line(records[0])[:20])
                raise Cut
            real(fd, *records)
            self._act()

        monkeypatch.setattr(journal, "append_record", append)

    def _act(self) -> None:
        self.acts += 1
        if self.acts == self.cut_at:
            raise Cut

    def _deliver(self, _address: Address, letter: Letter | None) -> Any:
        assert letter is not None
        self._act()
        if not self.why:
            self.arrived += [one["id"] for one in json.loads(letter.body)["notices"]]
        self._act()
        why = self.why

        class Arrived:
            def look(self) -> str:
                return why

        return Arrived()

    def process(self, rules: Rules = ALL) -> Notices:
        return Notices(str(self.home), str(self.file), rules, 3600.0)

    def live(self, publisher: Notices, now_s: float = 5000.0) -> None:
        """As the follower does after a start: all that nobody noted as published comes again."""
        run = events.fold("r", self.records)
        publisher.tick(now_s)
        publisher.on_events(FollowedRun(str(self.home), run), self.records)
        for number in range(8):
            publisher.tick(now_s + number)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(tmp_path, monkeypatch)


def test_each_event_is_told_once_however_often_it_comes(world: World) -> None:
    for _ in range(3):
        world.live(world.process())

    assert 3 == len(world.arrived) == len(set(world.arrived))
    assert ["fault", "recovered", "gave-up"] == [one.split()[2] for one in world.arrived]
    assert "" == world.process().problem()


def test_wherever_the_process_is_cut_no_event_is_told_twice_and_none_is_lost_without_a_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, in the middle of and behind each write and each delivery: what is neither told nor told later is in `ftrun status`."""
    whole = World(_folder(tmp_path, 0), monkeypatch)
    whole.live(whole.process())
    assert whole.acts > 15
    for place in range(1, whole.acts + 1):
        world = World(_folder(tmp_path, place), monkeypatch)
        world.cut_at = place
        with pytest.raises(Cut):
            world.live(world.process())
        world.cut_at = -1
        after = world.process()
        world.live(after)

        assert len(world.arrived) == len(set(world.arrived)), place
        missing = 3 - len(world.arrived)
        problem = after.problem()
        assert missing <= problem.count("may not have arrived") <= 1, (place, problem)


def _folder(tmp_path: Path, number: int) -> Path:
    folder = tmp_path / str(number)
    folder.mkdir()
    return folder


def test_what_a_receiver_did_not_take_waits_and_is_told_in_status(world: World) -> None:
    """The pauses grow; nobody is asked in them; once it is up, all that waits arrives."""
    world.why = "it answered 503"
    publisher = world.process()
    world.live(publisher, 5000.0)
    world.live(publisher, 5100.0)
    assert "line 1 (https): it answered 503; 3 notices waiting, tried 2 times" == publisher.problem()

    world.why = ""
    again = world.process()
    world.live(again, 9000.0)
    assert 3 == len(set(world.arrived)) == len(world.arrived)
    assert "" == again.problem()


def test_the_first_run_of_a_home_may_fail_before_anybody_looks(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is history to the publisher, and happened minutes ago, is told once; what is older is not."""
    run = FollowedRun(str(world.home), events.fold("r", world.records))
    for now_s, told in ((9000.0, 0), (1500.0, 3), (1600.0, 3)):
        monkeypatch.setattr("time.time", lambda now_s=now_s: now_s)
        publisher = world.process()
        publisher.on_history(run, world.records)
        for number in range(8):
            publisher.tick(now_s + number)
        assert told == len(world.arrived)


def test_a_receiver_that_is_new_gets_nothing_of_before(world: World) -> None:
    world.live(world.process())
    world.file.write_text(f"https://hooks.example.org/{SECRET}\nhttps://hooks.example.org/{SECRET}/2\n")
    arrived = list(world.arrived)
    world.live(world.process())

    assert arrived == world.arrived


def test_a_full_disk_keeps_what_it_could_not_note(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    publisher = world.process()
    publisher.tick(5000.0)
    accept = publisher._outbox.accept

    def full(*_: object) -> bool:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(publisher._outbox, "accept", full)
    world.live(publisher)
    assert "3 notices cannot be noted" in publisher.problem()
    monkeypatch.setattr(publisher._outbox, "accept", accept)
    publisher.tick(5010.0)
    for number in range(4):
        publisher.tick(5011.0 + number)
    assert 3 == len(set(world.arrived))


def test_a_record_that_cannot_be_told_keeps_none_behind_it_back(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A newer supervisor may write what this one does not know; a journal that cannot be read whole costs the costs alone."""

    def unreadable(_: str) -> Any:
        raise UnreadableRun("damaged")

    monkeypatch.setattr(journal, "read_run", unreadable)
    run = FollowedRun(str(world.home), events.fold("r", world.records))
    publisher = world.process()
    monkeypatch.setattr(module, "notices_of", _odd_at("decided"))
    publisher.on_events(run, world.records)
    for number in range(4):
        publisher.tick(5000.0 + number)

    assert ["recovered", "gave-up"] == [one.split()[2] for one in world.arrived]
    assert "a record of r (decided) cannot be told: KeyError" == publisher.problem()


def _odd_at(kind: str) -> Any:
    def notices_of_some(run: Any, record: Any, costs: Any) -> Any:
        if record["kind"] == kind:
            raise KeyError(kind)
        return notice.notices_of(run, record, costs)

    return notices_of_some


def test_a_file_that_others_can_read_is_told_and_nothing_leaves(world: World) -> None:
    """Once it is mended, what waited leaves: nobody has to start anything anew."""
    publisher = world.process()
    publisher.tick(4000.0)
    world.file.chmod(0o644)
    world.live(publisher)
    assert "chmod 600" in publisher.problem()
    assert [] == world.arrived

    world.file.chmod(0o600)
    for number in range(4):
        publisher.tick(5100.0 + number)
    assert 3 == len(world.arrived)


def test_no_url_is_in_anything_that_is_written_or_told(world: World) -> None:
    world.why = "it answered 503"
    publisher = world.process()
    world.live(publisher)
    written = [path.read_text() for path in (world.home / "publish").rglob("*") if path.is_file()]

    assert written
    assert SECRET not in "".join([*written, publisher.problem()])
    assert {0o600} == {path.stat().st_mode & 0o777 for path in (world.home / "publish").rglob("*.jsonl")}


def test_the_switch_of_a_dead_man_is_kept_only_while_the_supervisor_moves(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A supervisor that stands still is one that is dead: its own counter says so."""
    asked: list[str] = []
    counters = iter(["1", "1", "2"])

    class Beat:
        def __init__(self, address: Address, letter: Letter | None) -> None:
            assert letter is None
            asked.append(address.way)

        def look(self) -> str:
            return ""

    class Holder:
        def __init__(self) -> None:
            self.counter = next(counters)

    world.file.write_text(f"heartbeat-url https://hc.example.org/{SECRET}\n")
    monkeypatch.setattr(module, "Delivery", Beat)
    monkeypatch.setattr(lease, "read_holder", lambda _: Holder())
    monkeypatch.setattr(module, "HEARTBEAT_EVERY_S", 0.0)
    publisher = world.process()
    counts: list[int] = []
    for number in range(3):
        publisher.tick(5000.0 + number)
        counts.append(len(asked))

    assert [1, 1, 2] == counts


def test_the_test_of_ftrun_notify_is_asked_for_by_no_run(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line an address; its exit code says whether all of them took it."""
    from ftrun.supervisor.cli import supervise
    from ftrun.supervisor.model.errors import UserError

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FTRUN_HOME", str(world.home))
        patch.chdir(world.home)
        with pytest.raises(UserError, match="no notices are sent"):
            supervise.notify()
        patch.setenv("FTRUN_NOTIFY", str(world.file))
        world.file.write_text(f"http://127.0.0.1:9/{SECRET}\n")
        assert 1 == supervise.notify(test=True)
        assert 0 == supervise.notify()
    out = capsys.readouterr().out

    assert "line 1 (http) by webhook: it cannot be reached: Connection refused\n" in out
    assert SECRET not in out
    assert delivery.LIMIT_S > delivery.WAIT_S
