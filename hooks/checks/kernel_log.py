"""The check of the kernel log against the table of its faults. (I/O)"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ftrun.hooks.checks import kernel_log_reader, kernel_rules
from ftrun.hooks.checks.kernel_log_reader import Line, Log
from ftrun.hooks.runtime.finding import OK, Finding, Thresholds, finding, note, ok, skipped
from ftrun.hooks.runtime.formats import counted
from ftrun.hooks.runtime.host import Machine

LINES_MAX = 20_000  # the newest; a second of work
FAULTS_MAX = 20
UNKNOWN_MAX = 8
EVIDENCE_MAX = 3
LINE_CHARS = 300
NUMBERS = re.compile(r"0x[0-9a-fA-F]+|\b[0-9a-fA-F]{8,}\b|\d+")


def probe_kernel_log(machine: Machine, _thresholds: Thresholds) -> Log:
    """Read the log."""
    return kernel_log_reader.read(machine)


def judge_kernel_log(log: Log, thresholds: Thresholds) -> Sequence[Finding]:
    """A finding for each kind of fault and device; a note for what is old, and for errors that nobody
    knows.
    """
    if not log.lines:
        return [skipped(f"the kernel's log cannot be read: {log.why_not}")]
    since = thresholds["since_s"] or log.now_s - thresholds["recent_s"]
    allowed = [re.compile(pattern) for pattern in thresholds["allow"]]
    faults: dict[tuple[kernel_rules.Rule, str], list[Line]] = {}
    unknown: dict[str, list[Line]] = {}
    lines = log.lines[-LINES_MAX:]
    rules = kernel_rules.rules_for(line.text for line in lines)
    for line in lines:
        if any(pattern.search(line.text) for pattern in allowed):
            continue
        rule = kernel_rules.rule_of(line.text, rules)
        if rule is None:
            # Some sources do not tell the level of a line: those show no unknown ones.
            if line.level is not None and line.level <= thresholds["level"] and _is_fresh(line, since):
                unknown.setdefault(NUMBERS.sub("#", line.text), []).append(line)
        elif rule.severity != OK:
            faults.setdefault((rule, kernel_rules.device_of(rule, line.text)), []).append(line)
    found = [_fault_finding(rule, device, lines, since) for (rule, device), lines in faults.items()][
        :FAULTS_MAX
    ]
    found += [_unknown_finding(lines) for lines in list(unknown.values())[:UNKNOWN_MAX]]
    return found or [ok(f"no fault in {counted(len(log.lines), 'line')}")]


def _is_fresh(line: Line, since_s: float) -> bool:
    return line.at_s is not None and line.at_s >= since_s


def _fault_finding(rule: kernel_rules.Rule, device: str, lines: Sequence[Line], since_s: float) -> Finding:
    fresh = [line for line in lines if _is_fresh(line, since_s)]
    evidence = tuple(line.text[:LINE_CHARS] for line in (fresh or lines)[-EVIDENCE_MAX:])
    if not fresh:
        return note(f"{rule.title}, not since the job began", device, evidence=evidence)
    return finding(
        rule.severity, rule.title, device, float(len(fresh)), "lines", evidence=evidence, fault=rule.fault
    )


def _unknown_finding(lines: Sequence[Line]) -> Finding:
    times = f" ({len(lines)} times)" if len(lines) > 1 else ""
    text = lines[-1].text[:LINE_CHARS]
    return note(f"an unknown error{times}: {text}", value=float(len(lines)), unit="lines", evidence=(text,))


FUNCTIONS = {"kernel-log": (probe_kernel_log, judge_kernel_log)}
