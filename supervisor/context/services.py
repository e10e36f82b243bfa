"""What all runs of one supervisor share: cluster and its snapshots, clock, lease, catalogue, ledger, its own log. (I/O)"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any, TypeVar

from ftrun.slurm.client.cluster import Cluster, ClusterFacts, JobRow, NodeRow, SubmitRequest, Submitted
from ftrun.slurm.commands.steps import Steps
from ftrun.slurm.records import dataclass
from ftrun.supervisor.context.accounting_cache import AccountingCache
from ftrun.supervisor.model.run import Run
from ftrun.supervisor.model.timers import Slots
from ftrun.supervisor.nodes.ledger import NodeLedger
from ftrun.supervisor.nodes.site_reports import SiteReporter
from ftrun.supervisor.signatures import catalog as signatures_catalog
from ftrun.supervisor.signatures.catalog import Catalog
from ftrun.supervisor.store import journal
from ftrun.supervisor.store.crash_points import crash_plan
from ftrun.supervisor.store.lease import Clock, Lease
from ftrun.supervisor.telemetry.tail import Descriptors

JOURNALS_SHARE = 4  # the share of open files for journals is one in so many; logs have half
SETTINGS_KEPT = 8
T = TypeVar("T")
STALE_AFTER_S = 10.0
ALL_RUNS = ""


@dataclass
class Services:
    """Shared by all runs of one supervisor."""

    home: str
    cluster: Cluster
    clock: Clock
    lead: Lease
    crash: Callable[[str], None] = field(
        default_factory=lambda: crash_plan(os.environ.get("FTRUN_CRASH_AT", ""))
    )
    log: Any = None  # a structlog logger, or None
    # Which Slurm client is in use: `by`, and `why` it is not pyslurm; {} = commands only.
    asks: Mapping[str, str] = field(default_factory=dict)
    steps: Steps | None = None  # to run our own steps in jobs; None = not possible here
    # Runs slow work outside of the loop.
    in_background: Callable[[Callable[[], None]], None] = field(default_factory=lambda: _in_background)
    # Reads a run and the lengths of its journal; at the start of a supervisor by the cache of the one before it.
    read_run: Callable[[str], tuple[Run, dict[str, int]]] = journal.load_whole
    uncalled: set[str] = field(
        default_factory=set
    )  # tokens whose sbatch this process announced and did not call yet
    # Counts journals that stay open; the others are opened for each record.
    descriptors: Descriptors = field(default_factory=lambda: Descriptors(share=JOURNALS_SHARE))
    _unseen: dict[str, float] = field(
        default_factory=dict
    )  # who gets no answer from Slurm -> since when (Unix seconds)
    _proven_s: float = float("-inf")
    ledger: NodeLedger = field(init=False)
    accounting: AccountingCache = field(
        init=False
    )  # accounting's answers about jobs that Slurm has forgotten
    _facts: ClusterFacts | None = None
    _catalog: Catalog | None = None
    _slots: Slots = field(default_factory=Slots)
    _settings: list[Mapping[str, Any]] = field(default_factory=list)  # of the last runs, each once

    def __post_init__(self) -> None:
        reporter = SiteReporter(self.facts, self.clock.now_s, self.tell)
        self.ledger = NodeLedger(
            self.home,
            self.clock.now_s,
            self.tell,
            writer=self.lead.writer,
            domains=lambda: self.cluster.topology().leaves,
            report=reporter.report,
        )
        self.accounting = AccountingCache(self.clock.mono_s, self.tell)

    def shared(self, kind: type[T]) -> T:
        """The one object of this class for all runs; the feature that declares the class owns it."""
        return self._slots.of(kind)

    def shared_settings(self, settings: Mapping[str, Any]) -> Mapping[str, Any]:
        """The same settings as one object for all runs that have them: they are most of what a run holds."""
        for known in self._settings:
            if known == settings:
                return known
        self._settings = [settings, *self._settings[: SETTINGS_KEPT - 1]]
        return settings

    def facts(self) -> ClusterFacts:
        """The settings of the cluster; asked for once. Raises SlurmError."""
        if self._facts is None:
            self._facts = self.cluster.facts()
        return self._facts

    def catalog(self) -> Catalog:
        """The fault signatures, loaded at first use. Raises CatalogError."""
        if self._catalog is None:
            extra = [folder for folder in os.environ.get("FTRUN_CATALOG", "").split(":") if folder]
            self._catalog = signatures_catalog.load(extra)
        return self._catalog

    def submit(self, request: SubmitRequest) -> Submitted:
        """Call sbatch; from here on the call counts as made. Raises SlurmError."""
        self.uncalled.discard(request.token)
        return self.cluster.submit(request)

    def prove(self, *, within_s: float = 0.0) -> None:
        """Confirm that we still lead, before each effect. Raises LeaseLost.

        For a record a confirmation within the last `within_s` seconds is enough.
        """
        if within_s and self.clock.mono_s() - self._proven_s < within_s:
            return
        self.lead.confirm()
        self._proven_s = self.clock.mono_s()

    @property
    def blind_since_s(self) -> float | None:
        """Since when Slurm has not answered at all (Unix seconds); None while it answers."""
        return self._unseen.get(ALL_RUNS)

    def unseen(self, why: str, *, who: str = ALL_RUNS, run: str = "") -> None:
        """Log that Slurm did not answer `who` ("" = all runs).

        Once until `seen`, and only once if it answers no run.
        """
        if who not in self._unseen and ALL_RUNS not in self._unseen:
            self._unseen[who] = self.clock.now_s()
            self.tell("slurm.unseen", **({"run": run} if run else {}), why=why)

    def seen(self, *, who: str = ALL_RUNS, run: str = "") -> None:
        """Log, once after an outage, that Slurm answered `who`."""
        since_s = self._unseen.pop(who, None)
        if since_s is not None:
            after_s = round(self.clock.now_s() - since_s, 1)
            self.tell("slurm.seen-again", **({"run": run} if run else {}), after_s=after_s)

    def noted(self, run: str, record: Mapping[str, Any]) -> None:
        """Write a record of this run, with its short fields, to the supervisor's own log."""
        plain = (str, int, float, bool)
        brief = {
            key: value
            for key, value in record["data"].items()
            if isinstance(value, plain) and key not in ("job", "run")
        }
        self.tell(record["kind"], run=run, attempt=record["attempt"], job=record["job"], **brief)

    def tell(self, event: str, **fields: Any) -> None:
        """Write one event to the supervisor's own log."""
        if self.log is not None:
            self.log.info(event, **fields)


def _in_background(deed: Callable[[], None]) -> None:
    threading.Thread(target=deed, name="background", daemon=True).start()


class Stale(Exception):
    """The snapshot is too old to act on: take a new one first."""


@dataclass(frozen=True, slots=True)
class ClusterSnapshot:
    """One snapshot of the cluster.

    `jobs` and `nodes` are None while Slurm cannot be seen: then keep state and do nothing.
    """

    now_s: float
    mono_s: float
    jobs: Mapping[str, JobRow] | None
    nodes: Mapping[str, NodeRow] | None
    families: Mapping[str, tuple[JobRow, ...]] = field(
        default_factory=dict
    )  # job id of a submission -> its rows
    tokens: tuple[JobRow, ...] = ()  # not in each snapshot: jobs with a token that no present attempt owns
