"""One run's journal, read on from where it was read last: for those who follow runs while they live. (I/O)

The journal only grows, and only its newest file does, so what is new is read and nothing else. In the rare
case that a later writer does not believe all that was read of an older file, the whole journal is read again.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from ftrun.slurm.records import dataclass
from ftrun.supervisor.model.events import fold
from ftrun.supervisor.model.run import Run
from ftrun.supervisor.store import journal

Record = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Growth:
    """What a look at a journal found. `fresh`: records beyond the place where it was read last; `again`: None,
    or all records that count, because the reader has to begin with the first one.
    """

    fresh: list[Record]
    again: list[Record] | None = None


class JournalTail:
    """`offsets`: file name -> bytes that were read of it. An earlier process may have read them."""

    def __init__(self, run_dir: str, offsets: Mapping[str, int]) -> None:
        self.run_dir = run_dir
        self.offsets = dict(offsets)
        self._sizes: dict[str, int] | None = None  # None: nothing was read in this process
        self._seqs: dict[str, int] = {}  # file name -> records that were read of it

    def read_on(self) -> Growth:
        """The records since the last call; at the first call all of them. Raises UnreadableRun, OSError."""
        sizes = journal.sizes(self.run_dir)
        if sizes == self._sizes:
            return Growth([])
        fresh = self._newest_alone(sizes) if self._sizes is not None else None
        if fresh is None:
            return self._whole(sizes)
        self._sizes = sizes
        return Growth(fresh)

    def _newest_alone(self, sizes: Mapping[str, int]) -> list[Record] | None:
        """The new records, if they stand in the newest file, after all that was read; None otherwise."""
        names, known = sorted(sizes), sorted(self._sizes or ())
        if known not in (names, names[:-1]) or not names:
            return None
        newest = names[-1]
        if any(sizes[name] != (self._sizes or {})[name] for name in known if name != newest):
            return None
        start, path = self.offsets.get(newest, 0), os.path.join(self.run_dir, "journal", newest)
        with open(path, "rb") as stream:
            stream.seek(start)
            content = stream.read()
        found = journal.parse_more(path, content, seq=self._seqs.get(newest, 0), start_bytes=start)
        if found is None:
            return None
        records = [record for _, record in found]
        if newest not in known and records:
            opened = records[0]
            believed = opened["data"].get("believed") if opened["kind"] == "journal.opened" else None
            if believed != {name: self.offsets.get(name, 0) for name in known}:
                return None
        self.offsets[newest] = max((end for end, _ in found), default=start)
        self._seqs[newest] = self._seqs.get(newest, 0) + len(records)
        return records

    def _whole(self, sizes: Mapping[str, int]) -> Growth:
        files = journal.read_files(self.run_dir)
        fresh = [
            record
            for name, records in files.items()
            for end, record in records
            if end > self.offsets.get(name, 0)
        ]
        for name, read in journal.lengths_of(files).items():
            self.offsets[name] = max(read, self.offsets.get(name, 0))
            self._seqs[name] = len(files[name])
        self._sizes = dict(sizes)
        return Growth(fresh, [record for records in files.values() for _, record in records])


class RunReader:
    """Runs as their journals tell them, for those who ask again and again: a look reads and folds what is new."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[JournalTail, Run]] = {}

    def run(self, run_dir: str) -> Run:
        """As `journal.load_run`."""
        return self.look(run_dir)[0]

    def look(self, run_dir: str) -> tuple[Run, list[Record], bool]:
        """The run, its records since the last look, and whether these are all its records. Raises as `load_run`."""
        known = self._known.pop(run_dir, None)  # not kept where the look fails
        tail = known[0] if known is not None else JournalTail(run_dir, {})
        growth = tail.read_on()
        whole = known is None or growth.again is not None
        records = growth.fresh if growth.again is None else growth.again
        run = known[1] if known is not None and not whole else None
        if run is None or records:
            run = fold(os.path.basename(run_dir), records, onto=run)
        self._known[run_dir] = (tail, run)
        return run, records, whole
