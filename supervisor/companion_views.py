"""Companions as facts for people and programs: what `status`, `show` and `explain` say of them. (pure)"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ftrun.slurm.client import nodeset
from ftrun.supervisor.agent_events import job_of
from ftrun.supervisor.run_types import Attempt, Companion

__all__ = ["TOLD", "facts", "present", "words"]


def facts(attempt: Attempt) -> list[dict[str, Any]]:
    """Every companion of an attempt, oldest first. `since`: when it was asked for, or came (Unix seconds)."""
    return [_fact(one) for one in attempt.companions]


def present(attempt: Attempt | None) -> list[dict[str, Any]]:
    """Those that Slurm may still have."""
    return [_fact(one) for one in attempt.companions if not one.gone] if attempt is not None else []


def _fact(one: Companion) -> dict[str, Any]:
    return {
        "companion": one.number,
        "launch": one.launch,
        "job": one.job,
        "nodes": list(one.nodes),
        "nodes_asked": one.nodes_asked,
        "pool": one.pool,
        "state": one.state,
        "since": one.here_at_s if one.here_at_s is not None else one.asked_at_s,
        "ended_at": one.gone_at_s,
        "end_state": one.end_state,
        "reason": one.reason,
    }


_HOW = {
    "intended": "is asked for",
    "submitted": "is waited for",
    "here": "holds",
    "failed": "came to nothing, held",
    "ending": "is being ended, held",
    "ended": "is being ended, held",
    "gone": "held",
}


def words(companions: Iterable[Mapping[str, Any]]) -> str:
    """The same in few words: `companion job 17 holds n5`; "" for none."""
    told = []
    for one in companions:
        count = f"{one['nodes_asked']} node{'s' if one['nodes_asked'] != 1 else ''}"
        what, how = nodeset.fold(one["nodes"]) or count, _HOW[one["state"]]
        if one["state"] in ("intended", "submitted"):
            what = f"({count})"
        told.append(f"companion{f' job {name}' if (name := one['job']) else ''} {how} {what}{_whence(one)}")
    return "; ".join(told)


def _whence(data: Mapping[str, Any]) -> str:
    return f" of {pool}" if (pool := data.get("pool")) else ""


def _more(count: int) -> str:
    return f"{count} more {'node' if count == 1 else 'nodes'}"


def _which(data: Mapping[str, Any]) -> str:
    return f"companion {data['number']}" + (f" (job {job})" if (job := job_of(data)) else "")


def _gone(data: Mapping[str, Any]) -> str:
    how = data.get("state") or data.get("reason", "")
    return f"{_which(data)} is gone" + (f": {how}" if how else "")


# What `explain` says of each record; the job in a record's own columns is the main one.
TOLD: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "companion.intended": lambda d: f"{_which(d)} is asked for, {_more(d['nodes'])}{_whence(d)}: {d['why']}",
    "companion.submitted": lambda d: f"{_which(d)} is in the queue" + (", found by its mark" if d.get("found") else ""),
    "companion.here": lambda d: f"{_which(d)} holds {nodeset.fold(d['nodes'])}",
    "companion.failed": lambda d: f"{_which(d)} came to nothing: {d['reason']}",
    "companion.ended": lambda d: f"{_which(d)} was cancelled: {d['reason']}",
    "companion.gone": _gone,
}  # fmt: skip
