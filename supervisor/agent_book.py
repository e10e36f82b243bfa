"""The agent's journal, and the run as it stands with what the agent has decided. (I/O)

How it thinks. The agent writes one file of its own in the attempt's folder; the supervisor copies it into the run's journal, sooner or
later. So the run is folded from the run's journal without those copies, and then from our own records: what we decided a moment
ago counts, copied or not; so does what the agent of an earlier launch decided while no supervisor was there to copy it. Intent is on disk before the act; a journal that cannot be written ends the ladder, never the job.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

from ftrun.supervisor import haltfile, journal, store
from ftrun.supervisor.events import apply, fold
from ftrun.supervisor.run_types import Run

__all__ = ["Book", "BookClosed"]

EARLIER_MAX_BYTES = 1 << 24

Record = dict[str, Any]


class BookClosed(Exception):
    """Nothing may be journalled any more: the agent was given up, or another one writes."""


class Book:
    """One agent's records. `may_write` raises where the agent has been given up; `crash` is where tests cut it down."""

    def __init__(
        self,
        run_dir: str,
        place: str,
        *,
        attempt: int,
        launch: int,
        job: str,
        may_write: Callable[[], None] = lambda: None,
        crash: Callable[[str], None] = lambda point: None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.run_dir, self.attempt, self.launch, self.job = run_dir, attempt, launch, job
        self.start = 1
        self.records: list[Record] = []
        self._may_write, self._crash, self._now = may_write, crash, now
        folder = os.path.join(place, "agent")
        os.makedirs(folder, mode=0o700, exist_ok=True)
        self.path = os.path.join(folder, f"{launch}.jsonl")
        self._fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
        self._pulse = os.path.join(folder, f"pulse.{launch}")
        self._beats = 0
        self._earlier: dict[int, bytes] = {}  # launch -> what its agent wrote: it is over

    def record(self, kind: str, /, **data: Any) -> Record:
        """Write one record; it is durable when this returns. Raises OSError, BookClosed."""
        self._may_write()
        self._must_be_seen()
        record: Record = {
            "v": journal.VERSION,
            "seq": len(self.records),
            "at": round(self._now(), 3),
            "kind": kind,
            "submission": self.attempt,
            "attempt": self.attempt,
            "job": self.job,
            "launch": self.launch,
            "start": self.start,
            "data": data,
        }
        journal.append_record(self._fd, record)
        self.records.append(record)
        self._crash(f"record:after:{kind}")
        return record

    def _must_be_seen(self) -> None:
        """Where the attempt's folder was moved or removed, a descriptor still writes, and nobody ever reads it. Raises BookClosed, OSError."""
        if not os.path.samestat(os.fstat(self._fd), os.stat(self.path)):
            raise BookClosed(f"{self.path} is another file now")

    def act(self, name: str, deed: Callable[[], None]) -> None:
        """Do one effect that was journalled before. Raises what the deed raises."""
        self._may_write()
        self._crash(f"{name}:before")
        deed()
        self._crash(f"{name}:after")

    def run(self) -> Run:
        """The run now. Raises OSError, IllegalEvent, BadRecord, JournalDamaged, JournalTooNew."""
        mine = (self.attempt, self.launch)
        known = [
            record
            for record in journal.read_run(self.run_dir)
            if "agent_seq" not in record["data"] or (record["attempt"], record["launch"]) != mine
        ]
        run = fold(os.path.basename(self.run_dir), known)
        if run.attempt is None or run.attempt.number != self.attempt:
            raise BookClosed(f"attempt {self.attempt} is not the run's last")
        run = self._caught_up(run, run.attempt.copied)
        if run.attempt is not None and run.attempt.launch.number != self.launch:
            run = run.with_attempt(launch=run.attempt.launch.next(self.launch))
        if run.attempt is not None and not run.attempt.job:
            run = run.with_attempt(job=self.job)
        for record in self.records:
            run = apply(run, record)
        return haltfile.wished(run, self.run_dir, self._now())

    def _caught_up(self, run: Run, copied: Mapping[int, int]) -> Run:
        """The run with what earlier launches' agents journalled and nobody has copied; a record that cannot be used is left out, as the copy leaves it."""
        for launch in range(self.launch):
            if launch not in self._earlier:
                path = os.path.join(os.path.dirname(self.path), f"{launch}.jsonl")
                self._earlier[launch] = store.content(path, EARLIER_MAX_BYTES) or b""
            for line in self._earlier[launch].splitlines():
                with contextlib.suppress(LookupError, TypeError, AttributeError, ValueError, AssertionError):
                    record = json.loads(line)
                    if record["seq"] >= copied.get(launch, 0):
                        run = apply(run, record)
        return run

    def beat(self) -> None:
        """Tell the supervisor that the agent lives. Raises OSError."""
        self._beats += 1
        descriptor = os.open(self._pulse, os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            os.pwrite(descriptor, f"{self._beats:020d}\n".encode(), 0)
        finally:
            os.close(descriptor)
