"""What all runs of one supervisor share: cluster, clock, lease, and the one way to carry out an effect. (I/O)

An effect is intent, act, fact: the intent is journalled and synced, the lease is proven, the act is done once, the
fact is journalled. `Services.act` stands between: it refuses to act on a view of the snapshot that is older than
`STALE_AFTER_S`, and it is the place where tests cut the supervisor down (FTRUN_CRASH_AT=<effect>:before|after[:n] or
record:after[:kind][:n]).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any, TypeVar

from ftrun.slurm.client.cluster import Cluster, ClusterFacts, SubmitRequest, Submitted
from ftrun.slurm.commands.steps import Steps
from ftrun.slurm.records import dataclass
from ftrun.supervisor.context.accounting_cache import AccountingCache
from ftrun.supervisor.context.cluster_snapshot import EVERYBODY, STALE_AFTER_S, ClusterSnapshot, Lead, Stale
from ftrun.supervisor.context.node_ledger_writer import NodeLedgerWriter
from ftrun.supervisor.model.timers import Slots
from ftrun.supervisor.signatures import catalog as signatures_catalog
from ftrun.supervisor.signatures.catalog import Catalog
from ftrun.supervisor.store.crash_points import crash_plan
from ftrun.supervisor.store.lease import Clock
from ftrun.supervisor.telemetry.tail import Descriptors

__all__ = ["Services"]

JOURNALS_SHARE = 4  # of the open files that this process may have; logs have half of them
T = TypeVar("T")


@dataclass
class Services:
    """Shared by all runs of one supervisor."""

    home: str
    cluster: Cluster
    clock: Clock
    lead: Lead
    crash: Callable[[str], None] = field(
        default_factory=lambda: crash_plan(os.environ.get("FTRUN_CRASH_AT", ""))
    )
    log: Any = None  # a structlog logger, or None
    # `by` what Slurm is asked, and `why` not by pyslurm; {} = by commands alone.
    asks: Mapping[str, str] = field(default_factory=dict)
    steps: Steps | None = None  # steps of our own in jobs; None = there are none to be had
    # What takes long is done there, beside the loop.
    in_background: Callable[[Callable[[], None]], None] = field(default_factory=lambda: _in_background)
    uncalled: set[str] = field(default_factory=set)  # tokens whose sbatch is announced here and not called
    # Journals that stay open; the others are opened for each record.
    descriptors: Descriptors = field(default_factory=lambda: Descriptors(share=JOURNALS_SHARE))
    _unseen: dict[str, float] = field(
        default_factory=dict
    )  # who cannot see Slurm -> since when (Unix seconds)
    _proven_s: float = float("-inf")
    ledger: NodeLedgerWriter = field(init=False)
    accounting: AccountingCache = field(init=False)  # what accounting tells of jobs that Slurm has forgotten
    _facts: ClusterFacts | None = None
    _domains: Mapping[str, tuple[str, ...]] | None = None
    _catalog: Catalog | None = None
    _slots: Slots = field(default_factory=Slots)

    def __post_init__(self) -> None:
        self.ledger = NodeLedgerWriter(self.home, self.clock.now_s, self.tell)
        self.accounting = AccountingCache(self.clock.mono_s, self.tell)

    def shared(self, kind: type[T]) -> T:
        """The one object of this kind for all runs, which the feature owns that declares the kind."""
        return self._slots.of(kind)

    def facts(self) -> ClusterFacts:
        """The cluster's settings, asked for once. Raises SlurmError."""
        if self._facts is None:
            self._facts = self.cluster.facts()
        return self._facts

    def domains(self) -> Mapping[str, tuple[str, ...]]:
        """Leaf switch or block -> its nodes, asked for once. Raises SlurmError."""
        if self._domains is None:
            self._domains = self.cluster.domains()
        return self._domains

    def catalog(self) -> Catalog:
        """The fault signatures, loaded at the first use. Raises CatalogError."""
        if self._catalog is None:
            extra = [folder for folder in os.environ.get("FTRUN_CATALOG", "").split(":") if folder]
            self._catalog = signatures_catalog.load(extra)
        return self._catalog

    def act(self, name: str, snapshot: ClusterSnapshot, deed: Callable[[], T]) -> T:
        """Do one effect that the journal has announced. Raises LeaseLost, Stale, or what the deed raises."""
        self.fresh(snapshot)
        self.prove()
        self.crash(f"{name}:before")
        result = deed()
        self.crash(f"{name}:after")
        return result

    def submit(self, request: SubmitRequest) -> Submitted:
        """The call of sbatch, which is known to have been made from here on. Raises SlurmError."""
        self.uncalled.discard(request.token)
        return self.cluster.submit(request)

    def fresh(self, snapshot: ClusterSnapshot) -> None:
        """Who stood still looks again before anything more is decided or done (P8). Raises Stale."""
        if self.clock.mono_s() - snapshot.mono_s > STALE_AFTER_S:
            raise Stale(f"seen at {snapshot.mono_s:.0f} s")

    def prove(self, *, within_s: float = 0.0) -> None:
        """Before each effect: that we still lead; for a record a proof of the last moments suffices. Raises LeaseLost."""
        if within_s and self.clock.mono_s() - self._proven_s < within_s:
            return
        self.lead.confirm()
        self._proven_s = self.clock.mono_s()

    @property
    def blind_since_s(self) -> float | None:
        """Since when Slurm has not answered at all (Unix seconds); None while it does."""
        return self._unseen.get(EVERYBODY)

    def unseen(self, why: str, *, who: str = EVERYBODY, run: str = "") -> None:
        """Slurm did not answer `who` ("" = everybody): told once until `seen`, and not for each one when nobody sees it."""
        if who not in self._unseen and EVERYBODY not in self._unseen:
            self._unseen[who] = self.clock.now_s()
            self.tell("slurm.unseen", **({"run": run} if run else {}), why=why)

    def seen(self, *, who: str = EVERYBODY, run: str = "") -> None:
        """Slurm answered `who`: told once after an outage."""
        since_s = self._unseen.pop(who, None)
        if since_s is not None:
            after_s = round(self.clock.now_s() - since_s, 1)
            self.tell("slurm.seen-again", **({"run": run} if run else {}), after_s=after_s)

    def noted(self, run: str, record: Mapping[str, Any]) -> None:
        """A record of this run, with what of it is short, in the supervisor's own log."""
        plain = (str, int, float, bool)
        brief = {
            key: value
            for key, value in record["data"].items()
            if isinstance(value, plain) and key not in ("job", "run")
        }
        self.tell(record["kind"], run=run, attempt=record["attempt"], job=record["job"], **brief)

    def tell(self, event: str, **fields: Any) -> None:
        """A line in the supervisor's own log."""
        if self.log is not None:
            self.log.info(event, **fields)


def _in_background(deed: Callable[[], None]) -> None:
    threading.Thread(target=deed, name="background", daemon=True).start()
