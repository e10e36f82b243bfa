"""Laws of the journal: what is written counts, what was being written does not, and no paused writer is heard again. (I/O)"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from ftrun.supervisor.store.journal import (
    VERSION,
    Journal,
    JournalDamaged,
    JournalTooNew,
    believed_lengths,
    load_run,
    read_readable,
    read_run,
)
from ftrun.supervisor.store.journal_tail import RunReader

OWN_KIND = {"kind": "stop"}  # of a decision, beside the kind of the record


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A run folder with an empty journal."""
    (tmp_path / "journal").mkdir()
    return tmp_path


def first(run_dir: Path, *kinds: str) -> Journal:
    journal = Journal.open_first(str(run_dir))
    for kind in kinds:
        journal.append(kind)
    return journal


def later(run_dir: Path, epoch: int, *kinds: str, writer: str = "w") -> Journal:
    believed = believed_lengths(str(run_dir))
    journal = Journal.open_epoch(str(run_dir), epoch=epoch, writer=f"{writer}{epoch}", believed=believed)
    for kind in kinds:
        journal.append(kind)
    return journal


def kinds(run_dir: Path) -> list[str]:
    return [record["kind"] for record in read_run(str(run_dir)) if record["kind"] != "journal.opened"]


def test_a_record_comes_back_as_it_was_written(run_dir: Path) -> None:
    """Names of a record are free: data may be called kind, and text may hold any byte that a path may hold."""
    journal = first(run_dir)
    written = journal.append("decided", attempt=3, job="12", launch=1, start=1, path="\udcff\n", **OWN_KIND)

    assert [written] == read_run(str(run_dir))
    assert (VERSION, 3, "12", 1) == tuple(written[key] for key in ("v", "attempt", "job", "launch"))


def test_a_journal_that_was_let_go_goes_on_in_its_own_file(run_dir: Path) -> None:
    """With very many runs not all files can stay open. One that was taken away is not made anew: the run is gone."""
    journal = first(run_dir, "one")
    journal.close()
    journal.append("two")
    journal.close()
    assert (["one", "two"], [0, 1]) == (kinds(run_dir), [record["seq"] for record in read_run(str(run_dir))])
    Path(journal.path).unlink()
    with pytest.raises(FileNotFoundError):
        journal.append("three")
    assert not Path(journal.path).exists()


def test_a_torn_tail_is_no_record_wherever_it_is_torn(run_dir: Path) -> None:
    """Cut at every byte of the last record, the records before it count, and the next writer goes on behind them."""
    first(run_dir, "one", "two").close()
    path = run_dir / "journal" / "000000-submit.jsonl"
    content = path.read_bytes()
    whole = content.rindex(b"\n", 0, len(content) - 1) + 1
    for length in range(whole, len(content)):
        path.write_bytes(content[:length])
        assert ["one"] == kinds(run_dir)
        assert {path.name: whole} == believed_lengths(str(run_dir))

    later(run_dir, 1, "three").close()
    path.write_bytes(content)  # the torn record appears after all: a network file system was late

    assert ["one", "three"] == kinds(run_dir)


def test_what_a_paused_writer_appends_is_not_heard(run_dir: Path) -> None:
    """A new holder believes the older files up to a length; everything beyond it was written without the lease."""
    first(run_dir, "one").close()
    paused = later(run_dir, 1, "two")
    present = later(run_dir, 2, "three")
    paused.append("late")
    present.append("four")

    assert ["one", "two", "three", "four"] == kinds(run_dir)


def test_a_paused_writer_that_opens_its_file_late_fences_nobody(run_dir: Path) -> None:
    """It took its epoch, stood still, and opens its journal when another one has long gone on: neither its records nor its beliefs count."""
    first(run_dir, "one").close()
    present = later(run_dir, 2, "two")
    late = later(run_dir, 1, "late")
    present.append("three")
    late.append("later")

    assert ["one", "two", "three"] == kinds(run_dir)


def test_a_chain_of_holders_is_heard_up_to_where_each_was_believed(run_dir: Path) -> None:
    """Every one of them goes on writing after it lost the lease, and none of that counts."""
    holders = [first(run_dir, "0")]
    for epoch in range(1, 5):
        holders.append(later(run_dir, epoch, str(epoch)))
        for holder in holders[:-1]:
            holder.append("late")

    assert ["0", "1", "2", "3", "4"] == kinds(run_dir)


def test_a_keeper_that_starts_anew_in_its_epoch_writes_another_file(run_dir: Path) -> None:
    """A file whose end nobody knows is not written on."""
    first(run_dir, "one").close()
    later(run_dir, 1, "two").close()
    later(run_dir, 1, "three").close()

    assert ["one", "two", "three"] == kinds(run_dir)
    assert 3 == len(list((run_dir / "journal").iterdir()))


def test_ftrun_sbatch_writes_its_file_once(run_dir: Path) -> None:
    """A second submission of the same run is refused by the file system."""
    first(run_dir).close()

    with pytest.raises(FileExistsError):
        Journal.open_first(str(run_dir))


def _middle_broken(content: bytes) -> bytes:
    return content.replace(b'"one"', b'"o\n')


def _version_of_tomorrow(content: bytes) -> bytes:
    record = json.loads(content.splitlines()[0])
    return json.dumps(record | {"v": VERSION + 1}).encode() + b"\n"


@pytest.mark.parametrize(
    ("damage", "error"), [(_middle_broken, JournalDamaged), (_version_of_tomorrow, JournalTooNew)]
)
def test_what_no_crash_can_leave_is_refused(
    run_dir: Path, damage: Callable[[bytes], bytes], error: type[Exception]
) -> None:
    """Damage before the tail, and records of a newer ftrun: nobody guesses, nobody acts."""
    first(run_dir, "one", "two", "three").close()
    path = run_dir / "journal" / "000000-submit.jsonl"
    path.write_bytes(damage(path.read_bytes()))

    with pytest.raises(error):
        read_run(str(run_dir))


# ---------------------------------------------------------------------- damage


def _holders(run_dir: Path) -> dict[Path, bytes]:
    """The files of a run that two supervisors looked after."""
    first(run_dir, "one", "two").close()
    later(run_dir, 1, "three", "four").close()
    return {path: path.read_bytes() for path in sorted((run_dir / "journal").iterdir())}


@pytest.mark.parametrize("mask", [0x01, 0x20])
def test_a_changed_byte_is_never_believed(run_dir: Path, mask: int) -> None:
    """Also one that leaves valid JSON, another number, name or time; also in the last record and its newline."""
    for path, content in _holders(run_dir).items():
        for at in range(len(content)):
            path.write_bytes(content[:at] + bytes([content[at] ^ mask]) + content[at + 1 :])
            with pytest.raises(JournalDamaged, match="byte"):
                read_run(str(run_dir))
        path.write_bytes(content)
    assert ["one", "two", "three", "four"] == kinds(run_dir)


def test_a_lost_a_doubled_or_a_moved_record_is_damage(run_dir: Path) -> None:
    """Every record is whole, and yet the file is not what was written."""
    for path, content in _holders(run_dir).items():
        a, b, *rest = content.splitlines(keepends=True)
        for lines in ([b, *rest], [a, *rest, b, b], [a, a, b, *rest], [b, a, *rest]):
            path.write_bytes(b"".join(lines))
            with pytest.raises(JournalDamaged):
                read_run(str(run_dir))
        path.write_bytes(content)


def test_a_file_that_lost_its_end_is_damage_once_somebody_has_read_it(run_dir: Path) -> None:
    """A later writer acted on it: what it believed must be there. So must the file."""
    path, content = next(iter(_holders(run_dir).items()))
    for length in range(len(content)):
        path.write_bytes(content[:length])
        with pytest.raises(JournalDamaged, match=f"{len(content)} bytes were read"):
            read_run(str(run_dir))
    path.unlink()
    with pytest.raises(JournalDamaged, match="0 are left"):
        read_run(str(run_dir))


def test_what_is_readable_of_a_damaged_journal_is_told(run_dir: Path) -> None:
    """Every record but the changed one, and where that stands."""
    path, content = next(iter(_holders(run_dir).items()))
    path.write_bytes(content.replace(b'"two"', b'"owt"'))

    records, damage = read_readable(str(run_dir))

    assert ["one", "journal.opened", "three", "four"] == [record["kind"] for record in records]
    (told,), second = damage, content.index(b"\n") + 1
    assert told.startswith(f"{path.name}: byte {second}: the checksum does not match")


def test_a_journal_of_an_older_build_is_believed_as_it_is(run_dir: Path) -> None:
    """Its records have no checksum; the next writer's have one."""
    record = {"v": 1, "seq": 0, "at": 1.0, "kind": "one", "attempt": 0, "data": {"crc": "00000000"}}
    (run_dir / "journal" / "000000-submit.jsonl").write_text(json.dumps(record) + "\n")
    later(run_dir, 1, "two").close()

    assert ["one", "two"] == kinds(run_dir)


def test_a_run_is_folded_anew_where_its_journal_grew(run_dir: Path) -> None:
    """Who asks again has what was written since, by whichever writer, and the same value where nothing was."""
    runs = RunReader()
    journal = first(run_dir)
    before = runs.run(str(run_dir))
    journal.append("warned", message="one")
    once = runs.run(str(run_dir))
    later(run_dir, 1).append("warned", message="two")
    twice = runs.run(str(run_dir))

    assert [0, 1, 2] == [len(run.warnings) for run in (before, once, twice)]
    assert twice is runs.run(str(run_dir))


def test_a_look_gives_what_was_written_since_the_last(run_dir: Path) -> None:
    """Reading goes on where it ended, over a torn end and another writer, and tells the same as reading it all."""
    runs, journal = RunReader(), first(run_dir)
    told: list[str] = []

    def look() -> tuple[list[str], bool]:
        run, new, whole = runs.look(str(run_dir))
        told[:] = [] if whole else told
        told.extend(record["kind"] for record in new if record["kind"] != "journal.opened")
        assert told == kinds(run_dir)
        assert run == load_run(str(run_dir))
        return [record["kind"] for record in new], whole

    journal.append("warned", message="zero")
    assert look()[1]
    journal.append("warned", message="one")
    assert (["warned"], False) == look()
    assert ([], False) == look()
    path, line = Path(journal.path), b""
    whole = path.read_bytes()
    journal.append("warned", message="two")
    line = path.read_bytes()[len(whole) :]
    path.write_bytes(whole + line[:20])  # as a reader may see a write
    assert ([], False) == look()
    path.write_bytes(whole + line)
    assert (["warned"], False) == look()
    later(run_dir, 1).append("warned", message="three")
    assert ["journal.opened", "warned"] == look()[0][-2:]


def test_a_look_sees_damage_as_reading_does(run_dir: Path) -> None:
    """Of what was read before, and of what is new; a run that is mended is read anew."""
    runs, journal = RunReader(), first(run_dir)
    journal.append("warned", message="one")
    runs.look(str(run_dir))
    path = Path(journal.path)
    good = path.read_bytes()
    journal.append("warned", message="two")
    path.write_bytes(path.read_bytes().replace(b"two", b"too"))
    with pytest.raises(JournalDamaged):
        runs.look(str(run_dir))
    path.write_bytes(good)
    assert runs.look(str(run_dir))[2]
