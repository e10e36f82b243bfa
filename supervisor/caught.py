"""Faults that a text itself calls none: caught, ignored, only warned of, of a logger, of an attempt before. (pure)

How it thinks. A program that warns of something and then ends by another exception did not end by what it warned of. What a
logger cannot format it prints with a traceback, and goes on; so does Python with an exception that it ignored. A program imports its modules first: an import that fails
after Slurm has ended a step is of another attempt, written into the same file.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ftrun.supervisor.model import Evidence, FaultClass, Role

if TYPE_CHECKING:
    from ftrun.supervisor.signatures import Signature

__all__ = ["IMPORTS", "without_caught"]

IMPORTS = frozenset({"python-module-missing", "python-import-name"})
"""Signatures of what fails in the first lines of a program."""

LOGGER = "noise-logging-error"
"""The signature of a logger's own trouble."""

IGNORED = "noise-ignored-exception"
"""The signature of the words with which Python begins an exception that it ignored."""

LOGGER_LINES = 20
"""A traceback of a logger, or of an exception that was ignored, is no longer."""

# A level stands by itself; `NCCL_DEBUG=INFO` in an advice is none.
_WARNED = re.compile(r"^(?:.{0,80}[\s\[(|:\-])?(?:WARN(?:ING)?|INFO|DEBUG)(?:[\s\])|:\-]|$)")
_OF_PROGRAMS = frozenset({"framework", "user"})

Pair = tuple[Evidence, "Signature"]


def without_caught(left: Sequence[Pair], known: Sequence[Pair]) -> list[Pair]:
    """`left` without what a logger printed of its own trouble, and without warnings that something graver follows."""
    loggers = [(line.file, line.line) for line, of in known if of.id == LOGGER]
    ignored = _ignored(left, known)
    faults = [
        (line, of)
        for line, of in left
        if line not in ignored
        and (
            of.layer.value not in _OF_PROGRAMS
            or not any(line.file == file and 0 < line.line - at <= LOGGER_LINES for file, at in loggers)
        )
    ]
    graver = [line.order for line, of in faults if of.role is Role.CAUSE and not _is_warning(line, of)]
    last = max(graver, default=-1)
    return [(line, of) for line, of in faults if not _is_warning(line, of) or line.order > last]


def _ignored(left: Sequence[Pair], known: Sequence[Pair]) -> list[Evidence]:
    """The line with which each ignored exception ends: the first exception below the words, and no other.

    A person's interrupt is one all the same, wherever it hit the program.
    """
    ends = []
    for mark in (line for line, of in known if of.id == IGNORED):
        below = [
            line
            for line, of in left
            if of.layer.value in _OF_PROGRAMS
            and of.role is not Role.CONSEQUENCE
            and of.fault is not FaultClass.CANCELLED
            and line.file == mark.file
            and 0 < line.line - mark.line <= LOGGER_LINES
        ]
        ends += sorted(below, key=lambda line: line.line)[:1]
    return ends


def _is_warning(line: Evidence, signature: Signature) -> bool:
    return signature.layer.value in _OF_PROGRAMS and _WARNED.match(line.text) is not None
