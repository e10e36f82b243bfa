"""What the nodes of an attempt report of themselves, joined with what its log says. (pure)

A node's report is evidence from the machine, the log is evidence from the program. Each alone can mislead:
users write logs, the rank that complains is usually the victim, and a check may fail for the site's own
reasons. So only findings that set a minority of the nodes apart count (what all nodes show is the site's).
They count by TABLE: a finding names the node where the log is vague (a hang, a time-out, lost connections, an
unknown end), confirms the log where both name the same node, and is mentioned but overrules nothing where the
log names a cause that no node has (a bug, a full disk).

Only nodes that report are compared. A dead node shows nothing, so nodes that survive it and share a finding
are no minority. And what was there before the fault is not its cause (`standing`): the checks before the
script found it, training went on after it, an earlier launch left it in the node history, or most nodes of
other runs have it. What got worse since then is new.

A report in the attempt's folder was written by the job's own user: it may exclude nodes of this attempt, and
drains none.

TABLE: whether the check before the script failed, whether a check finds bad hardware on a minority of the
nodes, and whether the script has ended: all eight combinations, of which ModelArts names four ("training
fault tolerance check"). ftrun never ends a live start for a finding alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import field
from enum import StrEnum

from ftrun.hooks.health import outliers
from ftrun.slurm.records import dataclass, replace
from ftrun.supervisor.diagnosis.class_defaults import CLASS_DEFAULTS, UNSURE, clamp_confidence, plain
from ftrun.supervisor.model.node_entry import NodeEntry, canonical_device, finite_number
from ftrun.supervisor.model.types import Action, Blame, Diagnosis, FaultClass, Proof, Source


class Act(StrEnum):
    """What a scenario asks for."""

    ISOLATE = "isolate and submit again"
    START = "start all the same"
    JUDGE = "judge by the log"
    SUSPECT = "end it only if it stands still"
    WATCH = "let it run"


@dataclass(frozen=True, slots=True)
class Scenario:
    """One row of TABLE. `number` is ModelArts' own, 0 where it has none. `ended`: the script has ended, or
    the check kept it from starting.
    """

    number: int
    precheck_failed: bool
    hardware_bad: bool
    ended: bool
    act: Act
    why: str


TABLE = (
    Scenario(
        1, True, True, True, Act.ISOLATE,
        "the sick nodes are left out and the run goes on elsewhere; no budget of a fault class pays for it",
    ),
    Scenario(
        2, True, False, True, Act.JUDGE,
        "what every node shows is the site's or the set-up's: nobody is left out, "
        "and the log tells whether to try again",
    ),
    Scenario(
        3, False, True, True, Act.ISOLATE,
        "the machine explains the end where the log does not explain it better: the node is left out, "
        "the run resumes from its checkpoint",
    ),
    Scenario(
        4, False, False, True, Act.JUDGE,
        "the job's own end: its class decides, a mistake in the script fails, a full disk waits, "
        "an unknown cause is tried once more",
    ),
    Scenario(
        0, True, True, False, Act.SUSPECT,
        "the script runs on a node that failed its check: as long as it makes steps it is not touched",
    ),
    Scenario(
        0, True, False, False, Act.START,
        "a check that fails everywhere, or is unsure, keeps no script from starting",
    ),
    Scenario(
        0, False, True, False, Act.SUSPECT,
        "training may survive a fault: it is ended when nothing is seen to move for `fault-grace`",
    ),
    Scenario(0, False, False, False, Act.WATCH, "nothing is wrong"),
)  # fmt: skip


def scenario_for(*, precheck_failed: bool, hardware_bad: bool, ended: bool) -> Scenario:
    """The row for what is known."""
    wanted = (precheck_failed, hardware_bad, ended)
    return next(row for row in TABLE if (row.precheck_failed, row.hardware_bad, row.ended) == wanted)


SIGNATURE = "check-"
"""The signature of a diagnosis that rests on a check is this plus the check's name."""

BAD, DEGRADED = "bad", "degraded"
REMEMBERED_S = 3600.0
"""How long a finding that is gone may still be the cause: collectives give up after half an hour."""

HARDWARE = frozenset({FaultClass.HARDWARE_GPU, FaultClass.HARDWARE_OTHER})
OF_NODES = HARDWARE | {FaultClass.NETWORK, FaultClass.STORAGE, FaultClass.NODE}
"""Classes of findings that concern a node."""

ENDED_FOR_OTHER_REASONS = frozenset(
    {
        FaultClass.HEALTHY,
        FaultClass.CANCELLED,
        FaultClass.PREEMPTED,
        FaultClass.TIMELIMIT,
        FaultClass.SCHEDULER,
    }
)
VAGUE = frozenset({FaultClass.HANG, FaultClass.NETWORK, FaultClass.UNKNOWN, FaultClass.LIBRARY_BUG})
"""What a broken node looks like from the program's side."""

SURE = {BAD: 0.85, DEGRADED: 0.6}
GRADES = (DEGRADED, BAD)

NEARLY = 0.05
"""Values that differ by no more than this share are equal."""

SECONDS = "s"
"""The unit of response times, which differ from check to check."""

STOOD_FOR_S = 14 * 86_400.0
"""How long the node history counts: afterwards the node may have been repaired."""

SITE_LEAST = 2
"""How many nodes of other runs must show a finding before it counts as the site's."""


@dataclass(frozen=True, slots=True)
class NodeFinding:
    """One finding of a check on one node. `until_s`: when it was gone again, None while it holds. `source`:
    who ran the check.

    `fresh`: the check looked only at what came since the script began. `standing`: the finding was there
    before the fault.
    """

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
    value: float | None = None
    unit: str = ""
    fresh: bool = False
    standing: bool = False

    @property
    def key(self) -> str:
        """Identifies the finding within its attempt; one that got worse has another key."""
        amount = f":{self.value:g}" if self.value is not None and self.unit != SECONDS else ""
        return f"{self.node}:{self.check}:{self.device}:{self.severity}{amount}"


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What is known of an attempt's nodes now. `asked` are the nodes that answered a full check, `silent` the
    lost ones.
    """

    nodes: tuple[str, ...] = ()
    findings: tuple[NodeFinding, ...] = ()
    asked: frozenset[str] = field(default_factory=frozenset)
    silent: frozenset[str] = field(default_factory=frozenset)

    @property
    def tellers(self) -> frozenset[str]:
        """The nodes that can be compared: those that are not silent, and answered if any did."""
        left = frozenset(self.nodes) - self.silent
        return left & self.asked or left

    def odd(self, now_s: float) -> tuple[NodeFinding, ...]:
        """The new findings that set a minority of the nodes apart, worst first."""
        held = [
            one
            for one in self.findings
            if one.node in self.nodes and (one.until_s is None or now_s - one.until_s <= REMEMBERED_S)
        ]
        tellers = self.tellers
        among = (frozenset(self.nodes), tellers)
        shown = {(one.check, one.node) for one in held}
        all_show, tellers_show = (Counter(check for check, node in shown if node in nodes) for nodes in among)
        few = [
            one
            for one in held
            if 2 * tellers_show[one.check] <= len(tellers) or (len(tellers) == 1 and _speaks_alone(one))
        ]
        if len(self.nodes) > 1:
            few = [one for one in few if 2 * all_show[one.check] <= len(self.nodes)]
        few = [one for one in few if not one.standing]
        # Most that still answer show it, most of all nodes do not: no node is blamed for it, and each counts as bad.
        doubtful = [one for one in held if one not in few and 2 * all_show[one.check] <= len(self.nodes)]
        bad = {one.node for one in (*few, *doubtful) if one.severity == BAD and not one.standing}
        if any(2 * len(bad & nodes) > len(nodes) > 1 for nodes in among):
            return ()  # most nodes are bad, each in its own way: a shared cause is likelier
        return tuple(sorted(few, key=lambda one: (one.severity != BAD, one.fault not in HARDWARE, one.node)))

    def everywhere(self) -> tuple[str, ...]:
        """The checks that fail on every node of several: the site's fault or the job's.

        A lost node reports nothing more. Where most of the others answered a full check, those are enough.
        """
        left = frozenset(self.nodes) - self.silent
        answered = left & self.asked
        told = answered if 2 * len(answered) > len(left) and len(answered) > 1 else left
        shown: dict[str, set[str]] = {}
        for one in self.findings:
            shown.setdefault(one.check, set()).add(one.node)
        return tuple(sorted(check for check, nodes in shown.items() if len(told) > 1 and told <= nodes))

    def stood(self, before: Sequence[NodeFinding]) -> NodeFacts:
        """These facts, with findings marked as standing that the checks before the script already had. What
        the watch found came later.
        """
        return self._marked(
            lambda one: (
                one in before
                or (one.kind == "after" and not one.fresh and any(_same(old, one) for old in before))
            )
        )

    def survived(self, keys: Collection[str]) -> NodeFacts:
        """These facts after training, or another start, went on in spite of the findings with these keys.

        What a watch found then counts no more, and hides no other node with the same fault. A check finds
        again what still stands.
        """
        marked = self._marked(lambda one: one.key in keys)
        left = (one for one in marked.findings if one.kind != "watch" or one.key not in keys)
        return replace(marked, findings=tuple(left))

    def noted_before(self, entries: Iterable[NodeEntry], run: str, launch: str, now_s: float) -> NodeFacts:
        """These facts, with findings marked as standing that the node history had before this launch.
        Entries of this launch have ids that begin with `launch`.

        A finding that a node was blamed for before still counts. A card or link that is broken elsewhere does
        not excuse this one.
        """
        told = [one for one in entries if now_s - one.at_s <= STOOD_FOR_S and not one.id.startswith(launch)]
        checks = [one for one in told if one.what == "check"]
        before = [_noted(one, node) for one in checks for node in one.nodes if node in self.nodes]
        blamed = {
            (node, one.signature)
            for one in told
            if one.what in ("incident", "excluded", "drained")
            for node in one.nodes
        }
        of_others = {node for one in told if one.run not in ("", run) for node in one.nodes}
        shown: dict[str, set[str]] = {}
        for one in checks:
            if one.run != run:
                shown.setdefault(one.signature, set()).update(one.nodes)

        def known(one: NodeFinding) -> bool:
            signature = f"{SIGNATURE}{one.check}"
            if one.kind == "watch" or one.fresh or (one.node, signature) in blamed:
                return False
            if any(_same(old, one) for old in before):
                return True
            many = len(shown.get(signature, ()))
            return one.fault not in HARDWARE and many >= SITE_LEAST and 2 * many > len(of_others)

        return self._marked(known)

    def _marked(self, standing: Callable[[NodeFinding], bool]) -> NodeFacts:
        marked = (
            one if one.standing or not standing(one) else replace(one, standing=True) for one in self.findings
        )
        return replace(self, findings=tuple(marked))

    def scenario(self, now_s: float, *, ended: bool) -> Scenario:
        """The row of TABLE for these facts."""
        bad = [one for one in self.odd(now_s) if one.severity == BAD]
        failed = any(one.kind == "preflight" and one.severity == BAD for one in self.findings)
        return scenario_for(precheck_failed=failed, hardware_bad=bool(bad), ended=ended)


def _speaks_alone(one: NodeFinding) -> bool:
    """Whether the finding counts without a peer to compare with: broken hardware, and what came while the job
    ran. The rest may be normal at this site.
    """
    return one.fault in HARDWARE or one.kind == "watch"


def _as_bad_as(one: NodeFinding) -> tuple[str, ...]:
    """The severities of an earlier finding that make this one no worse."""
    return GRADES[GRADES.index(one.severity) :]


def _noted(entry: NodeEntry, node: str) -> NodeFinding:
    """A finding from the node history."""
    return NodeFinding(
        node=node,
        kind=str(entry.detail.get("kind", "")),
        check=entry.signature.removeprefix(SIGNATURE),
        severity=str(entry.detail.get("worst", "")),
        fault=FaultClass.NODE,
        message="",
        device=entry.device,
        value=finite_number(entry.detail.get("value")),
    )


def _same(before: NodeFinding, now: NodeFinding) -> bool:
    """Whether `now` is the earlier finding again: the same thing on the same node, and no worse."""
    if (before.node, before.check, canonical_device(before.device)) != (
        now.node,
        now.check,
        canonical_device(now.device),
    ):
        return False
    if before.severity not in _as_bad_as(now) or before.value is None or now.value is None:
        return before.severity in _as_bad_as(now)
    margin = NEARLY * max(abs(before.value), abs(now.value))
    return now.unit == SECONDS or abs(now.value - before.value) <= margin


def facts_from_reports(
    nodes: Sequence[str],
    reports: Mapping[str, Mapping[str, object]],
    *,
    by_ssh: Mapping[str, object] | None = None,
) -> NodeFacts:
    """The facts of an attempt. `reports` by kind (preflight, watch, after) and node, as read; `by_ssh` are
    reports that ftrun fetched itself.

    Full checks are also compared with each other: no node can tell alone that it has less than its peers.
    """
    ours = frozenset(nodes)
    told = {kind: {n: r for n, r in found.items() if n in ours} for kind, found in reports.items()}
    findings = [
        one
        for found in told.values()
        for node, report in found.items()
        for one in parse_report(report, node=node)
    ]
    fetched = {node: report for node, report in (by_ssh or {}).items() if node in ours}
    for node, report in fetched.items():
        findings += parse_report(report, node=node, source=Source.CHECK)
    full = {**told.get("after", {}), **fetched}
    full = {node: report for node, report in full.items() if isinstance(report, Mapping)}
    rows = {node: _rows(report) for node, report in full.items()}
    known = {(one.node, one.check) for one in findings if one.severity == BAD}
    for odd in outliers.verdict(rows, len(nodes)).odd if rows else ():
        if odd.counts and odd.fault in OF_NODES and (odd.node, odd.check) not in known:
            message = f"{odd.has}, its peers have {odd.peers_have}"
            fault = FaultClass(odd.fault)
            findings.append(NodeFinding(odd.node, "after", odd.check, BAD, fault, message, odd.device))
    before = [one for one in findings if one.kind == "preflight"]
    facts = NodeFacts(tuple(nodes), tuple(findings), frozenset(rows))
    return facts.stood(before) if before else facts


def _rows(report: object) -> list[dict[str, object]]:
    """A report's findings in the form that `outliers` takes. Users write reports: every field is checked."""
    rows = report.get("findings") if isinstance(report, Mapping) else None
    return [
        {
            **{key: str(row.get(key, "")) for key in ("check", "severity", "device", "fault", "unit")},
            "value": finite_number(row.get("value")),
            "evidence": _texts(row.get("evidence")),
        }
        for row in (rows if isinstance(rows, list) else [])
        if isinstance(row, Mapping)
    ]


def _texts(lines: object) -> list[str]:
    return [str(line)[:400] for line in lines[:5]] if isinstance(lines, list) else []


def parse_report(report: object, *, node: str, source: Source = Source.REPORT) -> tuple[NodeFinding, ...]:
    """The findings of a report (schema 1) against its node; () for anything but a report of that node."""
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
        at_s=finite_number(row.get("at_s", report.get("at_s"))),
        until_s=finite_number(row.get("until_s")),
        source=source,
        value=finite_number(row.get("value")),
        unit=str(row.get("unit", ""))[:32],
        fresh=row.get("check") in _list(report.get("since")),
    )


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


# ---------------------------------------------------------------------- joining


def while_alive(
    found: Diagnosis | None, facts: NodeFacts, survived: Collection[str], now_s: float
) -> Diagnosis | None:
    """What log and nodes say of a live run. Findings after which training went on count no more.

    The result is a suspicion: ftrun ends a live run only if it stands still as well (P7).
    """
    left = facts.survived(survived)
    if left.scenario(now_s, ended=False).act is not Act.SUSPECT:
        return found
    if found is not None and found.signature and found.fault not in ENDED_FOR_OTHER_REASONS:
        return joined(found, left, now_s)
    return _blaming([one for one in left.odd(now_s) if one.severity == BAD])


def worth_checking(found: Diagnosis) -> bool:
    """Whether a check could change this diagnosis. A sure cause that no node has stays as it is."""
    if found.fault in ENDED_FOR_OTHER_REASONS:
        return False
    return found.fault in OF_NODES | VAGUE or found.confidence < UNSURE


def joined(found: Diagnosis, facts: NodeFacts, now_s: float) -> Diagnosis:
    """The diagnosis of an end, with what the nodes report."""
    every, shared = ("every node that answers" if facts.silent else "every node"), facts.everywhere()
    words = [f"{every} fails {check}: the site or the job, not a node" for check in shared]
    stood = [
        one for one in facts.findings if one.standing and one.severity == BAD and one.check not in shared
    ]
    words += [f"there before the fault: {one.node}, check {one.check}: {one.message}" for one in stood[:3]]
    found = replace(found, rests_on=(*found.rests_on, *words)) if words else found
    odd = facts.odd(now_s)
    if not odd or found.fault in ENDED_FOR_OTHER_REASONS:
        return found
    for rule in (_agreeing, _explained, _beside):
        better = rule(found, odd)
        if better is not None and found.nodes and set(facts.nodes) <= set(better.nodes):
            continue  # blaming all means blaming none, and the node that is named already would go free
        if better is not None:
            row = facts.scenario(now_s, ended=True)
            told = f"scenario {row.number}: {row.act.value}" if row.number else row.act.value
            return replace(better, rests_on=(*better.rests_on, told))
    told = "; ".join(f"{one.node}: {one.message}" for one in odd[:3])
    return replace(found, rests_on=(*found.rests_on, f"not held to be the cause: {told}"))


def _agreeing(found: Diagnosis, odd: Sequence[NodeFinding]) -> Diagnosis | None:
    """Log and machine name the same node: raise the confidence. If the log saw only the effect, take the
    machine's cause.
    """
    same = [one for one in odd if one.node in found.nodes and _fits(found, one)]
    if not same:
        return None
    vague = found.fault in VAGUE or (found.fault is FaultClass.NODE and same[0].fault in HARDWARE)
    if vague and same[0].severity == BAD:
        better = _blaming([one for one in same if one.severity == BAD], found)
        return replace(better, confidence=clamp_confidence(max(better.confidence, found.confidence) + 0.1))
    return replace(
        found,
        exclude=True,
        confidence=clamp_confidence(found.confidence + 0.15),
        because=(*found.because, *_proofs(same)),
        sources=_sources(found, same, found.nodes),
        rests_on=(*found.rests_on, *_words(same)),
    )


def _explained(found: Diagnosis, odd: Sequence[NodeFinding]) -> Diagnosis | None:
    """The log is vague, unsure, or names nobody for a fault of this class: take the machine's finding."""
    vague = found.fault in VAGUE or found.confidence < UNSURE
    culprits = [one for one in odd if one.severity == BAD and (vague or _nameless(found, one))]
    culprits = culprits or [one for one in odd if _nameless(found, one)]
    return _blaming(culprits, found) if culprits else None


def _beside(found: Diagnosis, odd: Sequence[NodeFinding]) -> Diagnosis | None:
    """The log names a sick node, and another is sick too: exclude both. Storage findings do not count: file
    systems are shared.
    """
    if found.fault not in HARDWARE | {FaultClass.NODE} or not found.nodes:
        return None
    more = [one for one in odd if one.severity == BAD and one.node not in found.nodes]
    more = [one for one in more if one.fault is not FaultClass.STORAGE]
    if not more:
        return None
    names = tuple(dict.fromkeys((*found.nodes, *(one.node for one in more))))
    return replace(found, nodes=names, rests_on=(*found.rests_on, *_words(more)))


def _fits(found: Diagnosis, one: NodeFinding) -> bool:
    """Whether finding and log are about the same thing. A slow mount beside a dead GPU is not."""
    if one.fault is found.fault or found.fault in {FaultClass.HANG, FaultClass.UNKNOWN}:
        return True
    return one.severity == BAD and found.fault in VAGUE | HARDWARE | {FaultClass.NODE}


def _nameless(found: Diagnosis, one: NodeFinding) -> bool:
    return not found.nodes and one.fault is found.fault


def _blaming(culprits: Sequence[NodeFinding], found: Diagnosis | None = None) -> Diagnosis:
    """A diagnosis that rests on findings. `found`, what the log said, stays on record."""
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
    """The sources that agree. A drain needs a check by ftrun of that very node, so CHECK counts only if it
    saw all blamed nodes.
    """
    before = found.sources if found is not None else ()
    proven = set(names) <= {one.node for one in findings if one.source is Source.CHECK}
    return tuple(dict.fromkeys((*before, Source.CHECK if proven else Source.REPORT)))


def _words(findings: Sequence[NodeFinding]) -> list[str]:
    return [f"{one.node}, check {one.check}: {one.message}" for one in findings[:5]]


def _proofs(findings: Sequence[NodeFinding]) -> tuple[Proof, ...]:
    return tuple(
        Proof(f"{one.kind} of {one.node}", 0, one.message, f"{SIGNATURE}{one.check}") for one in findings[:5]
    )
