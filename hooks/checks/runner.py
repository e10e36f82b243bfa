"""Runs the checks of a node in parallel, in child processes with time limits. (I/O)

Checks examine a machine that may be sick, so a check may hang, crash the interpreter or exhaust memory. A
worker, a child process, runs one check at a time; at a check's deadline the worker is abandoned with it, and
others do the rest. Most checks read a few small files, and a process costs more than that: so one worker runs
check after check, and another starts only when a check waits, by design or because of the machine. An error
of the check itself (a defect of ours, a tool of an unknown version) is `unknown`: it is reported, and never
held against the node.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import signal
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Callable, NamedTuple, Optional

from ftrun.hooks.checks.thresholds import DRIVERS, of_job
from ftrun.hooks.runtime.finding import BAD, SKIPPED, UNKNOWN, Check, Finding, worst
from ftrun.hooks.runtime.host import Machine, NoAnswer
from ftrun.hooks.runtime.machine_identity import read_identity
from ftrun.hooks.runtime.node_report import SCHEMA

BUDGETS_S = {"fast": 15.0, "recheck": 300.0, "burn-in": 3600.0}
"""Time limit for all checks of a tier and of the tiers before it."""

AT_ONCE = 8
PATIENCE_S = 0.1
"""A worker that is longer at one check than this, and sleeps, is not waited for where there are others to be done; one that computes needs no company."""
MESSAGE_CHARS = 300


class Report(NamedTuple):
    """What one check said, and how long it took (seconds)."""

    check: str
    findings: tuple[Finding, ...]
    took_s: float


def run(
    chosen: Sequence[Check],
    *,
    settings: Mapping[str, Mapping[str, Any]] | None = None,
    budget_s: float = 15.0,
    root: str = "/",
) -> list[Report]:
    """Run `chosen` and return their reports in that order. `settings` holds thresholds by the name of the
    check, over what the job around us implies (`thresholds.of_job`), over its defaults; `{"enabled": false}`
    switches one off. Ends within `budget_s`; what had no time is unknown.
    """
    give_up = time.monotonic() + budget_s
    with _shelf() as shelf:
        return _run(chosen, settings or {}, give_up, root, shelf)


def run_confirmed(
    chosen: Sequence[Check],
    *,
    settings: Mapping[str, Mapping[str, Any]],
    budget_s: float,
    again_s: Callable[[], float],
    root: str = "/",
) -> list[Report]:
    """As `run`; a check that found something bad runs again within `again_s`, and its second result counts."""
    reports = run(chosen, settings=settings, budget_s=budget_s, root=root)
    bad = {one.check for one in reports if worst(one.findings) == BAD}
    if bad:
        again = [check for check in chosen if check.name in bad]
        second = {one.check: one for one in run(again, settings=settings, budget_s=again_s(), root=root)}
        reports = [second.get(one.check, one) for one in reports]
    return reports


def _run(
    chosen: Sequence[Check], settings: Mapping[str, Mapping[str, Any]], give_up: float, root: str, shelf: str
) -> list[Report]:
    done: dict[str, Report] = {}
    orders: list[_Order] = []
    has = cache(Machine(root).has)  # each thing is looked for once, however many checks need it
    told = of_job(os.environ, has_driver=any(map(has, DRIVERS)))
    for check in chosen:
        own = dict(settings.get(check.name, {}))
        reason, wrong = _why_not(check, own, has), _misfit(check, own)
        if reason or wrong:
            severity = SKIPPED if reason else UNKNOWN
            done[check.name] = Report(check.name, (Finding(check.name, severity, reason or wrong),), 0.0)
        else:
            implied = {name: value for name, value in told.items() if name in check.thresholds}
            orders.append(_Order(check, {**check.thresholds, **implied, **own}))
    # What waits by design begins first.
    orders.sort(key=lambda one: not one.waits)
    _work_off(orders, done, give_up, root, shelf)
    return [done[check.name] for check in chosen]


def _work_off(orders: list[_Order], done: dict[str, Report], give_up: float, root: str, shelf: str) -> None:
    """Have workers do all orders; what had no time is unknown."""
    living: list[_Worker] = []
    try:
        while orders or any(worker.order for worker in living):
            for worker in living:
                if orders and worker.order is None:
                    worker.begin(orders.pop(0), give_up)
            while orders and len(living) < AT_ONCE and all(worker.is_held_up for worker in living):
                living.append(_Worker(living, orders.copy(), give_up, root, shelf))
                orders.pop(0)
            busy = [worker for worker in living if worker.order]
            soonest = min(worker.deadline_s for worker in busy)
            if orders and len(living) < AT_ONCE:
                soonest = min(soonest, max(worker.look_s for worker in busy))
            select.select([worker.reader for worker in busy], [], [], max(0.0, soonest - time.monotonic()))
            for worker in busy:
                report = worker.heard()
                if report is not None:
                    done[report.check] = report
            for worker in [worker for worker in living if worker.is_over]:
                living.remove(worker)
                worker.end()
    finally:
        for worker in living:  # a check goes with whoever asked
            worker.end()


@contextlib.contextmanager
def _shelf() -> Iterator[str]:
    """A folder for what checks ask in common, in memory where there is one: a disk may hang; "" where none can be made."""
    folder = ""
    for place in ("/dev/shm", os.environ.get("TMPDIR", ""), "/tmp"):  # noqa: S108  made anew, for this user only
        path = os.path.join(place, f"ftrun-check-{os.urandom(8).hex()}")
        with contextlib.suppress(OSError):
            os.mkdir(path, 0o700)
            folder = path
            break
    try:
        yield folder
    finally:
        with contextlib.suppress(OSError):
            for name in os.listdir(folder) if folder else ():
                os.unlink(os.path.join(folder, name))
            os.rmdir(folder)


def _why_not(check: Check, own: dict[str, Any], has: Callable[[str], bool]) -> str:
    """Why a check is not run; "" where it is. Takes the switch out of its settings."""
    if own.pop("enabled", True) is False:
        return "switched off"
    return next((f"{need} is not here" for need in check.needs if not has(need)), "")


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


class _Order(NamedTuple):
    """A check to be done, and with which thresholds."""

    check: Check
    thresholds: Mapping[str, Any]

    @property
    def waits(self) -> bool:
        """Whether it compares two looks, with a pause between them."""
        return "window_s" in self.thresholds


class _Worker:
    """A process that does one check after the other. `order` is what it is doing, None when it is idle."""

    def __init__(
        self, others: Sequence[_Worker], orders: Sequence[_Order], give_up: float, root: str, shelf: str
    ) -> None:
        """It begins with the first of the orders; `others` are those that there are beside it."""
        self._orders = orders
        # What all of them wait for, as for one tool of a driver, is not there sooner for more who wait.
        self._patience_s = PATIENCE_S * (1 + sum(not one.order.waits for one in others if one.order))
        self._got = b""
        self.is_over = False
        asked, self._writer = os.pipe()
        self.reader, told = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            # Else they would hold each other's ends, and none would see that nobody asks any more.
            for one in (self, *others):
                one.let_go()
            _serve(orders, asked, told, root, shelf)
        os.close(asked)
        os.close(told)
        self.begin(orders[0], give_up)

    def begin(self, order: _Order, give_up: float) -> None:
        """Have it do one of the orders that there were when it was made."""
        self.order: Optional[_Order] = order
        self.began_s = time.monotonic()
        self.look_s = self.began_s if order.waits else self.began_s + self._patience_s
        self.deadline_s = min(give_up, self.began_s + order.check.limit_s)
        with contextlib.suppress(BrokenPipeError):  # it died: what it says next is nothing
            number = next(place for place, one in enumerate(self._orders) if one is order)
            os.write(self._writer, struct.pack("=Id", number, self.deadline_s))

    @property
    def is_held_up(self) -> bool:
        """Whether others had better not wait for what it does; it is looked at again at `look_s` where they had."""
        now_s = time.monotonic()
        if self.order is None or now_s < self.look_s:
            return False
        if self.order.waits or not _computes(self.pid):
            return True
        self.look_s = now_s + self._patience_s
        return False

    def heard(self) -> Optional[Report]:
        """What has become of its order, where that is known; it is idle then, or over."""
        assert self.order is not None
        name = self.order.check.name
        took = time.monotonic() - self.began_s
        if select.select([self.reader], [], [], 0)[0]:
            chunk = os.read(self.reader, 1 << 16)
            self._got += chunk
            if chunk and not self._got.endswith(b"\n"):
                return None
            self.is_over = not chunk
            findings = _understood(name, self._got)
        elif time.monotonic() < self.deadline_s:
            return None
        else:
            self.is_over = True
            findings = [Finding(name, UNKNOWN, f"no answer within {took:.1f} s")]
        self.order, self._got = None, b""
        return Report(name, tuple(findings), round(took, 3))

    def let_go(self) -> None:
        """Close this process's ends of the pipes."""
        os.close(self.reader)
        os.close(self._writer)

    def end(self) -> None:
        """End it and what it started; it may not lead its group yet, and one that hangs in the kernel is not waited for."""
        self.let_go()
        for end in (os.killpg, os.kill):
            with contextlib.suppress(OSError):
                end(self.pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, os.WNOHANG)


def _computes(pid: int) -> bool:
    """Whether a process runs or wants to: on a node that is short of processors another one would only take from it."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/stat", "rb", 0) as stream:
        return stream.read(4096).rpartition(b")")[2].split(None, 1)[:1] == [b"R"]
    return False


def _serve(orders: Sequence[_Order], asked: int, told: int, root: str, shelf: str) -> None:
    """A worker's part: probe, judge, write a line, as long as somebody asks; and leave without any cleaning up."""
    try:
        with contextlib.suppress(OSError):
            os.setsid()
        gc.disable()
        size = struct.calcsize("=Id")
        while len(order := os.read(asked, size)) == size:
            number, deadline_s = struct.unpack("=Id", order)
            check, thresholds = orders[number]
            machine = Machine(root, deadline_s, shelf, disposable=True)
            answer = json.dumps([list(one) for one in _judged(check, thresholds, machine)]).encode() + b"\n"
            while answer:
                answer = answer[os.write(told, answer) :]
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
    reports: Sequence[Report], *, kind: str, node: str, at_s: float, tier: str = "", root: str = "/"
) -> dict[str, Any]:
    """The report of a node, as files of an attempt hold it: the names of the checks, every finding, the
    worst of all, and which machine it is. `kind` says on what occasion it was made (check, preflight, after, watch), `at_s` when
    (seconds of the epoch).
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
        "machine": read_identity(root),
    }
