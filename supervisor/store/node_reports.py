"""The reports that nodes left in an attempt's folder, read within bounds. (I/O)

The job's own user writes them, so they may hold anything. Only files named for a node of the attempt are
opened, no more than it has nodes, and of each no more bytes than a report can have. The folder's time
(`run_dir.folder_time_ns`) tells when there is something new, so a poll of a run whose nodes are well costs one stat.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Mapping, Sequence

from ftrun.supervisor.model.node_entry import finite_number
from ftrun.supervisor.store import run_dir as store_run_dir

REPORT_KINDS = ("preflight", "watch", "after")
REPORT_BYTES_MAX = 1024 * 1024  # the most that `hooks.nodefile` writes is less


def folder(run_dir: str, attempt: int) -> str:
    """Where the reports of an attempt lie."""
    return os.path.join(store_run_dir.attempt_dir(run_dir, attempt), "nodes")


def read_reports(
    run_dir: str, attempt: int, launch: int, nodes: Sequence[str], *, start: int = 0
) -> dict[str, dict[str, object]]:
    """Return occasion -> node -> content of its file (any JSON, None if it cannot be read); nodes without a
    file are absent.

    `start` is the start of the script in question: checks after an earlier start do not count, since a node
    may have been repaired or excluded since.
    """
    place = folder(run_dir, attempt)
    try:
        names = set(os.listdir(place))
    except OSError:
        names = set()
    found = {
        kind: {
            node: read_json(os.path.join(place, name))
            for node in nodes
            if (name := f"{kind}.{launch}.{node}.json") in names
        }
        for kind in REPORT_KINDS
    }
    found["after"] = {node: one for node, one in found["after"].items() if _start_of(one) >= start}
    return found


def _start_of(report: object) -> float:
    """The start that a report came after; infinity if the report does not say, so that it always counts."""
    told = finite_number(report.get("start")) if isinstance(report, Mapping) else None
    return told if told is not None else math.inf


def set_aside_reports(run_dir: str, attempt: int, nodes: Sequence[str], name: str) -> None:
    """Keep the earlier reports of these nodes as `before-NAME.`; what cannot be moved stays."""
    place = folder(run_dir, attempt)
    with contextlib.suppress(OSError):
        for old in os.listdir(place):
            kind, _, rest = old.partition(".")
            if kind in REPORT_KINDS and rest.endswith(".json") and rest.partition(".")[2][:-5] in nodes:
                os.replace(os.path.join(place, old), os.path.join(place, f"before-{name}.{old}"))


def read_json(path: str) -> object:
    """The JSON in a file; None for what is too large, no regular file, or no JSON."""
    content = store_run_dir.read_untrusted(path, REPORT_BYTES_MAX + 1)
    try:
        return json.loads(content) if content is not None and len(content) <= REPORT_BYTES_MAX else None
    except (ValueError, RecursionError):
        return None
