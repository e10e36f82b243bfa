"""One run as the loop holds it: its journal, folded, and what this process has observed of it. (I/O)

Everything that must survive a crash is in the journal, and only `record` writes it. `observations` holds only
what a new supervisor can find out again (log positions; how long a condition has held, by our own monotonic
clock); losing it only makes ftrun more patient. The features of the loop receive this context with the
present snapshot; it knows none of them.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from ftrun.slurm.client.cluster import JobRow
from ftrun.supervisor.config.settings import number_of
from ftrun.supervisor.context.cluster_snapshot import ClusterSnapshot
from ftrun.supervisor.context.observations import LaunchObservations
from ftrun.supervisor.context.services import Services
from ftrun.supervisor.model import job_rows
from ftrun.supervisor.model.events import apply
from ftrun.supervisor.model.run import Attempt, Run
from ftrun.supervisor.model.states import State, next_state
from ftrun.supervisor.store import journal, submission_context
from ftrun.supervisor.store.lease import LeaseLost

T = TypeVar("T")
JUST_SUBMITTED_S = 20.0
PROOF_LASTS_S = 1.0  # how long one check of the lease is enough for records; each effect checks by itself


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
        self._lengths = journal.believed_lengths(self.run_dir)
        self.run = journal.load_run(self.run_dir)

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
        more."""
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

    def catch_up(self) -> None:
        """Fold the journal again if another process has written to it."""
        if self._journal is None and journal.sizes(self.run_dir) != self._sizes:
            self._reload()

    def shut_out_rival(self) -> None:
        """Open our journal file now if an earlier leader may only be paused: its later records then do not
        count.

        Raises LeaseLost, Moved.
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
        believed = journal.believed_lengths(self.run_dir)
        if believed != self._lengths:
            raise JournalChanged(self.run_dir)
        self._journal = journal.Journal.open_epoch(
            self.run_dir,
            epoch=self.services.lead.epoch,
            writer=self.services.lead.writer,
            believed=believed,
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
        """`Services.act` on the present snapshot."""
        return self.services.act(name, self.snapshot, deed)

    def fresh(self) -> None:
        """Refuse a stale snapshot. Raises Stale."""
        self.services.fresh(self.snapshot)

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
