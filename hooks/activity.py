"""The processes of this node as /proc tells them. (I/O)

How it thinks. Reading a process's command line or maps may hang on a process that hangs; `stat` and `status` do not, so no more is read.
What a process does now is seen from two readings with a pause between them. A large node has thousands of processes: `status` is read only of those that matter.

Fields of /proc/PID/stat: proc(5). The name stands in parentheses and may hold anything, so the fields are counted from the last one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from typing import NamedTuple, Optional

from ftrun.hooks.machine import Machine

__all__ = ["TICKS_PER_S", "Process", "again", "again_all", "glanced", "known", "listed"]

STAT_BYTES = 4096
GLANCE_S = 5.0
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
KERNEL_THREAD = 0x00200000  # PF_KTHREAD of the kernel's sched.h


class Process(NamedTuple):
    """One process: its state's letter, CPU time in ticks, when it began (ticks since boot: with the pid, its identity).

    `switches`: how often it gave the processor away, which it cannot do while it hangs; `parent` the pid of whoever must wait for it.
    """

    pid: int
    uid: int
    name: str
    state: str
    is_kernel: bool
    ticks: int
    began: int
    switches: int = 0
    parent: int = 0


def listed(machine: Machine) -> dict[int, Process]:
    """All processes by pid; those that end meanwhile are left out."""
    found = (known(machine, one) for one in glanced(machine).values())
    return {one.pid: one for one in found if one is not None}


def glanced(machine: Machine, *, first: bool = False) -> dict[int, Process]:
    """As `listed`, in a third of the time: `uid` is -1 and `switches` 0, for `known` to tell of those that matter.

    `first`: the first look of checks that run side by side, which have it in common. Raises NoAnswer where that takes too long.
    """

    def all_of_them() -> list[Process]:
        folder = machine.path("/proc")
        found = (_glanced(f"{folder}/{name}/stat", name) for name in machine.names("/proc") if name.isdigit())
        return [one for one in found if one is not None]

    rows = (
        machine.shared("processes", all_of_them, GLANCE_S, "the list of processes")
        if first
        else all_of_them()
    )
    return {row[0]: Process._make(row) for row in rows}


def again_all(machine: Machine, before: Iterable[Process]) -> dict[int, Process]:
    """These processes a moment later, glanced at; those that ended meanwhile are left out."""
    folder = machine.path("/proc")
    found = (_glanced(f"{folder}/{one.pid}/stat", str(one.pid)) for one in before)
    return {one.pid: one for one in found if one is not None}


def known(machine: Machine, one: Process) -> Optional[Process]:
    """The same process with uid and switches; None where it has ended."""
    status = machine.peek(f"/proc/{one.pid}/status") or ""
    uid = re.search(r"^Uid:\s+(\d+)", status, re.MULTILINE)
    switches = re.search(r"^voluntary_ctxt_switches:\s+(\d+)", status, re.MULTILINE)
    if uid is None:
        return None
    return one._replace(uid=int(uid[1]), switches=int(switches[1]) if switches else 0)


def again(machine: Machine, one: Process) -> Optional[Process]:
    """The process now, known; None where it has ended and its number is free or another's."""
    now = _process(machine, str(one.pid))
    return known(machine, now) if now is not None and now.began == one.began else None


def _process(machine: Machine, pid: str) -> Optional[Process]:
    return _glanced(machine.path(f"/proc/{pid}/stat"), pid)


def _glanced(path: str, pid: str) -> Optional[Process]:
    """From one read of one file: it is shorter than that, and there are thousands."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            text = os.read(descriptor, STAT_BYTES)
        finally:
            os.close(descriptor)
    except OSError:
        return None
    head, _, tail = text.rpartition(b")")
    fields = tail.split(None, 20)
    if len(fields) < 20:
        return None
    is_kernel = bool(int(fields[6]) & KERNEL_THREAD)
    ticks = int(fields[11]) + int(fields[12])
    name = head.partition(b"(")[2].decode("utf-8", "replace")
    return Process(
        int(pid), -1, name, fields[0].decode(), is_kernel, ticks, int(fields[19]), 0, int(fields[1])
    )
