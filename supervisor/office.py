"""What every run's keeper shares: cluster, clock, lease, and the one way to carry out an effect. (I/O)

An effect is intent, act, fact: the intent is journalled and synced, the lease is proven, the act is done once, the
fact is journalled. `Office.act` stands between: it refuses to act on a view of the world that is older than
`STALE_AFTER_S`, and it is the place where tests cut the supervisor down (FTRUN_CRASH_AT=<effect>:before|after[:n] or
record:after[:kind][:n]).
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any, Protocol, TypeVar

from ftrun.slurm.client.cluster import Cluster, ClusterFacts, JobRow, NodeRow, SubmitRequest, Submitted
from ftrun.slurm.commands.steps import Steps
from ftrun.slurm.records import dataclass
from ftrun.supervisor import signatures
from ftrun.supervisor.archive import Archive
from ftrun.supervisor.lease import Clock
from ftrun.supervisor.nodebook import NodeBook
from ftrun.supervisor.signatures import Catalog
from ftrun.supervisor.tail import Descriptors

__all__ = ["STALE_AFTER_S", "Crash", "Errand", "Lead", "Office", "Stale", "World"]

STALE_AFTER_S = 10.0
JOURNALS_SHARE = 4  # of the open files that this process may have; logs have half of them
EVERYBODY = ""
T = TypeVar("T")


class Stale(Exception):
    """The view of the world is too old to act on: look again first."""


class Crash(BaseException):
    """A planned death in a simulation; a real supervisor gets SIGKILL instead. Not an Exception: nothing may catch it."""


class Errand(Protocol):
    """Something that is done beside the loop."""

    @property
    def over(self) -> bool:
        """It is done."""
        ...


class Lead(Protocol):
    """The right to act (see `lease`)."""

    @property
    def epoch(self) -> int:
        """The epoch held; 0 = none."""
        ...

    @property
    def writer(self) -> str:
        """The name of this process."""
        ...

    @property
    def rival(self) -> int:
        """The newest earlier epoch whose holder may still wake up and write; 0 = none."""
        ...

    def confirm(self) -> None:
        """Raises LeaseLost when we may not act now."""
        ...


@dataclass(frozen=True, slots=True)
class World:
    """One look at the cluster. `jobs` and `nodes` are None while Slurm cannot be seen: keep state, do nothing."""

    now_s: float
    mono_s: float
    jobs: Mapping[str, JobRow] | None
    nodes: Mapping[str, NodeRow] | None
    families: Mapping[str, tuple[JobRow, ...]] = field(default_factory=dict)  # submission -> its rows
    tokens: tuple[JobRow, ...] = ()  # now and then: jobs that bear a token and are no attempt's own


@dataclass
class Office:
    """Shared by all keepers of one supervisor."""

    home: str
    cluster: Cluster
    clock: Clock
    lead: Lead
    crash: Callable[[str], None] = field(
        default_factory=lambda: crash_plan(os.environ.get("FTRUN_CRASH_AT", ""))
    )
    log: Any = None  # a structlog logger, or None
    asks: Mapping[str, str] = field(
        default_factory=dict
    )  # `by` what Slurm is asked, and `why` not by pyslurm; {} = by commands alone
    children: set[int] = field(default_factory=set)  # processes: the parents of the users' commands
    promised: dict[str, tuple[float, int]] = field(
        default_factory=dict
    )  # run that is to move -> since when (monotonic), and how many idle nodes it will take
    steps: Steps | None = None  # steps of our own in jobs; None = there are none to be had
    beside: Callable[[Callable[[], None]], None] = field(
        default_factory=lambda: _beside
    )  # what takes long is done there
    errands: list[Errand] = field(default_factory=list)  # what is being done there
    uncalled: set[str] = field(
        default_factory=set
    )  # tokens whose sbatch this process has announced and not called
    descriptors: Descriptors = field(
        default_factory=lambda: Descriptors(share=JOURNALS_SHARE)
    )  # journals that stay open; the others are opened for each record
    _unseen: dict[str, float] = field(
        default_factory=dict
    )  # who cannot see Slurm -> since when (Unix seconds)
    _proven_s: float = float("-inf")
    nodebook: NodeBook = field(init=False)
    archive: Archive = field(init=False)  # what accounting tells of jobs that Slurm has forgotten
    _facts: ClusterFacts | None = None
    _domains: Mapping[str, tuple[str, ...]] | None = None
    _catalog: Catalog | None = None

    def __post_init__(self) -> None:
        self.nodebook = NodeBook(self.home, self.clock.now_s, self.tell)
        self.archive = Archive(self.clock.mono_s, self.tell)

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
            self._catalog = signatures.load(extra)
        return self._catalog

    def act(self, name: str, world: World, deed: Callable[[], T]) -> T:
        """Do one effect that the journal has announced. Raises LeaseLost, Stale, or what the deed raises."""
        self.fresh(world)
        self.prove()
        self.crash(f"{name}:before")
        result = deed()
        self.crash(f"{name}:after")
        return result

    def submit(self, request: SubmitRequest) -> Submitted:
        """The call of sbatch, which is known to have been made from here on. Raises SlurmError."""
        self.uncalled.discard(request.token)
        return self.cluster.submit(request)

    def fresh(self, world: World) -> None:
        """Who stood still looks again before anything more is decided or done (P8). Raises Stale."""
        if self.clock.mono_s() - world.mono_s > STALE_AFTER_S:
            raise Stale(f"seen at {world.mono_s:.0f} s")

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


def _beside(deed: Callable[[], None]) -> None:
    threading.Thread(target=deed, name="beside", daemon=True).start()


def crash_plan(text: str) -> Callable[[str], None]:
    """From `submit:after:2` a function that kills this process (SIGKILL) at the second such point; from "" nothing.

    Points are `<effect>:before`, `<effect>:after` and `record:after:<kind>`; a shorter name stands for all that begin so.
    """
    if not text:
        return lambda point: None
    name, _, number = text.rpartition(":")
    wanted = name if number.isdigit() else text
    left = [int(number) if number.isdigit() else 1]

    def maybe(point: str) -> None:
        if point == wanted or point.startswith(wanted + ":"):
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    return maybe
