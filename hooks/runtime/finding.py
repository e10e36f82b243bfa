"""What a check of a node says, and what a check is made of. (pure)

How it thinks. A check is two functions: `probe` fetches text and numbers from the machine and judges nothing; `judge` turns them
into findings and touches nothing, so that every real output of every tool can be a test. What a check needs and does not find makes it
skipped, with the reason; what it cannot read in time is unknown, which is no verdict on the node. Only `bad` keeps a job away.

A check makes its findings with `bad`, `degraded` and their like, and names neither itself nor, where it is its own, the class of a
fault: the catalogue adds both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Callable, NamedTuple, Optional

if TYPE_CHECKING:
    from ftrun.hooks.runtime.host import Machine

__all__ = [
    "BAD", "DEGRADED", "NOTE", "OK", "OWN_FAULT", "SEVERITIES", "SKIPPED", "TIERS", "UNKNOWN", "Check", "Finding", "Functions", "Judge",
    "Probe", "Thresholds", "bad", "degraded", "finding", "note", "ok", "skipped", "unknown", "worst",
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


OWN_FAULT = "own"
"""Stands in a finding for the fault class of the check that made it."""


def finding(
    severity: str,
    message: str,
    device: str = "",
    value: Optional[float] = None,
    unit: str = "",
    *,
    evidence: tuple[str, ...] = (),
    fault: str = OWN_FAULT,
) -> Finding:
    """A finding of a check that is named later; `fault` counts only where something is bad or degraded."""
    blamed = fault if severity in (BAD, DEGRADED) else ""
    return Finding("", severity, message, blamed, device, evidence, value, unit)


bad = partial(finding, BAD)
degraded = partial(finding, DEGRADED)
note = partial(finding, NOTE)
ok = partial(finding, OK)
skipped = partial(finding, SKIPPED)
unknown = partial(finding, UNKNOWN)

Thresholds = Mapping[str, Any]
"""The settings of a check by name, over its defaults."""
Probe = Callable[["Machine", Thresholds], Any]
Judge = Callable[[Any, Thresholds], Sequence[Finding]]
Functions = Mapping[str, "tuple[Probe, Judge]"]
"""What a file of checks offers: name of the check -> its probe and its judge."""


class Check(NamedTuple):
    """A check of one thing.

    `needs` names commands and absolute paths without which it is skipped, `limit_s` bounds probe and judgement together,
    `thresholds` are the defaults of what a site may set. `probe(machine, thresholds)` returns what `judge(facts, thresholds)` takes;
    `judge` returns at least one finding. `file` is the module below `hooks/checks` that holds both, "" for a check that is no file's.
    """

    name: str
    title: str
    tier: str
    fault: str
    needs: tuple[str, ...]
    limit_s: float
    thresholds: Mapping[str, Any]
    probe: Probe
    judge: Judge
    file: str = ""


def worst(findings: Sequence[Finding]) -> str:
    """The worst severity among findings; "ok" for none."""
    return max((one.severity for one in findings), key=SEVERITIES.index, default=OK)
