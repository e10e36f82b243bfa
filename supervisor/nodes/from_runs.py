"""Ledger entries of a run, made from its journal: faults, exclusions, drains, hours, how starts ended. (pure)

The run's journal is the truth; entries are derived from it, with ids made of the run's token and their
subject. A supervisor that died between journal and ledger derives the same entries again, and they count
once.

An incident is held against a node where the run excluded the node, or would have excluded it had it gone
on. Nothing is held against a node by a run that only observes, nor where all nodes of a larger attempt are
blamed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from ftrun.hooks.runtime.formats import HOUR_S
from ftrun.slurm.records import replace
from ftrun.supervisor.diagnosis.node_findings import SIGNATURE, parse_report
from ftrun.supervisor.diagnosis.suspect_nodes import OF_NO_NODE
from ftrun.supervisor.model.node_entry import NodeEntry, canonical_device, finite_number
from ftrun.supervisor.model.run import Attempt, Incident, Run
from ftrun.supervisor.model.states import State
from ftrun.supervisor.model.types import CLASS_RULES, FaultClass
from ftrun.supervisor.nodes.machines import MACHINE, parse_identity
from ftrun.supervisor.nodes.repeat_failures import ENDED

EVIDENCE_CHARACTERS = 200
CARDS_BY = "gpu-check"  # the check that lists every card
CARDS_MAX = 32
FINDINGS_MAX = 32

PASSED = frozenset({FaultClass.PREEMPTED, FaultClass.TIMELIMIT})
"""Classes of ends that say nothing against a start that made steps."""

_PCI = re.compile(r"\b[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.0)?\b")
_UUID = re.compile(r"\bGPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b")
_DIGITS = re.compile(r"\d+")
_PORT = re.compile(r"\b(?:mlx[45]_\d+|hfi1_\d+|bnxt_re\d+)\b")


def entries_mark(run: Run) -> tuple[Any, ...]:
    """A value that changes when the run may have other entries."""
    last = run.incidents[-1] if run.incidents else None
    attempt = run.attempt
    return (
        len(run.incidents),
        last.decided_at_s if last else None,
        run.drained,
        len(run.attempts),
        (attempt.launch.number, attempt.launch.end.at_s) if attempt else None,
        sum(one.gone for attempt in run.attempts for one in attempt.companions),
        run.final,
    )


def entries_of(run: Run) -> list[NodeEntry]:
    """Every entry that the journal of a run gives rise to, oldest first."""
    found = [entry for incident in run.incidents for entry in _of_incident(run, incident)]
    found += [entry for attempt in run.attempts for entry in _served(run, attempt)]
    found += _ended(run)
    return sorted(found, key=lambda entry: (round(entry.at_s, 3), entry.id))


def _of_incident(run: Run, incident: Incident) -> Iterator[NodeEntry]:
    fault = _fault(incident.fault)
    nodes = tuple(node for node in incident.nodes if node in incident.attempt_nodes)
    decision, at_s = incident.decision, incident.decided_at_s
    if fault is None or not nodes or CLASS_RULES[fault].exclude == "never" or at_s is None:
        return
    because = incident.diagnosis.get("because") or ()
    evidence = str(because[0].get("text", "")) if because else ""
    device, serial = _device(evidence) if len(nodes) == 1 else ("", "")

    def entry(what: str, at_s: float, names: tuple[str, ...], **detail: Any) -> NodeEntry:
        return NodeEntry(
            at_s=at_s,
            what=what,
            nodes=names,
            id=f"{run.token}:{incident.id}:{what}",
            run=run.id,
            signature=incident.signature,
            fault=incident.fault,
            device=device,
            serial=serial,
            detail={"incident": incident.id, **detail},
        )

    yield entry(
        "incident",
        incident.diagnosed_at_s,
        nodes,
        title=incident.title,
        evidence=evidence[:EVIDENCE_CHARACTERS],
        attempt_nodes=len(incident.attempt_nodes),
        strike=_held_against(run, incident, nodes, fault),
    )
    if run.settings.get("observe"):
        return
    if excluded := tuple(decision.get("exclude", ())):
        yield entry("excluded", at_s, excluded, until_s=decision.get("exclude_until_s", at_s))
    for node in decision.get("drain", ()):
        if node in run.drained:  # one by one, as they are drained
            done = entry("drained", at_s, (node,))
            yield replace(done, id=f"{done.id}:{node}")


def _held_against(run: Run, incident: Incident, nodes: tuple[str, ...], fault: FaultClass) -> bool:
    """Whether the run excludes the nodes, or would if it went on, or if its cap had room for them all."""
    if run.settings.get("observe"):
        return False
    always = CLASS_RULES[fault].exclude == "always" and bool(incident.diagnosis.get("exclude"))
    if set(nodes) & set(incident.decision.get("exclude", ())):
        return always or set(nodes) <= set(incident.decision["exclude"])
    stopped = incident.decision.get("kind") == "stop"
    some = len(nodes) < len(incident.attempt_nodes) or len(nodes) == 1
    return stopped and some and always


def _served(run: Run, attempt: Attempt) -> Iterator[NodeEntry]:
    """The hours of the attempt's last known launch, once it is over, and of its companions.

    A node that left its job and came back with a companion has its hours once.
    """
    for one in attempt.companions:
        nodes = tuple(node for node in one.nodes if node not in attempt.nodes)
        if not nodes or one.gone_at_s is None or one.here_at_s is None:
            continue
        if one.gone_at_s > one.here_at_s:
            yield NodeEntry(
                at_s=one.gone_at_s,
                what="served",
                nodes=nodes,
                id=f"{run.token}:{attempt.number}.{one.launch}:companion.{one.number}:served",
                run=run.id,
                detail={"hours": round((one.gone_at_s - one.here_at_s) / HOUR_S, 4)},
            )
    if not attempt.nodes or attempt.launch.started_at_s is None or not attempt.launch.end.state:
        return
    end_s = attempt.launch.end.slurm_at_s or attempt.launch.end.at_s
    if end_s is None or end_s <= attempt.launch.started_at_s:
        return
    yield NodeEntry(
        at_s=end_s,
        what="served",
        nodes=attempt.nodes,
        id=f"{run.token}:{attempt.number}.{attempt.launch.number}:served",
        run=run.id,
        detail={"hours": round((end_s - attempt.launch.started_at_s) / HOUR_S, 4)},
    )


def _ended(run: Run) -> Iterator[NodeEntry]:
    """How each start ended whose end tells something about its nodes (see `repeat_failures`)."""
    if run.settings.get("observe") or run.given_up or any(one.failed_tasks for one in run.attempts):
        return  # an observed run holds nothing against nodes; tasks of an array have nodes of their own
    furthest: dict[int, int] = {}  # attempt -> the highest step at which it had failed so
    for incident in run.incidents:
        fault, at_s = _fault(incident.fault), incident.diagnosed_at_s
        attempt = next((one for one in run.attempts if one.number == incident.attempt), None)
        if attempt is None or incident.decided_at_s is None:  # it may be diagnosed anew
            continue
        failed, step = fault in OF_NO_NODE, -1 if incident.step is None else incident.step
        earlier = [highest for number, highest in furthest.items() if number < incident.attempt]
        if (fault in PASSED and step >= 0) or (earlier and step > max(earlier)):
            passed = _start_ended(run, attempt, f"{incident.id}:further", at_s - 0.001)
            yield replace(passed, nodes=incident.attempt_nodes)
        if failed:
            how = _start_ended(run, attempt, incident.id, at_s, failed=True)
            yield replace(how, nodes=incident.attempt_nodes)
            furthest[incident.attempt] = max(step, furthest.get(incident.attempt, -1))
    last = run.attempt
    if run.state is State.FINISHED and last is not None and last.launch.end.state == "COMPLETED":
        yield _start_ended(run, last, f"{last.incident}:end", last.launch.end.at_s or run.last_at_s)


def _start_ended(run: Run, attempt: Attempt, name: str, at_s: float, *, failed: bool = False) -> NodeEntry:
    """The last start of the attempt. Work is alike by the name of its job, but for numbers, where it ran, and
    its size.
    """
    work = f"{_DIGITS.sub('#', run.name)}@{attempt.partition}x{len(attempt.used)}"
    return NodeEntry(
        at_s=at_s,
        what=ENDED,
        nodes=attempt.used,
        id=f"{run.token}:{name}:{ENDED}",
        run=run.id,
        detail={"result": "failed" if failed else "passed", "work": work},
    )


def _fault(name: str) -> FaultClass | None:
    """The class of an incident; None for one of a newer ftrun."""
    try:
        fault = FaultClass(name)
    except ValueError:
        return None
    return fault if fault in CLASS_RULES else None


def _device(text: str) -> tuple[str, str]:
    """(place, serial) of the device that a line names; "" where it names none."""
    serial = found[0] if (found := _UUID.search(text)) else ""
    where = _PCI.search(text) or _PORT.search(text)
    return (canonical_device(where[0]) if where else "", serial)


# ---------------------------------------------------------------------- reports of nodes


def entry_prefix(run: Run, attempt: int, launch: int) -> str:
    """How the ids of all entries from reports of this launch begin."""
    return f"{run.token}:{attempt}.{launch}:"


def entries_of_report(
    run: Run, attempt: int, launch: int, report: object, *, node: str, now_s: float
) -> list[NodeEntry]:
    """What a node's report adds.

    A `check` for each finding, a `device` for each card that it names with its place, the `machine`.

    Reports are written by the job's own user: they are history and an inventory; they are never a strike.
    """
    if not isinstance(report, Mapping) or report.get("schema") != 1 or report.get("node") != node:
        return []
    kind, told_s = str(report.get("kind", "")), finite_number(report.get("at_s"))
    at_s = now_s if told_s is None else min(told_s, now_s)
    name = f"{entry_prefix(run, attempt, launch)}{kind}:{node}"
    checks = [
        NodeEntry(
            at_s=at_s,
            what="check",
            nodes=(node,),
            id=f"{name}:{one.check}:{one.device}",
            run=run.id,
            signature=f"{SIGNATURE}{one.check}",
            fault=one.fault.value,
            device=canonical_device(one.device),
            detail={"worst": one.severity, "text": one.message, "kind": kind, "value": one.value},
        )
        for one in parse_report(report, node=node)[:FINDINGS_MAX]
    ]
    cards = [
        NodeEntry(at_s, "device", (node,), f"{name}:{where}", run.id, device=where, serial=serial)
        for where, serial in _cards(report)
    ]
    told = parse_identity(report.get("machine"))
    machine = [NodeEntry(at_s, MACHINE, (node,), f"{name}:{MACHINE}", run.id, detail=told)] if told else []
    return [*checks, *cards, *machine]


def _cards(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(place, UUID) of each GPU, as the GPU check lists them."""
    findings = report.get("findings")
    rows = findings if isinstance(findings, list) else []
    lines = [
        line
        for row in rows
        if isinstance(row, Mapping) and row.get("check") == CARDS_BY and isinstance(row.get("evidence"), list)
        for line in row["evidence"]
    ]
    found = [_device(line) for line in lines[:CARDS_MAX] if isinstance(line, str)]
    return [(where, serial) for where, serial in found if where and serial]
