"""Laws of the ledger on disk: what was noted is read, by whomever, whatever was cut off. (I/O)"""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
from pathlib import Path

import pytest

from ftrun.supervisor.config import home as config_home
from ftrun.supervisor.model.node_entry import NodeEntry
from ftrun.supervisor.nodes import ledger
from ftrun.supervisor.store import journal, run_dir

NOW = 1_790_000_000.0
DAY = 86_400.0


def _entry(number: int, **changes: object) -> NodeEntry:
    told = {"at_s": NOW + number, "what": "check", "nodes": (f"n{number}",), "id": f"e{number}"} | changes
    return NodeEntry(**told)  # type: ignore[arg-type]


def _ids(home: Path) -> list[str]:
    return sorted(entry.id for entry in ledger.read_entries(str(home)))


def _as_of_a_dead_process(home: Path, *entries: NodeEntry, number: int = 0) -> Path:
    """What another process noted that is gone: same machine, a pid that nobody has."""
    assert ledger.append_entries(str(home), *entries)
    (mine,) = (home / "nodes").glob(f"{run_dir.process_identity()}.jsonl")
    parts = run_dir.process_identity().split(".")
    gone = mine.with_name(".".join([*parts[:3], str(4_190_000 + number), "1"]) + ".jsonl")
    mine.rename(gone)
    return gone


def test_what_was_noted_is_read(tmp_path: Path) -> None:
    """Every field comes back, for one node and for several; a mapping does as well as an entry."""
    one = _entry(
        1, run="r-0001", signature="xid-79", fault="hardware-gpu", device="0000:3b:00", serial="GPU-1"
    )
    two = _entry(2, nodes=("n2", "n3"), what="served", detail={"hours": 1.5})

    assert ledger.append_entries(str(tmp_path), one, two)
    assert ledger.append_entries(str(tmp_path), {"node": "n4", "what": "returned", "detail": "twice clean"})

    read = {entry.what: entry for entry in ledger.read_entries(str(tmp_path))}
    assert (one, two) == (read["check"], read["served"])
    assert (("n4",), {"text": "twice clean"}) == (read["returned"].nodes, read["returned"].detail)
    assert read["returned"].id


def test_an_entry_counts_once(tmp_path: Path) -> None:
    """However often the same id was written, by one process or by several."""
    ledger.append_entries(str(tmp_path), _entry(1), _entry(1))
    _as_of_a_dead_process(tmp_path, _entry(1))
    ledger.append_entries(str(tmp_path), _entry(1), _entry(2))

    assert ["e1", "e2"] == _ids(tmp_path)


@pytest.mark.parametrize(
    "torn", [b'{"schema":1,"at_s', b"\xff\xfe\x00", b"[]\n", b'{"schema":9,"node":"n","what":"x"}\n']
)
def test_damage_costs_its_own_line_only(tmp_path: Path, torn: bytes) -> None:
    """A torn tail, rubbish, lines of a newer ftrun: what is whole before and behind them is read."""
    ledger.append_entries(str(tmp_path), _entry(1))
    (mine,) = (tmp_path / "nodes").iterdir()
    with mine.open("ab") as stream:
        stream.write(torn)

    assert ["e1"] == _ids(tmp_path)
    assert ledger.append_entries(str(tmp_path), _entry(2))
    assert ["e1", "e2"] == _ids(tmp_path)


def test_nothing_stops_a_supervisor(tmp_path: Path) -> None:
    """A home that cannot be written, an entry that is none: False, and no exception. A home that is not there: no entry."""
    (tmp_path / "file").write_text("")

    assert not ledger.append_entries(str(tmp_path / "file"), _entry(1))
    assert not ledger.append_entries(str(tmp_path), {"what": "check"})
    assert not ledger.append_entries(str(tmp_path), _entry(1, detail={"odd": object()}))
    assert [] == ledger.read_entries(str(tmp_path / "nowhere"))
    assert not ledger.compact(str(tmp_path / "nowhere"), NOW, DAY)


def test_rereading_reads_what_is_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that has read a file parses none of its lines again."""
    ledger.append_entries(str(tmp_path), *(_entry(n) for n in range(50)))
    reader = ledger.Reader(str(tmp_path))
    assert 50 == len(reader.entries())
    parsed: list[bytes] = []

    def parse(line: bytes) -> object:
        parsed.append(line)
        return json.loads(line)

    monkeypatch.setattr(ledger, "_parsed", parse)

    assert 50 == len(reader.entries())
    ledger.append_entries(str(tmp_path), _entry(50))

    assert 51 == len(reader.entries())
    assert 1 == len(parsed)


def test_compaction_loses_nothing_but_what_is_old(tmp_path: Path) -> None:
    """Files of processes that are gone become one; entries older than `keep` go, all others stay, for readers old and new."""
    reader = ledger.Reader(str(tmp_path))
    for number in range(10):
        _as_of_a_dead_process(tmp_path, _entry(number, at_s=NOW - number * DAY), number=number)
    ledger.append_entries(str(tmp_path), _entry(99))
    assert 11 == len(reader.entries())

    assert ledger.compact(str(tmp_path), NOW, 6.5 * DAY)

    assert [f"e{n}" for n in range(7)] + ["e99"] == _ids(tmp_path)
    assert {e.id for e in reader.entries()} == set(_ids(tmp_path))
    assert 2 == len(list((tmp_path / "nodes").iterdir()))
    assert 0o600 == os.stat(next((tmp_path / "nodes").glob("merged-*"))).st_mode & 0o777


def test_a_few_files_are_left_alone(tmp_path: Path) -> None:
    """It is not worth it before there are eight."""
    for number in range(7):
        _as_of_a_dead_process(tmp_path, _entry(number), number=number)

    assert not ledger.compact(str(tmp_path), NOW, DAY)


def test_a_compaction_that_was_cut_off_harms_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed before the merged file is there, or before the old ones are gone: each entry is read once, and the next one tidies up."""
    for number in range(8):
        _as_of_a_dead_process(tmp_path, _entry(number), number=number)
    everything = _ids(tmp_path)

    for name in ("write_atomically", "unlink"):
        with monkeypatch.context() as cut:
            cut.setattr(config_home if name == "write_atomically" else os, name, _dies)
            with pytest.raises(KeyboardInterrupt):
                ledger.compact(str(tmp_path), NOW, 400 * DAY)
        assert everything == _ids(tmp_path)
    assert ledger.compact(str(tmp_path), NOW, 400 * DAY, least=1)

    assert everything == _ids(tmp_path)
    assert 1 == len(list((tmp_path / "nodes").iterdir()))


def _dies(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def test_a_number_that_no_clock_shows_costs_its_own_line_only(tmp_path: Path) -> None:
    """Readers pass over it, as over any damage."""
    ledger.append_entries(str(tmp_path), _entry(1))
    line = {"schema": 1, "id": "x", "node": "n0", "what": "excluded", "at_s": 10**400}
    (tmp_path / "nodes" / "other.jsonl").write_text(json.dumps(line) + "\n")

    assert ["e1"] == _ids(tmp_path)


@pytest.mark.parametrize("error", [errno.EIO, errno.ESTALE, errno.ENOENT])
def test_a_compaction_that_cannot_read_a_file_removes_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    """A file system that fails for a moment, or another compactor's renames, cost time and no entry."""
    for number in range(8):
        _as_of_a_dead_process(tmp_path, _entry(number), number=number)
    everything = _ids(tmp_path)

    def failing(*_: object) -> None:
        raise OSError(error, os.strerror(error))

    with monkeypatch.context() as cut:
        cut.setattr(ledger.Reader, "_read", failing)
        assert not ledger.compact(str(tmp_path), NOW, 400 * DAY)

    assert everything == _ids(tmp_path)


def test_a_writer_whose_file_is_taken_away_writes_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is closed between the writer's open and its write: the entry is in the new file."""
    ledger.append_entries(str(tmp_path), _entry(1))
    (mine,) = (tmp_path / "nodes").iterdir()
    append = journal.append_record
    taken: list[Path] = []

    def late(fd: int, *records: dict[str, object]) -> None:
        if not taken:
            taken.append(mine.rename(mine.with_name("somebody.1.closed")))
            taken[0].unlink()  # merged and gone before the line came
        append(fd, *records)

    monkeypatch.setattr(journal, "append_record", late)

    assert ledger.append_entries(str(tmp_path), _entry(2))
    assert ["e2"] == _ids(tmp_path)


def _write(home: str, first: int, count: int) -> None:
    for number in range(first, first + count):
        assert ledger.append_entries(home, _entry(number))


def test_writers_and_a_compactor_side_by_side_lose_nothing(tmp_path: Path) -> None:
    """Three processes write while a fourth merges whatever it can, all the time."""
    home = str(tmp_path)
    fork = multiprocessing.get_context("fork")
    writers = [fork.Process(target=_write, args=(home, lane * 100, 100)) for lane in range(3)]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        with pytest.MonkeyPatch.context() as always:
            always.setattr(ledger, "_quiet", lambda name, idle_s: True)
            ledger.compact(home, NOW, 400 * DAY, least=1)
        assert all(entry.what == "check" for entry in ledger.read_entries(home))
    for writer in writers:
        writer.join()

    assert [0, 0, 0] == [writer.exitcode for writer in writers]
    assert sorted(f"e{n}" for n in range(300)) == _ids(tmp_path)
