"""What the nodes of a run say of its staged checkpoints, as `ftrun show` and `status` tell it. (I/O)

How it thinks. Each node writes a report into the attempt's folder. A set is as far as its slowest node: published where all that have
something of it say so. The reports of a job that is over tell how it ended.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from ftrun.supervisor import store
from ftrun.supervisor.run_types import Run

__all__ = ["facts", "refusals", "summed", "trouble", "words"]

REPORT_MAX_BYTES = 1 << 20
SETS_SHOWN = 8
_ORDER = (
    "given up",
    "refused",
    "writing",
    "sealed",
    "published",
)  # what one node says outweighs what comes after it


def facts(run_dir: str, run: Run) -> dict[str, Any] | None:
    """The staged checkpoints of a run's present attempt; None where it stages none, or no node said anything."""
    if not run.settings.get("stage") or run.attempt is None:
        return None
    folder = os.path.join(run_dir, "attempts", str(run.attempt.number), "stage")
    try:
        names = sorted(name for name in os.listdir(folder) if name.endswith(".json"))
    except OSError:
        return None
    reports = [_read(os.path.join(folder, name)) for name in names]
    known = [report for report in reports if report.get("launch") == run.attempt.launch.number]
    return {"to": run.settings["stage"], **summed(known)} if known else None


def summed(reports: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What the reports of all nodes come to."""
    sets: dict[tuple[str, str], dict[str, Any]] = {}
    for report in reports:
        for row in report.get("sets", ()):
            one = sets.setdefault(
                (row["start"], row["set"]),
                {"set": row["set"], "start": row["start"], "state": "published", "size_bytes": 0, "nodes": 0, "why": "", "sealed_s": 0.0},
            )  # fmt: skip
            one["size_bytes"] += row["size_bytes"]
            one["nodes"] += 1
            one["sealed_s"] = max(one["sealed_s"], row["sealed_s"])
            if _rank(row["state"]) < _rank(one["state"]) or (row["state"] == one["state"] and not one["why"]):
                one["state"], one["why"] = row["state"], row["why"]
    return {
        "nodes": len(reports),
        "sets": sorted(sets.values(), key=lambda one: (one["sealed_s"], one["set"])),
        "backlog_bytes": sum(report.get("backlog_bytes", 0) for report in reports),
        "used_bytes": max((report.get("used_bytes", 0) for report in reports), default=0),
        "limit_bytes": min((report.get("limit_bytes", 0) for report in reports), default=0),
        "flushed_bytes": sum(report.get("flushed_bytes", 0) for report in reports),
        "dropped": sorted({name for report in reports for name in report.get("dropped", ())}),
        "why": next((report["why"] for report in reports if report.get("why")), ""),
    }


def words(told: Mapping[str, Any]) -> str:
    """The same in one line."""
    published = [one for one in told["sets"] if one["state"] == "published"]
    waiting = [one for one in told["sets"] if one["state"] in ("writing", "sealed")]
    refused = refusals(told)
    if published:
        said = [
            f"{published[-1]['set']} published"
            + (f" ({published[-1]['why']})" if published[-1]["why"] else "")
        ]
    else:
        said = ["none published" if refused else "none published yet"]
    if waiting:
        said.append(f"{waiting[-1]['set']} in memory ({told['backlog_bytes'] / 2**30:.1f} GiB to go out)")
    said += refused[-2:]
    if told["dropped"]:
        said.append(f"dropped for want of room: {', '.join(told['dropped'])}")
    if told["why"]:
        said.append(told["why"])
    return "; ".join(said)


def refusals(told: Mapping[str, Any]) -> list[str]:
    """The sets that were refused or given up, each with its reason, oldest first; of a name that is published by now none."""
    done = {one["set"] for one in told["sets"] if one["state"] == "published"}
    bad = [
        one
        for one in told["sets"]
        if _rank(one["state"]) < _ORDER.index("writing") and one["set"] not in done
    ]
    return list({one["set"]: f"{one['set']} {one['state']}: {one['why']}" for one in bad}.values())


def trouble(told: Mapping[str, Any]) -> str:
    """What is in the way of the newest checkpoints, in one line; "" for nothing."""
    newest = max(told["sets"], key=lambda one: (one["sealed_s"], one["set"]), default=None)
    is_bad = newest is not None and newest["state"] in _ORDER[:2]
    last = (
        refusals(told)[-1:] if is_bad or not any(one["state"] == "published" for one in told["sets"]) else []
    )
    return "; ".join([*last, *filter(None, [told["why"]])])


def _rank(state: str) -> int:
    return _ORDER.index(state) if state in _ORDER else 0


def _read(path: str) -> dict[str, Any]:
    try:
        told = json.loads(store.content(path, REPORT_MAX_BYTES) or b"{}")
    except (OSError, ValueError):
        return {}
    return told if isinstance(told, dict) else {}
