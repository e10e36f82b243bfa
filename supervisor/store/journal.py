"""The journal of a run: append-only, one writer a file, synced before it counts. (I/O)

- `journal/<epoch>-<writer>.jsonl`: one process ever writes a file. `ftrun sbatch` writes epoch 0. Each
  later writer holds the lease and names its files after the lease's epoch, which is unique.
- The first record of a later file is `journal.opened` with `believed`: the length in bytes up to which the
  writer read each older file. What an older, paused writer appends afterwards lies beyond that length and
  is ignored for ever; so is a file that it opens afterwards. Where an earlier holder of the lease may still
  live, the new one opens its file at its first look at the run, even with nothing to write.
- A record is one line of JSON that ends in its checksum and a newline. A last line without newline, or one
  that a file system filled up with zeros, is a torn tail: the process crashed during the write, and the effect
  was not begun (the intent is synced before the act).
- Anything else is no crash of ours: a changed byte (the checksum shows it), a lost line (`seq`), a file shorter
  than a later writer believed. The run is reported as damaged and nobody acts on it; `read_readable` says what
  people can still read. Files of older builds have no checksums and are believed as they are.
- Every record has a version `v`. A reader refuses a version that it does not know rather than guess.

`ftrun sbatch` writes through this module, so it imports only os, time, json, binascii and the errors.
"""

from __future__ import annotations

import json
import os
import time
from binascii import crc32

from ftrun.supervisor.model.errors import UnreadableRun

VERSION = 1
TYPE_CHECKING = False
if TYPE_CHECKING:  # typing costs milliseconds that `ftrun sbatch` does not have
    from collections.abc import Callable, Iterable
    from typing import Any

    from ftrun.supervisor.model.run import Run

    Record = dict[str, Any]


class JournalDamaged(UnreadableRun):
    """A journal file holds something that no crash of ours can leave: read by people, acted on by nobody."""


class JournalTooNew(UnreadableRun):
    """The journal was written by a newer ftrun: this one does nothing with the run."""


class Journal:
    """One process's own file of one run's journal. Records are durable when `append` returns."""

    def __init__(self, path: str, *, epoch: int, writer: str, now: Callable[[], float] = time.time) -> None:
        self.path = path
        self._now = now
        self.epoch = epoch
        self.writer = writer
        self.size_bytes = 0
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
        self._seq = 0

    @classmethod
    def open_first(cls, run_dir: str) -> Journal:
        """The file that `ftrun sbatch` writes (epoch 0). Raises FileExistsError on a second call."""
        return cls(os.path.join(run_dir, "journal", "000000-submit.jsonl"), epoch=0, writer="submit")

    @classmethod
    def open_epoch(
        cls,
        run_dir: str,
        *,
        epoch: int,
        writer: str,
        believed: dict[str, int],
        now: Callable[[], float] = time.time,
    ) -> Journal:
        """A later writer's file. `believed` maps older file names to the bytes that were read from them."""
        folder = os.path.join(run_dir, "journal")
        opened = sum(
            name.startswith(f"{epoch:06d}-") for name in os.listdir(folder)
        )  # after a failed step: anew
        path = os.path.join(folder, f"{epoch:06d}-{writer}.{opened:03d}.jsonl")
        journal = cls(path, epoch=epoch, writer=writer, now=now)
        try:
            journal.append("journal.opened", believed=believed)
        except OSError:  # disk full: tried again every minute, so nothing may be left behind
            journal.close()
            os.unlink(path)
            raise
        return journal

    def append(
        self,
        kind: str,
        /,
        *,
        attempt: int = 0,
        job: str = "",
        launch: int = 0,
        start: int = 0,
        **data: object,
    ) -> Record:
        """Write one record and wait until it is on disk. Returns it. Raises OSError (disk full, quota)."""
        numbers: dict[str, Any] = {"attempt": attempt, "job": job, "launch": launch, "start": start}
        record = new_record(kind, numbers, data, seq=self._seq, now_s=self._now())
        if self._fd < 0:  # not made anew: a file that is gone was the run's, which is gone with it
            self._fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        self.size_bytes += append_record(self._fd, record)
        self._seq += 1
        return record

    def close(self) -> None:
        """Close the file; a later record opens it again."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def new_record(kind: str, numbers: dict[str, Any], data: dict[str, Any], *, seq: int, now_s: float) -> Record:
    """A record of this release; `numbers`: attempt, job, launch and start that it is about."""
    head = {"v": VERSION, "seq": seq, "at": round(now_s, 3), "kind": kind}
    return {**head, "submission": numbers["attempt"], **numbers, "data": data}


def append_record(fd: int, *records: Record) -> int:
    """A line each, whole or torn, then fdatasync. A short write is finished, so a torn line means a crash.
    Returns the bytes that were written.
    """
    text = b"".join(map(record_line, records))
    view = memoryview(text)
    while view:
        view = view[os.write(fd, view) :]
    os.fdatasync(fd)
    return len(text)


_CHECKSUM = (
    b',"crc":"'  # the last key of a line: eight hexadecimal digits follow, of all that stands before it
)
_CHECKSUM_BYTES = len(_CHECKSUM) + 8 + len(b'"}')


def record_line(record: Record) -> bytes:
    """A record as it stands in a file: JSON, checksum, newline."""
    text = json.dumps(record, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogateescape")
    return b'%b%b%08x"}\n' % (text[:-1], _CHECKSUM, crc32(text[:-1]))


def _has_checksum(line: bytes) -> bool:
    return line[-_CHECKSUM_BYTES:].startswith(_CHECKSUM)


def parse_record(line: bytes) -> Any:
    """The JSON of one line, without its newline and its checksum. A line of an older build has none. Raises
    ValueError where the line is no JSON, or not the one that was written.
    """
    try:
        record = json.loads(line.decode("utf-8", "surrogateescape"))
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if _has_checksum(line) and record.pop("crc") != f"{crc32(line[:-_CHECKSUM_BYTES]):08x}":
        raise ValueError("the checksum does not match: a byte was changed after it was written")
    return record


def read_run(run_dir: str) -> list[Record]:
    """All records of a run that count, oldest first. Raises JournalDamaged or JournalTooNew; a run without
    any record yields an empty list.
    """
    return [record for records in read_files(run_dir).values() for _, record in records]


def read_files(run_dir: str) -> dict[str, list[tuple[int, Record]]]:
    """File name -> (offset after it, record) of all records that count, oldest first. As `read_run`."""
    files = _read_files(run_dir)
    limits = _limits(files)
    return {name: [one for one in files[name].records if one[0] <= limits[name]] for name in files}


def read_readable(run_dir: str) -> tuple[list[Record], list[str]]:
    """The records of a damaged run that can still be read, and a line for each thing that cannot. For people:
    nobody may act on it. Raises OSError.
    """
    files = _read_files(run_dir, believe_damaged=True)
    limits = _limits(files)
    damage = [one for file in files.values() for one in file.damage] + _too_short(files, limits)
    return [r for name in files for end, r in files[name].records if end <= limits[name]], damage


def load_run(run_dir: str) -> Run:
    """The run in this folder, as its journal tells it. Raises UnreadableRun, OSError."""
    return load_whole(run_dir)[0]


def load_whole(run_dir: str) -> tuple[Run, dict[str, int]]:
    """The run in this folder, and what a new writer believes of its journal: file -> bytes of whole records
    that count. Raises as `load_run`.
    """
    from ftrun.supervisor.model.events import fold  # `ftrun sbatch` only writes

    files = read_files(run_dir)
    records = (record for records in files.values() for _, record in records)
    return fold(os.path.basename(run_dir), records), lengths_of(files)


def sizes(run_dir: str) -> dict[str, int]:
    """Size in bytes of every journal file: whether anything was written, without reading it."""
    with os.scandir(os.path.join(run_dir, "journal")) as entries:
        return {entry.name: entry.stat().st_size for entry in entries if entry.name.endswith(".jsonl")}


def newest_epoch(names: Iterable[str]) -> int:
    """The highest epoch among these files of a journal; 0 = nobody but `ftrun sbatch` has written."""
    return max((int(name.partition("-")[0]) for name in names), default=0)


def believed_lengths(run_dir: str) -> dict[str, int]:
    """The length in bytes of the whole records of every journal file: what a new writer believes."""
    return lengths_of(read_files(run_dir))


def lengths_of(files: dict[str, list[tuple[int, Record]]]) -> dict[str, int]:
    """The same of files that were read. (pure)"""
    return {name: max((end for end, _ in records), default=0) for name, records in files.items()}


class _File:
    """What one file of a journal holds.

    `records`: (offset after the record, record) up to a torn tail; `damage`: what no crash of ours leaves;
    `size_bytes`: of both.
    """

    def __init__(self) -> None:
        self.records: list[tuple[int, Record]] = []
        self.damage: list[str] = []
        self.size_bytes = 0


def _read_files(run_dir: str, *, believe_damaged: bool = False) -> dict[str, _File]:
    """File name -> what it holds, oldest first. Raises JournalDamaged, JournalTooNew."""
    folder = os.path.join(run_dir, "journal")
    names = sorted(name for name in os.listdir(folder) if name.endswith(".jsonl"))
    files = {name: _read_file(os.path.join(folder, name)) for name in names}
    if believe_damaged:
        return files
    damage = [one for file in files.values() for one in file.damage] or _too_short(files, _limits(files))
    if damage:
        raise JournalDamaged(f"{folder}: {damage[0]}")
    return files


def _too_short(files: dict[str, _File], limits: dict[str, float]) -> list[str]:
    """A line for each file that holds less than a later writer read of it."""
    left = {name: file.size_bytes for name, file in files.items()}
    return [
        f"{name}: {length} bytes were read of it once, {left.get(name, 0)} are left"
        for name, length in limits.items()
        if length != float("inf") and left.get(name, 0) < length
    ]


def _limits(files: dict[str, _File]) -> dict[str, float]:
    """Return up to which byte each file counts. The newest file is read first: one that a later holder does
    not believe has no say.
    """
    limits: dict[str, float] = dict.fromkeys(files, float("inf"))
    for name in reversed(files):
        for end, record in files[name].records[:1]:
            if record["kind"] != "journal.opened" or end > limits[name]:
                continue
            for older, length in record["data"]["believed"].items():
                limits[older] = min(limits.get(older, length), length)
            for older in files:  # a file that the new holder did not see at all
                if older < name and older not in record["data"]["believed"]:
                    limits[older] = 0
    return limits


def version_of(record: Record) -> int:
    """The version of a record of any release. Raises KeyError, TypeError."""
    version, kind, at = record["v"], record["kind"], record["at"]
    if not isinstance(version, int) or not isinstance(kind, str) or not isinstance(at, int | float):
        raise TypeError("not a record of a journal")
    return version


def _read_file(path: str) -> _File:
    """Raises JournalTooNew."""
    with open(path, "rb") as stream:
        return _parse_file(path, stream.read())


def parse_more(path: str, content: bytes, *, seq: int, start_bytes: int) -> list[tuple[int, Record]] | None:
    """(offset after it, record) of each whole record that was added to this file behind `start_bytes`, where
    record `seq` is next. None where they are not just that: the whole journal must be read. (pure)
    """
    try:
        file = _parse_file(path, content, seq=seq, start=start_bytes)
    except JournalTooNew:
        return None
    return None if file.damage else file.records


def _parse_file(path: str, content: bytes, *, seq: int = 0, start: int = 0) -> _File:
    """What stands in these bytes of a file, which begin with record `seq` at byte `start`. Raises JournalTooNew."""
    file, name, stop = _File(), os.path.basename(path), start + len(content)
    checksums, lines = False, content.split(b"\n")
    for number, line in enumerate(lines[:-1], seq):  # behind the last newline is torn: it is written last
        end = start + len(line) + 1
        try:
            record = parse_record(line)
            too_new = version_of(record) > VERSION
            checksums = checksums if number > seq else _has_checksum(line)
            if checksums != _has_checksum(line) and not too_new:
                raise ValueError("a checksum is missing")
            if checksums and record["seq"] != number and not file.damage and not too_new:
                raise ValueError(f"record {record['seq']} stands where record {number} was written")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            if end == stop and b"\0\0" in line:
                break  # torn: the last line, filled up by the file system
            file.damage.append(f"{name}: byte {start}: {error!s:.300}")
        else:
            if too_new:  # not in the block above: this error is a ValueError itself
                raise JournalTooNew(
                    f"{path}: written by a newer ftrun (journal version {record['v']}, this one knows {VERSION})"
                )
            file.records.append((end, record))
        start = file.size_bytes = end
    if _has_checksum(lines[-1][:-1]) and lines[-1][-1:] != b"\0":
        file.damage.append(
            f"{name}: byte {start + len(lines[-1]) - 1}: the newline of a whole record was changed"
        )
    return file
