"""What a check of a node says, and what a check is made of. (pure)

How it thinks. A check is two functions: `probe` fetches text and numbers from the machine and judges nothing; `judge` turns them
into findings and touches nothing, so that every real output of every tool can be a test. What a check needs and does not find makes it
skipped, with the reason; what it cannot read in time is unknown, which is no verdict on the node. Only `bad` keeps a job away.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Callable, NamedTuple, Optional

if TYPE_CHECKING:
    from ftrun.hooks.machine import Machine

__all__ = [
    "BAD", "DEGRADED", "NOTE", "OK", "SEVERITIES", "SKIPPED", "TIERS", "UNKNOWN", "Check", "Finding", "worst",
]  # fmt: skip

OK = "ok"
NOTE = "note"  # worth a line; nothing is done about it
SKIPPED = "skipped"  # what it needs is not here
UNKNOWN = "unknown"  # it could not be found out: a tool that failed, a file that did not answer in time
DEGRADED = "degraded"  # the node works and is worse than it should be
BAD = "bad"  # no job should run here
SEVERITIES = (OK, SKIPPED, NOTE, UNKNOWN, DEGRADED, BAD)
"""From nothing to worst."""

TIERS = ("fast", "recheck", "burn-in")
"""All fast ones together take at most 15 s, the recheck ones 5 minutes."""


class Finding(NamedTuple):
    """One fact that a check found. `fault` is a fault class ("" for ok, note and skipped), `device` a PCI address, index, port or mount."""

    check: str
    severity: str
    message: str
    fault: str = ""
    device: str = ""
    evidence: tuple[str, ...] = ()
    value: Optional[float] = None
    unit: str = ""


class Check(NamedTuple):
    """A check of one thing.

    `needs` names commands and absolute paths without which it is skipped, `limit_s` bounds probe and judgement together,
    `thresholds` are the defaults of what a site may set. `probe(machine, thresholds)` returns what `judge(facts, thresholds)` takes;
    `judge` returns at least one finding.
    """

    name: str
    title: str
    tier: str
    fault: str
    needs: tuple[str, ...]
    limit_s: float
    thresholds: Mapping[str, Any]
    probe: Callable[[Machine, Mapping[str, Any]], Any]
    judge: Callable[[Any, Mapping[str, Any]], Sequence[Finding]]


def worst(findings: Sequence[Finding]) -> str:
    """The worst severity among findings; "ok" for none."""
    return max((one.severity for one in findings), key=SEVERITIES.index, default=OK)
