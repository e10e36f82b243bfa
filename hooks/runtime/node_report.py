"""The report of a node, as it comes back from one: believed in its form, and in nothing else. (I/O)

The reports of nodes in an attempt's folder: `nodes/<kind>.<launch>.<node>.json`.
How it thinks. The folder lies on a file system that all nodes share, and may be gone: a run's folder that was removed stays removed, so
no more than `nodes` itself is ever made. A reader sees a whole report or none. What a sick node can say is bounded: one file a kind, and so
many findings in it, worst first.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from typing import Any, Optional

from ftrun.hooks.runtime.finding import SEVERITIES, SKIPPED

__all__ = ["FINDINGS_MAX", "SCHEMA", "parsed", "path", "put", "write"]


SCHEMA = 1
"""Of the report of a node; a reader leaves a newer one alone."""


def parsed(text: str) -> Optional[dict[str, Any]]:
    """The last line of `text` as a report (see `runner.report_of`); None where it is none, or one of another schema."""
    try:
        report = json.loads(text.rstrip().rpartition("\n")[2])
    except (ValueError, RecursionError):
        return None
    if not isinstance(report, dict) or report.get("schema") != SCHEMA:
        return None
    findings = report.get("findings")
    if not isinstance(findings, list) or not all(_is_finding(one) for one in findings):
        return None
    return report


def _is_finding(one: object) -> bool:
    if not isinstance(one, dict) or one.get("severity") not in SEVERITIES:
        return False
    return all(isinstance(one.get(key), str) for key in ("check", "message", "fault", "device"))


FINDINGS_MAX = 96
EVIDENCE_MAX = 16  # a line for each card
TEXT_CHARS = 400


def path(folder: str, kind: str, launch: int, node: str) -> str:
    """Where the report of one node lies; `folder` is the attempt's `nodes`."""
    return os.path.join(folder, f"{kind}.{launch}.{node}.json")


def put(folder: str, launch: int, report: Mapping[str, Any]) -> None:
    """Write a report (see `runner.report_of`) whole or not at all. Raises OSError."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(folder, 0o700)
    write(
        path(folder, report["kind"], launch, report["node"]),
        {**report, "findings": _bounded(report["findings"])},
    )


def write(final: str, table: Mapping[str, Any]) -> None:
    """Write a table as JSON whole or not at all; each path has one writer. Raises OSError."""
    draft = os.path.join(os.path.dirname(final), f".{os.path.basename(final)}.tmp")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
        json.dump(table, stream)
    os.replace(draft, final)


def _bounded(findings: list[dict[str, Any]]) -> list[dict[str, Any]]:
    # What is well is compared across nodes; what was skipped is nowhere read again and goes first.
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
