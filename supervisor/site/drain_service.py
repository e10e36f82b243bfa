"""The drain service: takes signed requests from the spool, checks, drains or refuses, answers. (I/O)

A round may be killed at any moment. The service records a credential before it opens it (munge opens one
only once), a drain before it does it, an answer before it writes it, and removes the request's file last.
So the next round finds the file again, knows how far the last one came, and does nothing twice. One visit
checks the nodes of all requests of a round; nothing else takes long.

    $FTRUN_HOME/site/<year>-<month>.jsonl   every request that was opened, every drain, every answer
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import field
from typing import Any

from ftrun.slurm.client.cluster import Cluster, NodeRow, PartitionRow
from ftrun.slurm.client.errors import RefusedForGood
from ftrun.slurm.commands import munge
from ftrun.slurm.records import dataclass
from ftrun.supervisor.model.node_entry import NodeEntry
from ftrun.supervisor.nodes import drain_rules, history, ledger
from ftrun.supervisor.nodes.drain_rules import BadRequest, DrainHistory, DrainRequest, Limits
from ftrun.supervisor.nodes.recheck_rules import CheckNodes, CheckReport
from ftrun.supervisor.nodes.spool import Spool, WaitingRequest
from ftrun.supervisor.policy import priority_boost
from ftrun.supervisor.policy.priority_boost import NO_RULE, BoostRule
from ftrun.supervisor.site.standing import Order, Orders
from ftrun.supervisor.store.append_log import AppendLog

AT_ONCE_MAX = 32  # requests handled in one round
NOTICED_S = 30.0  # how long after SlurmdTimeout Slurm shows that it lost a node, at most


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of one request.

    `verdict`: drained, raised, refused, already, observed (would be done), noted (no action).

    `node` is empty where the request is about a job.
    """

    id: str
    uid: int
    node: str
    verdict: str
    why: str


@dataclass(frozen=True, slots=True)
class _Case:
    """An authentic request. `uid` is who signed it."""

    waiting: WaitingRequest
    key: str
    uid: int
    request: DrainRequest
    worn: Collection[str] = ()  # checks of which a degraded finding counts against the node


def site_dir(home: str) -> str:
    """Where the service keeps its journal; what an earlier release called "operator" until `moved_site_dir`."""
    where, earlier = os.path.join(home, "site"), os.path.join(home, "operator")
    return earlier if os.path.isdir(earlier) and not os.path.exists(where) else where


def denied_text(order: Order) -> str:
    """What a user is told whose requests and reports this site does not take."""
    return f"this site's administrators take nothing of yours: {order.why or 'ask them'}"


def moved_site_dir(home: str) -> str:
    """Where the service keeps its journal, under its present name. Raises OSError."""
    found, where = site_dir(home), os.path.join(home, "site")
    if found != where:
        os.rename(found, where)
    return where


@dataclass
class DrainService:
    """The drain service. `look` runs the checks on nodes, `opened` reads a credential.

    With `observe`, or another `action` than drain, nothing is drained. `prefer` raises a job by a word for
    `scontrol update`, as far as `rule` allows. `orders` are the administrators': while the service is paused,
    requests wait in the spool.
    """

    home: str
    cluster: Cluster
    spool: Spool
    look: CheckNodes
    limits: Limits
    opened: Callable[[bytes], munge.Credential | None]
    now: Callable[[], float] = time.time
    action: str = "drain"
    observe: bool = False
    rule: BoostRule = NO_RULE
    prefer: Callable[[str, str], None] | None = None
    orders: Callable[[], Orders] = Orders
    crash: Callable[[str], None] = lambda point: None
    answers: list[Answer] = field(default_factory=list)
    _name: str = ""
    _waiting: set[str] = field(default_factory=set)  # keys of requests that wait for Slurm's word

    def __post_init__(self) -> None:
        self._daybook = AppendLog(moved_site_dir(self.home), self.now)
        self._book = DrainHistory.of(self._daybook.read())

    def round(self, waiting: list[WaitingRequest] | None = None, rubbish: int = 0) -> list[Answer]:
        """Handle the requests in the spool, or these. Raises OSError; SlurmError where the requests stay."""
        self.answers = []
        if waiting is None:
            waiting, rubbish = self.spool.look()
        if self.orders().paused is not None:
            return self.answers
        surplus: dict[int, int] = {}
        cases = self._cases(waiting, surplus)
        if rubbish:
            self.note("rubbish", count=rubbish)
        for uid, count in surplus.items():
            self.note("removed", uid=uid, count=count)  # above the user's limit, or asked again
        if cases:
            self._judge(cases)
        self.spool.forget_old_answers(self.now())
        return self.answers

    # ------------------------------------------------------------------ authentic?

    def _cases(self, waiting: list[WaitingRequest], surplus: dict[int, int]) -> list[_Case]:
        cases: list[_Case] = []
        for waits in waiting:
            if len(cases) >= AT_ONCE_MAX:
                break
            content = self.spool.read(waits)
            if content is None:
                self.spool.remove(waits.name)
                continue
            sha = hashlib.sha256(content).hexdigest()
            key = f"{waits.uid}:{sha}"  # a user who copies another's credential gets an own answer
            before = self._book.answered.get(key) or self._book.answers.get(waits.id)
            if before is not None:
                if not self._again(waits, before):
                    surplus[waits.uid] = surplus.get(waits.uid, 0) + 1
            elif (
                key not in self._book.taken
                and self._book.asked(waits.uid, self.now()) >= self.limits.per_user
            ):
                surplus[waits.uid] = surplus.get(waits.uid, 0) + 1
                self.spool.remove(waits.name)
            else:
                opened = self._opened(waits, key, content)
                if isinstance(opened, _Case):
                    cases.append(opened)
                else:
                    self._refuse(waits, key, opened)
        return cases

    def _opened(self, waiting: WaitingRequest, key: str, content: bytes) -> _Case | str:
        """The request in a file, or why it is none."""
        known = key.partition(":")[2] in self._book.opened  # then this service opened it before
        denied = self.orders().denied.get(waiting.uid) if waiting.id not in self._book.draining else None
        if key not in self._book.taken:
            self.note("taken", key=key, uid=waiting.uid, id=waiting.id)
        if denied is not None:
            return denied_text(denied)
        request = self.authentic(waiting, content, used=not known)
        if isinstance(request, str):
            return request
        if request.want == "report":
            return "it is a report, left as a request"
        return _Case(waiting, key, waiting.uid, request)

    def authentic(self, waiting: WaitingRequest, content: bytes, *, used: bool) -> DrainRequest | str:
        """The request in a file, or why it is none; `used`: one that was opened before is refused."""
        if waiting.is_unsigned:  # its folder is its owner's alone
            credential: munge.Credential | None = munge.Credential(
                munge.GOOD, waiting.uid, waiting.left_s, content
            )
        else:
            credential = self.opened(content)
        if credential is None:
            return "it is not signed by this cluster's munge for this drain service"
        if credential.uid != waiting.uid:
            return "it is signed by another user than the one who left it"
        try:
            request = drain_rules.from_payload(credential.payload)
        except BadRequest as error:
            return f"what was signed is no request: {error}"
        if request.id != waiting.id:
            return "it was left under another name than it is signed for"
        if request.id in self._book.draining or request.id in self._book.raised:
            return request  # granted in time; a crash came between
        wrong = drain_rules.refused_credential(
            credential.encoded_s,
            self.now(),
            self.limits,
            expired=credential.status == munge.EXPIRED,
            used=used and credential.status == munge.REPLAYED,
        )
        return wrong or request

    def drain_corroborated(
        self,
        request: DrainRequest,
        report: CheckReport,
        peers: list[CheckReport],
        worn: Collection[str],
    ) -> Answer:
        """Drain a node that runs of several users blame and the check finds sick, within the same limits."""
        case = _Case(WaitingRequest("", request.id, -1), f"site:{request.id}", -1, request, worn)
        if case.key not in self._book.taken:
            self.note("taken", key=case.key, uid=-1, id=request.id)
        before = len(self.answers)
        self._conclude(case, report, peers)
        if len(self.answers) > before:
            return self.answers.pop()
        return Answer(request.id, -1, request.node, "refused", "Slurm may yet notice that it is lost")

    def cluster_name(self) -> str:
        """The name of this cluster; asked for once. Raises SlurmError."""
        if not self._name:
            self._name = self.cluster.facts().name
        return self._name

    def _again(self, waiting: WaitingRequest, before: Mapping[str, Any]) -> bool:
        """An answered request is done once. True if a crash had lost the answer, and it is written now."""
        own = before["id"] == waiting.id and before["uid"] == waiting.uid
        late = own and not self.spool.answered(waiting.id)
        if late:
            self._write_answer(before)
        self.spool.remove(waiting.name)
        return late

    def records(self) -> list[dict[str, Any]]:
        """The records of the service's journal, oldest first. Raises OSError."""
        return self._daybook.read()

    # ------------------------------------------------------------------ granted?

    def _judge(self, cases: list[_Case]) -> None:
        rows, partitions = self.cluster.nodes(), self.cluster.partitions()
        for case in cases:
            if case.request.want == "raise":
                self._raise(case, rows)
        cases = [case for case in cases if case.request.want == "drain"]
        left = [case for case in cases if not self._refused_unseen(case, rows, partitions)]
        left = [case for case in left if not (case.key in self._waiting and self._waits(case, rows))]
        if not left:
            return
        named = {case.request.node for case in left}
        peers = {node: drain_rules.control_nodes(node, rows, partitions.values(), named) for node in named}
        asked = sorted(named.union(*peers.values()))
        reports = self.look(asked)
        for case in left:
            node = case.request.node
            self._conclude(
                case,
                reports.get(node, CheckReport("unseen")),
                [reports[p] for p in peers[node] if p in reports],
            )

    def _raise(self, case: _Case, rows: Mapping[str, NodeRow]) -> None:
        asked, rule = case.request, self.rule
        if not rule.how or self.prefer is None:
            self._answer(case.waiting, case.key, "noted", "this site puts no job ahead of others", "")
            return
        try:
            waits = self.cluster.details(asked.job)
            stays = [stay for stay in self.cluster.stays(asked.lost) if stay.uid == case.uid]
            lost = priority_boost.LostJob(
                self.cluster.details(asked.lost), stays[-1] if stays else None, rows
            )
        except RefusedForGood as error:
            self._refuse(case.waiting, case.key, f"Slurm was asked about your jobs: {error.message}")
            return
        wrong = "" if asked.cluster in {"", self.cluster.facts().name} else f"it is meant for {asked.cluster}"
        wrong = wrong or priority_boost.claim_refusal(
            case.uid, asked.run, waits, lost, now_s=self.now(), rule=rule
        )
        before = [job for key, job in self._book.raised.items() if key != asked.id]
        wrong = wrong or priority_boost.cap_refusal(case.uid, asked.job, before, self.now(), rule)
        if wrong or waits is None:
            self._refuse(case.waiting, case.key, wrong)
        elif priority_boost.is_already_boosted(waits, rule):
            mine = asked.id in self._book.raised
            verdict, why = ("raised", rule.update) if mine else ("already", "it stands no worse than that")
            self._answer(case.waiting, case.key, verdict, f"job {asked.job}: {why}", "")
        elif self.observe:
            self._answer(case.waiting, case.key, "observed", f"job {asked.job} would get {rule.update}", "")
        else:
            self._prefer(case, self.prefer)

    def _prefer(self, case: _Case, prefer: Callable[[str, str], None]) -> None:
        asked, rule = case.request, self.rule
        self.note("raising", id=asked.id, job=asked.job, uid=case.uid, update=rule.update, lost=asked.lost)
        self.crash("raise:before")
        try:
            prefer(asked.job, rule.update)
        except RefusedForGood as error:
            self._refuse(case.waiting, case.key, f"Slurm refused: {error.message}")
            return
        self.crash("raise:after")
        shown = self.cluster.details(asked.job)
        if shown is None or not priority_boost.is_already_boosted(shown, rule):
            self._refuse(case.waiting, case.key, f"Slurm took {rule.update} and does not show it")
            return
        self._answer(case.waiting, case.key, "raised", f"job {asked.job}: {rule.update}", "")

    def _refused_unseen(
        self, case: _Case, rows: Mapping[str, NodeRow], partitions: Mapping[str, PartitionRow]
    ) -> bool:
        """Answer what needs no check on the node. True if the request is answered."""
        asked, row = case.request, rows.get(case.request.node)
        wrong = ""
        if asked.cluster not in {"", self.cluster_name()}:
            wrong = f"it is meant for cluster {asked.cluster}"
        elif row is None:
            wrong = f"Slurm knows no node {asked.node}"
        elif self._announced(case, row):
            return True
        else:
            wrong = self._refused_stay(case) or self._cap(case, rows, partitions)
        if wrong:
            self._refuse(case.waiting, case.key, wrong, asked.node)
        return bool(wrong)

    def _refused_stay(self, case: _Case) -> str:
        """If Slurm refuses this look-up, only this request is refused."""
        try:
            stays = self.cluster.stays(case.request.job)
        except RefusedForGood as error:
            return f"Slurm was asked about job {case.request.job}: {error.message}"
        return drain_rules.refused_stay(case.request, case.uid, stays, self.now(), self.limits)

    def _announced(self, case: _Case, row: NodeRow) -> bool:
        """The node is out of service already: by an unconfirmed drain of ours, or by somebody else."""
        if not (row.drained or row.spoken_for):
            return False
        if row.reason in self._book.draining.get(case.request.id, ()):
            self._drained(case, row.reason, "found drained")
        else:
            self._answer(case.waiting, case.key, "already", row.reason or "it is drained already", row.name)
        return True

    def _cap(self, case: _Case, rows: Mapping[str, NodeRow], partitions: Mapping[str, PartitionRow]) -> str:
        return drain_rules.refused_cap(
            case.request.node,
            rows,
            partitions.values(),
            drained_s=self._book.drained_s,
            now_s=self.now(),
            limits=self.limits,
        )

    def _conclude(self, case: _Case, report: CheckReport, peers: list[CheckReport]) -> None:
        """Decide after the visit. All else is checked again: others drain, too, and the visit took time."""
        rows, partitions = self.cluster.nodes(), self.cluster.partitions()
        asked = case.request
        row = rows.get(asked.node)
        if row is None or self._announced(case, row):
            return
        if drain_rules.is_undecided(report, row) and self._waits(case, rows):
            self._waiting.add(case.key)  # no answer yet: the next round asks Slurm again
            return
        sick, why = drain_rules.confirm_sick(report, row, peers, case.worn)
        wrong = "" if sick else why
        wrong = wrong or self._cap(case, rows, partitions) or self._common(case)
        if wrong:
            self._refuse(case.waiting, case.key, wrong, asked.node)
        elif self.observe:
            self._answer(case.waiting, case.key, "observed", f"would be drained: {why}", asked.node)
        elif self.action != "drain":
            self._answer(
                case.waiting, case.key, "noted", f"this site does not drain on request: {why}", asked.node
            )
        else:
            self._drain(case, why)

    def _waits(self, case: _Case, rows: Mapping[str, NodeRow]) -> bool:
        """Whether Slurm hears the node and may yet notice that it is lost."""
        row, (_, taken_s) = rows.get(case.request.node), self._book.taken[case.key]
        if row is None or not row.responding:
            return False
        patience_s = min(self.cluster.facts().slurmd_timeout_s + NOTICED_S, self.limits.age_s)
        return self.now() - taken_s < patience_s

    def _common(self, case: _Case) -> str:
        """The same fault on many nodes at once is the job's or the cluster's, and drains no more nodes."""
        asked = case.request
        entry = self._entry(case, "incident")
        if not self.observe:
            ledger.append_entries(self.home, entry)
        book = history.fold_entries([*ledger.read_entries(self.home), entry])
        if history.strike_key(entry) in book.nodes[asked.node].common:
            return f"{asked.signature} befell many nodes at once: it is held to be the job's or the cluster's fault"
        return ""

    def _drain(self, case: _Case, why: str) -> None:
        asked = case.request
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.now()))
        reason = drain_rules.reason_of(asked.run, asked.signature, stamp)
        self.note("draining", id=asked.id, node=asked.node, reason=reason, uid=case.uid, why=why)
        self.crash("drain:before")
        try:
            self.cluster.drain(asked.node, reason)
        except RefusedForGood as error:
            self._refuse(case.waiting, case.key, f"Slurm refused: {error.message}", asked.node)
            return
        self.crash("drain:after")
        self._drained(case, reason, why)

    def _drained(self, case: _Case, reason: str, why: str) -> None:
        ledger.append_entries(self.home, self._entry(case, "drained", reason=reason))
        self._answer(case.waiting, case.key, "drained", why, case.request.node)

    def _entry(self, case: _Case, what: str, **detail: str) -> NodeEntry:
        asked, key = case.request, f"site:{case.request.id}"
        about = {"incident": key, "uid": case.uid, "job": asked.job, **detail}
        texts = {"id": key, "run": asked.run, "signature": asked.signature, "fault": asked.fault}
        return NodeEntry(self.now(), what, (asked.node,), detail=about, **texts)

    # ------------------------------------------------------------------ answering

    def _refuse(self, waiting: WaitingRequest, key: str, why: str, node: str = "") -> None:
        self._answer(waiting, key, "refused", why, node)

    def _answer(self, waiting: WaitingRequest, key: str, verdict: str, why: str, node: str) -> None:
        why = " ".join(why.split())[:300]
        record = self.note(
            "answered", id=waiting.id, key=key, uid=waiting.uid, node=node, verdict=verdict, why=why
        )
        self._write_answer(record)
        self.crash("answer:after")
        self.spool.remove(waiting.name)
        self.answers.append(Answer(waiting.id, waiting.uid, node, verdict, why))

    def _write_answer(self, record: Mapping[str, Any]) -> None:
        if not self.spool.answered(record["id"]):
            facts = {"at_s": record["at"], **{key: record[key] for key in ("node", "verdict", "why")}}
            self.spool.answer(record["id"], facts)

    def note(self, kind: str, /, **data: Any) -> Mapping[str, Any]:
        """Write a record into the service's journal. Raises OSError."""
        record = self._daybook.append(kind, **data)
        self._book.take(record)
        self.crash(f"record:{kind}")
        return record
