"""The summary of checks on many nodes: what is shown, which nodes are bad, the exit status. (pure)

For a thousand nodes a person wants to read a dozen lines: equal findings of several nodes share one line
with the names folded, and healthy results are left out. `hooks.health.outliers` decides which nodes are
bad, as it does before a job.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any

from ftrun.hooks.health.outliers import Verdict, verdict
from ftrun.hooks.runtime.finding import BAD, DEGRADED, NOTE, OK, SEVERITIES, SKIPPED, UNKNOWN
from ftrun.slurm.client import nodeset
from ftrun.slurm.records import dataclass

ANSWERED = "answered"
EXIT_BAD = 1
EXIT_UNSEEN = 3

SHOWN = (BAD, DEGRADED, UNKNOWN, NOTE)
TOLD_MAX = 200


@dataclass(frozen=True, slots=True)
class CheckedNode:
    """One node: `state` is answered, or unreachable, refused, timeout, silent, then with `why`."""

    node: str
    state: str
    findings: Sequence[Mapping[str, Any]] = ()
    took_s: float = 0.0
    why: str = ""


@dataclass(frozen=True, slots=True)
class Result:
    """All nodes, in the order that was asked for, and the verdict on those that answered."""

    seen: Sequence[CheckedNode]
    verdict: Verdict = field(default_factory=lambda: Verdict({}, (), (), ()))

    @property
    def unseen(self) -> tuple[CheckedNode, ...]:
        """The nodes that gave no report."""
        return tuple(one for one in self.seen if one.state != ANSWERED)

    @property
    def exit_status(self) -> int:
        """0: all nodes were checked, and nothing is bad. EXIT_BAD: something is.

        EXIT_UNSEEN: nothing bad was found, but some nodes gave no report.
        """
        if self.verdict.bad or any(row["severity"] == BAD for one in self.seen for row in one.findings):
            return EXIT_BAD
        return EXIT_UNSEEN if self.unseen else 0


def summarize(seen: Sequence[CheckedNode]) -> Result:
    """The verdict on all reports."""
    reports = {one.node: one.findings for one in seen if one.state == ANSWERED}
    return Result(tuple(seen), verdict(reports, len(seen), [one.node for one in seen]))


def matrix(result: Result, *, every: bool = False) -> tuple[list[str], list[list[str | None]]]:
    """Checks by severity, in each cell the nodes. Only what is not well, unless `every`."""
    severities = (*SHOWN, OK, SKIPPED) if every else SHOWN
    cells: dict[str, dict[str, set[str]]] = {}
    for one in result.seen:
        worst: dict[str, str] = {}
        for row in one.findings:
            known = worst.get(row["check"], OK)
            worst[row["check"]] = max(known, row["severity"], key=SEVERITIES.index)
        for check, severity in worst.items():
            cells.setdefault(check, {}).setdefault(severity, set()).add(one.node)
    columns = [severity for severity in severities if any(severity in cell for cell in cells.values())]
    rows: list[list[str | None]] = [
        [check, *(nodeset.fold(cell[severity]) if severity in cell else None for severity in columns)]
        for check, cell in sorted(cells.items(), key=_gravest_first)
        if any(severity in cell for severity in columns)
    ]
    return ["CHECK", *(severity.upper() for severity in columns)], rows


def _gravest_first(item: tuple[str, Mapping[str, set[str]]]) -> tuple[int, str]:
    return (-max(SEVERITIES.index(severity) for severity in item[1]), item[0])


def summary_lines(result: Result) -> list[str]:
    """What was found, one line for equal findings; then bad nodes, and those without a report."""
    return [*_found(result), *_blamed(result), *_not_seen(result)]


def _found(result: Result) -> Iterator[str]:
    same: dict[tuple[str, str, str], set[str]] = {}
    for one in result.seen:
        for row in one.findings:
            if row["severity"] in (BAD, DEGRADED, UNKNOWN):
                device = f" {row['device']}" if row["device"] else ""
                same.setdefault((row["severity"], f"{row['check']}{device}", row["message"]), set()).add(
                    one.node
                )
    ordered = sorted(same.items(), key=lambda item: (-SEVERITIES.index(item[0][0]), item[0]))
    for (severity, check, message), nodes in ordered[:TOLD_MAX]:
        yield f"{severity:<8} {nodeset.fold(nodes)}: {check}: {message}"
    if len(ordered) > TOLD_MAX:
        yield f"... and {len(ordered) - TOLD_MAX} more lines (--json has all)"


def _blamed(result: Result) -> Iterator[str]:
    found = result.verdict
    if found.bad:
        yield f"to be avoided: {nodeset.fold(found.bad)}"
    for check in found.site:
        yield f"{check} fails on most nodes: a matter of the site or of the check, not of a node"
    if found.many and len(result.seen) > 1:
        yield f"bad, and too many to be each node's own fault: {nodeset.fold(found.many)}"
    for odd in found.odd:
        yield f"{odd.node} differs from its peers: {odd.check}{odd.device and ' '}{odd.device}: {odd.has}, they have {odd.peers_have}"


def _not_seen(result: Result) -> Iterator[str]:
    same: dict[tuple[str, str], set[str]] = {}
    for one in result.unseen:
        same.setdefault((one.state, one.why), set()).add(one.node)
    for (state, why), nodes in sorted(same.items()):
        yield f"not checked: {nodeset.fold(nodes)}: {state}{why and ': '}{why}"


def summary_json(result: Result) -> dict[str, Any]:
    """All of it, for programs."""
    return {
        "nodes": {
            one.node: {
                "state": one.state,
                "why": one.why,
                "took_s": one.took_s,
                "worst": max((row["severity"] for row in one.findings), key=SEVERITIES.index, default=OK),
                "findings": list(one.findings),
            }
            for one in result.seen
        },
        "bad": {node: list(rows) for node, rows in result.verdict.bad.items()},
        "site": list(result.verdict.site),
        "many": list(result.verdict.many),
        "odd": [one._asdict() for one in result.verdict.odd],
        "exit_status": result.exit_status,
    }
