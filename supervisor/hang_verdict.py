"""What is thought of a start that may hang, and how a journal keeps it. (pure)"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from ftrun.slurm.records import dataclass

__all__ = ["State", "Verdict", "to_json", "verdict_of"]


class State(StrEnum):
    """What is thought of a start."""

    HEALTHY = "healthy"
    QUIET = "quiet"
    SUSPECT = "suspect"
    HUNG = "hung"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What to think now. `threshold_s`: at which silence the start would be held to hang, None = by what is known now, at none.

    `wants_stacks`: a sample of the stacks of all ranks is wanted, to be passed to a later `observe`. `behind`: who is behind, where that can be told.
    `rank_ended`: srun had said by then that a task of the start ended by itself.
    """

    state: State
    quiet_s: float
    threshold_s: float | None
    reason: str
    behind: tuple[str, ...] = ()
    wants_stacks: bool = False
    rank_ended: bool = False


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
