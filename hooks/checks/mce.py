"""`mce`: the processors have met no machine check. (I/O)

How it thinks. A machine check exception is the processor's own word that something uncorrected has happened; a healthy node has none since
boot, so one that it survived is bad until it was rebooted and proven. The count is in /proc/interrupts, which everybody may read; where the
kernel's log may be read, the line there says which bank it was and whether it was corrected. Corrected ones alone are a note (`edac` counts those of memory).

Thresholds: `exceptions` 0.

Formats: the lines MCE of /proc/interrupts (arch/x86), `mce: [Hardware Error]: CPU 3: Machine Check: 0 Bank 7: <status>` of the kernel's log;
bit 61 of the status (UC) is "uncorrected" in the manuals of Intel and AMD. Other architectures have no such line and are skipped.

Checked against: /proc/interrupts of Linux 6.1; lines in the form of the kernel's own print, one corrected and one not.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ftrun.hooks import kernel_log
from ftrun.hooks.findings import BAD, NOTE, OK, SKIPPED, Check, Finding
from ftrun.hooks.machine import Machine

__all__ = ["CHECK", "Facts", "judge"]

NAME = "mce"
FAULT = "hardware-other"
UNCORRECTED = 1 << 61
EVIDENCE_LINES = 5
_BANK = re.compile(r"CPU (\d+): Machine Check(?: Exception)?: \w+ Bank (\d+): ([0-9a-f]{16})")


class Facts(NamedTuple):
    """/proc/interrupts ("" where it is not there) and the kernel's log."""

    interrupts: str
    log: kernel_log.Log


def probe(machine: Machine, _thresholds: Mapping[str, Any]) -> Facts:
    """Read both."""
    return Facts(machine.peek("/proc/interrupts") or "", kernel_log.read(machine))


def judge(facts: Facts, thresholds: Mapping[str, Any]) -> Sequence[Finding]:
    """Bad for an uncorrected machine check since boot, a note for corrected ones."""
    counted = re.search(r"^\s*MCE:((?:\s+\d+)+)", facts.interrupts, re.MULTILINE)
    if counted is None and facts.log.why_not:
        return [Finding(NAME, SKIPPED, "neither interrupts nor the kernel's log tell of machine checks here")]
    # An exception is broadcast to all processors on many machines: the largest count is the number of events.
    events = max((int(word) for word in counted[1].split()), default=0) if counted else 0
    banks = [(found, line.text) for line in facts.log.lines for found in [_BANK.search(line.text)] if found]
    fatal = [(found, text) for found, text in banks if int(found[3], 16) & UNCORRECTED]
    number = max(events, len(fatal))
    if number > thresholds["exceptions"]:
        device = f"CPU {fatal[0][0][1]} bank {fatal[0][0][2]}" if fatal else "CPU"
        evidence = tuple(text for _, text in fatal[:EVIDENCE_LINES]) or (f"MCE: {events}",)
        message = f"{number} uncorrected machine check(s) since boot"
        return [Finding(NAME, BAD, message, FAULT, device, evidence, number, "events")]
    if banks:
        evidence = tuple(text for _, text in banks[:EVIDENCE_LINES])
        message = f"{len(banks)} corrected machine check(s) in the kernel's log"
        return [Finding(NAME, NOTE, message, evidence=evidence, value=len(banks), unit="events")]
    return [Finding(NAME, OK, "no machine check since boot", value=0, unit="events")]


CHECK = Check(
    name=NAME,
    title="The processors have met no machine check",
    tier="fast",
    fault=FAULT,
    needs=(),
    limit_s=12.0,
    thresholds={"exceptions": 0},
    probe=probe,
    judge=judge,
)
