"""The last words of an attempt that no signature explains, compared with what it usually prints. (I/O)

How it thinks. Reading every line of every log for this would cost more than it tells, so it is done only when a launch is
over and its cause unknown, and only over the end of each file. What stands in front of the last step was printed while training went
on; so was what an earlier attempt printed that ended for a reason of its own.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from ftrun.supervisor import culprits, novelty
from ftrun.supervisor.model import Evidence, Proof, Source, Topology
from ftrun.supervisor.novelty import Line
from ftrun.supervisor.scan import clean
from ftrun.supervisor.tail import LogPath
from ftrun.supervisor.whose import NOBODY_KNOWN, Ours, Whose, whose

__all__ = ["suspicious"]

END_BYTES = 1 << 20
"""So much of the end of each file is read."""

PACKED = (b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"\x80")
"""gzip, zstd, pickle: nothing that a person reads as it is."""

FILES_MAX = 64
CANDIDATES_MAX = 400
"""So many lines of one file are asked; a log without steps is usual up to there."""


def suspicious(
    logs: Sequence[LogPath],
    topology: Topology,
    *,
    step_offset_bytes: int = 0,
    healthy: Sequence[LogPath] = (),
    ours: Ours = NOBODY_KNOWN,
) -> tuple[Proof, ...]:
    """The lines that a person should look at, a few, in the order written; () where nothing is readable or all is usual.

    `step_offset_bytes` is where the last step stands in whichever log has it, 0 = no step; `healthy` are logs of attempts that
    were not at fault; what another job wrote (`ours`) is no word of this one.
    """
    usual: set[str] = set()
    last: list[Line] = []
    for log in healthy[:FILES_MAX]:
        usual |= novelty.shapes(line.text for line, _ in _lines(log, topology))
    for log in logs[:FILES_MAX]:
        lines = _lines(log, topology)
        lines = [one for one in lines if whose(one[0].text, ours) is not Whose.FOREIGN]
        after = [line for line, offset_bytes in lines if offset_bytes >= step_offset_bytes]
        if step_offset_bytes == 0 or not after:
            after = [line for line, _ in lines]
        candidates = after[-CANDIDATES_MAX:]
        kept = len(candidates)
        usual |= novelty.shapes(line.text for line, _ in (lines[:-kept] if kept else lines))
        last += candidates
    return tuple(Proof(line.file, line.number, line.text, "") for line in novelty.suspects(last, usual))


def _lines(log: LogPath, topology: Topology) -> list[tuple[Line, int]]:
    """The lines in the end of a file with their offsets; numbers are 0 where the file is too long to count them."""
    try:
        with open(log.path, "rb") as stream:
            if stream.read(4).startswith(PACKED):
                return []
            size = os.fstat(stream.fileno()).st_size
            if log.end_offset_bytes is not None:
                size = min(size, log.end_offset_bytes)
            start = max(log.start_offset_bytes, size - END_BYTES)
            counted = start <= END_BYTES
            stream.seek(0)
            number = stream.read(start).count(b"\n") + 1 if counted else 0
            stream.seek(start)
            content = stream.read(min(END_BYTES, max(0, size - start)))
    except OSError:
        return []
    found: list[tuple[Line, int]] = []
    offset_bytes = start
    for raw in content.split(b"\n"):
        text = clean(raw)
        if text:
            found.append((Line(log.path, number, text, _speaker(log.path, text, topology)), offset_bytes))
        offset_bytes += len(raw) + 1
        number += 1 if counted else 0
    return found


def _speaker(path: str, text: str, topology: Topology) -> str:
    return culprits.speaker(Evidence(Source.LOG, "", text, file=path), topology) or ""
