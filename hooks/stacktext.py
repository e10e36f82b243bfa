"""Stacks of a Python process as two tools print them, and a digest that tells whether it moved. (pure)

How it thinks. A rank that hangs shows the same callers twice; one that only spins changes the line of its innermost function and no other. So
the digest of a stack is made of file and function of every frame, and of the line of all but the innermost; addresses, the names of threads and
their states are left out.

Formats: py-spy 0.3 and 0.4, `dump` (`Thread 41 (idle): "MainThread"`, `    wait (threading.py:320)`); faulthandler of Python 3.9 to 3.14
(`Thread 0x... (most recent call first):`, `  File "threading.py", line 320 in wait`): the main thread comes last.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["Frame", "digest", "main_of_faulthandler", "main_of_pyspy"]

FRAMES_MAX = 100
_PYSPY_THREAD = re.compile(r"^Thread (?:0x)?([0-9A-Fa-f]+) \(.*?\)(?:: \"(.*)\")?")
_PYSPY_FRAME = re.compile(r"^ {4}(\S.*?) \((.+?)(?::(\d+))?\)$")
_FAULT_THREAD = re.compile(r"^(?:Current t|T)hread 0x[0-9a-f]+")
_FAULT_FRAME = re.compile(r'^ {2}File "(.*)", line (\d+|\?\?\?) in (.*)$')


class Frame(NamedTuple):
    """One call, innermost first in a stack. `file` with its folder: a name such as `functional.py` alone says nothing; `line` is 0 where it is not known."""

    function: str
    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.function} ({self.file}:{self.line})"


def main_of_pyspy(text: str, pid: int) -> tuple[Frame, ...]:
    """The main thread of a dump of py-spy, innermost frame first; () where there is none."""
    threads: list[tuple[bool, list[Frame]]] = []
    for line in text.splitlines():
        head = _PYSPY_THREAD.match(line)
        if head:
            threads.append((head[2] == "MainThread" or head[1] == str(pid), []))
            continue
        frame = _PYSPY_FRAME.match(line)
        if frame and threads and len(threads[-1][1]) < FRAMES_MAX:
            threads[-1][1].append(Frame(frame[1], _short(frame[2]), int(frame[3] or 0)))
    return tuple(next((frames for is_main, frames in threads if is_main), threads[0][1] if threads else []))


def main_of_faulthandler(text: str) -> tuple[Frame, ...]:
    """The main thread of what faulthandler wrote once; () where there is none."""
    frames: list[Frame] = []
    for line in text.splitlines():
        if _FAULT_THREAD.match(line):
            frames = []
            continue
        frame = _FAULT_FRAME.match(line)
        if frame and len(frames) < FRAMES_MAX:
            number = int(frame[2]) if frame[2].isdigit() else 0
            frames.append(Frame(frame[3], _short(frame[1]), number))
    return tuple(frames)


def _short(path: str) -> str:
    return "/".join(path.split("/")[-2:])


def digest(frames: Sequence[Frame]) -> str:
    """Twelve letters: equal for two looks at a process that did not move; "" for no frames."""
    if not frames:
        return ""
    inner = frames[0]
    words = [
        f"{inner.file}:{inner.function}",
        *(f"{one.file}:{one.function}:{one.line}" for one in frames[1:]),
    ]
    return hashlib.sha256("\n".join(words).encode("utf-8", "replace")).hexdigest()[:12]
