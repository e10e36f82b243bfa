"""Reports of nodes in an attempt's folder, `nodes/<kind>.<launch>.<node>.json`: read and written. (I/O)

A reader checks the form of a report and trusts nothing else in it. The folder lies on a shared file system
and may be gone: a removed run folder stays removed, so a writer creates `nodes` at most. A reader sees a
whole report or none. What a sick node can write is bounded: one file for each kind, and a limited number of
findings in it, worst first.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from typing import Any, Optional

from ftrun.hooks.runtime.finding import SEVERITIES, SKIPPED

SCHEMA = 1
"""Version of the report; readers skip a newer one."""


def parse_report(text: str) -> Optional[dict[str, Any]]:
    """The last line of `text` as a report (see `runner.report_of`); None if it is none, or of another schema."""
    try:
        report = json.loads(text.rstrip().rpartition("\n")[2])
    except (ValueError, RecursionError):
        return None
    if not isinstance(report, dict) or report.get("schema") != SCHEMA:
        return None
    return report if parse_findings(report.get("findings")) is not None else None


def parse_findings(findings: object) -> Optional[list[dict[str, Any]]]:
    """`findings` as those of a report; None if they have another form."""
    if not isinstance(findings, list) or not all(_is_finding(one) for one in findings):
        return None
    return findings


def _is_finding(one: object) -> bool:
    if not isinstance(one, dict) or one.get("severity") not in SEVERITIES:
        return False
    return all(isinstance(one.get(key), str) for key in ("check", "message", "fault", "device"))


FINDINGS_MAX = 96
EVIDENCE_MAX = 16  # a line for each card
TEXT_CHARS = 400


def report_path(folder: str, kind: str, launch: int, node: str) -> str:
    """The path of one node's report; `folder` is the attempt's `nodes`."""
    return os.path.join(folder, f"{kind}.{launch}.{node}.json")


def write_report(folder: str, launch: int, report: Mapping[str, Any]) -> None:
    """Write a report (see `runner.report_of`) atomically. Raises OSError."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(folder, 0o700)
    write_json(
        report_path(folder, report["kind"], launch, report["node"]),
        {**report, "findings": _bounded(report["findings"])},
    )


def write_json(final: str, table: Mapping[str, Any]) -> None:
    """Write a table as JSON atomically; each path has one writer. Raises OSError."""
    draft = os.path.join(os.path.dirname(final), f".{os.path.basename(final)}.tmp")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
        json.dump(table, stream)
    os.replace(draft, final)


def _bounded(findings: list[dict[str, Any]]) -> list[dict[str, Any]]:
    # Findings that are ok are compared across nodes; skipped ones are read nowhere and are dropped first.
    worst_first = sorted(
        findings, key=lambda one: (one["severity"] == SKIPPED, -SEVERITIES.index(one["severity"]))
    )
    return [
        {
            **one,
            "message": one["message"][:TEXT_CHARS],
            "evidence": [line[:TEXT_CHARS] for line in one["evidence"][:EVIDENCE_MAX]],
        }
        for one in worst_first[:FINDINGS_MAX]
    ]
