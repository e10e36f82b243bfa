"""The report of a node, as it comes back from one: believed in its form, and in nothing else. (pure)"""

from __future__ import annotations

import json
from typing import Any, Optional

from ftrun.hooks.findings import SEVERITIES

__all__ = ["SCHEMA", "parsed"]

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
