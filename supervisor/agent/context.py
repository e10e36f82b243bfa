"""What all parts of one agent share: identity of the launch, Slurm clients, heartbeat, journal. (I/O)

The agent has two threads. The worker does everything; the watchdog touches only the node itself, so batch.sh
gets an answer even if a shared file system blocks the worker forever. Every wait calls `alive`. It feeds the
watchdog and the supervisor's heartbeat, and it raises GivenUp once the watchdog has answered instead, so that
nothing is left half done afterwards.

The agent journals to a file of its own in the attempt's folder, and the supervisor copies those records into
the run's journal some time later. `run()` therefore folds the run's journal without these copies and then the
agent's own records, so a decision counts whether it was copied or not. The same holds for records of the
agents of earlier launches. Each intent is on disk before its effect. A journal that cannot be written ends
recovery inside the allocation, never the job.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any, TypeVar

from ftrun.slurm.client.cluster import Cluster
from ftrun.slurm.commands.spanning import Span
from ftrun.slurm.commands.steps import InsideSteps
from ftrun.slurm.records import dataclass
from ftrun.supervisor.agent.batch_channel import BatchChannel, write_counter
from ftrun.supervisor.diagnosis.node_findings import NodeFacts, facts_from_reports
from ftrun.supervisor.model.events import apply, fold
from ftrun.supervisor.model.run import Run
from ftrun.supervisor.model.types import Diagnosis
from ftrun.supervisor.signatures import catalog as signatures_catalog
from ftrun.supervisor.signatures.catalog import Catalog
from ftrun.supervisor.store import flag_files, node_reports
from ftrun.supervisor.store import journal as store_journal
from ftrun.supervisor.store import run_dir as store_run_dir
from ftrun.supervisor.store.lease import Clock, SystemClock
from ftrun.supervisor.store.node_tools import RunOnThisNode, run_on_this_node

EARLIER_MAX_BYTES = 1 << 24

Record = dict[str, Any]
T = TypeVar("T")
StartReader = Callable[[str, Sequence[str]], subprocess.Popen[bytes] | None]
BEAT_EVERY_S = 5.0


class JournalClosed(Exception):
    """Nothing more may be journalled: the watchdog has given up, or another agent writes."""


class AgentJournal:
    """The journal of one agent. `may_write` raises after the watchdog has given up; `crash` is a crash point
    for tests.
    """

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
        self._beat_path = os.path.join(folder, f"pulse.{launch}")
        self._beats = 0
        self._earlier: dict[int, bytes] = {}  # launch -> records of its agent, which has ended

    def record(self, kind: str, /, **data: Any) -> Record:
        """Write one record; it is durable when this returns. Raises OSError, JournalClosed."""
        self._may_write()
        self._check_path()
        numbers: dict[str, Any] = {
            "attempt": self.attempt,
            "job": self.job,
            "launch": self.launch,
            "start": self.start,
        }
        record = store_journal.new_record(kind, numbers, data, seq=len(self.records), now_s=self._now())
        store_journal.append_record(self._fd, record)
        self.records.append(record)
        self._crash(f"record:after:{kind}")
        return record

    def _check_path(self) -> None:
        """Raise JournalClosed if the attempt's folder was moved or removed: the descriptor still works, but
        nobody would ever read the records. Raises OSError.
        """
        if not os.path.samestat(os.fstat(self._fd), os.stat(self.path)):
            raise JournalClosed(f"{self.path} is another file now")

    def act(self, name: str, deed: Callable[[], T]) -> T:
        """Do one effect that was journalled before. Raises what the effect raises."""
        self._may_write()
        self._crash(f"{name}:before")
        result = deed()
        self._crash(f"{name}:after")
        return result

    def run(self) -> Run:
        """The run now. Raises OSError, IllegalEvent, BadRecord, JournalDamaged, JournalTooNew."""
        mine = (self.attempt, self.launch)
        known = [
            record
            for record in store_journal.read_run(self.run_dir)
            if "agent_seq" not in record["data"] or (record["attempt"], record["launch"]) != mine
        ]
        run = fold(os.path.basename(self.run_dir), known)
        if run.attempt is None or run.attempt.number != self.attempt:
            raise JournalClosed(f"attempt {self.attempt} is not the run's last")
        run = self._with_earlier_records(run, run.attempt.copied)
        if run.attempt is not None and run.attempt.launch.number != self.launch:
            run = run.with_attempt(launch=run.attempt.launch.next(self.launch))
        if run.attempt is not None and not run.attempt.job:
            run = run.with_attempt(job=self.job)
        for record in self.records:
            run = apply(run, record)
        return flag_files.with_due_stop(run, self.run_dir, self._now())

    def _with_earlier_records(self, run: Run, copied: Mapping[int, int]) -> Run:
        """The run with records of earlier launches' agents that nobody has copied. Unusable records are
        skipped, as the copy skips them.
        """
        for launch in range(self.launch):
            if launch not in self._earlier:
                path = os.path.join(os.path.dirname(self.path), f"{launch}.jsonl")
                self._earlier[launch] = store_run_dir.read_untrusted(path, EARLIER_MAX_BYTES) or b""
            for line in self._earlier[launch].splitlines():
                with contextlib.suppress(LookupError, TypeError, AttributeError, ValueError, AssertionError):
                    record = store_journal.parse_record(line)
                    if record["seq"] >= copied.get(launch, 0):
                        run = apply(run, record)
        return run

    def beat(self) -> None:
        """Tell the supervisor that the agent lives. Raises OSError."""
        self._beats += 1
        write_counter(self._beat_path, self._beats)


class GivenUp(BaseException):
    """The watchdog has answered instead of the worker: no more effects. Not an Exception, so that no handler
    catches it.
    """


@dataclass(frozen=True, slots=True)
class LaunchIdentity:
    """The launch of a run, and its node. `place` is the attempt's folder, `nodes` are all nodes of the job
    itself.
    """

    run_dir: str
    place: str
    attempt: int
    launch: int
    job: str
    cluster: str
    node: str
    nodes: tuple[str, ...]

    def node_facts(self, nodes: Sequence[str], *, start: int) -> NodeFacts:
        """What these nodes report of themselves. Checks after a start before `start` do not count."""
        found = node_reports.read_reports(self.run_dir, self.attempt, self.launch, nodes, start=start)
        return facts_from_reports(nodes, found)

    @property
    def home(self) -> str:
        """$FTRUN_HOME: the run's folder is HOME/runs/ID."""
        return os.path.dirname(os.path.dirname(self.run_dir.rstrip("/")))


@dataclass
class AgentContext:
    """The context of one agent.

    `spans` are the companions that hold nodes for this job, `coming` those whose nodes no start may use yet,
    `expected` is how many nodes were requested in that way. `left` are nodes that the job has no more: Slurm
    took them, or the agent gave them back. `drained` are nodes that the job keeps excluded and that are
    drained. `beside` is called now and then during every wait. `alive_s` is read by the watchdog, which sets
    `given_up`.
    """

    where: LaunchIdentity
    channel: BatchChannel
    journal: AgentJournal
    cluster: Cluster
    steps: InsideSteps
    clock: Clock = field(default_factory=SystemClock)
    signal: Callable[[int, str], None] = field(default_factory=lambda: _signal_group)  # (process group, name)
    own_node: RunOnThisNode = run_on_this_node
    reader: StartReader | None = None  # starts the checksum reader; None = there is none
    alive_s: float = field(init=False)
    given_up: bool = False
    spans: tuple[Span, ...] = ()
    coming: tuple[Span, ...] = ()
    expected: int = 0
    left: frozenset[str] = frozenset()
    drained: frozenset[str] = frozenset()
    beside: Callable[[], None] | None = None
    _is_beside: bool = False
    _beat_s: float = float("-inf")
    _catalog: Catalog | None = None

    def __post_init__(self) -> None:
        self.alive_s = self.clock.mono_s()

    @property
    def nodes(self) -> tuple[str, ...]:
        """All nodes of the job in Slurm's order, then those of its companions. A node that left the job may
        be back in a companion.
        """
        lent = tuple(node for span in self.spans for node in span.nodes)
        away = self.left.union(lent)
        return (*(node for node in self.where.nodes if node not in away), *lent)

    def alive(self) -> None:
        """Signal progress. Raises GivenUp, OSError (the attempt's folder)."""
        if self.given_up:
            raise GivenUp
        self.alive_s = self.clock.mono_s()
        if self.alive_s - self._beat_s >= BEAT_EVERY_S:
            self._beat_s = self.alive_s
            with contextlib.suppress(
                OSError
            ):  # then the supervisor takes us for dead, and waits for the job's end
                self.journal.beat()
        if self.beside is not None and not self._is_beside:
            self._is_beside = True
            try:
                self.beside()
            finally:
                self._is_beside = False

    def rest(self, seconds: float) -> None:
        """Sleep and keep the heartbeat going. Raises as `alive`."""
        until_s = self.clock.mono_s() + seconds
        while True:
            self.alive()
            left_s = until_s - self.clock.mono_s()
            if left_s <= 0:
                return
            self.clock.sleep(min(0.2, left_s))

    def answer(self, number: int, **words: Any) -> None:
        """Tell batch.sh what comes after a start; the first answer counts. Raises OSError."""
        if not self.channel.answer(number, **words):
            log_line(f"start {number}: answered already")

    def catalog(self) -> Catalog:
        """The fault signatures, loaded at the first use. Raises CatalogError."""
        if self._catalog is None:
            extra = [folder for folder in os.environ.get("FTRUN_CATALOG", "").split(":") if folder]
            self._catalog = signatures_catalog.load(extra)
        return self._catalog


def _signal_group(pid: int, name: str) -> None:
    if pid > 1:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, getattr(signal, f"SIG{name}"))


def log_line(text: str) -> None:
    """Write a line to the agent's own log."""
    now = time.strftime("%Y-%m-%dT%H:%M:%S%z")
    print(f"{now} {text}", file=sys.stderr, flush=True)


@dataclass(frozen=True, slots=True)
class Suspicion:
    """Why to end a live start, and how long it has made no progress (seconds)."""

    diagnosis: Diagnosis
    waited_s: float
    rank_ended: bool = False  # srun had reported that one of its tasks ended by itself
