"""The last lines of an attempt that no signature explains: which of them are new or odd. (I/O)

A failure that nobody has described still prints something that a healthy run does not. Each line is reduced
to its shape, without numbers, addresses and times. What was printed while all was well is usual: lines before
the last step, and lines of an attempt that was not at fault. Of the rest, a line counts for more if its words
indicate trouble, and if only one node prints it. The result is no diagnosis but a few lines for a person to
read first.

Reading every line of every log would cost too much. So ftrun does this only when a launch is over with an
unknown cause, and only for the end of each file.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Sequence

from ftrun.slurm.records import dataclass
from ftrun.supervisor.diagnosis import blame
from ftrun.supervisor.model.types import Evidence, Proof, Source, Topology
from ftrun.supervisor.signatures.scanner import clean
from ftrun.supervisor.telemetry.line_owner import NO_OWNERS_KNOWN, KnownOwners, LineOwner, owner_of
from ftrun.supervisor.telemetry.tail import LogPath

SHOWN_MAX = 5
"""How many lines a person gets."""

_VARIABLE = re.compile(r"0x[0-9a-f]+|[0-9a-f]{8,}|\d+(?:[.,:]\d+)*", re.IGNORECASE)
_SPACE = re.compile(r"\s+")
_RULER = re.compile(r"[\W_]*")
_TROUBLE = (
    (3, re.compile(r"\b(?:error|exception|fatal|panic|abort(?:ed|ing)?|segfault|corrupt\w*|critical)\b|\w+Error\b", re.I)),
    (2, re.compile(r"\b(?:fail(?:ed|ure|s)?|cannot|can't|could not|unable|refused|denied|invalid|killed|timed? ?out|lost|unreachable|dead|not found|no such)\b", re.I)),
    (1, re.compile(r"\b(?:warn(?:ing)?|retry(?:ing)?|unexpected|missing|exit(?:ed|ing)?|terminat\w+|signal)\b", re.I)),
)  # fmt: skip

END_BYTES = 1 << 20
"""How much of the end of each file is read."""

PACKED = (b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"\x80")
"""How gzip, zstd and pickle files begin: no person reads those as they are."""

FILES_MAX = 64
CANDIDATES_MAX = 400
"""How many lines of one file are candidates. In a log without steps, the lines before them are usual."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a log. `speaker` is the node or "rank N" that wrote it, "" if unknown."""

    file: str
    number: int
    text: str
    speaker: str = ""


def suspicious_lines(
    logs: Sequence[LogPath],
    topology: Topology,
    *,
    step_offset_bytes: int = 0,
    healthy: Sequence[LogPath] = (),
    ours: KnownOwners = NO_OWNERS_KNOWN,
) -> tuple[Proof, ...]:
    """The few lines that a person should read, in written order; () where nothing is readable or all is
    usual.

    `step_offset_bytes` is where the last step is in its log, 0 = no step. `healthy` are logs of attempts that
    were not at fault. Lines of other jobs (see `ours`) are ignored.
    """
    usual: set[str] = set()
    last: list[Line] = []
    for log in healthy[:FILES_MAX]:
        usual |= line_shapes(line.text for line, _ in _lines(log, topology))
    for log in logs[:FILES_MAX]:
        lines = _lines(log, topology)
        lines = [one for one in lines if owner_of(one[0].text, ours) is not LineOwner.FOREIGN]
        after = [line for line, offset_bytes in lines if offset_bytes >= step_offset_bytes]
        if step_offset_bytes == 0 or not after:
            after = [line for line, _ in lines]
        candidates = after[-CANDIDATES_MAX:]
        kept = len(candidates)
        usual |= line_shapes(line.text for line, _ in (lines[:-kept] if kept else lines))
        last += candidates
    return tuple(Proof(line.file, line.number, line.text, "") for line in odd_lines(last, usual))


def last_lines(logs: Sequence[LogPath], topology: Topology, *, size_bytes: int) -> tuple[str, ...]:
    """The last lines of the logs, about `size_bytes` of them, file by file; each file gets an equal share."""
    files = [[line.text for line, _ in _lines(log, topology)] for log in logs[:FILES_MAX]]
    files = [lines for lines in files if lines]
    found: list[str] = []
    for lines in files:
        room_bytes, kept = size_bytes // len(files), 0
        while kept < len(lines) and room_bytes > 0:
            kept += 1
            room_bytes -= len(lines[-kept]) + 1
        found += lines[len(lines) - kept :]
    return tuple(found)


def _lines(log: LogPath, topology: Topology) -> list[tuple[Line, int]]:
    """The lines at the end of a file with their offsets. The number is 0 where the file is too long to
    count.
    """
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
            found.append((Line(log.path, number, text, _speaker(log, text, topology)), offset_bytes))
        offset_bytes += len(raw) + 1
        number += 1 if counted else 0
    return found


def _speaker(log: LogPath, text: str, topology: Topology) -> str:
    line = Evidence(Source.LOG, "", text, file=log.path, file_rank=log.rank, file_node=log.node)
    return blame.writer_of(line, topology) or ""


def line_shape(text: str) -> str:
    """The line without what changes from print to print; "" for a ruler or an empty line."""
    if _RULER.fullmatch(text):
        return ""
    return _SPACE.sub(" ", _VARIABLE.sub("#", text)).strip().lower()[:200]


def odd_lines(lines: Sequence[Line], usual: Collection[str] = ()) -> tuple[Line, ...]:
    """The lines that a person should read, in written order; () where all is usual.

    `lines` are the last lines of an attempt, `usual` the shapes of what is printed when nothing is wrong.
    """
    first: dict[str, Line] = {}
    speakers: dict[str, set[str]] = {}
    for line in lines:
        form = line_shape(line.text)
        if form and form not in usual:
            first.setdefault(form, line)
            speakers.setdefault(form, set()).add(line.speaker)
    many = len({line.speaker for line in lines if line.speaker}) > 1
    places = {id(line): place for place, line in enumerate(lines)}

    def weight(form: str) -> tuple[int, int]:
        alone = many and len(speakers[form]) == 1 and "" not in speakers[form]
        return (-_trouble(first[form].text) - (2 if alone else 0), places[id(first[form])])

    best = [form for form in sorted(first, key=weight)[:SHOWN_MAX] if weight(form)[0] < 0]
    if not best:
        # No line indicates trouble: the last ones are as good as any.
        best = list(first)[-SHOWN_MAX:]
    return tuple(sorted((first[form] for form in best), key=lambda line: places[id(line)]))


def line_shapes(texts: Iterable[str]) -> frozenset[str]:
    """The shapes of all these lines."""
    return frozenset(line_shape(text) for text in texts)


def _trouble(text: str) -> int:
    return next((weight for weight, words in _TROUBLE if words.search(text)), 0)
