"""An attempt whose script was not started, because the checks before it found a few of its nodes bad. (pure)

How it thinks. The job itself wrote down what was found, into a folder of its user's: a claim about the nodes of this very attempt, so it
leaves them out of the next ones and drains nothing. Such an attempt is no fault of the run, so it costs no budget of a class
and none of the retries; it has a ceiling of its own, and beyond it, or where a bad node cannot be left out, the next attempt starts its script
whatever its checks say: a job that runs on doubtful nodes is better than one that never runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ftrun.slurm.records import replace
from ftrun.supervisor.diagnosis_told import HELD
from ftrun.supervisor.model import Decision, Diagnosis

__all__ = [
    "CEILING",
    "SPENDS",
    "in_full",
    "is_held",
    "starts_anyway",
]

SPENDS = "preflight"
CEILING = 5
"""So many attempts in a row, without progress in between, may be held."""


def is_held(found: Diagnosis, spent: Mapping[str, int]) -> bool:
    """Whether this end is that of a preflight, and one more is allowed."""
    return found.signature.startswith(HELD) and spent.get(SPENDS, 0) < CEILING


def in_full(decision: Decision, culprits: tuple[str, ...], spent: Mapping[str, int]) -> Decision:
    """The decision, told to start the next script whatever its checks say where this one may find the same again."""
    kept = [node for node in culprits if node not in decision.exclude]
    if not kept and spent.get(SPENDS, 0) < CEILING:
        return decision
    why = f"{', '.join(kept)} cannot be left out" if kept else f"{CEILING} attempts were held"
    return replace(
        decision,
        anyway=True,
        reason=f"{decision.reason}; the next script starts whatever its checks say: {why}",
    )


def starts_anyway(decision: Mapping[str, Any], spent: Mapping[str, int]) -> bool:
    """Whether the next attempt is submitted so that its checks hold nothing."""
    return bool(decision.get("anyway")) or spent.get(SPENDS, 0) >= CEILING
