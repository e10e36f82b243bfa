"""Runs the checks of a node side by side, each in a process of its own and none for longer than it may take. (I/O)

How it thinks. A check looks at a machine that may be sick, so it may hang, crash the interpreter or eat memory; in a process of its own
it takes nobody along, and at its deadline it is left behind. What is wrong with a check itself (a mistake of ours, a tool of an
unknown version) is `unknown`: it is told, and never held against the node.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import pkgutil
import select
import shutil
import signal
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ftrun.hooks import checks as packed
from ftrun.hooks.around import DRIVERS, around
from ftrun.hooks.errors import UsageError
from ftrun.hooks.findings import SKIPPED, TIERS, UNKNOWN, Check, Finding, worst
from ftrun.hooks.machine import Machine, NoAnswer
from ftrun.hooks.report import SCHEMA

__all__ = ["BUDGETS_S", "SCHEMA", "Report", "checks", "report_of", "run", "strange"]

BUDGETS_S = {"fast": 15.0, "recheck": 300.0, "burn-in": 3600.0}
"""All checks of a tier, and of the tiers before it, together end within this."""

AT_ONCE = 8
MESSAGE_CHARS = 300
SECTIONS = ("prolog", "epilog", "health", "drain")
"""What a settings file holds beside checks: the switches of the hooks that Slurm calls."""


class Report(NamedTuple):
    """What one check said, and how long it took (seconds)."""

    check: str
    findings: tuple[Finding, ...]
    took_s: float


def checks(tier: str = "fast", names: Sequence[str] = ()) -> list[Check]:
    """The checks of a tier and of those before it, or those named. Raises UsageError for a name or tier that there is not."""
    if tier not in TIERS:
        raise UsageError(f"no tier is called {tier}; there are {', '.join(TIERS)}")
    known = {one.name: one for one in _all()}
    strange = [name for name in names if name not in known]
    if strange:
        raise UsageError(f"no check is called {strange[0]}; there are {', '.join(sorted(known))}")
    if names:
        return [known[name] for name in names]
    upto = TIERS[: TIERS.index(tier) + 1]
    return [one for one in known.values() if one.tier in upto]


def strange(settings: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """What a settings file names and no check knows, a sentence each. To be told, and no error: the file may be another version's."""
    known = {one.name: one.thresholds for one in _all()}
    told = []
    for name, own in settings.items():
        if name in SECTIONS:
            continue
        if name not in known:
            told.append(f"no check is called {name}{_nearest(name, known)}")
            continue
        usual = ("enabled", *known[name])
        told += [f"{name} has no setting {word}{_nearest(word, usual)}" for word in own if word not in usual]
    return told


def _nearest(word: str, words: Iterable[str]) -> str:
    import difflib  # not for a prolog, which counts milliseconds

    near = difflib.get_close_matches(word, list(words), n=1)
    return f"; did you mean {near[0]}?" if near else ""


def run(
    chosen: Sequence[Check],
    *,
    settings: Mapping[str, Mapping[str, Any]] | None = None,
    budget_s: float = 15.0,
    root: str = "/",
) -> list[Report]:
    """Run `chosen` and return their reports in that order.

    `settings` holds thresholds by the name of the check, over what the job around us implies (`around`), over its defaults;
    `{"enabled": false}` switches one off.
    Ends within `budget_s`; what had no time is unknown.
    """
    give_up = time.monotonic() + budget_s
    with _shelf() as shelf:
        return _run(chosen, settings or {}, give_up, root, shelf)


def _run(
    chosen: Sequence[Check], settings: Mapping[str, Mapping[str, Any]], give_up: float, root: str, shelf: str
) -> list[Report]:
    waiting = list(chosen)
    told = around(os.environ, has_driver=any(Machine(root).tool(name) for name in DRIVERS))
    done: dict[str, Report] = {}
    living: list[_Child] = []
    try:
        while waiting or living:
            while waiting and len(living) < AT_ONCE:
                check = waiting.pop(0)
                own = dict(settings.get(check.name, {}))
                reason, wrong = _why_not(check, own, root), _misfit(check, own)
                if reason or wrong:
                    severity = SKIPPED if reason else UNKNOWN
                    done[check.name] = Report(
                        check.name, (Finding(check.name, severity, reason or wrong),), 0.0
                    )
                else:
                    implied = {name: value for name, value in told.items() if name in check.thresholds}
                    living.append(_Child(check, {**check.thresholds, **implied, **own}, give_up, root, shelf))
            living = [child for child in living if not _ended(child, done)]
            if living:
                soonest = min(child.deadline_s for child in living)
                select.select(
                    [child.reader for child in living], [], [], max(0.0, soonest - time.monotonic())
                )
    finally:
        for child in living:  # only where somebody ended us: a check goes with whoever asked
            _kill(child.pid)
    return [done[check.name] for check in chosen]


@contextlib.contextmanager
def _shelf() -> Iterator[str]:
    """A folder for what checks ask in common, in memory where there is one: a disk may hang; "" where none can be made."""
    folder = ""
    for place in ("/dev/shm", None):  # noqa: S108  made by mkdtemp, for this user only
        with contextlib.suppress(OSError):
            folder = tempfile.mkdtemp(prefix="ftrun-check-", dir=place)
            break
    try:
        yield folder
    finally:
        if folder:
            shutil.rmtree(folder, ignore_errors=True)


def _all() -> Iterator[Check]:
    """Every check of the package, in the order of their files."""
    # pkgutil and not the folder: on a node without ftrun the package lies in a zip file.
    for name in sorted(one.name for one in pkgutil.iter_modules(packed.__path__)):
        yield importlib.import_module(f"ftrun.hooks.checks.{name}").CHECK


def _why_not(check: Check, own: dict[str, Any], root: str) -> str:
    """Why a check is not run; "" where it is. Takes the switch out of its settings."""
    if own.pop("enabled", True) is False:
        return "switched off"
    machine = Machine(root)
    for need in check.needs:
        there = os.path.exists(machine.path(need)) if need.startswith("/") else machine.tool(need)
        if not there:
            return f"{need} is not here"
    return ""


def _misfit(check: Check, own: Mapping[str, Any]) -> str:
    """What in its settings is of the wrong kind, in a sentence; "" where all fits. A text that is multiplied fills the node's memory."""
    for name, value in own.items():
        usual = check.thresholds.get(name)
        if isinstance(usual, bool):
            fits, wanted = isinstance(value, bool), "true or false"
        elif isinstance(usual, (int, float)):
            fits, wanted = isinstance(value, (int, float)) and not isinstance(value, bool), "a number"
        else:
            continue
        if not fits:
            return f"its setting {name} must be {wanted}, not {json.dumps(value)}"[:MESSAGE_CHARS]
    return ""


class _Child:
    """One check in a process of its own."""

    def __init__(
        self, check: Check, thresholds: Mapping[str, Any], give_up: float, root: str, shelf: str
    ) -> None:
        self.check = check
        self.began_s = time.monotonic()
        self.deadline_s = min(give_up, self.began_s + check.limit_s)
        self.got = b""
        self.reader, writer = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self.reader)
            _tell(check, thresholds, Machine(root, self.deadline_s, shelf), writer)
        os.close(writer)

    def report(self, findings: Sequence[Finding]) -> Report:
        return Report(self.check.name, tuple(findings), round(time.monotonic() - self.began_s, 3))


def _ended(child: _Child, done: dict[str, Report]) -> bool:
    """Take what a child has said; True when it has said all, or its time is up."""
    name = child.check.name
    if select.select([child.reader], [], [], 0)[0]:
        chunk = os.read(child.reader, 1 << 16)
        if chunk:
            child.got += chunk
            return False
        done[name] = child.report(_understood(name, child.got))
    elif time.monotonic() < child.deadline_s:
        return False
    else:
        took = time.monotonic() - child.began_s
        done[name] = child.report([Finding(name, UNKNOWN, f"no answer within {took:.1f} s")])
    os.close(child.reader)
    _kill(child.pid)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(child.pid, os.WNOHANG if not child.got else 0)
    return True


def _kill(pid: int) -> None:
    """End a child that was not waited for yet, and what it started; it may not lead its group yet."""
    for end in (os.killpg, os.kill):
        with contextlib.suppress(OSError):
            end(pid, signal.SIGKILL)


def _tell(check: Check, thresholds: Mapping[str, Any], machine: Machine, writer: int) -> None:
    """The child's part: probe, judge, write, and leave without any cleaning up."""
    try:
        with contextlib.suppress(OSError):
            os.setsid()
        told = json.dumps([list(one) for one in _judged(check, thresholds, machine)]).encode()
        while told:
            told = told[os.write(writer, told) :]
    finally:
        os._exit(0)


def _judged(check: Check, thresholds: Mapping[str, Any], machine: Machine) -> Sequence[Finding]:
    try:
        return check.judge(check.probe(machine, thresholds), thresholds)
    except NoAnswer as error:
        return [Finding(check.name, UNKNOWN, str(error))]
    except Exception as error:  # noqa: BLE001  a mistake of ours is no fault of the node
        message = f"the check itself failed: {type(error).__name__}: {error}"
        return [Finding(check.name, UNKNOWN, message[:MESSAGE_CHARS])]


def _understood(name: str, content: bytes) -> Sequence[Finding]:
    try:
        rows = json.loads(content)
        return [
            Finding._make(tuple(cell) if isinstance(cell, list) else cell for cell in row) for row in rows
        ]
    except (ValueError, TypeError):
        return [Finding(name, UNKNOWN, "the check died without a word")]


def report_of(
    reports: Sequence[Report], *, kind: str, node: str, at_s: float, tier: str = ""
) -> dict[str, Any]:
    """The report of a node, as files of an attempt hold it: the names of the checks, every finding, and the worst of all.

    `kind` says on what occasion it was made (check, preflight, after, watch), `at_s` when (seconds of the epoch).
    """
    found = [one for report in reports for one in report.findings]
    return {
        "schema": SCHEMA,
        "kind": kind,
        "node": node,
        "at_s": round(at_s, 3),
        "tier": tier,
        "worst": worst(found),
        "checks": [report.check for report in reports],
        "findings": [one._asdict() for one in found],
    }
