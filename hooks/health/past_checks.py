"""Earlier results of the checks before a script, by kind of node: the peers of a node that has none. (I/O)

A job of one node has nobody to compare with, and most clusters run many such jobs on nodes of one kind. So
each verdict leaves the results of its nodes in `checks/` of the user's home, one file for each kind of node
(machine model, partition, file of thresholds), with the last result of each node. Only the newest are kept.
The files say nothing that a user could not write into them: they exclude nodes from this user's runs.

A check that failed on the node that was checked last, too, is a change of the site, not a fault of this node.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ftrun.hooks.health.outliers import Row, Verdict, model_of, verdict
from ftrun.hooks.runtime.finding import BAD, DEGRADED, NOTE, OK
from ftrun.hooks.runtime.node_report import SCHEMA, parse_findings

NODES_MAX = 32
NODES_MIN = 3
"""Fewer earlier nodes of a kind hold no script."""
AGE_MAX_S = 30 * 86400.0
BYTES_MAX = 4 << 20
COUNTED = (OK, NOTE, DEGRADED, BAD)


class PastResult(NamedTuple):
    """The last result of one node: when (seconds of the epoch), and its findings."""

    at_s: float
    rows: Sequence[Row]


def verdict_by_past(reports: Mapping[str, Sequence[Row]], past: Mapping[str, PastResult]) -> Verdict:
    """The verdict on the only node of a job, compared with other nodes of its kind; nobody is blamed if too
    few are known. (pure)
    """
    alone = verdict(reports, 1)
    others = {node: one for node, one in past.items() if node not in reports}
    if len(reports) != 1 or len(others) < NODES_MIN:
        return alone
    newest = max(others.values(), key=lambda one: one.at_s)
    changed = {row["check"] for row in newest.rows if row["severity"] == BAD}
    rows = {node: one.rows for node, one in others.items()}
    found = verdict({**rows, **reports}, len(others) + 1)
    (node,) = reports
    mine = tuple(row for row in found.bad.get(node, ()) if row["check"] not in changed)
    if not mine:
        return alone
    blamed = {row["check"] for row in mine}
    site = tuple(check for check in alone.site if check not in blamed)
    return alone._replace(bad={node: mine}, site=site, many=())


def file_of(folder: str, rows: Sequence[Row], partition: str, thresholds: str) -> str:
    """The file with the results of nodes of this kind."""
    kind = "\0".join((model_of(rows), partition, thresholds))
    return os.path.join(folder, hashlib.sha256(kind.encode()).hexdigest()[:16] + ".json")


def read(path: str, now_s: float) -> dict[str, PastResult]:
    """The results in a file that are recent enough; {} if it cannot be read."""
    try:
        with open(path, encoding="utf-8") as stream:
            table = json.loads(stream.read(BYTES_MAX))
        if table["schema"] != SCHEMA:
            return {}
        found = {
            str(node): PastResult(float(one["at_s"]), parse_findings(one["rows"]) or ())
            for node, one in table["nodes"].items()
        }
    except (OSError, ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError):
        return {}
    return {node: one for node, one in found.items() if one.rows and 0 <= now_s - one.at_s <= AGE_MAX_S}


def add(
    folder: str, partition: str, thresholds: str, reports: Mapping[str, Sequence[Row]], now_s: float
) -> None:
    """Replace the results of these nodes. Two jobs that end at once may lose one: others follow. Raises
    OSError.
    """
    by_file: dict[str, dict[str, PastResult]] = {}
    for node, rows in reports.items():
        told = [row for row in rows if row["severity"] in COUNTED]
        path = file_of(folder, rows, partition, thresholds)
        by_file.setdefault(path, {})[node] = PastResult(now_s, [_short(row) for row in told])
    with contextlib.suppress(FileExistsError):
        os.mkdir(folder, 0o700)
    for path, results in by_file.items():
        merged = {**read(path, now_s), **results}
        newest = sorted(merged, key=lambda node: merged[node].at_s)[-NODES_MAX:]
        nodes = {node: {"at_s": round(merged[node].at_s, 3), "rows": merged[node].rows} for node in newest}
        draft = f"{path}.{os.getpid()}.{time.monotonic_ns()}.tmp"
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            json.dump({"schema": SCHEMA, "nodes": nodes}, stream)
        os.replace(draft, path)


def _short(row: Row) -> dict[str, Any]:
    """What a comparison reads of a finding."""
    kept = {key: row.get(key) for key in ("check", "severity", "fault", "device", "value", "unit")}
    return {**kept, "message": "", "evidence": list(row.get("evidence") or ())[:1]}
