"""`gpu-xid`: what the NVIDIA driver has written about GPUs and NVSwitches into the kernel's log. (I/O)

How it thinks. An Xid names a device and a kind of fault, and users cannot write one: the kernel log is root's. What counts is what came
since the job began, or lately where no job is meant; older lines are a note, because a reset may have mended what they tell and
gpu-check, gpu-ecc and gpu-recovery see what it has not. Faults of programs (13, 31, 43, 45) say nothing against a node. Xids 144
to 150 and SXids say themselves whether they are fatal; 154 says what must be done.

Thresholds: `since_s`, the start of the job (seconds of the epoch; 0: none), `recent_s` (7,200) without one; `devices` of the job.
Skipped where this user may not read the kernel's log.

Checked against: NVIDIA's Xid catalog for what each code asks for; lines in public logs (imbue's health checks, leptonai's gpud tests).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ftrun.hooks import kernel_log, nvidia
from ftrun.hooks.findings import BAD, DEGRADED, NOTE, OK, SEVERITIES, SKIPPED, Check, Finding
from ftrun.hooks.machine import Machine, NoAnswer

__all__ = ["CHECK", "Facts", "judge"]

NAME = "gpu-xid"
FAULT = "hardware-gpu"
EVIDENCE_MAX = 3

XID = re.compile(r"NVRM: Xid \(PCI:([0-9a-fA-F:.]+)\): (\d+)")
SXID = re.compile(r"SXid \(PCI:([0-9a-fA-F:.]+)\): (\d+), (Fatal|Non-fatal)")
OFF_BUS = re.compile(r"NVRM: GPU (?:at PCI:)?([0-9a-fA-F:.]+): GPU has fallen off the bus")

# Reset, reboot or replace the device, by NVIDIA's catalog.
BAD_XIDS = frozenset(
    (
        46,
        48,
        54,
        62,
        64,
        74,
        79,
        95,
        110,
        119,
        120,
        136,
        140,
        143,
        155,
        158,
        166,
        167,
        169,
        170,
        171,
        172,
        173,
        175,
    )
)
# It goes on, worse: rows remapped, corrected errors in great number, a contained error, a channel that timed out.
DEGRADED_XIDS = frozenset((61, 63, 92, 93, 94, 109, 122, 123, 124, 125, 156, 157, 160, 161, 168, 176))
SELF_TOLD_XIDS = frozenset((144, 145, 146, 147, 148, 149, 150))
TITLES = {
    48: "double-bit memory error", 62: "micro-controller halt", 63: "row of memory remapped", 64: "row of memory not remapped",
    74: "NVLink error", 79: "GPU has fallen off the bus", 92: "many single-bit errors", 94: "contained memory error",
    95: "uncontained memory error", 119: "GSP does not answer", 120: "GSP error", 140: "unrecovered memory error",
    154: "recovery action", 13: "fault of a program", 31: "fault of a program", 43: "fault of a program", 45: "clean-up",
}  # fmt: skip


class Facts(NamedTuple):
    """The kernel's log, and the GPUs where nvidia-smi lists them: they tell which addresses are the job's."""

    log: kernel_log.Log
    gpus: tuple[nvidia.Gpu, ...] = ()


class Event(NamedTuple):
    """One line on one device: `code` is "Xid 79" or "SXid 12028", `at_s` seconds of the epoch or 0."""

    at_s: float
    address: str
    code: str
    severity: str
    title: str
    line: str


def probe(machine: Machine, thresholds: Mapping[str, Any]) -> Facts:
    """Read the log; ask nvidia-smi only where a job's devices must be told from others."""
    log = kernel_log.read(machine)
    gpus: tuple[nvidia.Gpu, ...] = ()
    if nvidia.tokens(thresholds) and log.lines:
        try:
            gpus = nvidia.probe(machine, thresholds).gpus
        except NoAnswer:  # a driver that is dead is when the log is needed most: every device counts then
            gpus = ()
    return Facts(log, gpus)


def judge(facts: Facts, thresholds: Mapping[str, Any]) -> Sequence[Finding]:
    """By the class of the worst code of each device since the job began; a note for what is older."""
    if not facts.log.lines:
        return [Finding(NAME, SKIPPED, f"the kernel's log cannot be read: {facts.log.why_not}")]
    since = thresholds["since_s"] or facts.log.now_s - thresholds["recent_s"]
    events = [event for event in map(_event, facts.log.lines) if event and _is_ours(event, facts, thresholds)]
    found = []
    for address in sorted({event.address for event in events}):
        mine = [event for event in events if event.address == address]
        fresh = [event for event in mine if event.at_s >= since]
        found.append(_told(address, fresh or mine, fresh=bool(fresh)))
    return found or [Finding(NAME, OK, "the driver has written of no fault since boot")]


def _told(address: str, events: Sequence[Event], *, fresh: bool) -> Finding:
    top = max(events, key=lambda event: SEVERITIES.index(event.severity))
    codes = ", ".join(dict.fromkeys(event.code for event in events))
    evidence = tuple(event.line for event in events if event.code == top.code)[:EVIDENCE_MAX]
    title = f" ({top.title})" if top.title else ""
    if not fresh:
        return Finding(NAME, NOTE, f"{codes}{title}, not since the job began", "", address, evidence)
    fault = FAULT if top.severity in (BAD, DEGRADED) else ""
    return Finding(
        NAME, top.severity, f"{codes}{title}", fault, address, evidence, float(len(events)), "lines"
    )


def _event(line: kernel_log.Line) -> Event | None:
    at_s = line.at_s or 0.0
    found = XID.search(line.text)
    if found:
        number = int(found.group(2))
        address, severity = _address(found.group(1)), _severity(number, line.text)
        return Event(at_s, address, f"Xid {number}", severity, TITLES.get(number, ""), line.text)
    found = SXID.search(line.text)
    if found:
        severity = BAD if found.group(3) == "Fatal" else NOTE
        return Event(
            at_s, _address(found.group(1)), f"SXid {found.group(2)}", severity, "NVSwitch", line.text
        )
    found = OFF_BUS.search(line.text)
    if found:
        return Event(at_s, _address(found.group(1)), "off the bus", BAD, TITLES[79], line.text)
    return None


def _severity(number: int, text: str) -> str:
    if number in BAD_XIDS:
        return BAD
    if number in DEGRADED_XIDS:
        return DEGRADED
    if number in SELF_TOLD_XIDS:
        return BAD if re.search(r"\bFatal\b", text) else NOTE
    if number == 154:
        # "changed from 0x0 (None) to 0x1 (GPU Reset Required)": what it has become counts.
        return BAD if re.search(r" to 0x[0-9a-f]+ \(.*(?:Reset|Reboot)", text) else NOTE
    return NOTE


def _address(text: str) -> str:
    """0000:3b:00 and 0000:3B:00.0 are one device."""
    parts = text.lower().rstrip(".").split(":")
    return ":".join([*parts[:-1], parts[-1] if "." in parts[-1] else f"{parts[-1]}.0"])


def _is_ours(event: Event, facts: Facts, thresholds: Mapping[str, Any]) -> bool:
    """Whether a device concerns the job; NVSwitches and devices that are listed no more concern all."""
    wanted = nvidia.tokens(thresholds)
    if not wanted or event.address not in {gpu.address for gpu in facts.gpus}:
        return True
    return event.address in {gpu.address for gpu in nvidia.chosen(facts.gpus, wanted)}


CHECK = Check(
    name=NAME,
    title="The NVIDIA driver has written of no fault into the kernel's log",
    tier="fast",
    fault=FAULT,
    needs=("/proc/driver/nvidia",),
    limit_s=nvidia.CHECK_LIMIT_S,
    thresholds={"since_s": 0, "recent_s": 7200, "devices": ""},
    probe=probe,
    judge=judge,
)
