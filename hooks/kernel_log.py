"""The kernel's log, where this user may read it: lines with the time at which each was written. (I/O)

How it thinks. The ring buffer counts seconds since boot, which no step of the clock disturbs; with the clock and the uptime of one
moment they become times that can be laid beside a job's start. Many sites keep the log from users (kernel.dmesg_restrict); the
journal may be open where the buffer is not. Where both are closed that is told, and nothing is concluded from it.

Checked against: `dmesg` and `journalctl -k -o short-monotonic` of Debian 12; the caller's column of kernels built with
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
    ("dmesg",),
    ("journalctl", "--dmesg", "--boot", "--no-pager", "--quiet", "--output=short-monotonic"),
)
READ_LIMIT_S = 8.0
LINE = re.compile(r"(?:<\d+>)?\[\s*(\d+\.\d+)\](?:\[\s*[TC]\d+\])? ?(.*)")
JOURNAL = re.compile(r"\S+ kernel: ")


class Line(NamedTuple):
    """One line: when it was written (seconds of the epoch; None where the log does not say), and its text without the time."""

    at_s: Optional[float]
    text: str


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
    """The lines of a kernel log whose times count from `booted_s`."""
    return tuple(_line(line, booted_s) for line in text.splitlines() if line.strip())


def _line(line: str, booted_s: float) -> Line:
    found = LINE.match(line)
    if not found:
        return Line(None, line)
    return Line(booted_s + float(found.group(1)), JOURNAL.sub("", found.group(2), count=1))


def _uptime_s(machine: Machine) -> float:
    words: Sequence[str] = (machine.read("/proc/uptime") or "0").split()
    return float(words[0])
