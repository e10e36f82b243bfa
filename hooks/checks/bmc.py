"""The check of the board's own controller. (I/O)"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Sequence
from typing import NamedTuple, Optional

from ftrun.hooks.runtime.finding import (
    BAD,
    DEGRADED,
    NOTE,
    OK,
    Finding,
    Thresholds,
    bad,
    finding,
    ok,
    skipped,
    unknown,
)
from ftrun.hooks.runtime.host import Machine, NoAnswer

HARDWARE = "hardware-other"
EVIDENCE_MAX = 3
LOG_LIMIT_S = 40.0
POWER_LIMIT_S = 12.0
CLOSED = ("Could not open device", "Permission denied")
TIME_FORMS = ("%m/%d/%Y %H:%M:%S", "%m/%d/%y %H:%M:%S", "%m/%d/%Y %I:%M:%S %p", "%m/%d/%y %I:%M:%S %p")

# severity, class, pattern over "sensor | event": the words of the tables of IPMI 2.0 (42-3 and 42-2) as ipmitool prints them.
_TABLE = tuple(
    (severity, fault, re.compile(pattern, re.IGNORECASE))
    for severity, fault, pattern in (
        (BAD, HARDWARE, r"uncorrectable ECC|memory.*\| parity|memory device disabled|uncorrectable memory"),
        (BAD, HARDWARE, r"\bIERR\b|CATERR|thermal trip|FRB[123]|machine check.*uncorrected|processor.*configuration error"),
        (BAD, HARDWARE, r"bus fatal error|bus uncorrectable error|PCI SERR|fatal NMI"),
        (BAD, HARDWARE, r"non-recoverable"),
        (BAD, HARDWARE, r"leak"),
        (DEGRADED, HARDWARE, r"correctable ECC logging limit|memory.*\| (?:spare|configuration error)"),
        (DEGRADED, HARDWARE, r"throttled|PCI PERR|NMI/diag|software NMI|bus degraded"),
        (DEGRADED, HARDWARE, r"power supply.*\| (?:failure detected|power supply AC lost|AC lost|AC out-of-range|config)|power unit.*\| (?:failure detected|soft-power control failure|AC lost)"),
        (DEGRADED, HARDWARE, r"(?:temperature|voltage|current|fan|cooling).*\| (?:upper|lower) critical|transition to (?:critical|non-recoverable)"),
        (DEGRADED, "storage", r"drive (?:slot|bay).*\| (?:drive fault|in critical array|in failed array)"),
        (DEGRADED, "node", r"watchdog.*\| (?:hard reset|power (?:down|cycle))|OS (?:critical )?stop.*run-time|OS runtime critical stop"),
        (NOTE, "", r"predictive failure|redundancy (?:lost|degraded)|log full|correctable ECC|bus correctable|non-critical|power off/down"),
    )
)  # fmt: skip


class Event(NamedTuple):
    """One event: seconds of the epoch (None: of unknown age), whose sensor, what happened, whether it ended by it, and the line."""

    at_s: Optional[float]
    sensor: str
    text: str
    is_over: bool
    line: str


class BmcFacts(NamedTuple):
    """The printed log, the printed power state (from outside; "" else), the time, and why there is no log."""

    log: str
    power: str
    now_s: float
    why_not: str = ""
    is_closed: bool = False


def probe_bmc(machine: Machine, thresholds: Thresholds) -> BmcFacts:
    """Ask this node's controller, or the one at `host`."""
    host = str(thresholds["host"])
    if not host and not any(name.startswith("ipmi") for name in machine.names("/dev")):
        return BmcFacts("", "", 0.0, "this node has no device of a controller", is_closed=True)
    ipmitool = ["env", "TZ=UTC", machine.tool("ipmitool") or "ipmitool"]
    if host:
        ipmitool += ["-I", str(thresholds["interface"]), "-N", "2", "-R", "2", "-H", host]
        ipmitool += ["-U", str(thresholds["user"])] if thresholds["user"] else []
        ipmitool += ["-f", str(thresholds["password_file"])] if thresholds["password_file"] else []
    power = ""
    if host and thresholds["power"]:
        power = machine.run([*ipmitool, "chassis", "power", "status"], POWER_LIMIT_S).out
    output = machine.run([*ipmitool, "sel", "list", "last", str(thresholds["last"])], LOG_LIMIT_S)
    errors = (output.err.strip().splitlines() or [f"ipmitool ends with {output.code}"])[-1]
    # An empty log is told on stderr, and the exit status is that of a failure in some versions.
    if output.code and not output.out.strip() and "no entries" not in output.err:
        closed = any(word in output.err for word in CLOSED)
        if power:
            return BmcFacts("", power, time.time(), errors)
        if closed:
            return BmcFacts("", "", time.time(), errors, is_closed=True)
        raise NoAnswer(f"the controller {host or 'of this node'} does not answer: {errors}")
    return BmcFacts(output.out, power, time.time())


def judge_bmc(facts: BmcFacts, thresholds: Thresholds) -> Sequence[Finding]:
    """By the worst event of each sensor since the job began; a note for what is older or over."""
    if facts.is_closed:
        return [skipped(facts.why_not)]
    found = []
    if re.search(r"power is off", facts.power, re.IGNORECASE):
        found.append(bad("the node has no power", "power", evidence=(facts.power.strip(),), fault="node"))
    if facts.why_not:
        return found or [unknown(f"its log cannot be read: {facts.why_not}")]
    logged = events(facts.log)
    since_s = thresholds["since_s"] or facts.now_s - thresholds["recent_s"]
    over = {(one.sensor, one.text): number for number, one in enumerate(logged) if one.is_over}
    by_kind: dict[tuple[str, str, str], list[tuple[Event, bool]]] = {}
    for number, one in enumerate(logged):
        severity, fault = _known(one)
        if severity != OK and not one.is_over:
            fresh = one.at_s is not None and one.at_s >= since_s
            counts = fresh and number > over.get((one.sensor, one.text), -1)
            kind = (severity, fault, one.sensor) if counts else (NOTE, "", one.sensor)
            by_kind.setdefault(kind, []).append((one, counts))
    found += [_told(kind, [one for one, _ in pairs]) for kind, pairs in by_kind.items()]
    return found or [ok(f"no fault in {len(logged)} events", value=len(logged), unit="events")]


def _known(one: Event) -> tuple[str, str]:
    words = f"{one.sensor} | {one.text}"
    rows = (row for row in _TABLE if row[2].search(words))
    severity, fault, _ = next(rows, (OK, "", None))
    return severity, fault


def _told(kind: tuple[str, str, str], logged: Sequence[Event]) -> Finding:
    severity, fault, sensor = kind
    texts = ", ".join(dict.fromkeys(one.text for one in logged))
    old = "" if severity != NOTE else " (old, over, or no fault)"
    evidence = tuple(one.line for one in logged[-EVIDENCE_MAX:])
    return finding(
        severity, f"{texts}{old}", sensor, float(len(logged)), "events", evidence=evidence, fault=fault
    )


def events(text: str) -> list[Event]:
    """The events of a printed log, oldest first; lines of another form are left out."""
    found = []
    for line in text.splitlines():
        fields = [field.strip() for field in line.split("|")]
        # number | date | time | sensor | event | Asserted [| reading]; before its clock is set: number | Pre-Init | seconds | ...
        if len(fields) >= 5 and re.fullmatch(r"[0-9a-f]+", fields[0]):
            is_over = len(fields) > 5 and fields[5] == "Deasserted"
            found.append(
                Event(_time_s(f"{fields[1]} {fields[2]}"), fields[3], fields[4], is_over, line.strip())
            )
    return found


def _time_s(text: str) -> Optional[float]:
    """Seconds of the epoch of a date and a time, with or without the name of a zone, which is UTC as we ask for it."""
    import calendar  # it is asked by few, and loads many modules

    words = re.sub(r"\s+[A-Z]{3,4}$", "", text)
    for form in TIME_FORMS:
        with contextlib.suppress(ValueError):
            return float(calendar.timegm(time.strptime(words, form)))
    return None


FUNCTIONS = {"bmc": (probe_bmc, judge_bmc)}
