"""Shared by prolog, epilog and health: switches, checks to run, logging, and the drain. (I/O)

Slurm takes a hook's exit status for a verdict on the node: one defect of ours, on all nodes at once, would
empty a cluster. So one status means "refused" (`EXIT_REFUSED`), and everything else means "go on": an unknown
word in the settings, a check that hangs, a full folder, a Slurm that does not answer. A node is refused only
for a `bad` finding that was found twice, and only after the node was drained under the cap (`self_drain`).

A settings file that cannot be read may be the one that disables a check, so nothing runs then.
"""

from __future__ import annotations

import os
import time

from ftrun.hooks.runtime.command_line import node_name
from ftrun.hooks.runtime.slurm_env import Job, job_of
from ftrun.hooks.runtime.state_dir import StateDir

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any, Optional

    from ftrun.hooks.runtime.finding import Finding

EXIT_REFUSED = 69
"""No job here. A number that no interpreter, shell or signal returns: the calling script ignores every other
status.
"""

SETTINGS = "/etc/ftrun/checks.json"
STATE = "/var/lib/ftrun"
SWITCH = "hooks.off"
DRAINING = "draining"  # the record of a drain until its second look
CAP = 0.05
FIRST_LOOK = 0.6  # share of the time; the second look and the drain use the rest
TOLD = ("unknown", "degraded", "bad")


class Hook:
    """One call of a hook. `own` are its settings, `table` the whole file, `until_s` is monotonic."""

    __slots__ = ("job", "kept", "name", "node", "own", "table", "until_s")

    def __init__(
        self, name: str, own: dict[str, Any], table: dict[str, dict[str, Any]], kept: StateDir, until_s: float
    ) -> None:
        self.name = name
        self.own = own
        self.table = table
        self.kept = kept
        self.until_s = until_s
        self.job: Job = job_of(os.environ)
        self.node = node_name()

    @property
    def drains(self) -> bool:
        """Whether a bad node is drained, or only reported."""
        return self.own.get("on_bad") == "drain"

    def left_s(self) -> float:
        """Seconds left until the time limit."""
        return max(0.0, self.until_s - time.monotonic())


def open_hook(name: str, arguments: Sequence[str], defaults: Mapping[str, Any]) -> Optional[Hook]:
    """The hook as its arguments, the settings and the environment define it; None if it is switched off.
    Arguments: --settings FILE, --state FOLDER, --within SECONDS, --drain, --report. Unknown ones are reported
    and ignored.
    """
    words, flags = _words(name, arguments)
    switch = os.environ.get("FTRUN_HOOKS", "")
    path = words.get("--settings", SETTINGS)
    state = words.get("--state") or os.environ.get("FTRUN_STATE") or STATE
    if switch == "off" or os.path.exists(os.path.join(os.path.dirname(path), SWITCH)):
        return None
    kept = StateDir(state)
    table = _table(path, kept)
    own = {**defaults, **(table or {}).get(name, {})}
    if table is None or own.get("enabled") is False:
        return None
    if flags:
        own["on_bad"] = flags[-1][2:]
    if switch == "report":
        own["on_bad"] = "report"
    try:
        within_s = float(words["--within"])
    except (KeyError, ValueError):
        within_s = float(defaults["within_s"])
    return Hook(name, own, table, kept, time.monotonic() + within_s)


def run_checks(
    hook: Hook, names: Sequence[str], *, tier: str = "fast", more: Optional[Mapping[str, Any]] = None
) -> list[Finding]:
    """Run checks by name (all of the tier without names); bad results are checked a second time. Returns
    their findings. Checks of devices judge the job's own (see `thresholds.of_job`), and do not run for a job
    without any. `more`: thresholds of this call, over the defaults and under the site's. The report is stored
    under the hook's name.
    """
    from ftrun.hooks.checks import catalogue, runner

    chosen = catalogue.checks("burn-in" if names else tier)
    if names:
        chosen = [check for check in chosen if check.name in names]
    if hook.job.id and not hook.job.devices:
        chosen = [one for one in chosen if "devices" not in one.thresholds and one.fault != "hardware-gpu"]
    settings = {
        one.name: {**(more or {}).get(one.name, {}), **hook.table.get(one.name, {})} for one in chosen
    }
    reports = runner.run_confirmed(
        chosen,
        settings=settings,
        budget_s=hook.left_s() * FIRST_LOOK,
        again_s=lambda: hook.left_s() / 2,
    )
    told = runner.report_of(reports, kind=hook.name, node=hook.node, at_s=time.time(), tier=tier)
    hook.kept.write(hook.name, told)
    return [one for report in reports for one in report.findings]


def log_findings(hook: Hook, findings: Sequence[Finding]) -> None:
    """Write notable findings to the hooks' log, and bad ones to syslog as well."""
    about = f"{hook.name} job={hook.job.id}" if hook.job.id else hook.name
    lines = [
        (one.severity, f"{about} {one.severity} {one.check}{one.device and ' '}{one.device}: {one.message}")
        for one in findings
        if one.severity in TOLD
    ]
    if lines:
        hook.kept.log(*(line for _, line in lines))
    bad = [line for severity, line in lines if severity == "bad"]
    if bad:
        _to_syslog(bad)


def act_on_bad(hook: Hook, bad: Sequence[Finding]) -> bool:
    """Do what the site wants for a bad node. True if it is out of service, so that no job starts here."""
    if not bad:
        return False
    first = bad[0]
    if not hook.drains:
        hook.kept.log(f"{hook.name} {first.check}: told only (on_bad is report)")
        return False
    from ftrun.hooks.health import self_drain
    from ftrun.hooks.runtime.host import Machine

    who = f"{hook.name}.{hook.job.id}" if hook.job.id else hook.name
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    reason = f"{self_drain.PREFIX} {who} check.{first.check.replace(' ', '-')} {stamp}"
    unsettled = hook.kept.lines(DRAINING)
    if not unsettled:
        hook.kept.keep(DRAINING, reason)
    out, done = self_drain.drain(Machine(deadline_s=hook.until_s), hook.node, reason, cap=_cap(hook))
    if not unsettled and not done.startswith(self_drain.UNSURE):
        hook.kept.keep(DRAINING)
    hook.kept.log(f"{hook.name} {first.check}: {done}")
    return out


def settle_drain(hook: Hook) -> None:
    """Take the second look after a drain that Slurm did not answer: the node may be beyond the cap."""
    kept = hook.kept.lines(DRAINING)
    if kept:
        from ftrun.hooks.health import self_drain
        from ftrun.hooks.runtime.host import Machine

        done = self_drain.recheck_cap(Machine(deadline_s=hook.until_s), hook.node, kept[0], cap=_cap(hook))
        if done:
            hook.kept.keep(DRAINING)
            hook.kept.log(f"{hook.name}: {kept[0]}: {done}")


def _cap(hook: Hook) -> float:
    told = hook.table.get("drain", {}).get("cap", CAP)
    return min(1.0, max(0.0, float(told))) if isinstance(told, (int, float)) else CAP


def _words(name: str, arguments: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    words, flags, strange = {}, [], []
    left = list(arguments)
    while left:
        word, equals, value = left.pop(0).partition("=")
        if word in ("--drain", "--report") and not equals:
            flags.append(word)
        elif word in ("--settings", "--state", "--within") and (equals or left):
            words[word] = value if equals else left.pop(0)
        else:
            strange.append(word)
    if strange:
        _complain(f"{name}: not understood and passed over: {' '.join(strange)}")
    return words, flags


def _table(path: str, kept: StateDir) -> Optional[dict[str, dict[str, Any]]]:
    """The settings file; {} without one, None if it cannot be parsed."""
    if not os.path.lexists(path):
        return {}
    import json

    try:
        with open(path, encoding="utf-8") as stream:
            table = json.load(stream)
    except (OSError, ValueError) as error:
        kept.log(f"nothing is run: {path}: {error}")
        return None
    if not isinstance(table, dict) or not all(isinstance(value, dict) for value in table.values()):
        kept.log(f"nothing is run: {path}: it must hold an object of objects")
        return None
    return table


def _complain(line: str) -> None:
    import sys

    print(f"ftrun-hook: {line}", file=sys.stderr)


def _to_syslog(lines: Sequence[str]) -> None:
    import syslog

    syslog.openlog("ftrun-hook", syslog.LOG_PID, syslog.LOG_DAEMON)
    for line in lines:
        syslog.syslog(syslog.LOG_ERR, line)
