"""`ftrun-hook watch`: monitors one node while a job runs on it. (I/O)

It reads what a user may read: the kernel log or the counters that show the same faults, the drivers' tools,
the response time of the mounts. What the checks find at the first look existed before, and is reported only
when it gets worse; a mount that hangs is always reported. Findings go to the attempt's folder, when they appear
and when they are gone.

All nodes look at the same wall-clock moment, so that a collective waits once. A child process runs each family
of checks and may hang; one that costs much, hangs or has found something is asked less often. The monitor
exits with status 0 at SIGUSR2 and SIGTERM, and when its parent has gone or the attempt is over.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import select
import signal
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Optional

from ftrun.hooks.checks import catalogue, kernel_log_reader
from ftrun.hooks.checks import thresholds as checks_thresholds
from ftrun.hooks.compile_cache.periodic_merge import PeriodicMerge
from ftrun.hooks.runtime import node_report
from ftrun.hooks.runtime.command_line import END, MEANT_FOR_OTHERS, handle_end_signals, node_name, parser_of
from ftrun.hooks.runtime.finding import BAD, DEGRADED, OK, SEVERITIES, SKIPPED, UNKNOWN, Check, Finding, worst
from ftrun.hooks.runtime.host import Machine, UsageError
from ftrun.hooks.runtime.parent import Parent
from ftrun.hooks.runtime.state_dir import Growth

USUAL_PERIOD_S = 60.0
LOOK_LIMIT_S = 20.0
SPACING_MAX = 16.0
PRESENT_DANGER = frozenset({"mounts", "lustre-client"})
"""Checks of a present danger, reported from the first look on. Findings of others at the first look are not
of this job: a counter may be a year old, and a GPU that is not visible may never have been the job's.
"""


class Family(NamedTuple):
    """Checks that run together: name, and what it needs ("" for nothing); `share` of a core at 60 s."""

    name: str
    checks: tuple[tuple[str, str], ...]
    share: float


FAMILIES = (
    Family(
        "counters",
        (
            ("edac", "/sys/devices/system/edac/mc"),
            ("pcie-aer", "/sys/bus/pci/devices"),
            ("ib-errors", "/sys/class/infiniband"),
            ("ib-flaps", "/sys/class/infiniband"),
            ("ib-port", "/sys/class/infiniband"),
            ("mount-readonly", "/proc/mounts"),
        ),
        0.00035,
    ),
    Family("mounts", (("mounts", ""), ("lustre-client", "/sys/fs/lustre")), 0.0001),
    Family("kernel log", (("mce", "/proc/interrupts"), ("gpu-xid", "/proc/driver/nvidia")), 0.00015),
    Family(
        "accelerators",
        (
            ("gpu-check", "/proc/driver/nvidia"),
            ("gpu-ecc", "nvidia-smi"),
            ("gpu-recovery", "nvidia-smi"),
            ("amd-gpu", "/sys/module/amdgpu"),
            ("npu", "npu-smi"),
        ),
        0.0003,
    ),
)
"""Together less than 0.1 % of a core."""


class TrackedFinding(NamedTuple):
    """One finding in the report: first and last time seen, and when it was gone (None: it is not)."""

    finding: Finding
    at_s: float
    last_s: float
    until_s: Optional[float] = None


class _Asked(NamedTuple):
    """The result of asking a family: findings and counters by check, CPU seconds, and whether it timed out."""

    findings: Mapping[str, Sequence[Finding]]
    counters: Mapping[str, Any]
    cpu_s: float
    hung: bool


class _Member:
    """A family on this node: its checks, and when they are due."""

    def __init__(self, family: Family, checks: Sequence[Check]) -> None:
        self.name, self.share, self.checks = family.name, family.share, checks
        self.due_s = 0.0
        self.spacing = 1.0


class NodeMonitor:
    """The monitor of one node: `look` asks what is due; `seen` holds all findings, by check and device."""

    def __init__(
        self,
        *,
        root: str = "/",
        period_s: float = USUAL_PERIOD_S,
        began_s: float,
        settings: Optional[Mapping[str, Mapping[str, Any]]] = None,
    ) -> None:
        self.period_s = period_s
        self._settings = settings or {}
        self.seen: dict[tuple[str, str], TrackedFinding] = {}
        self._root, self._began_s = root, began_s
        self._first: dict[str, dict[str, Finding]] = {}
        self._counters: dict[str, Any] = {}
        found = [(family, _present(family, root)) for family in FAMILIES]
        off = {name for name, own in self._settings.items() if own.get("enabled", True) is False}
        wanted = [(family, [one for one in checks if one.name not in off]) for family, checks in found]
        self._members = [_Member(family, checks) for family, checks in wanted if checks]

    @property
    def checks(self) -> list[str]:
        """The names of the checks that apply to this node."""
        return [check.name for member in self._members for check in member.checks]

    def look(self, now_s: float) -> bool:
        """Ask every family that is due. True if the report has changed."""
        changed = False
        for member in self._members:
            if now_s < member.due_s - self.period_s / 2:
                continue
            asked = _ask(member.checks, self._thresholds, self._root)
            self._counters.update(asked.counters)
            found = False
            for check, findings in asked.findings.items():
                changed |= self._take(check, findings, now_s)
                found |= worst(findings) == BAD
            # A child that hangs in the kernel stays there: the next one must not follow too soon.
            member.spacing = min(SPACING_MAX, member.spacing * 2) if asked.hung or found else 1.0
            usual = asked.cpu_s / member.share * (self.period_s / USUAL_PERIOD_S)
            member.due_s = now_s + max(usual, self.period_s * member.spacing)
        return changed

    def _thresholds(self, check: Check) -> dict[str, Any]:
        own: dict[str, Any] = {**check.thresholds, **self._settings.get(check.name, {})}
        if "before" in own:
            own.update(before=self._counters.get(check.name, {}), window_s=0.0)
        if "since_s" in own:
            own["since_s"] = self._began_s
        if "devices" in own:
            # The variable of Slurm that names MIG instances as such, and whole GPUs as this step sees them.
            own["devices"] = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        return own

    def _take(self, check: str, findings: Sequence[Finding], now_s: float) -> bool:
        """Compare a check's findings with its earlier ones."""
        now = {one.device: one for one in findings if one.severity in (DEGRADED, BAD)}
        first = self._first.setdefault(check, {} if check in PRESENT_DANGER else now)
        fresh = {device: one for device, one in now.items() if _is_news(one, first.get(device))}
        changed = False
        for device, one in fresh.items():
            known = self.seen.get((check, device))
            at_s = known.at_s if known else now_s
            changed |= known is None or known.until_s is not None or _is_other(one, known.finding)
            self.seen[check, device] = TrackedFinding(one, at_s, now_s)
        for (name, device), known in self.seen.items():
            if name == check and device not in fresh and known.until_s is None:
                self.seen[name, device] = known._replace(until_s=now_s)
                changed = True
        return changed

    def report(self, node: str, now_s: float) -> dict[str, Any]:
        """The report of this node."""
        rows = [
            {**one.finding._asdict(), "at_s": one.at_s, "last_s": one.last_s, "until_s": one.until_s}
            for one in self.seen.values()
        ]
        holding = [one.finding for one in self.seen.values() if one.until_s is None]
        return {
            "schema": 1, "kind": "watch", "node": node, "at_s": round(now_s, 3), "tier": "",
            "worst": worst(holding) if holding else OK, "checks": self.checks, "findings": rows,
        }  # fmt: skip


def _is_news(one: Finding, first: Optional[Finding]) -> bool:
    """Whether a finding says more than the first look did."""
    if first is None or SEVERITIES.index(one.severity) > SEVERITIES.index(first.severity):
        return True
    return one.value is not None and first.value is not None and one.value > first.value


def _is_other(one: Finding, known: Finding) -> bool:
    """Whether a lasting finding is news: its severity changed, or its number rose, unless that is a time."""
    return one.severity != known.severity or (one.unit != "s" and (one.value or 0) > (known.value or 0))


def _present(family: Family, root: str) -> list[Check]:
    """The checks of a family that apply to this node; the others are not even imported."""
    machine = Machine(root)
    return [catalogue.loaded(name) for name, need in family.checks if not need or machine.has(need)]


def checks_by_family(root: str = "/") -> dict[str, list[str]]:
    """Family -> the names of its checks that a monitor on this machine runs; families without any are left
    out. The kernel log is a name of its own, "log", if this user may read it.
    """
    found = {family.name: [check.name for check in _present(family, root)] for family in FAMILIES}
    if not kernel_log_reader.read(Machine(root)).why_not:
        found["kernel log"].append("log")
    return found


def _ask(checks: Sequence[Check], thresholds: Any, root: str) -> _Asked:
    """Run these checks one after the other in a child process, which is abandoned when its time is up."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        _answer(checks, thresholds, root, writer)
    os.close(writer)
    _Living.child = child
    told, give_up, hung = b"", time.monotonic() + LOOK_LIMIT_S, False
    while True:
        if not select.select([reader], [], [], max(0.0, give_up - time.monotonic()))[0]:
            hung = True
            break
        chunk = os.read(reader, 1 << 16)
        if not chunk:
            break
        told += chunk
    os.close(reader)
    cpu_s = _let_go(child, hung=hung)
    _Living.child = 0
    return _understood(told, cpu_s, hung=hung)


class _Living:
    """The running child and the cache merger, for the signal handler."""

    child = 0
    merger = PeriodicMerge("", "", 0.0)


def _let_go(child: int, *, hung: bool) -> float:
    """CPU seconds of a child and its descendants; a child that cannot be killed is left to the kernel."""
    with contextlib.suppress(OSError):
        os.killpg(child, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        pid, _, usage = os.wait4(child, os.WNOHANG if hung else 0)
        if pid:
            return usage.ru_utime + usage.ru_stime
    return 0.0


def _answer(checks: Sequence[Check], thresholds: Any, root: str, writer: int) -> None:
    """Runs in the child: print a line for each check as soon as it is done."""
    try:
        os.setsid()
        for number in (*END, *MEANT_FOR_OTHERS):
            signal.signal(number, signal.SIG_DFL)
        for check in checks:
            machine = Machine(root, time.monotonic() + check.limit_s)
            answer = _judged(check, thresholds(check), machine)
            if answer is not None:
                line = json.dumps([check.name, [list(one) for one in answer[0]], answer[1]])
                os.write(writer, line.encode() + b"\n")
    finally:
        os._exit(0)


def _judged(
    check: Check, own: Mapping[str, Any], machine: Machine
) -> Optional[tuple[Sequence[Finding], Any]]:
    """A check's findings, and the counters for the comparison at its next look; None without a result."""
    try:
        facts = check.probe(machine, own)
        counted = facts if isinstance(facts, Growth) else getattr(facts, "growth", None)
        findings = check.judge(facts, own)
    except Exception:  # noqa: BLE001  no answer, or a defect of ours: neither is a fault of the node
        return None
    if all(one.severity in (UNKNOWN, SKIPPED) for one in findings):
        return None
    return findings, counted.after if isinstance(counted, Growth) else {}


def _understood(told: bytes, cpu_s: float, *, hung: bool) -> _Asked:
    findings: dict[str, Sequence[Finding]] = {}
    counters = {}
    for line in told.split(b"\n")[:-1]:
        name, rows, counts = json.loads(line)
        findings[name] = [
            Finding._make(tuple(cell) if isinstance(cell, list) else cell for cell in row) for row in rows
        ]
        if counts:
            counters[name] = counts
    return _Asked(findings, counters, cpu_s, hung)


def main(arguments: list[str]) -> int:
    """Monitor until the job ends. Always 0: this step's status must not become the job's in Slurm."""
    parent, words = Parent(), _parser().parse_args(arguments)
    if words.visible:
        print(json.dumps(checks_by_family(words.root)))
        return 0
    if not words.folder:
        raise UsageError("--folder is missing; `ftrun-hook watch --help` tells more")
    _hold_back()
    node = node_name(words.node)
    settings = checks_thresholds.read(words.settings, node)
    if settings is None:
        return 0
    root = words.root.replace("{node}", node)
    watch = NodeMonitor(root=root, period_s=words.period, began_s=time.time(), settings=settings)
    _Living.merger = merger = PeriodicMerge(words.folder, str(words.launch), time.monotonic())
    while True:
        now_s = time.time()
        merger.poll(time.monotonic())
        if watch.look(now_s):
            # reported again at the next change; the job continues either way
            with contextlib.suppress(OSError):
                node_report.write_report(words.folder, words.launch, watch.report(node, now_s))
        if words.once:
            return 0
        time.sleep(watch.period_s - time.time() % watch.period_s)
        if parent.is_gone or _is_over(words.folder, words.launch):
            return 0


def _is_over(folder: str, launch: int) -> bool:
    """Whether the script of this launch has ended, or the attempt's folder is gone."""
    attempt = os.path.dirname(os.path.abspath(folder))
    return not os.path.isdir(attempt) or os.path.exists(os.path.join(attempt, f"exit.{launch}"))


def _hold_back() -> None:
    """Lowest priority for the processor, first victim when memory is short; exit silently when told to."""

    def leave(_number: int, _frame: object) -> None:
        _Living.merger.stop()
        if _Living.child:
            with contextlib.suppress(OSError):
                os.killpg(_Living.child, signal.SIGKILL)
        os._exit(0)

    handle_end_signals(leave)
    with contextlib.suppress(OSError):
        os.nice(19)
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as stream:
        stream.write("1000")


def _parser() -> argparse.ArgumentParser:
    text = "Look after this node while a job runs on it."
    parser = parser_of("watch", text, "--launch", "--node", "--root")
    add = parser.add_argument
    text = f"thresholds by check, as JSON (default: {checks_thresholds.SITES_OWN})"
    add("--settings", default="", metavar="FILE", help=text)
    add("--folder", default="", help="where reports are written: nodes/ of the attempt")
    add("--visible", action="store_true", help="print what can be seen here, as JSON, and leave")
    add("--period", type=float, default=USUAL_PERIOD_S, help="seconds between two looks")
    add("--once", action="store_true", help="look once and leave")
    return parser
