"""Decides whether the drain service grants a request: rules over what it found out itself. (pure)

The questions are asked in this order, because the first ones are cheap and the last one takes a check on
the node:
1. Is the credential authentic, recent and not used before (`refused_credential`)?
2. Did the signer have a job on that node at that time, according to Slurm (`refused_stay`)?
3. Would the drain stay under the caps: share of each partition, drains per hour (`refused_cap`)?
4. Is the node sick (`confirmed`)? The service's own checks must find a bad result of a fault class that
   drains a node, which the node's peers do not show as well; or neither SSH nor Slurm reaches the node, and
   it is not switched off or rebooting. A node that the checks find healthy is never drained.

Every refusal is a sentence for the user who asked.

`Request` is what a supervisor asks, as the payload of a signed credential. Everything in it is a claim of
the user who signed it. The service itself finds out who that is, when it was signed, whether the job was
there and whether the node is sick; the claim only says where to look, and it stands in the reason of the
drain. So every field has a narrow form, and anything else is not a request. `Book` is the service's
journal, folded: what was opened, what was answered, how much was done lately.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, field
from typing import Any

from ftrun.hooks.runtime.formats import HOUR_S, counted
from ftrun.slurm.client.cluster import NodeRow, NodeUsage, PartitionRow
from ftrun.slurm.records import dataclass
from ftrun.supervisor.model.node_entry import finite_number
from ftrun.supervisor.model.types import CLASS_RULES
from ftrun.supervisor.nodes.recheck_rules import PREFIX, CheckReport
from ftrun.supervisor.policy.priority_boost import BoostedJob

SCHEMA = 1
PURPOSE = "ftrun-site"  # a credential signed for anything else is not a request
PAYLOAD_BYTES_MAX = 4096
ID = re.compile(r"[0-9a-f]{32}")

_FORMS = {
    "id": ID,
    "cluster": re.compile(r"[A-Za-z0-9_.-]{0,64}"),
    "node": re.compile(r"(?:[A-Za-z0-9][A-Za-z0-9_.-]{0,63})?"),
    "job": re.compile(r"[1-9][0-9]{0,9}"),  # to Slurm 0 means all jobs, and 07 is 7: one job has one name
    "run": re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}"),
    "fault": re.compile(r"[a-z][a-z-]{0,31}"),
    "signature": re.compile(r"[A-Za-z0-9_.-]{1,64}"),
    "want": re.compile(r"drain|raise|report"),
    "lost": re.compile(r"(?:[1-9][0-9]{0,9})?"),
    "digest": re.compile(r"[0-9a-f]{0,64}"),
    "machine": re.compile(r"(?:[a-z]{4,8}=[0-9a-f]{16}(?:,(?=[a-z])|$)){0,4}"),
}
_NUMBERS = {"seen_s": 1e11, "confidence": 1.0, "ran_s": 1e9}  # each from 0 to so much
# Defaults for requests of earlier releases.
_BEFORE = {"want": "drain", "lost": "", "digest": "", "machine": "", "confidence": 0.0, "ran_s": 0.0}


class BadRequest(ValueError):
    """A payload that no supervisor signs; one line."""


@dataclass(frozen=True, slots=True)
class DrainRequest:
    """`want` drain: drain `node`, which was `job`'s when `fault` was seen at `seen_s` (Unix time).

    `want` raise: put the waiting `job` ahead of others; it continues job `lost`, which `fault` took at
    `seen_s`.

    `want` report: nothing is asked for; the site's ledger is told of that fault. `confidence` is 0 to 1, `ran_s`
    how long the start had run, `digest` the hash of the line that proves it, `machine` hashes of what tells the machine
    that the user's supervisor knows under the node's name.
    """

    id: str
    cluster: str
    node: str
    job: str
    run: str
    fault: str
    signature: str
    seen_s: float
    want: str = "drain"
    lost: str = ""
    digest: str = ""
    machine: str = ""
    confidence: float = 0.0
    ran_s: float = 0.0


def to_payload(request: DrainRequest) -> bytes:
    """The bytes to sign."""
    return json.dumps({"schema": SCHEMA, "for": PURPOSE, **asdict(request)}, separators=(",", ":")).encode()


def from_payload(payload: bytes) -> DrainRequest:
    """The request in signed bytes. Raises BadRequest."""
    if len(payload) > PAYLOAD_BYTES_MAX:
        raise BadRequest("it is too long")
    try:
        fields = json.loads(payload)
    except (ValueError, RecursionError):
        raise BadRequest("it is no JSON") from None
    if not isinstance(fields, dict) or fields.get("for") != PURPOSE or fields.get("schema") != SCHEMA:
        raise BadRequest("it is not a request to this drain service")
    fields = {**_BEFORE, **fields}
    for key, form in _FORMS.items():
        value = fields.get(key)
        if not isinstance(value, str) or not form.fullmatch(value):
            raise BadRequest(f"its {key} is not of the form that it must have")
    if not fields["lost" if fields["want"] == "raise" else "node"]:
        raise BadRequest("it does not say what it is about")
    for key, most in _NUMBERS.items():
        number = finite_number(fields.get(key))
        if number is None or not 0 <= number <= most:
            raise BadRequest(f"its {key} is not of the form that it must have")
    return DrainRequest(**{key: fields[key] for key in (*_FORMS, *_NUMBERS)})


def reason_of(run: str, signature: str, stamp: str) -> str:
    """The reason of a drain, as Slurm shows it."""
    return f"ftrun: {run} {signature} {stamp}"


CONTROLS = 2
AWAY = frozenset({"unreachable", "timeout"})
# Out of reach on purpose: by somebody, or by Slurm's power saving.
ON_PURPOSE = frozenset(
    {
        "maint", "power_down", "powered_down", "power_up", "powering_down", "powering_up",
        "reboot_issued", "reboot_requested",
    }
)  # fmt: skip
WORN = frozenset({"edac", "gpu-ecc", "gpu-nvlink", "gpu-pcie", "memory", "pcie-aer", "pcie-link"})
"""Checks of what no job can change: errors of memory and links, lost lanes and memory. No heat, clocks, processes, swap."""
DRAINABLE = frozenset(fault.value for fault, rule in CLASS_RULES.items() if rule.drain)


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits. `share` of a partition may bear ftrun's drains (one node always may).

    `age_s` is how old a request may be, `slack_s` how far clocks and records may differ.
    """

    share: float = 0.05
    per_hour: int = 4
    per_user: int = 10
    age_s: float = 3600.0
    slack_s: float = 600.0


def refused_credential(encoded_s: float, now_s: float, limits: Limits, *, expired: bool, used: bool) -> str:
    """Why the credential is refused; "" if it is accepted."""
    if used:
        return "the request was opened before: it counts once"
    if expired or now_s - encoded_s > limits.age_s:
        return f"the request is older than {limits.age_s / 60:.0f} minutes: the drain service was not running"
    if encoded_s - now_s > limits.slack_s:
        return "the request comes from the future: a clock is wrong"
    return ""


def refused_stay(
    request: DrainRequest, uid: int, stays: Iterable[NodeUsage], now_s: float, limits: Limits
) -> str:
    """Why the signer has no say about the node; "" where their job was there at that time."""
    if now_s - request.seen_s > 2 * limits.age_s:
        return "the fault is too long ago"
    mine = [stay for stay in stays if stay.uid == uid]
    if not mine:
        return f"Slurm knows no job {request.job} of yours (any more)"
    there = [stay for stay in mine if request.node in stay.nodes]
    if not there:
        return f"job {request.job} was not on {request.node}"
    for stay in there:
        end_s = now_s if stay.end_s is None else stay.end_s
        if stay.start_s - limits.slack_s <= request.seen_s <= end_s + limits.slack_s:
            return ""
    return f"job {request.job} was not on {request.node} at that time"


def refused_cap(
    node: str,
    rows: Mapping[str, NodeRow],
    partitions: Iterable[PartitionRow],
    *,
    drained_s: Iterable[float],
    now_s: float,
    limits: Limits,
) -> str:
    """Why no further node may be drained now, "" where one may; `drained_s`: when earlier ones were."""
    if sum(now_s - at_s < HOUR_S for at_s in drained_s) >= limits.per_hour:
        return f"{counted(limits.per_hour, 'node')} drained within the last hour, which is the most"
    for partition in partitions:
        if node in partition.nodes:
            ours = sum(1 for name in partition.nodes if name in rows and rows[name].reason.startswith(PREFIX))
            cap = max(1, int(limits.share * len(partition.nodes)))
            if ours >= cap:
                return f"{ours} of {len(partition.nodes)} nodes of {partition.name} bear drains of ftrun, and {cap} may"
    return ""


def control_nodes(
    node: str, rows: Mapping[str, NodeRow], partitions: Iterable[PartitionRow], without: Collection[str]
) -> tuple[str, ...]:
    """Peers to check beside the node, idle ones first: what they show as well is not its fault."""
    peers = {name for partition in partitions if node in partition.nodes for name in partition.nodes} - {
        node,
        *without,
    }
    fit = [rows[name] for name in sorted(peers) if name in rows and rows[name].available]
    fit.sort(key=lambda row: row.state != "idle")
    return tuple(row.name for row in fit[:CONTROLS])


def confirm_sick(
    report: CheckReport, row: NodeRow, peers: Collection[CheckReport], worn: Collection[str] = ()
) -> tuple[bool, str]:
    """Whether the node is sick, and the finding that shows it or the reason why not; `worn`: the checks of which
    a degraded finding is enough where a peer answers and does not show it.
    """
    if report.state == "answered" and report.findings:
        seen = [peer for peer in peers if peer.state == "answered" and peer.findings]
        bad = [f for f in report.findings if _counts(f, worn if seen else ())]
        own = [f for f in bad if not seen or not all(_shows(peer, f, worn) for peer in seen)]
        sick = [f for f in own if f.get("fault") in DRAINABLE]
        if sick:
            return True, f"{sick[0].get('check', '')}: {sick[0].get('message', '')}"
        if own:
            return False, f"the checks find {own[0].get('check', '')} bad, for which no node is drained"
        if bad:
            return (
                False,
                f"the checks find {bad[0].get('check', '')} bad on its peers as well: the site, not the node",
            )
        return False, "the checks find the node healthy"
    on_purpose = sorted(ON_PURPOSE & {*row.flags, row.state})
    if report.state in AWAY and on_purpose:
        return False, f"it is out of reach for a while, and meant to be ({', '.join(on_purpose)})"
    if report.state in AWAY and not row.responding:
        return True, f"neither SSH ({report.why or report.state}) nor Slurm ({row.state}) reaches it"
    if report.state in AWAY:
        return False, f"it cannot be reached by SSH ({report.why or report.state}), and Slurm hears it"
    return False, f"it could not be looked at: {report.why or report.state}"


def is_undecided(report: CheckReport, row: NodeRow) -> bool:
    """Whether SSH does not reach the node and Slurm still seems to: Slurm notices the loss of a node only after
    SlurmdTimeout.
    """
    return report.state in AWAY and row.responding and not ON_PURPOSE & {*row.flags, row.state}


def _counts(finding: Mapping[str, Any], worn: Collection[str]) -> bool:
    severity = finding.get("severity")
    return severity == "bad" or (severity == "degraded" and finding.get("check") in worn)


def _shows(peer: CheckReport, finding: Mapping[str, Any], worn: Collection[str]) -> bool:
    return any(f.get("check") == finding.get("check") and _counts(f, worn) for f in peer.findings)


@dataclasses.dataclass(slots=True)
class DrainHistory:
    """The service's journal, folded and kept up to date by `take`. Times are Unix seconds."""

    taken: dict[str, tuple[int, float]] = field(
        default_factory=dict
    )  # user:hash of a credential -> who left it, when
    opened: set[str] = field(default_factory=set)  # hashes of credentials
    answers: dict[str, Mapping[str, Any]] = field(default_factory=dict)  # id of a request -> the answer
    answered: dict[str, Mapping[str, Any]] = field(default_factory=dict)  # user:hash -> the answer
    draining: dict[str, set[str]] = field(default_factory=dict)  # id -> the reasons announced
    raised: dict[str, BoostedJob] = field(default_factory=dict)  # id -> the job, whether or not it was raised
    drained_s: list[float] = field(
        default_factory=list
    )  # when a drain was announced, whether or not it happened

    @staticmethod
    def of(records: Iterable[Mapping[str, Any]]) -> DrainHistory:
        """The state that these records make; what is none of the service's records says nothing."""
        book = DrainHistory()
        for record in records:
            with contextlib.suppress(LookupError, TypeError, ValueError, AttributeError, OverflowError):
                book.take(record)
        return book

    def take(self, record: Mapping[str, Any]) -> None:
        """Apply one more record."""
        kind = record["kind"]
        if kind == "taken":
            self.taken.setdefault(record["key"], (int(record["uid"]), float(record["at"])))
            self.opened.add(record["key"].partition(":")[2])
        elif kind == "answered":
            self.answered[record["key"]] = record
            self.answers.setdefault(record["id"], record)
        elif kind == "draining":
            self.draining.setdefault(record["id"], set()).add(record["reason"])
            self.drained_s.append(float(record["at"]))
        elif kind == "raising":
            job = BoostedJob(int(record["uid"]), str(record["job"]), float(record["at"]))
            self.raised.setdefault(record["id"], job)

    def asked(self, uid: int, now_s: float) -> int:
        """How many requests of this user were opened within the last hour."""
        return sum(1 for whose, at_s in self.taken.values() if whose == uid and now_s - at_s < HOUR_S)
