"""The kernel's log, where this user may read it: lines with the time at which each was written. (I/O)

How it thinks. The ring buffer counts seconds since boot, which no step of the clock disturbs; with the clock and the uptime of one
moment they become times that can be laid beside a job's start. Many sites keep the log from users (kernel.dmesg_restrict); the
journal may be open where the buffer is not. Where both are closed that is told, and nothing is concluded from it.

Checked against: `dmesg -r` and `journalctl -k -o short-monotonic` of Debian 12; the caller's column of kernels built with
CONFIG_PRINTK_CALLER.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from typing import NamedTuple, Optional

from ftrun.hooks.machine import Machine, NoAnswer

__all__ = ["Line", "Log", "parsed", "read"]

QUESTIONS = (
    ("dmesg", "-r"),
    ("journalctl", "--dmesg", "--boot", "--no-pager", "--quiet", "--output=short-monotonic"),
)
READ_LIMIT_S = 8.0
LINE = re.compile(r"(?:<(\d+)>)?\[\s*(\d+\.\d+)\](?:\[\s*[TC]\d+\])? ?(.*)")
KERNEL_BELOW = 8  # a priority is facility * 8 + level, and the kernel's facility is 0
JOURNAL = re.compile(r"\S+ kernel: ")


class Line(NamedTuple):
    """One line: when it was written (seconds of the epoch; None where the log does not say), and its text without the time.

    `level` is syslog's, 0 emergency ... 3 error ... 7 debug; None where the log does not say.
    """

    at_s: Optional[float]
    text: str
    level: Optional[int] = None


class Log(NamedTuple):
    """The lines since boot as far as they are kept; `why_not` says why there are none."""

    lines: tuple[Line, ...]
    now_s: float
    why_not: str = ""


def read(machine: Machine) -> Log:
    """The kernel's log by the first way that this user is allowed."""
    refusals = []
    for question in QUESTIONS:
        try:
            output = machine.once(question, READ_LIMIT_S)
        except NoAnswer as error:
            refusals.append(str(error))
            continue
        if output.code == 0 and output.out.strip():
            now = time.time()
            return Log(parsed(output.out, now - _uptime_s(machine)), now)
        refusals.append((output.err.strip().splitlines() or [f"{question[0]} prints nothing"])[0])
    return Log((), time.time(), "; ".join(refusals))


def parsed(text: str, booted_s: float) -> tuple[Line, ...]:
    """The lines of a kernel log whose times count from `booted_s`, but for those that programs wrote into it."""
    found = (_line(line, booted_s) for line in text.splitlines() if line.strip())
    return tuple(line for line in found if line is not None)


def _line(line: str, booted_s: float) -> Optional[Line]:
    found = LINE.match(line)
    if not found:
        return Line(None, line)
    priority = int(found.group(1)) if found.group(1) else None
    if priority is not None and priority >= KERNEL_BELOW:
        return None
    return Line(booted_s + float(found.group(2)), JOURNAL.sub("", found.group(3), count=1), priority)


def _uptime_s(machine: Machine) -> float:
    words: Sequence[str] = (machine.read("/proc/uptime") or "0").split()
    return float(words[0])
