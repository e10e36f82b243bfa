"""A verdict that a start hangs, as the journal has it. (pure)"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ftrun.supervisor.hang import State, Verdict

__all__ = ["to_json", "verdict_of"]


def to_json(verdict: Verdict) -> dict[str, Any]:
    """What the journal keeps of a verdict, suspected or decided."""
    return {
        "quiet_s": round(verdict.quiet_s, 1),
        "threshold_s": verdict.threshold_s,
        "behind": list(verdict.behind),
        "reason": verdict.reason,
        **({"rank_ended": True} if verdict.rank_ended else {}),
    }


def verdict_of(data: Mapping[str, Any]) -> Verdict:
    """The verdict `hung` of a record `hang.decided`. Raises LookupError, TypeError, ValueError for what is none."""
    behind = tuple(str(one) for one in data["behind"])
    threshold_s = None if data["threshold_s"] is None else float(data["threshold_s"])
    reason, rank_ended = str(data["reason"]), data.get("rank_ended") is True
    return Verdict(State.HUNG, float(data["quiet_s"]), threshold_s, reason, behind, rank_ended=rank_ended)
