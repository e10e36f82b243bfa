"""The checks of the clock and of the time since boot. (I/O)"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from typing import Any, NamedTuple, Optional

from ftrun.hooks.runtime.finding import Finding, Thresholds, bad, degraded, note, ok, skipped, unknown
from ftrun.hooks.runtime.host import Machine, NoAnswer

# --- clock

CLOCK_QUESTIONS = (
    ("chronyc", "-c", "-n", "tracking"),
    ("ntpq", "-c", "rv", "127.0.0.1"),
    ("timedatectl", "timesync-status"),
    ("timedatectl", "show"),
)
ASK_LIMIT_S = 3.0
LEAP_WORDS = ("Normal", "Insert second", "Delete second", "Not synchronised")  # of chronyc
UNITS_S = {"us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}


class ClockFacts(NamedTuple):
    """What each tool that is here printed, in the order of trust; why others gave no answer."""

    told: tuple[tuple[str, str], ...]
    why_not: str = ""


class Reading(NamedTuple):
    """Whether the clock follows a source, how far off it is (None: not told) and may be at most, in seconds."""

    is_synchronised: bool
    offset_s: Optional[float] = None
    most_s: float = 0.0


def probe_clock(machine: Machine, _thresholds: Thresholds) -> ClockFacts:
    """Ask the services that are here until one answers."""
    reasons = []
    for argv in CLOCK_QUESTIONS:
        if machine.tool(argv[0]) is None:
            continue
        try:
            output = machine.run(argv, ASK_LIMIT_S)
        except NoAnswer as error:
            reasons.append(str(error))
            continue
        name = " ".join(argv[:1] if argv[0] != "timedatectl" else argv)
        if output.code == 0 and understood(name, output.out) is not None:
            return ClockFacts(((name, output.out),))
        lines = (output.out + output.err).strip().splitlines() or ["it prints nothing"]
        reasons.append(f"{argv[0]}: {lines[-1]}")
    return ClockFacts((), "; ".join(reasons))


def judge_clock(facts: ClockFacts, thresholds: Thresholds) -> Sequence[Finding]:
    """Bad when it is far off, degraded when it is off or follows nothing."""
    for name, text in facts.told:
        reading = understood(name, text)
        if reading is not None:
            return [_clock_finding(name, text, reading, thresholds)]
    if facts.told or facts.why_not:
        return [unknown(f"no service tells of the clock: {facts.why_not or 'odd answers'}")]
    return [skipped("neither chronyc, ntpq nor timedatectl is here")]


def _clock_finding(name: str, text: str, reading: Reading, thresholds: Thresholds) -> Finding:
    evidence = tuple(text.strip().splitlines()[:3])
    if not reading.is_synchronised:
        return degraded(f"{name}: the clock follows no source", evidence=evidence)
    if reading.offset_s is None:
        return ok(f"{name}: synchronised")
    message = f"{name}: off by {reading.offset_s:.6f} s, {reading.most_s:.6f} s at most"
    for grade, limit_s in ((bad, thresholds["bad_s"]), (degraded, thresholds["offset_s"])):
        if reading.most_s > limit_s:
            return grade(message, value=reading.offset_s, unit="s", evidence=evidence)
    return ok(message, value=reading.offset_s, unit="s")


def understood(name: str, text: str) -> Optional[Reading]:
    """What a tool's answer says; None where it is no answer."""
    readers = {"chronyc": _chronyc, "ntpq": _ntpq, "timedatectl show": _kernel}
    try:
        return readers.get(name, _timesyncd)(text)
    except (ValueError, IndexError, KeyError):
        return None


def _chronyc(text: str) -> Optional[Reading]:
    # Counted from the end: chrony before 4 has no name beside the id of the source.
    fields = text.strip().splitlines()[0].split(",")
    if len(fields) < 13 or fields[-1] not in LEAP_WORDS:
        return None
    offset, delay, dispersion = abs(float(fields[-10])), float(fields[-4]), float(fields[-3])
    return Reading(fields[-1] != "Not synchronised", offset, offset + delay / 2 + dispersion)


def _ntpq(text: str) -> Optional[Reading]:
    values = dict(re.findall(r"(\w+)=(\"[^\"]*\"|[^,\s]+)", text))
    if "stratum" not in values:
        return None
    follows = values.get("leap") not in ("11", "3") and int(values["stratum"]) < 16
    offset = abs(float(values["offset"])) / 1000
    most = offset + (float(values["rootdelay"]) / 2 + float(values["rootdisp"])) / 1000
    return Reading(follows, offset, most)


def _timesyncd(text: str) -> Optional[Reading]:
    told = dict(re.findall(r"^\s*([A-Z][\w ]*): (.*)$", text, re.MULTILINE))
    if "Server" not in told or "Packet count" not in told:
        return None
    if told["Packet count"].strip() == "0" or told.get("Leap", "").strip() == "not synchronized":
        return Reading(is_synchronised=False)
    offset = _span_s(told["Offset"].strip().lstrip("+-"))
    return Reading(True, offset, offset + _span_s(told["Root distance"].split("(")[0]))


def _kernel(text: str) -> Optional[Reading]:
    told = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    return Reading(told["NTPSynchronized"] == "yes")


def _span_s(text: str) -> float:
    """Seconds of a span as systemd writes it: `1min 2.5s`, `11.4ms`, `0`."""
    parts = re.findall(r"([\d.]+)\s*([a-zµ]*)", text)
    return sum(float(number) * UNITS_S[unit or "s"] for number, unit in parts)


# --- uptime


class UptimeFacts(NamedTuple):
    """Seconds since boot (None: not told), and the time in seconds of the epoch."""

    up_s: Optional[float]
    now_s: float


def probe_uptime(machine: Machine, _thresholds: Thresholds) -> UptimeFacts:
    """Read the uptime."""
    word = (machine.peek("/proc/uptime") or "").partition(" ")[0]
    try:
        return UptimeFacts(float(word), time.time())
    except ValueError:
        return UptimeFacts(None, time.time())


def judge_uptime(facts: UptimeFacts, thresholds: Thresholds) -> Sequence[Finding]:
    """Bad when it was booted after the job began, a note when it was booted lately."""
    if facts.up_s is None:
        return [unknown("/proc/uptime does not tell")]
    booted_s = facts.now_s - facts.up_s
    told = f"up since {time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime(booted_s))}"
    since_s = float(thresholds["since_s"])
    if since_s and booted_s > since_s + thresholds["slack_s"]:
        message = f"{told}: it was booted {booted_s - since_s:.0f} s after the job began"
        return [bad(message, value=round(facts.up_s), unit="s")]
    if facts.up_s < thresholds["recent_s"]:
        return [note(f"{told}: it was booted lately", value=round(facts.up_s), unit="s")]
    return [ok(told, value=round(facts.up_s), unit="s")]


FUNCTIONS: dict[str, Any] = {"clock": (probe_clock, judge_clock), "uptime": (probe_uptime, judge_uptime)}
