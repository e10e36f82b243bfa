"""`processes`: no process hangs in the kernel, few are dead and not buried, and there is room for more. (I/O)

How it thinks. A process in state D that is not woken once between two looks waits for a device or a file server that does not answer; it cannot be
killed, so Slurm will not get its job off the node. A moment of it is normal, which is why it must have stood still for all of `window_s`. Kernel threads
wait in D by habit and are a note. Where none is in D at the first look, or none any more, there is nothing to wait for. A zombie costs a number only; many of one parent say that the parent is ill. When the numbers for processes run out nothing starts any more.

Thresholds: `window_s` 2.0, `stuck` 0 users' processes that may hang, `zombies` 100, `percent` 80 of the kernel's process numbers.

Checked against: /proc of Linux 6.1 and 6.18: proc(5) for stat, status, loadavg; a real zombie in the tests.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ftrun.hooks import activity
from ftrun.hooks.activity import Process
from ftrun.hooks.findings import DEGRADED, NOTE, OK, UNKNOWN, Check, Finding
from ftrun.hooks.machine import Machine

__all__ = ["CHECK", "Facts", "judge"]

NAME = "processes"
FAULT = "node"
SHOWN = 5
PAUSE_S = 0.2


class Facts(NamedTuple):
    """The processes in D at the first look and all at the last one, by pid, threads in all, and the largest number that the kernel gives out (0: not told)."""

    before: Mapping[int, Process]
    after: Mapping[int, Process]
    threads: int
    threads_max: int


def probe(machine: Machine, thresholds: Mapping[str, Any]) -> Facts:
    """Look, and look again at what waits in the kernel, as long as any of it does."""
    after = activity.glanced(machine, first=True)
    asleep = [activity.known(machine, one) for one in after.values() if one.state == "D"]
    before = {one.pid: one for one in asleep if one is not None}
    give_up = time.monotonic() + machine.left_s(thresholds["window_s"])
    waiting = list(before.values())
    while waiting and (left_s := give_up - time.monotonic()) > 0:
        time.sleep(min(left_s, PAUSE_S))
        waiting = [one for one in waiting if _hangs(one, activity.again(machine, one))]
    if before:
        after = activity.glanced(machine)
    shown = [activity.known(machine, one) for pid, one in after.items() if pid in before or one.state == "Z"]
    after.update({one.pid: one for one in shown if one is not None})
    words = (machine.peek("/proc/loadavg") or "").split()
    threads = words[3].partition("/")[2] if len(words) > 3 else ""
    limits = [machine.peek(f"/proc/sys/kernel/{name}") or "" for name in ("pid_max", "threads-max")]
    known = [int(text) for text in limits if text.strip().isdigit()]
    return Facts(before, after, int(threads) if threads.isdigit() else 0, min(known, default=0))


def judge(facts: Facts, thresholds: Mapping[str, Any]) -> Sequence[Finding]:
    """Degraded for processes that hang, many zombies, or few numbers left."""
    if not facts.after:
        return [Finding(NAME, UNKNOWN, "no process can be seen here")]
    hanging = [now for pid, now in facts.after.items() if _hangs(facts.before.get(pid), now)]
    found = _stuck([one for one in hanging if not one.is_kernel], thresholds)
    kernel = [one for one in hanging if one.is_kernel]
    if kernel:
        message = f"{len(kernel)} kernel thread(s) wait in state D"
        found.append(
            Finding(NAME, NOTE, message, evidence=_lines(kernel), value=len(kernel), unit="processes")
        )
    found += _zombies([one for one in facts.after.values() if one.state == "Z"], thresholds)
    if facts.threads_max and facts.threads > facts.threads_max * thresholds["percent"] / 100:
        message = f"{facts.threads} of {facts.threads_max} process numbers are taken"
        found.append(Finding(NAME, DEGRADED, message, FAULT, "", (), facts.threads, "threads"))
    return found or [Finding(NAME, OK, f"none of {len(facts.after)} processes hangs")]


def _hangs(then: Process | None, now: Process | None) -> bool:
    """In D at both looks, the same process, and not once awake in between."""
    if then is None or now is None or then.began != now.began or then.state != "D" or now.state != "D":
        return False
    return then.switches == now.switches and then.ticks == now.ticks


def _stuck(hanging: Sequence[Process], thresholds: Mapping[str, Any]) -> list[Finding]:
    if not hanging:
        return []
    severity = DEGRADED if len(hanging) > thresholds["stuck"] else NOTE
    message = f"{len(hanging)} process(es) hang in the kernel"
    fault = FAULT if severity == DEGRADED else ""
    return [Finding(NAME, severity, message, fault, "", _lines(hanging), len(hanging), "processes")]


def _zombies(dead: Sequence[Process], thresholds: Mapping[str, Any]) -> list[Finding]:
    if not dead:
        return []
    (parent, of_parent), *_ = Counter(one.parent for one in dead).most_common(1)
    message = f"{len(dead)} zombie(s), {of_parent} of them of process {parent}"
    if len(dead) > thresholds["zombies"]:
        return [Finding(NAME, DEGRADED, message, FAULT, "", _lines(dead), len(dead), "processes")]
    return [Finding(NAME, NOTE, message, evidence=_lines(dead), value=len(dead), unit="processes")]


def _lines(found: Sequence[Process]) -> tuple[str, ...]:
    return tuple(f"pid {one.pid} uid {one.uid} {one.state} {one.name}" for one in found[:SHOWN])


CHECK = Check(
    name=NAME,
    title="No process hangs in the kernel, and there is room for more",
    tier="fast",
    fault=FAULT,
    needs=("/proc/stat",),
    limit_s=6.0,
    thresholds={"window_s": 2.0, "stuck": 0, "zombies": 100, "percent": 80},
    probe=probe,
    judge=judge,
)
