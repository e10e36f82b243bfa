"""One round of the site's service: requests, reports, what follows of them, what is published. (I/O)

Reports of users' supervisors wait in the spool beside the requests. Each is opened as these are, Slurm is asked
whether that user's job was on that node then, and what it confirms enters the site's ledger. What the ledger
makes of them (`standing`) is carried out here: a node that two users blame is checked at once, drained if it is
sick, and placed last for everybody if the checks pass it all the same, or the drain is not to be.

A round may be cut anywhere. A report's file is removed after the ledger has it; a drain is announced in the
journal of `drain_service`; a check that was not kept is made again.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import field

from ftrun.slurm.client.cluster import NodeRow, NodeUsage
from ftrun.slurm.client.errors import RefusedForGood
from ftrun.slurm.records import dataclass, replace
from ftrun.supervisor.model.types import CLASS_RULES, FaultClass
from ftrun.supervisor.nodes import drain_rules, recheck_rules
from ftrun.supervisor.nodes.drain_rules import DrainRequest
from ftrun.supervisor.nodes.recheck_rules import PREFIX, CheckNodes, CheckReport, RecheckRules
from ftrun.supervisor.nodes.spool import WaitingRequest
from ftrun.supervisor.site import observed, standing
from ftrun.supervisor.site.database import DatabaseError, SiteDatabase
from ftrun.supervisor.site.drain_service import Answer, DrainService, denied_text
from ftrun.supervisor.site.machine_history import MachineHistory, follow_machines, sightings
from ftrun.supervisor.site.publication import Publication
from ftrun.supervisor.site.standing import Event, Orders, Report, SiteRules, Standing

KEEP_S = 180 * 86_400.0
REPORTS_MAX = 200  # taken in one round
CHECKS_MAX = 4  # nodes checked in one round
HOUR_S, A_DAY_S = 3600.0, 86_400.0
NODES_EVERY_S = 60.0  # how often Slurm is asked for all nodes while some are out or blamed ...
IDLE_EVERY_S = 300.0  # ... and otherwise
OBSERVED_EVERY_S = 60.0  # how often it is seen whether an observed drain is to be looked at
BY_THE_SITE, BY_A_SWEEP = "site", "sweep"  # stand for the run in the reason of a drain


@dataclass(frozen=True, slots=True)
class ReportLimits:
    """How much of one user is believed: reports in an hour, and different nodes in a day."""

    per_hour: int = 30
    nodes_per_day: int = 20


@dataclass
class SiteService:
    """`open_ledger` opens the ledger; while it cannot, requests are answered all the same, reports wait in the spool
    and `ledger_fault` says why. `look` runs the checks of the recheck tier; `publication` may be None: nothing is published. `ticks` measures
    intervals, whatever happens to the clock. `recheck` are the rules by which a drain that was only observed is followed.
    """

    drains: DrainService
    open_ledger: Callable[[], SiteDatabase]
    look: CheckNodes
    publication: Publication | None = None
    rules: SiteRules = field(default_factory=SiteRules)
    limits: ReportLimits = field(default_factory=ReportLimits)
    recheck: RecheckRules = field(default_factory=RecheckRules)
    ticks: Callable[[], float] = time.monotonic
    nodes: Mapping[str, Standing] = field(default_factory=dict)
    ledger_fault: str = ""
    _ledger: SiteDatabase | None = None
    _due: bool = True  # the ledger has changed since `nodes` was folded
    _asked_s: float = float("-inf")
    _folded_s: float = float("-inf")
    _observed_s: float = float("-inf")
    _orders: Orders = Orders()
    _out: set[str] | None = None
    _rows: Mapping[str, NodeRow] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.look, self.drains.look = self._noting(self.look), self._noting(self.drains.look)

    def _noting(self, look: CheckNodes) -> CheckNodes:
        """The same looks, of which the ledger keeps which machines they met."""

        def looked(nodes: Sequence[str]) -> Mapping[str, CheckReport]:
            reports = look(nodes)
            with contextlib.suppress(DatabaseError):
                if keep_sightings(self.database, reports, self.drains.now()):
                    self._due, self._out = True, None
            return reports

        return looked

    def round(self) -> list[Answer]:
        """Do what is due. Raises OSError, SlurmError: what was not done stays where it is."""
        orders = self.drains.orders()
        self._due, self._orders = self._due or orders != self._orders, orders
        waiting, rubbish = self.drains.spool.look()
        answers = self.drains.round([one for one in waiting if not one.is_report], rubbish)
        try:
            answers += self._follow_reports([one for one in waiting if one.is_report])
            self.ledger_fault = ""
        except DatabaseError as error:
            self.ledger_fault = f"{error}; requests are answered, reports wait in the spool"
            self.close()
        return answers

    def close(self) -> None:
        """Close the ledger; the next round opens it again."""
        if self._ledger is not None:
            self._ledger.close()
        self._ledger = None

    @property
    def database(self) -> SiteDatabase:
        """The ledger. Raises DatabaseError."""
        if self._ledger is None:
            self._ledger = self.open_ledger()
        return self._ledger

    def _follow_reports(self, waiting: list[WaitingRequest]) -> list[Answer]:
        answers = self._take_reports(waiting)
        self._watch_nodes()
        self._fold()
        if self._orders.paused is None:
            answers += self._act()
            self._follow_observed()
        self._watch_nodes()  # what was drained just now
        self._fold()
        now_s = self.drains.now()
        self.database.tidy(now_s, KEEP_S)
        if self.publication is not None:
            self.publication.publish(
                self.nodes, self._rows, self.database, self.rules, now_s, tick_s=self.ticks()
            )
        return answers

    # ------------------------------------------------------------------ reports

    def _take_reports(self, waiting: list[WaitingRequest]) -> list[Answer]:
        told, surplus = [], 0
        for one in waiting[:REPORTS_MAX]:
            now_s = self.drains.now()
            if self.database.taken_since(one.uid, now_s - HOUR_S) >= self.limits.per_hour:
                surplus += self.drains.spool.remove(one.name)
                continue
            content = self.drains.spool.read(one)
            if content is not None:
                told.append(self._take(one, content, now_s))
            self.drains.crash("report:kept")
            self.drains.spool.remove(one.name)
        if surplus:
            self.drains.note("removed", reports=surplus)  # above the limit of their users
        return told

    def _take(self, waiting: WaitingRequest, content: bytes, now_s: float) -> Answer:
        """Keep one report, or why it is none."""
        if self.database.knows(waiting.uid, waiting.id):
            return Answer(waiting.id, waiting.uid, "", "refused", "it was told before: it counts once")
        found = self._confirmed(waiting, content, now_s)
        if isinstance(found, Report):
            self.database.add_report(found, now_s)
            self._due = True
            return Answer(waiting.id, waiting.uid, found.node, "reported", found.signature)
        self.database.refuse(waiting.uid, waiting.id, found, now_s)
        return Answer(waiting.id, waiting.uid, "", "refused", found)

    def _confirmed(self, waiting: WaitingRequest, content: bytes, now_s: float) -> Report | str:
        """The report as far as Slurm confirms it, or why it does not count. Raises SlurmError."""
        if waiting.uid in self._orders.denied:
            return denied_text(self._orders.denied[waiting.uid])
        # Opened before is no harm: only this service can open it, and each id counts once.
        asked = self.drains.authentic(waiting, content, used=False)
        if isinstance(asked, str):
            return asked
        if asked.want != "report":
            return "it is no report"
        rule = CLASS_RULES[FaultClass(asked.fault)] if asked.fault in set(FaultClass) else None
        if rule is None or rule.exclude == "never":
            return f"no node is to blame for {asked.fault}"
        if asked.cluster not in {"", self.drains.cluster_name()}:
            return f"it is meant for cluster {asked.cluster}"
        try:
            stays = self.drains.cluster.stays(asked.job)
        except RefusedForGood as error:
            return f"Slurm was asked about job {asked.job}: {error.message}"
        wrong = drain_rules.refused_stay(asked, waiting.uid, stays, now_s, self.drains.limits)
        blamed = self.database.nodes_blamed(waiting.uid, now_s - A_DAY_S)
        if not wrong and len(blamed | {asked.node}) > self.limits.nodes_per_day:
            wrong = f"a user may blame {self.limits.nodes_per_day} nodes in a day"
        return wrong or _report(asked, waiting.uid, stays, now_s)

    # ------------------------------------------------------------------ nodes

    def _watch_nodes(self) -> None:
        """Note which nodes left service and came back, by whomever. Raises SlurmError."""
        now_s = self.drains.now()
        busy = self._due or self._out or any(one.reports for one in self.nodes.values())
        every_s = NODES_EVERY_S if busy else IDLE_EVERY_S
        if self.ticks() - self._asked_s < every_s:
            return
        self._rows = self.drains.cluster.nodes()
        self._asked_s = self.ticks()
        if self._out is None:
            self._out = {one.node for one in self._folded(now_s).values() if one.out}
        out = {name: row for name, row in self._rows.items() if row.drained}
        stamp = f"{now_s:.0f}"
        events = [
            Event(f"out:{name}:{stamp}", name, now_s, "out",
                  {"by": "ftrun" if row.reason.startswith(PREFIX) else "others"})
            for name, row in out.items() if name not in self._out
        ]  # fmt: skip
        events += [Event(f"back:{name}:{stamp}", name, now_s, "back") for name in self._out - set(out)]
        if events:
            self._keep(*events)
        self._out = set(out)

    def _keep(self, *events: Event) -> None:
        self.database.add_events(*events)
        self._due = True
        self.drains.crash(f"event:{events[0].what}")

    def _fold(self) -> None:
        now_s = self.drains.now()
        self._due = self.database.changed_by_others() or self._due
        if self._due or self.ticks() - self._folded_s > HOUR_S:  # reports lose their weight with time
            self.nodes = self._folded(now_s)
            self._folded_s, changed, self._due = self.ticks(), self._due, False
            if changed and self.publication is not None:
                self.publication.due_now()

    def _folded(self, now_s: float) -> dict[str, Standing]:
        leaves, denied = self.drains.cluster.topology().leaves, self._orders.denied
        return read_standings(
            self.database, now_s, leaves, self.rules, denied=denied, names=self._rows or None
        )

    # ------------------------------------------------------------------ what follows

    def _act(self) -> list[Answer]:
        """Check the nodes that two users blame, and do what follows. Raises SlurmError, OSError."""
        answers = self._drain_swept()
        due = standing.due_checks(self.nodes, self.drains.now(), self.rules)[:CHECKS_MAX]
        if not due:
            return answers
        cluster = self.drains.cluster
        rows, partitions = cluster.nodes(), cluster.partitions()
        free = [
            one
            for one in due
            if one.node in rows and not (rows[one.node].drained or rows[one.node].spoken_for)
        ]
        named = {one.node for one in free}
        peers = {n: drain_rules.control_nodes(n, rows, partitions.values(), named) for n in named}
        reports = self.look(sorted(named.union(*peers.values()))) if named else {}
        self._fold()  # the node may be another machine than those that were blamed
        free = [one for one in free if one.node in self.nodes and self.nodes[one.node].corroborated_s]
        for one in free:
            beside = [reports[peer] for peer in peers[one.node] if peer in reports]
            report = reports.get(one.node, CheckReport("unseen"))
            answers.append(self._conclude(one, rows[one.node], report, beside))
        for one in due:
            if one.node not in named:  # out of service already, or gone
                self._decided(one, "held")
        return answers

    def _drain_swept(self) -> list[Answer]:
        """Drain the nodes that a sweep found sick; a class for which no node is drained, or a cap, places it last."""
        due = standing.due_drains(self.nodes, self.drains.now(), self.rules)[:CHECKS_MAX]
        rows = self.drains.cluster.nodes() if due else {}
        swept = {one.id: one for one in self.database.events(self.drains.now() - A_DAY_S)} if due else {}
        answers = []
        for one in due:
            event = swept.get(f"swept:{one.node}")
            if event is None or one.node not in rows or rows[one.node].drained or rows[one.node].spoken_for:
                self._decided(one, "held")
                continue
            if not event.detail["findings"]:  # swept anew since, and well
                continue
            report = CheckReport("answered", event.detail["findings"])
            first = report.findings[0]
            asked = DrainRequest(
                hashlib.sha256(f"swept:{one.node}:{one.sick_s:.3f}".encode()).hexdigest()[:32], "", one.node, "0",
                BY_A_SWEEP, str(first.get("fault")), re.sub(r"[^\w.-]", "-", str(first.get("check")), flags=re.ASCII), one.sick_s,
            )  # fmt: skip
            drainable = drain_rules.confirm_sick(report, rows[one.node], ())[0]
            answer = self.drains.drain_corroborated(asked, report, [], ())
            self._asked_s = float("-inf")
            if answer.verdict in ("refused", "noted"):
                answer = replace(
                    answer, verdict="quarantined", why=f"{answer.why}; placed last for everybody"
                )
                self._decided(one, "held" if drainable else "sick", *self._quarantine(one))
            else:
                self._decided(one, "sick")
            answers.append(answer)
        return answers

    def _conclude(
        self, one: Standing, row: NodeRow, report: CheckReport, peers: Collection[CheckReport]
    ) -> Answer:
        key = f"{one.node}:{one.corroborated_s:.3f}"
        request_id = hashlib.sha256(key.encode()).hexdigest()[:32]
        sick, why = drain_rules.confirm_sick(report, row, peers, drain_rules.WORN)
        if not sick and report.state == "answered" and report.findings:
            self._decided(one, "healthy", *self._quarantine(one))
            told = f"runs of several users blame it ({', '.join(one.classes)}), and {why}: placed last for everybody"
            return Answer(request_id, -1, one.node, "quarantined", told)
        if not sick:
            self._decided(one, "unseen")
            return Answer(request_id, -1, one.node, "refused", why)
        asked = DrainRequest(
            request_id, "", one.node, "0", BY_THE_SITE, one.classes[0], one.signature, one.corroborated_s
        )
        answer = self.drains.drain_corroborated(asked, report, list(peers), drain_rules.WORN)
        self._asked_s = float("-inf")
        result = "held" if answer.verdict == "refused" else "sick"
        if answer.verdict not in ("refused", "noted") or self.drains.observe:
            self._decided(one, result)
            return answer
        self._decided(one, result, *self._quarantine(one))
        return replace(answer, why=f"{answer.why}; placed last for everybody")

    def _follow_observed(self) -> None:
        """Look again at nodes whose drain was only observed, as recheck would. Raises SlurmError, OSError."""
        if not self.drains.observe or self.ticks() - self._observed_s < OBSERVED_EVERY_S:
            return
        self._observed_s = self.ticks()
        drains = observed.observed_drains(self.drains.records(), self.recheck)
        due = {
            one.node: one for one in observed.due_drains(drains, self.drains.now(), self.recheck)[:CHECKS_MAX]
        }
        rows = self.drains.cluster.nodes() if due else {}
        out = [node for node in due if node not in rows or rows[node].drained or rows[node].spoken_for]
        for node in out:
            why = rows[node].reason if node in rows else "Slurm knows no such node"
            self.drains.note(observed.LOOKED, node=node, result=observed.TAKEN_OUT, why=why)
        left = sorted(set(due) - set(out))
        reports = self.look(left) if left else {}
        for node in left:
            report = observed.worn_report(reports.get(node, CheckReport("unseen")), due[node].memory)
            found = recheck_rules.assess_check(due[node].memory, report, self.recheck)
            facts = {"result": found.result, "why": found.why, "wrong": list(found.wrong)}
            self.drains.note(observed.LOOKED, node=node, **facts)

    def _quarantine(self, one: Standing) -> list[Event]:
        """What places a node last that is not placed last yet."""
        now_s = self.drains.now()
        if one.quarantined_until_s > now_s:
            return []
        until_s = standing.quarantine_until_s(one, now_s, self.rules)
        key = f"quarantine:{one.node}:{now_s:.3f}"
        return [Event(key, one.node, now_s, "quarantined", {"until_s": until_s})]

    def _decided(self, one: Standing, result: str, *more: Event) -> None:
        now_s = self.drains.now()
        key = f"checked:{one.node}:{one.corroborated_s:.3f}:{now_s:.0f}"
        self._keep(Event(key, one.node, now_s, "checked", {"result": result}), *more)


def read_standings(
    database: SiteDatabase,
    now_s: float,
    domains: Mapping[str, tuple[str, ...]],
    rules: SiteRules,
    *,
    denied: Collection[int] = (),
    names: Collection[str] | None = None,
) -> dict[str, Standing]:
    """What the ledger says of each node now; reports of `denied` users count for nothing. `names`: the nodes that Slurm
    knows now. Raises DatabaseError.
    """
    reports = [one for one in database.reports(now_s - standing.MONTH_S) if one.uid not in denied]
    return standing.fold(
        *follow_machines(reports, database.events(now_s - KEEP_S), names), now_s, rules, domains
    )


def keep_sightings(database: SiteDatabase, reports: Mapping[str, CheckReport], now_s: float) -> bool:
    """Keep which machines these looks met; whether a name has gone on to another one. Raises DatabaseError."""
    news, another = sightings(MachineHistory(database.events(now_s)), reports, now_s)
    if news:
        database.add_events(*news)
    return another


def _report(asked: DrainRequest, uid: int, stays: Collection[NodeUsage], now_s: float) -> Report:
    project = next((stay.account for stay in stays if stay.uid == uid and asked.node in stay.nodes), "")
    return Report(
        asked.id, uid, project, asked.node, asked.job, asked.fault, asked.signature,
        asked.confidence, min(asked.seen_s, now_s), asked.ran_s, asked.digest, asked.machine,
    )  # fmt: skip
