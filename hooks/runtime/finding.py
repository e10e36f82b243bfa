"""Findings of node checks, and what a check consists of. (pure)

A check is two functions. `probe` fetches text and numbers from the machine and decides nothing; `judge` turns
them into findings and does no I/O, so that real output of any tool can serve as a test. A check whose tool or
device is missing is skipped, with the reason. Data that cannot be read in time give `unknown`, which is no
verdict on the node. Only `bad` keeps a job away.

A check builds its findings with `bad`, `degraded` and the like. It names neither itself nor its own fault
class: the catalogue adds both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Callable, NamedTuple, Optional

if TYPE_CHECKING:
    from ftrun.hooks.runtime.host import Machine


OK = "ok"
NOTE = "note"  # for information only; no action
SKIPPED = "skipped"  # what the check needs is not on this node
UNKNOWN = "unknown"  # could not be determined: a tool failed or a file did not answer in time
DEGRADED = "degraded"  # the node works, but worse than it should
BAD = "bad"  # no job should run here
SEVERITIES = (OK, SKIPPED, NOTE, UNKNOWN, DEGRADED, BAD)
"""From best to worst."""

TIERS = ("fast", "recheck", "burn-in")
"""All fast checks together take at most 15 s, the recheck ones 5 minutes."""


class Finding(NamedTuple):
    """One fact that a check found; `device`: PCI address, index, port, mount. `fault`: a class or ""."""

    check: str
    severity: str
    message: str
    fault: str = ""
    device: str = ""
    evidence: tuple[str, ...] = ()
    value: Optional[float] = None
    unit: str = ""


OWN_FAULT = "own"
"""Placeholder in a finding for the fault class of the check that made it."""


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
    """A finding whose check is filled in later; `fault` is kept only for bad and degraded."""
    blamed = fault if severity in (BAD, DEGRADED) else ""
    return Finding("", severity, message, blamed, device, evidence, value, unit)


bad = partial(finding, BAD)
degraded = partial(finding, DEGRADED)
note = partial(finding, NOTE)
ok = partial(finding, OK)
skipped = partial(finding, SKIPPED)
unknown = partial(finding, UNKNOWN)

Thresholds = Mapping[str, Any]
"""A check's settings by name; they override its defaults."""
Probe = Callable[["Machine", Thresholds], Any]
Judge = Callable[[Any, Thresholds], Sequence[Finding]]


class Check(NamedTuple):
    """A check of one thing. `needs` names commands and absolute paths without which it is skipped. `limit_s`
    bounds probe and judge together. `thresholds` are the defaults of what a site may set. `probe(machine,
    thresholds)` returns what `judge(facts, thresholds)` takes; `judge` returns at least one finding. `file`
    is the module below `hooks/checks` that holds both, "" for none.
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
    """The worst severity among findings; "ok" if there are none."""
    return max((one.severity for one in findings), key=SEVERITIES.index, default=OK)
