"""What happens to runs reaches each publisher once, and nothing is read twice."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ftrun.supervisor.model.run import Record
from ftrun.supervisor.publish import follower
from ftrun.supervisor.publish.follower import Follower
from ftrun.supervisor.publish.publisher import FollowedRun, Kept, Publisher
from ftrun.supervisor.store import run_dir
from ftrun.supervisor.store.journal import Journal
from tests.unit.told_runs import Told


class Listener(Publisher):
    """A publisher that notes what it is told."""

    name = "listener"

    def __init__(self) -> None:
        self.events: list[tuple[str, str]] = []
        self.history: dict[str, list[str]] = {}
        self.left: list[str] = []
        self.kept: dict[str, Kept] = {}
        self.ticks = 0

    def on_events(self, run: FollowedRun, events: Sequence[Record]) -> None:
        self.events += [(run.run.id, record["kind"]) for record in events]

    def on_history(self, run: FollowedRun, records: Sequence[Record]) -> None:
        self.history[run.run.id] = [record["kind"] for record in records]

    def on_left(self, run: FollowedRun) -> Kept:
        self.left.append(run.run.id)
        return {"state": run.run.state.value}

    def on_kept(self, run_id: str, kept: Kept) -> None:
        self.kept[run_id] = kept

    def on_back(self, run_id: str, kept: Kept) -> None:
        assert kept == self.kept.pop(run_id, kept)

    def tick(self, now_s: float) -> None:
        self.ticks += 1


class Home:
    """A home with runs whose journals grow when a test says so, and a clock."""

    def __init__(self, tmp: Path) -> None:
        self.path, self.mono_s, self.now_s = str(tmp), 0.0, 1000.0
        self.journals: dict[str, Journal] = {}
        os.makedirs(tmp / "publish", exist_ok=True)

    def write(self, run_id: str, records: Sequence[Mapping[str, Any]]) -> None:
        if run_id not in self.journals:
            folder = run_dir.create_run(self.path, run_id.rpartition("-")[0])
            assert os.path.basename(folder) == run_id
            path = os.path.join(folder, "journal", "000000-submit.jsonl")
            self.journals[run_id] = Journal(path, epoch=0, writer="submit", now=lambda: self.now_s)
        for one in records:
            place = {key: one[key] for key in ("attempt", "job", "launch", "start")}
            self.now_s = max(self.now_s, one["at"])
            self.journals[run_id].append(one["kind"], **place, **one["data"])

    def follower(self, *publishers: Publisher) -> Follower:
        return Follower(self.path, publishers, clock=lambda: self.mono_s, now=lambda: self.now_s)


def life(*, ended: bool = False) -> list[Any]:
    told = Told()
    told.opens(0)
    told.runs(10)
    told.steps(20, 5)
    if ended:
        told.say(30, "job.ended", state="COMPLETED")
        told.say(31, "run.finished", reason="done")
    return told.records


def test_an_event_is_told_once_also_across_restarts_of_the_process(tmp_path: Path) -> None:
    """What was there before anything was ever published is history, what came while nobody listened is not."""
    home, records = Home(tmp_path), life()
    home.write("old-0001", records[:3])
    first = Listener()
    following = home.follower(first)
    following.round()
    following.save()
    assert first.events == []
    assert first.history["old-0001"] == [one["kind"] for one in records[:3]]
    home.write("old-0001", records[3:4])
    home.write("new-0001", records)
    following.round()
    following.save()
    assert [kind for run, kind in first.events if run == "old-0001"] == [records[3]["kind"]]
    assert [kind for run, kind in first.events if run == "new-0001"] == [one["kind"] for one in records]
    following.round()
    assert len(first.events) == 1 + len(records)

    home.write("old-0001", records[4:])
    second = Listener()
    home.follower(second).round()
    assert second.events == [("old-0001", one["kind"]) for one in records[4:]]
    assert second.history["new-0001"] == [one["kind"] for one in records]


def test_what_did_not_change_is_not_read_and_a_grown_file_from_its_old_end(tmp_path: Path) -> None:
    home, records = Home(tmp_path), life()
    home.write("a-0001", records[:5])
    listener = Listener()
    following = home.follower(listener)
    following.round()
    opened: list[tuple[str, int]] = []
    tail = following._tails["a-0001"]
    before = dict(tail.offsets)
    home.write("a-0001", records[5:])
    following.round()
    opened = [(name, size) for name, size in tail.offsets.items()]
    assert opened != list(before.items())
    assert listener.events == [("a-0001", one["kind"]) for one in records[5:]]
    assert following._runs["a-0001"].run.attempts[-1].last_step == 5


def test_a_later_writer_that_does_not_believe_a_record_changes_the_run_and_tells_only_what_is_new(
    tmp_path: Path,
) -> None:
    home, records = Home(tmp_path), life()
    home.write("a-0001", records[:6])
    listener = Listener()
    following = home.follower(listener)
    following.round()
    folder = os.path.join(home.path, "runs", "a-0001")
    first = os.path.join(folder, "journal", "000000-submit.jsonl")
    with open(first, "rb") as stream:
        believed = sum(len(line) for line in stream.readlines()[:5])
    later = Journal.open_epoch(
        folder, epoch=1, writer="w", believed={"000000-submit.jsonl": believed}, now=lambda: 1050.0
    )
    later.append("warned", attempt=1, message="x")
    following.round()
    assert [kind for _, kind in listener.events] == ["journal.opened", "warned"]
    assert len(listener.history["a-0001"]) == 5
    later.append("warned", attempt=1, message="y")
    following.round()
    assert [kind for _, kind in listener.events][2:] == ["warned"]
    assert following._runs["a-0001"].run.warnings == ("x", "y")


def test_a_run_that_is_over_is_left_and_comes_back_when_a_person_asks(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.write("a-0001", life(ended=True))
    listener = Listener()
    following = home.follower(listener)
    following.round()
    assert listener.left == []
    home.mono_s += follower.LEAVE_AFTER_S + 1
    following.round()
    following.round()
    following.save()
    assert listener.left == ["a-0001"]

    again = Listener()
    following = home.follower(again)
    assert again.kept == {"a-0001": {"state": "finished"}}
    following.round()
    assert again.history == {}, "its journal was not read at all"
    requests = tmp_path / "runs" / "a-0001" / "requests"
    os.utime(requests, (home.now_s + 5000, home.now_s + 5000))
    home.mono_s += follower.RETURNS_EVERY_S + 1
    following.round()
    assert again.kept == {}
    assert "a-0001" in again.history


def test_a_run_that_cannot_be_read_and_a_publisher_that_fails_do_not_hinder_the_others(
    tmp_path: Path,
) -> None:
    class Broken(Listener):
        name = "broken"

        def on_events(self, run: FollowedRun, events: Sequence[Record]) -> None:
            raise ValueError("no")

        def tick(self, now_s: float) -> None:
            raise ValueError("never")

    home = Home(tmp_path)
    home.write("bad-0001", life())
    home.write("good-0001", life()[:4])
    (tmp_path / "runs" / "bad-0001" / "journal" / "000000-submit.jsonl").write_bytes(b"{}\n{}\n")
    broken, listener = Broken(), Listener()
    following = home.follower(broken, listener)
    following.round()
    home.write("good-0001", life()[4:])
    following.round()
    assert list(following.unreadable()) == ["bad-0001"]
    assert len(listener.events) == len(life()) - 4
    assert listener.ticks == 2
    assert following.problems() == {"broken": "ValueError: never"}


def test_a_run_whose_folder_is_gone_is_left(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.write("a-0001", life())
    listener = Listener()
    following = home.follower(listener)
    following.round()
    run_dir.discard_run(os.path.join(home.path, "runs", "a-0001"))
    following.round()
    assert listener.left == ["a-0001"]
    assert following._runs == {}
