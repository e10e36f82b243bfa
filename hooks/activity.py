"""The processes of this node as /proc tells them. (I/O)

How it thinks. Reading a process's command line or maps may hang on a process that hangs; `stat` and `status` do not, so no more is read.
What a process does now is seen from two readings with a pause between them.

Fields of /proc/PID/stat: proc(5). The name stands in parentheses and may hold anything, so the fields are counted from the last one.
"""

from __future__ import annotations

import os
import re
import time
from typing import NamedTuple, Optional

from ftrun.hooks.machine import Machine

__all__ = ["TICKS_PER_S", "Process", "listed", "twice"]

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
    found = (_process(machine, name) for name in machine.names("/proc") if name.isdigit())
    return {one.pid: one for one in found if one is not None}


def twice(machine: Machine, pause_s: float) -> tuple[dict[int, Process], dict[int, Process]]:
    """Two readings with a pause between them."""
    before = listed(machine)
    time.sleep(machine.left_s(pause_s))
    return before, listed(machine)


def _process(machine: Machine, pid: str) -> Optional[Process]:
    stat, status = machine.peek(f"/proc/{pid}/stat"), machine.peek(f"/proc/{pid}/status")
    head, _, tail = (stat or "").rpartition(")")
    fields = tail.split()
    uid = re.search(r"^Uid:\s+(\d+)", status or "", re.MULTILINE)
    switches = re.search(r"^voluntary_ctxt_switches:\s+(\d+)", status or "", re.MULTILINE)
    if len(fields) < 20 or uid is None:
        return None
    return Process(
        pid=int(pid),
        uid=int(uid[1]),
        name=head.partition("(")[2],
        state=fields[0],
        is_kernel=bool(int(fields[6]) & KERNEL_THREAD),
        ticks=int(fields[11]) + int(fields[12]),
        began=int(fields[19]),
        switches=int(switches[1]) if switches else 0,
        parent=int(fields[1]),
    )
