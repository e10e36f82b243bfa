"""What the nodes of an attempt say of themselves, joined to what its log says. (pure)

How it thinks. A report of a node is evidence from the machine; the log is evidence from the program. Each alone can mislead: a log is
written by users and the rank that complains is usually the victim, and a check may fail for the site's own reasons. So only what sets a minority
of the nodes apart counts (what all show is the site's), and it counts by the table of `scenario`: it names the node where the log is vague (a
hang, a time-out, connections, an unknown end), agrees where the log names the same node, and is told but overrules nothing
where the log names a cause that no node has (a bug, a full disk).

A report in the attempt's folder was written by the job's own user: it may leave out nodes of this attempt, and drains none.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import field

from ftrun.hooks import compare
from ftrun.slurm.records import dataclass, replace
from ftrun.supervisor import scenario
from ftrun.supervisor.model import Action, Blame, Diagnosis, FaultClass, Proof, Source
from ftrun.supervisor.verdicts import CLASS_DEFAULTS, plain, sure

__all__ = [
    "SIGNATURE",
    "NodeFacts",
    "NodeFinding",
    "gathered",
    "joined",
    "number",
    "parsed",
    "while_alive",
    "worth_checking",
]

SIGNATURE = "check-"
"""Signatures of diagnoses that rest on a check are this and the check's name."""

BAD, DEGRADED = "bad", "degraded"
REMEMBERED_S = 3600.0
"""A finding that is gone may still have been the cause: collectives wait half an hour before they give up."""

OF_NODES = frozenset(
    {
        FaultClass.HARDWARE_GPU,
        FaultClass.HARDWARE_OTHER,
        FaultClass.NETWORK,
        FaultClass.STORAGE,
        FaultClass.NODE,
    }
)
"""Classes of findings that say something of a node."""

ENDED_FOR_OTHER_REASONS = frozenset(
    {
        FaultClass.HEALTHY,
        FaultClass.CANCELLED,
        FaultClass.PREEMPTED,
        FaultClass.TIMELIMIT,
        FaultClass.SCHEDULER,
    }
)
HARDWARE = frozenset({FaultClass.HARDWARE_GPU, FaultClass.HARDWARE_OTHER})
VAGUE = frozenset({FaultClass.HANG, FaultClass.NETWORK, FaultClass.UNKNOWN, FaultClass.LIBRARY_BUG})
"""What a broken node looks like from the program's side."""

UNSURE = 0.5
"""A diagnosis less sure than this gives way to a machine that is bad."""

SURE = {BAD: 0.85, DEGRADED: 0.6}


@dataclass(frozen=True, slots=True)
class NodeFinding:
    """One thing that a check found on one node. `until_s`: when it was gone again, None while it holds; `source`: who ran the check."""

    node: str
    kind: str
    check: str
    severity: str
    fault: FaultClass
    message: str
    device: str = ""
    at_s: float | None = None
    until_s: float | None = None
    source: Source = Source.REPORT

    @property
    def key(self) -> str:
        """What tells it from all others of its attempt."""
        return f"{self.node}:{self.check}:{self.device}"


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """All that is known of an attempt's nodes now. `asked` are the nodes that answered a full check."""

    nodes: tuple[str, ...] = ()
    findings: tuple[NodeFinding, ...] = ()
    asked: frozenset[str] = field(default_factory=frozenset)

    def odd(self, now_s: float) -> tuple[NodeFinding, ...]:
        """The findings that set a minority of the nodes apart, worst first."""
        held = [
            one
            for one in self.findings
            if one.node in self.nodes and (one.until_s is None or now_s - one.until_s <= REMEMBERED_S)
        ]
        shown = Counter(check for check, _ in {(one.check, one.node) for one in held})
        if len(self.nodes) == 1:
            few = [one for one in held if _speaks_alone(one)]
        else:
            few = [one for one in held if 2 * shown[one.check] <= len(self.nodes)]
        if 2 * len({one.node for one in few if one.severity == BAD}) > len(self.nodes) > 1:
            return ()  # most nodes are bad, each in its own way: something that they share is likelier
        return tuple(sorted(few, key=lambda one: (one.severity != BAD, one.fault not in HARDWARE, one.node)))

    def everywhere(self) -> tuple[str, ...]:
        """The checks that fail on every node of several: the site's or the job's.

        A node that is lost tells nothing more: where most nodes answered a full check, those are enough.
        """
        most = 2 * len(self.asked) > len(self.nodes) and len(self.asked) > 1
        told = self.asked if most else frozenset(self.nodes)
        shown: dict[str, set[str]] = {}
        for one in self.findings:
            shown.setdefault(one.check, set()).add(one.node)
        return tuple(sorted(check for check, nodes in shown.items() if len(told) > 1 and told <= nodes))

    def scenario(self, now_s: float, *, ended: bool) -> scenario.Scenario:
        """The row of the table that these facts are."""
        bad = [one for one in self.odd(now_s) if one.severity == BAD]
        failed = any(one.kind == "preflight" and one.severity == BAD for one in self.findings)
        return scenario.of(precheck_failed=failed, hardware_bad=bool(bad), ended=ended)


def _speaks_alone(one: NodeFinding) -> bool:
    """Without a peer to compare with: broken hardware, and what came while the job ran; the rest may be the site's way."""
    return one.fault in HARDWARE or one.kind == "watch"


def gathered(
    nodes: Sequence[str],
    reports: Mapping[str, Mapping[str, object]],
    *,
    by_ssh: Mapping[str, object] | None = None,
) -> NodeFacts:
    """The facts of an attempt: `reports` by kind (preflight, watch, after) and node, as they were read; `by_ssh` fetched by ftrun itself.

    Full checks are compared with each other as well: that a node has less than its peers, no node can tell alone.
    """
    told = {kind: {n: r for n, r in found.items() if n in nodes} for kind, found in reports.items()}
    findings = [
        one for found in told.values() for node, report in found.items() for one in parsed(report, node=node)
    ]
    fetched = {node: report for node, report in (by_ssh or {}).items() if node in nodes}
    for node, report in fetched.items():
        findings += parsed(report, node=node, source=Source.CHECK)
    full = {**told.get("after", {}), **fetched}
    full = {node: report for node, report in full.items() if isinstance(report, Mapping)}
    rows = {node: _rows(report) for node, report in full.items()}
    known = {(one.node, one.check) for one in findings if one.severity == BAD}
    for odd in compare.verdict(rows, len(nodes)).odd if rows else ():
        if odd.counts and odd.fault in OF_NODES and (odd.node, odd.check) not in known:
            message = f"{odd.has}, its peers have {odd.peers_have}"
            fault = FaultClass(odd.fault)
            findings.append(NodeFinding(odd.node, "after", odd.check, BAD, fault, message, odd.device))
    return NodeFacts(tuple(nodes), tuple(findings), frozenset(rows))


def _rows(report: object) -> list[dict[str, object]]:
    """The findings of a report in the form that `compare` takes; whoever wrote it, nothing in it trips a reader."""
    rows = report.get("findings") if isinstance(report, Mapping) else None
    return [
        {
            **{key: str(row.get(key, "")) for key in ("check", "severity", "device", "fault", "unit")},
            "value": number(row.get("value")),
            "evidence": _texts(row.get("evidence")),
        }
        for row in (rows if isinstance(rows, list) else [])
        if isinstance(row, Mapping)
    ]


def _texts(lines: object) -> list[str]:
    return [str(line)[:400] for line in lines[:5]] if isinstance(lines, list) else []


def parsed(report: object, *, node: str, source: Source = Source.REPORT) -> tuple[NodeFinding, ...]:
    """The findings of a report (schema 1) that say something against its node; () for what is no report of that node."""
    if not isinstance(report, Mapping) or report.get("schema") != 1 or report.get("node") != node:
        return ()
    rows = report.get("findings")
    told = [_finding(row, report, source) for row in rows] if isinstance(rows, list) else []
    return tuple(one for one in told if one is not None)


def _finding(row: object, report: Mapping[str, object], source: Source) -> NodeFinding | None:
    if not isinstance(row, Mapping) or row.get("severity") not in SURE:
        return None
    try:
        fault = FaultClass(str(row.get("fault")))
    except ValueError:
        return None
    if fault not in OF_NODES:
        return None
    return NodeFinding(
        node=str(report["node"]),
        kind=str(report.get("kind", "")),
        check=str(row.get("check", ""))[:64],
        severity=str(row["severity"]),
        fault=fault,
        message=str(row.get("message", ""))[:400],
        device=str(row.get("device", ""))[:120],
        at_s=number(row.get("at_s", report.get("at_s"))),
        until_s=number(row.get("until_s")),
        source=source,
    )


def number(value: object) -> float | None:
    """A number that can be counted with; whoever wrote the report may have written any."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


# ---------------------------------------------------------------------- joining


def while_alive(
    found: Diagnosis | None, facts: NodeFacts, survived: Collection[str], now_s: float
) -> Diagnosis | None:
    """What log and nodes say of a live run; a finding after which training went on says nothing more of it.

    What comes back is a suspicion: a live run is ended only when it stands still as well (P7).
    """
    left = replace(facts, findings=tuple(one for one in facts.findings if one.key not in survived))
    if left.scenario(now_s, ended=False).act is not scenario.Act.SUSPECT:
        return found
    if found is not None and found.signature and found.fault not in ENDED_FOR_OTHER_REASONS:
        return joined(found, left, now_s)
    return _blaming([one for one in left.odd(now_s) if one.severity == BAD])


def worth_checking(found: Diagnosis) -> bool:
    """Whether anything that a check may find can change this diagnosis: what no node causes, and is sure, stays what it is."""
    if found.fault in ENDED_FOR_OTHER_REASONS:
        return False
    return found.fault in OF_NODES | VAGUE or found.confidence < UNSURE


def joined(found: Diagnosis, facts: NodeFacts, now_s: float) -> Diagnosis:
    """The diagnosis of an end, with what the nodes say."""
    words = [f"every node fails {check}: the site or the job, not a node" for check in facts.everywhere()]
    found = replace(found, rests_on=(*found.rests_on, *words)) if words else found
    odd = facts.odd(now_s)
    if not odd or found.fault in ENDED_FOR_OTHER_REASONS:
        return found
    for rule in (_agreeing, _explained, _beside):
        better = rule(found, odd)
        if better is not None:
            row = facts.scenario(now_s, ended=True)
            told = f"scenario {row.number}: {row.act.value}" if row.number else row.act.value
            return replace(better, rests_on=(*better.rests_on, told))
    told = "; ".join(f"{one.node}: {one.message}" for one in odd[:3])
    return replace(found, rests_on=(*found.rests_on, f"not held to be the cause: {told}"))


def _agreeing(found: Diagnosis, odd: Sequence[NodeFinding]) -> Diagnosis | None:
    """Log and machine name the same node: surer, and where the log saw only the effect, the machine tells the cause."""
    same = [one for one in odd if one.node in found.nodes and _fits(found, one)]
    if not same:
        return None
    vague = found.fault in VAGUE or (found.fault is FaultClass.NODE and same[0].fault in HARDWARE)
    if vague and same[0].severity == BAD:
        better = _blaming([one for one in same if one.severity == BAD], found)
        return replace(better, confidence=sure(max(better.confidence, found.confidence) + 0.1))
    return replace(
        found,
        exclude=True,
        confidence=sure(found.confidence + 0.15),
        because=(*found.because, *_proofs(same)),
        sources=_sources(found, same, found.nodes),
        rests_on=(*found.rests_on, *_words(same)),
    )


def _explained(found: Diagnosis, odd: Sequence[NodeFinding]) -> Diagnosis | None:
    """The log is vague, unsure, or names nobody for a fault of this class: the machine tells where and what."""
    vague = found.fault in VAGUE or found.confidence < UNSURE
    culprits = [one for one in odd if one.severity == BAD and (vague or _nameless(found, one))]
    culprits = culprits or [one for one in odd if _nameless(found, one)]
    return _blaming(culprits, found) if culprits else None


def _beside(found: Diagnosis, odd: Sequence[NodeFinding]) -> Diagnosis | None:
    """The log names a sick node, and another is sick as well: the run goes on without both."""
    if found.fault not in HARDWARE | {FaultClass.NODE} or not found.nodes:
        return None
    more = [one for one in odd if one.severity == BAD and one.node not in found.nodes]
    if not more:
        return None
    names = tuple(dict.fromkeys((*found.nodes, *(one.node for one in more))))
    return replace(found, nodes=names, rests_on=(*found.rests_on, *_words(more)))


def _fits(found: Diagnosis, one: NodeFinding) -> bool:
    """A finding about something else (a slow mount beside a dead GPU) is no agreement."""
    if one.fault is found.fault or found.fault in {FaultClass.HANG, FaultClass.UNKNOWN}:
        return True
    return one.severity == BAD and found.fault in VAGUE | HARDWARE | {FaultClass.NODE}


def _nameless(found: Diagnosis, one: NodeFinding) -> bool:
    return not found.nodes and one.fault is found.fault


def _blaming(culprits: Sequence[NodeFinding], found: Diagnosis | None = None) -> Diagnosis:
    """A diagnosis that rests on findings; `found` is what the log said, and stays on record."""
    first = culprits[0]
    nodes = tuple(dict.fromkeys(one.node for one in culprits))
    default = CLASS_DEFAULTS[first.fault]
    base = plain(first.fault, first.message, _words(culprits), confidence=SURE[first.severity], names=nodes)
    told = (
        () if found is None else (f"the log alone says {found.fault.value}: {found.title}", *found.rests_on)
    )
    return replace(
        base,
        signature=f"{SIGNATURE}{first.check}",
        retry=True,
        action=default.action if default.action is not Action.STOP else Action.RESUBMIT,
        exclude=True,
        blame=Blame.NODE,
        because=(*_proofs(culprits), *(found.because if found is not None else ())),
        consequences=found.consequences if found is not None else 0,
        sources=_sources(found, culprits, nodes),
        rests_on=(*base.rests_on, *told),
    )


def _sources(
    found: Diagnosis | None, findings: Sequence[NodeFinding], names: Collection[str]
) -> tuple[Source, ...]:
    """The sources that agree. What drains a node must have looked at that very node, so it counts only where it saw all that are blamed."""
    before = found.sources if found is not None else ()
    proven = set(names) <= {one.node for one in findings if one.source is Source.CHECK}
    return tuple(dict.fromkeys((*before, Source.CHECK if proven else Source.REPORT)))


def _words(findings: Sequence[NodeFinding]) -> list[str]:
    return [f"{one.node}, check {one.check}: {one.message}" for one in findings[:5]]


def _proofs(findings: Sequence[NodeFinding]) -> tuple[Proof, ...]:
    return tuple(
        Proof(f"{one.kind} of {one.node}", 0, one.message, f"{SIGNATURE}{one.check}") for one in findings[:5]
    )
