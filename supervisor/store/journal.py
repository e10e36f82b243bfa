"""The journal of a run: append-only, one writer a file, synced before it counts. (I/O)

- `journal/<epoch>-<writer>.jsonl`: one process ever writes a file. `ftrun sbatch` writes epoch 0. Each
  later writer holds the lease and names its files after the lease's epoch, which is unique.
- The first record of a later file is `journal.opened` with `believed`: the length in bytes up to which the
  writer read each older file. What an older, paused writer appends afterwards lies beyond that length and
  is ignored for ever; so is a file that it opens afterwards. Where an earlier holder of the lease may still
  live, the new one opens its file at its first look at the run, even with nothing to write.
- A record is one line of JSON that ends in a newline. A last line without newline, or one that does not
  parse, is a torn tail: the process crashed during the write, and the effect was not begun (the intent is
  synced before the act). Damage *before* the tail is no crash of ours: the run is reported as damaged and
  nobody acts on it.
- Every record has a version `v`. A reader refuses a version that it does not know rather than guess.

`ftrun sbatch` writes through this module, so it imports only os, time, json and the errors.
"""

from __future__ import annotations

import json
import os
import time

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
        record: Record = {
            "v": VERSION,
            "seq": self._seq,
            "at": round(self._now(), 3),
            "kind": kind,
            "submission": attempt,
            "attempt": attempt,
            "job": job,
            "launch": launch,
            "start": start,
            "data": data,
        }
        if self._fd < 0:  # not made anew: a file that is gone was the run's, which is gone with it
            self._fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        append_record(self._fd, record)
        self._seq += 1
        return record

    def close(self) -> None:
        """Close the file; a later record opens it again."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def append_record(fd: int, *records: Record) -> None:
    """A line each, whole or torn, then fdatasync. A short write is finished, so a torn line means a crash."""
    lines = (json.dumps(record, separators=(",", ":"), ensure_ascii=False) + "\n" for record in records)
    view = memoryview("".join(lines).encode("utf-8", "surrogateescape"))
    while view:
        view = view[os.write(fd, view) :]
    os.fdatasync(fd)


def read_run(run_dir: str) -> list[Record]:
    """All records of a run that count, oldest first. Raises JournalDamaged, JournalTooNew, OSError."""
    folder = os.path.join(run_dir, "journal")
    names = sorted(name for name in os.listdir(folder) if name.endswith(".jsonl"))
    parsed = {name: _read_file(os.path.join(folder, name)) for name in names}
    limits = _limits(names, parsed)
    return [record for name in names for end, record in parsed[name] if end <= limits[name]]


def load_run(run_dir: str) -> Run:
    """The run in this folder, as its journal tells it. Raises UnreadableRun, OSError."""
    from ftrun.supervisor.model.events import fold  # `ftrun sbatch` only writes

    return fold(os.path.basename(run_dir), read_run(run_dir))


def sizes(run_dir: str) -> dict[str, int]:
    """Size in bytes of every journal file: whether anything was written, without reading it."""
    with os.scandir(os.path.join(run_dir, "journal")) as entries:
        return {entry.name: entry.stat().st_size for entry in entries if entry.name.endswith(".jsonl")}


def newest_epoch(names: Iterable[str]) -> int:
    """The highest epoch among these files of a journal; 0 = nobody but `ftrun sbatch` has written."""
    return max((int(name.partition("-")[0]) for name in names), default=0)


def believed_lengths(run_dir: str) -> dict[str, int]:
    """The length in bytes of the whole records of every journal file: what a new writer believes."""
    folder = os.path.join(run_dir, "journal")
    names = sorted(name for name in os.listdir(folder) if name.endswith(".jsonl"))
    parsed = {name: _read_file(os.path.join(folder, name)) for name in names}
    limits = _limits(names, parsed)
    return {name: max((end for end, _ in parsed[name] if end <= limits[name]), default=0) for name in names}


def _limits(names: list[str], parsed: dict[str, list[tuple[int, Record]]]) -> dict[str, float]:
    """Up to which byte each file counts. Newest first: a file that a later holder disbelieves has no say."""
    limits: dict[str, float] = dict.fromkeys(names, float("inf"))
    for name in reversed(names):
        for end, record in parsed[name][:1]:
            if record["kind"] != "journal.opened" or end > limits[name]:
                continue
            for older, length in record["data"]["believed"].items():
                limits[older] = min(limits.get(older, length), length)
            for older in names:  # a file that the new holder did not see at all
                if older < name and older not in record["data"]["believed"]:
                    limits[older] = 0
    return limits


def _whole(record: Record) -> int:
    """The version of a record of any release. Raises KeyError, TypeError."""
    version, kind, at = record["v"], record["kind"], record["at"]
    if not isinstance(version, int) or not isinstance(kind, str) or not isinstance(at, int | float):
        raise TypeError("not a record of a journal")
    return version


def _read_file(path: str) -> list[tuple[int, Record]]:
    """[(offset after the record, record), ...] up to a torn tail."""
    with open(path, "rb") as stream:
        content = stream.read()
    records: list[tuple[int, Record]] = []
    start = 0
    while start < len(content):
        end = content.find(b"\n", start)
        if end < 0:
            break  # torn: the newline is written last
        try:
            record = json.loads(content[start:end].decode("utf-8", "surrogateescape"))
            version = _whole(record)
        except (ValueError, KeyError, TypeError) as error:
            if content.find(b"\n", end + 1) < 0:
                break  # torn: the last line, filled up by the file system
            raise JournalDamaged(f"{path}: byte {start}: {error}") from error
        if version > VERSION:
            raise JournalTooNew(
                f"{path}: written by a newer ftrun (journal version {version}, this one knows {VERSION})"
            )
        start = end + 1
        records.append((start, record))
    return records
