"""One run as the loop holds it: its journal, folded, and what this process has observed of it. (I/O)

Everything that must survive a crash is in the journal, and only `record` writes it. `observations` holds only
what a new supervisor can find out again (log positions; how long a condition has held, by our own monotonic
clock); losing it only makes ftrun more patient. State that a single feature needs lives in a slot that this
feature declares: `per_launch` for a launch, `per_start` for one start of the script inside it.

An effect is intent, act, fact: the intent is journalled and synced, the lease is confirmed, the act is done
once, the fact is journalled. `RunContext.act` does the middle part: it refuses to act on a snapshot older than
`STALE_AFTER_S`, and it is where tests crash the supervisor (FTRUN_CRASH_AT=<effect>:before|after[:n] or
record:after[:kind][:n]). The features of the loop receive this context with the
present snapshot; it knows none of them.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ftrun.slurm.client.cluster import JobRow
from ftrun.slurm.client.parse import has_token
from ftrun.slurm.records import replace
from ftrun.supervisor.config.settings import number_of
from ftrun.supervisor.context.services import STALE_AFTER_S, ClusterSnapshot, Services, Stale
from ftrun.supervisor.diagnosis.launch_state import LaunchState
from ftrun.supervisor.model import job_rows
from ftrun.supervisor.model.events import apply
from ftrun.supervisor.model.run import Attempt, Run
from ftrun.supervisor.model.states import State, next_state
from ftrun.supervisor.model.timers import Intervals, Slots, Stopwatch, Stopwatches
from ftrun.supervisor.store import journal, submission_context
from ftrun.supervisor.store.lease import LeaseLost

T = TypeVar("T")
JUST_SUBMITTED_S = 20.0
BLIND_FOR_S = 30.0  # an outage; a shorter gap is a failed query
PROOF_LASTS_S = 1.0  # how long one check of the lease is enough for records; each effect checks by itself


@dataclass
class LaunchObservations(LaunchState):
    """The present launch as this process has seen it. Times are monotonic seconds."""

    start: int = 1  # the start of the script inside the launch that the rest describes
    known_as: tuple[str, ...] = ()  # user and name of the row that showed our token
    submitted_s: float | None = None  # time of submission of that row
    partition: str = ""  # as Slurm last showed it
    seen_s: float | None = None  # when Slurm last showed the job
    looked_s: float | None = None  # when the loop last asked Slurm, answered or not
    answered_s: float = 0.0  # how long Slurm has answered since the attempt was opened or this process began
    outages: int = 0  # snapshots for which Slurm did not answer
    blind: Stopwatch = field(default_factory=Stopwatch)
    silent: Stopwatches = field(
        default_factory=Stopwatches
    )  # node -> since when it does not respond to Slurm
    # Cache of `RunContext.rows`: the families and the attempt of the last call, and its rows.
    own: tuple[object, Attempt, tuple[JobRow, ...]] | None = None
    # Of this launch, each by its name, or by (name, key): since when a condition holds; when a thing was done last.
    stopwatches: Stopwatches = field(default_factory=Stopwatches)
    intervals: Intervals = field(default_factory=Intervals)
    launch_slots: Slots = field(default_factory=Slots)
    start_slots: Slots = field(default_factory=Slots)

    def per_launch(self, kind: type[T]) -> T:
        """The object of this class that lives as long as the launch."""
        return self.launch_slots.of(kind)

    def per_start(self, kind: type[T], make: Callable[[], T] | None = None) -> T:
        """The object of this class that lives as long as the present start of the script."""
        return self.start_slots.of(kind, make)

    def learn(self, family: Iterable[JobRow], token: str) -> None:
        """Remember how Slurm shows a job with our token, in case it no longer shows the token later."""
        for row in family:
            if has_token(row.comment, token):
                self.known_as = (row.user, row.name)
                self.submitted_s = row.submit_time_s
                return

    def looked(self, *, seen: bool, mono_s: float) -> None:
        """Account for one poll of Slurm. After a long outage the silence of nodes is measured anew (P6).

        A node may come back and fail again while Slurm cannot be seen.
        """
        if seen and self.looked_s is not None and not self.blind.runs:
            self.answered_s += mono_s - self.looked_s
        self.looked_s = mono_s
        if not seen:
            self.outages += 1
            self.blind.held_s(mono_s)
            return
        if self.blind.held_s(mono_s) >= BLIND_FOR_S:
            self.silent.clear()
        self.blind.stop()

    def close(self) -> None:
        """Close the log files."""
        _close(self.launch_slots, self.start_slots)

    def at_launch(self, attempt: int, launch: int) -> LaunchObservations:
        """The observations for another launch or attempt: nothing that was seen of the last one counts."""
        self.close()
        kept = {name: getattr(self, name) for name in ("seen_s", "looked_s", "partition")}
        return LaunchObservations(attempt, launch, **kept)

    def at_start(self, start: int) -> LaunchObservations:
        """The observations for a later start in the same launch: nothing from the earlier logs counts."""
        _close(self.start_slots)
        kept = ("attempt", "launch", "known_as", "submitted_s", "partition", "seen_s", "node_facts", "node_stamp", "blind",
                "silent", "stopwatches", "intervals", "launch_slots")  # fmt: skip
        return LaunchObservations(start=start, **{name: getattr(self, name) for name in kept})


def _close(*slots: Slots) -> None:
    """Close what the features in these slots hold open."""
    for made in (made for one in slots for made in one.values()):
        if hasattr(made, "close"):
            made.close()


class JournalChanged(Exception):
    """Another process has written to the journal since we read it: take a new snapshot first."""


class RunContext:
    """What every feature of the loop receives. Raises JournalDamaged/JournalTooNew at creation."""

    def __init__(self, run_dir: str, services: Services) -> None:
        self.run_dir = run_dir
        self.services = services
        self.observations = LaunchObservations()
        self.snapshot = ClusterSnapshot(0.0, 0.0, None, None)  # of the present step
        self._submission: Mapping[str, Any] = {}
        self._journal: journal.Journal | None = None
        self._stays_open = False  # the journal stays open and uses one of the descriptors
        self._sizes: dict[str, int] = {}
        self._lengths: dict[str, int] = {}
        self.run: Run = Run(os.path.basename(run_dir))
        self._reload()

    def _reload(self) -> None:
        self._sizes = journal.sizes(self.run_dir)
        run, self._lengths = self.services.read_run(self.run_dir)
        self.run = replace(run, settings=self.services.shared_settings(run.settings))

    # ------------------------------------------------------------------ the run

    @property
    def attempt(self) -> Attempt:
        """The present attempt."""
        attempt = self.run.attempt
        assert attempt is not None
        return attempt

    @property
    def settings(self) -> Mapping[str, Any]:
        """The validated settings of the run."""
        return self.run.settings

    @property
    def submission(self) -> Mapping[str, Any]:
        """The submission context, which never changes: read once. {} while it cannot be read."""
        if not self._submission:
            with contextlib.suppress(submission_context.ContextError):
                self._submission = submission_context.load(self.run_dir)
        return self._submission

    @property
    def cwd(self) -> str:
        """The working folder of the submission; "" while it cannot be read."""
        return str(self.submission.get("cwd", ""))

    @property
    def just_submitted(self) -> bool:
        """Whether the job was submitted a moment ago: it may start at any time, so the loop polls faster."""
        attempt = self.run.attempt
        if self.run.state is not State.QUEUED or attempt is None or attempt.submitted_at_s is None:
            return False
        return 0 <= self.services.clock.now_s() - attempt.submitted_at_s < JUST_SUBMITTED_S

    @property
    def watch_only(self) -> bool:
        """Whether ftrun may only observe this run (`observe`, or `retries` 0) and no user has asked for
        more.
        """
        only = bool(self.settings.get("observe")) or int(number_of(self.settings, "retries")) == 0
        return only and not self.run.wish

    # ------------------------------------------------------------------ the journal

    @property
    def writes(self) -> bool:
        """Whether this process has opened its own journal file.

        Later records of other processes do not count.
        """
        return self._journal is not None

    @property
    def read_lengths(self) -> Mapping[str, int]:
        """How many bytes of each journal file count, as of the last read."""
        return self._lengths

    @property
    def folded_lengths(self) -> dict[str, int]:
        """How many bytes of each journal file are folded in `run`, our own included."""
        own = self._journal
        return self._lengths if own is None else {**self._lengths, os.path.basename(own.path): own.size_bytes}

    def catch_up(self) -> None:
        """Fold the journal again if another process has written to it."""
        if self._journal is None and journal.sizes(self.run_dir) != self._sizes:
            self._reload()

    def shut_out_rival(self) -> None:
        """Open our journal file now if an earlier leader may only be paused: its later records then do not
        count. Raises LeaseLost, Moved.
        """
        rival = self._journal is None and self.services.lead.rival
        if rival and rival >= journal.newest_epoch(self._sizes):
            self._own_journal()

    def record(self, kind: str, /, **data: Any) -> None:
        """Journal one record and fold it. The record is durable when this returns."""
        attempt = self.run.attempt
        numbers: dict[str, Any] = {"attempt": data.pop("attempt", attempt.number if attempt else 0)}
        numbers["job"] = data.pop("job_id", attempt.job if attempt else "")
        numbers["launch"] = data.pop("launch", attempt.launch.number if attempt else 0)
        numbers["start"] = data.pop("start", attempt.launch.start.number if attempt else 1)
        next_state(
            self.run.state, kind
        )  # raises on an illegal transition: it is our bug and is never written
        self._own_journal()
        assert self._journal is not None
        record = self._journal.append(kind, **numbers, **data)
        if not self._stays_open:
            self._journal.close()
        self.run = apply(self.run, record)
        self.services.crash(f"record:after:{kind}")
        self.services.noted(self.run.id, record)

    def _own_journal(self) -> None:
        if self._journal is not None:
            if self._journal.epoch != self.services.lead.epoch:
                raise LeaseLost("this journal file belongs to an earlier epoch")
            self.services.prove(within_s=PROOF_LASTS_S)
            return
        self.services.prove()
        if journal.sizes(self.run_dir) != self._sizes:
            raise JournalChanged(self.run_dir)
        self._journal = journal.Journal.open_epoch(
            self.run_dir,
            epoch=self.services.lead.epoch,
            writer=self.services.lead.writer,
            believed=self._lengths,
            now=self.services.clock.now_s,
        )
        self._stays_open = self.services.descriptors.take()

    def close(self) -> None:
        """Close the open files."""
        self.observations.close()
        if self._journal is not None:
            self._journal.close()
        if self._stays_open:
            self._stays_open = False
            self.services.descriptors.give()

    # ------------------------------------------------------------------ the present launch

    def act(self, name: str, deed: Callable[[], T]) -> T:
        """Do one effect that the journal has announced. Raises LeaseLost, Stale, or what `deed` raises."""
        self.fresh()
        self.services.prove()
        self.services.crash(f"{name}:before")
        result = deed()
        self.services.crash(f"{name}:after")
        return result

    def fresh(self) -> None:
        """Refuse a stale snapshot: a supervisor that was paused must look again before it decides or acts (P8).
        Raises Stale.
        """
        if self.services.clock.mono_s() - self.snapshot.mono_s > STALE_AFTER_S:
            raise Stale(f"seen at {self.snapshot.mono_s:.0f} s")

    def row(self, snapshot: ClusterSnapshot | None = None) -> JobRow | None:
        """The row of this attempt's job in the present snapshot, or this one, if it is really ours. Tasks or
        components are combined into one.
        """
        return job_rows.combine_rows(self.rows(snapshot))

    def rows(self, snapshot: ClusterSnapshot | None = None) -> tuple[JobRow, ...]:
        """All rows of this attempt's submission. A row with another token means that Slurm has reused our id."""
        snapshot = snapshot or self.snapshot
        attempt, seen = self.attempt, self.observations
        if seen.own is None or seen.own[0] is not snapshot.families or seen.own[1] is not attempt:
            family = snapshot.families.get(attempt.job, ())
            seen.learn(family, attempt.token)
            user = self.run.submitter.get("user", "")
            own = job_rows.rows_of_attempt(family, attempt, seen.known_as, seen.submitted_s, user=user)
            seen.own = snapshot.families, attempt, own
        return seen.own[2]

    def started_again(self, row: JobRow) -> bool:
        """Whether Slurm shows a later launch than the one that we know."""
        if row.restarts is not None:
            return row.restarts > self.attempt.launch.number
        then = self.attempt.launch.started_at_s
        return then is not None and row.start_time_s is not None and row.start_time_s > then + 1

    def begin_launch(self, launch: int) -> None:
        """Begin a new launch or attempt: forget the observations of the last one."""
        self.observations = self.observations.at_launch(self.attempt.number, launch)

    def begin_start(self) -> None:
        """Begin a later start of the script in the same launch."""
        self.observations = self.observations.at_start(self.attempt.launch.start.number)
