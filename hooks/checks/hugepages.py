"""`hugepages`: huge pages are reserved as the site wants them. (I/O)

How it thinks. Reserved pages that nobody uses are memory that jobs miss, and pages that could not be reserved at boot are missed by those that need
them. Nobody but the site knows which number is right, so without `expected` the settings are told, to be compared across nodes: a
node whose transparent huge pages are set otherwise is slower or faster than its peers.

Thresholds: `expected`, pages of the default size (none: not judged); `transparent`, `always`, `madvise` or `never` ("": not judged).

Files: the kernel's documents on hugetlbpage and transhuge.

Checked against: /proc/meminfo of Linux 6.1 and 6.18, and settings in a table.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ftrun.hooks.findings import DEGRADED, OK, UNKNOWN, Check, Finding
from ftrun.hooks.machine import Machine

__all__ = ["CHECK", "Facts", "judge"]

NAME = "hugepages"


class Facts(NamedTuple):
    """/proc/meminfo and the setting of transparent huge pages, "" where they are not there."""

    meminfo: str
    transparent: str


def probe(machine: Machine, _thresholds: Mapping[str, Any]) -> Facts:
    """Read both."""
    setting = machine.peek("/sys/kernel/mm/transparent_hugepage/enabled")
    return Facts(machine.peek("/proc/meminfo") or "", setting or "")


def judge(facts: Facts, thresholds: Mapping[str, Any]) -> Sequence[Finding]:
    """Degraded where a setting is not the site's."""
    numbers = {
        name: int(count) for name, count in re.findall(r"^(Huge\w+):\s+(\d+)", facts.meminfo, re.MULTILINE)
    }
    if "HugePages_Total" not in numbers:
        return [Finding(NAME, UNKNOWN, "/proc/meminfo does not tell of huge pages")]
    total, free = numbers["HugePages_Total"], numbers.get("HugePages_Free", 0)
    chosen = re.search(r"\[(\w+)\]", facts.transparent)
    transparent = chosen[1] if chosen else "absent"
    found = []
    if thresholds["expected"] is not None and total != thresholds["expected"]:
        message = f"{total} huge pages are reserved, {thresholds['expected']} are expected"
        found.append(Finding(NAME, DEGRADED, message, "config", "hugepages", value=total, unit="pages"))
    if thresholds["transparent"] not in ("", transparent):
        message = f"transparent huge pages: {transparent}, expected {thresholds['transparent']}"
        found.append(Finding(NAME, DEGRADED, message, "config", "transparent"))
    told = (
        f"{total} reserved, {free} free, of {numbers.get('Hugepagesize', 0)} kB; transparent: {transparent}"
    )
    return found or [Finding(NAME, OK, told, value=total, unit="pages")]


CHECK = Check(
    name=NAME,
    title="Huge pages are reserved as the site wants them",
    tier="fast",
    fault="config",
    needs=("/proc/meminfo",),
    limit_s=2.0,
    thresholds={"expected": None, "transparent": ""},
    probe=probe,
    judge=judge,
)
