"""The kernel's log, where this user may read it: lines with the time at which each was written. (I/O)

The ring buffer counts seconds since boot, which no step of the clock disturbs; with the clock
and the uptime of one moment they become times that can be laid beside a job's start. Many sites keep the log
from users (kernel.dmesg_restrict); the journal may be open where the buffer is not. Where both are closed
that is told, and nothing is concluded from it.

Some lines carry what a user chose: the name of a process or of its file, a command line, an option of a
mount. A process may call itself "Oops: " and crash. So of such lines the kernel's own words are kept and no
others; whoever reads them reads nothing that a user wrote.

Checked against: `dmesg -r` and `journalctl -k -o short-monotonic` of Debian 12; the caller's column of
kernels built with CONFIG_PRINTK_CALLER.
"""

from __future__ import annotations

import re
import time
from typing import NamedTuple, Optional

from ftrun.hooks.runtime.host import Machine, NoAnswer

QUESTIONS = (
    ("dmesg", "-r"),
    ("journalctl", "--dmesg", "--boot", "--no-pager", "--quiet", "--output=short-monotonic"),
)
READ_LIMIT_S = 8.0
LINE = re.compile(r"(?:<(\d+)>)?\[\s*(\d+\.\d+)\](?:\[\s*[TC]\d+\])? ?(.*)")
KERNEL_BELOW = 8  # a priority is facility * 8 + level, and the kernel's facility is 0
JOURNAL = re.compile(r"\S+ kernel: ")
CUT = " ..."
# The kernel's words before what a user chose. Sources: arch/x86/mm/fault.c, arch/x86/kernel/traps.c, mm/oom_kill.c, lib/dump_stack.c,
# kernel/watchdog.c, fs/exec.c, fs/coredump.c, security/yama.
BEFORE = re.compile(
    r"(?:(?:Memory cgroup o|O)ut of memory(?: \(.*?\))?: Killed process \d+|oom-kill:constraint=\w+|traps: |"
    r"CPU: \d+ (?:UID: \d+ )?PID: \d+ Comm:|(?:watchdog: )?BUG: soft lockup - CPU#\d+ stuck for \d+s!|"
    r"\[ *\d+\] +\d+ +\d+ |process [`'\"]|warning: (?:process )?[`'\"]|Process \d+\(|Pid \d+\(|ptrace (?:attach|traceme) of|"
    r"capability: warning: |audit: |x86/split lock detection: #\w+:)"
)
# The kernel's words behind it.
BEHIND = re.compile(
    r"\[\d+\]: (?P<a>segfault at|bad frame in|unhandled signal)|(?P<b>invoked oom-killer):|: (?P<c>page allocation failure)|"
    r": (?P<d>potentially unexpected fatal signal)|(?P<e>Unknown parameter|[Uu]nrecognized mount option|took a \w+_lock trap|"
    r"exceed data ulimit|used greatest stack depth|is using a deprecated|started with executable stack|with NULL argv)"
)
HUNG = re.compile(r"INFO: task (.*):(\d+) (blocked for more than \d+ seconds)")
PLAIN = re.compile(r"[\w./:+@-]*")


class Line(NamedTuple):
    """One line: when it was written (seconds of the epoch; None where the log does not say), and its text
    without the time. `level` is syslog's, 0 emergency ... 3 error ... 7 debug; None where the log does not
    say.
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
            return Log(parsed(output.out, now - machine.uptime_s()), now)
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
    text = _kernels_own(JOURNAL.sub("", found.group(3), count=1))
    return Line(booted_s + float(found.group(2)), text, priority)


def _kernels_own(text: str) -> str:
    """The text without what a user may have chosen."""
    hung = HUNG.match(text)
    if hung:
        return text if PLAIN.fullmatch(hung.group(1)) else f"INFO: task ...:{hung.group(2)} {hung.group(3)}"
    before = BEFORE.match(text)
    if before:
        return before.group() + CUT
    behind = BEHIND.search(text)
    return f"... {next(word for word in behind.groups() if word)}{CUT}" if behind else text
