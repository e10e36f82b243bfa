"""All that was kept of one attempt, read from files: logs, kernel logs, device reports, recorders, Slurm's record. (I/O)

How it thinks. Every file is asked what it is (`readers`, `flight`), and becomes lines with a source; then the same scanner and
the same diagnosis as for a live log see them. A file that is damaged or of no known form is told, and costs nothing else. The dumps of the flight
recorder make sense together only, so they are judged together and stand in the report as one text.
"""

from __future__ import annotations

import glob
import gzip
import io
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

from ftrun.slurm.records import dataclass, replace
from ftrun.supervisor import flight, readers, recorder
from ftrun.supervisor.logfile import Book, LogFile
from ftrun.supervisor.model import Source
from ftrun.supervisor.readers import HEAD_BYTES, Kind
from ftrun.supervisor.tail import READ_BYTES, LogPath, Piece
from ftrun.supervisor.watch import WatchReport, report_of
from ftrun.supervisor.whose import NOBODY_KNOWN, Ours

if TYPE_CHECKING:
    from ftrun.supervisor.model import Evidence
    from ftrun.supervisor.signatures import Catalog

__all__ = ["Gathered", "attached", "gather", "is_attachment", "named", "told_by"]

WHOLE_BYTES_MAX = 64 * 1024 * 1024
"""Reports, error files and records are read whole; a larger one is read as a log."""

ATTACHMENT_HEAD_BYTES = 4096
"""A live run may have thousands of logs, and each is asked: little is read."""

STDIN = "<stdin>"
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_SOURCES = {Kind.KERNEL: Source.KERNEL, Kind.DEVICE: Source.COUNTER}


@dataclass(frozen=True, slots=True)
class Gathered:
    """What the files of one attempt tell: `report` of all lines, `record` of Slurm, `unread` a line for each file that could not be used."""

    report: WatchReport
    record: readers.Record | None
    unread: tuple[str, ...]


def gather(
    logs: Sequence[str | LogPath],
    *,
    catalog: Catalog | None = None,
    stdin: bytes | None = None,
    ours: Ours = NOBODY_KNOWN,
) -> Gathered:
    """Read `logs` (.gz and .zst too) and `stdin` to their ends. What cannot be read is told in `unread`, never raised.

    A LogPath is read from where its launch's text begins to where a later launch's does; `ours` tells whose lines count.
    """
    reading = _Reading(Book(catalog, ours))
    if stdin is not None:
        reading.take(STDIN, io.BytesIO(stdin))
    for log in dict.fromkeys(log if isinstance(log, LogPath) else LogPath(log) for log in logs):
        path = log.path
        try:
            if _is_dump(path):
                reading.dumps.append(flight.read(Path(path)))
                reading.dump_paths.append(path)
                continue
            with _opened(path) as stream:
                reading.take(path, _up_to(stream, log.end_offset_bytes), log.start_offset_bytes)
        except flight.BadDump as error:
            reading.unread.append(str(error))
        except (OSError, EOFError, ValueError) as error:
            reading.unread.append(f"{path}: {getattr(error, 'strerror', None) or error}")
    reading.take_dumps()
    why = reading.unread[0] if reading.unread else ""
    return Gathered(report_of(reading.files, reading.book.seats, why), reading.record, tuple(reading.unread))


def is_attachment(path: str) -> bool:
    """Whether a file is no log to follow but something to read when all is over: a recorder's dump, or torchrun's error file."""
    try:
        with open(path, "rb") as stream:
            head = stream.read(ATTACHMENT_HEAD_BYTES)
    except OSError:
        return False
    return flight.looks_like_dump(head) or readers.is_error_file(head)


def attached(paths: Sequence[str], *, catalog: Catalog | None = None) -> tuple[Evidence, ...]:
    """The evidence in those of `paths` that are attachments. Users write them, so it is a claim, whatever a file looks like by now."""
    found = [path for path in paths if is_attachment(path)]
    told = gather(found, catalog=catalog).report.evidence if found else ()
    return tuple(replace(one, source=Source.LOG) for one in told)


class _Reading:
    """The files of one attempt, as far as they have been read."""

    def __init__(self, book: Book) -> None:
        self.files: list[LogFile] = []
        self.unread: list[str] = []
        self.dumps: list[recorder.Dump] = []
        self.dump_paths: list[str] = []
        self.record: readers.Record | None = None
        self.book = book

    def take(self, name: str, stream: IO[bytes], start_offset_bytes: int = 0) -> None:
        """Read one file to its end, from `start_offset_bytes` on."""
        lines_before = _skip(stream, start_offset_bytes)
        head = stream.read(HEAD_BYTES)
        kind = readers.kind_of(head)
        chunks = chain([head], _chunks(stream))
        if kind in {Kind.LOG, Kind.KERNEL}:
            start = start_offset_bytes, lines_before
            self._read(name, chunks, _SOURCES.get(kind, Source.LOG), start)
            return
        content = head + stream.read(WHOLE_BYTES_MAX)
        if len(content) > WHOLE_BYTES_MAX:
            self._read(name, chain([content], _chunks(stream)), Source.LOG)
            return
        text = content.decode("utf-8", "replace")
        if kind is Kind.RECORD:
            self.record = readers.record(text)
            if (
                self.record.ended is None
            ):  # of nodes, or of a job that is not over: its words are all there is
                self._read(name, [content], Source.SLURM)
            return
        lines = readers.headed(text.splitlines()) if kind is Kind.DEVICE else readers.error_lines(text)
        self._read(name, ["\n".join(lines).encode()], _SOURCES.get(kind, Source.LOG))

    def take_dumps(self) -> None:
        """What the recorders say together."""
        lines = recorder.findings(self.dumps)
        if lines:
            more = len(self.dump_paths) - 1
            name = self.dump_paths[0] + (f" and {more} more" if more else "")
            self._read(name, ["\n".join(lines).encode()], Source.LOG)

    def _read(
        self, name: str, chunks: Iterable[bytes], source: Source, start: tuple[int, int] = (0, 0)
    ) -> None:
        """Take in one text; `start` is the offset of its first byte in the file, and the lines in front of it."""
        file = LogFile(name, self.book, source=source)
        self.files.append(file)
        offset_bytes, lines_before = start
        try:
            for chunk in chunks:
                file.take(Piece(chunk, offset_bytes, 0), None, lines_before=lines_before)
                offset_bytes += len(chunk)
        finally:
            file.finish(None)  # what was read of a damaged file counts


class _Part(io.RawIOBase):
    """The first bytes of a file."""

    def __init__(self, stream: IO[bytes], size_bytes: int) -> None:
        self._stream = stream
        self._left = size_bytes

    def read(self, size: int = -1, /) -> bytes:
        """At most `size` bytes, all that is left where it is negative."""
        data = self._stream.read(self._left if size < 0 else min(size, self._left))
        self._left -= len(data)
        return data


def _up_to(stream: IO[bytes], end_offset_bytes: int | None) -> IO[bytes]:
    return stream if end_offset_bytes is None else cast("IO[bytes]", _Part(stream, end_offset_bytes))


def _skip(stream: IO[bytes], size_bytes: int) -> int:
    """Read over so many bytes; return the lines in them."""
    lines, left = 0, size_bytes
    while left > 0 and (chunk := stream.read(min(left, READ_BYTES))):
        lines += chunk.count(b"\n")
        left -= len(chunk)
    return lines


def _chunks(stream: IO[bytes]) -> Iterator[bytes]:
    while chunk := stream.read(READ_BYTES):
        yield chunk


def _is_dump(path: str) -> bool:
    with open(path, "rb") as stream:
        return flight.looks_like_dump(stream.read(ATTACHMENT_HEAD_BYTES))


@contextmanager
def _opened(path: str) -> Iterator[IO[bytes]]:
    """The content of a file, unpacked; raises OSError, EOFError or ValueError where it cannot be."""
    with open(path, "rb") as plain:
        magic = plain.read(4)
        plain.seek(0)
        if magic.startswith(_GZIP):
            with gzip.open(plain) as unpacked:
                yield cast("IO[bytes]", unpacked)
        elif magic == _ZSTD:
            import zstandard

            try:
                with zstandard.open(plain, "rb") as unpacked:
                    yield unpacked
            except zstandard.ZstdError as error:
                raise ValueError(str(error)) from None
        else:
            yield plain


def named(settings: Mapping[str, Any], base: str, since_s: float) -> list[str]:
    """The files that `--ft-log` names, relative to `base`, of those that were written since (Unix seconds)."""
    patterns = settings.get("log", [])
    patterns = [patterns] if isinstance(patterns, str) else list(patterns)
    found = [
        path for pattern in patterns if pattern for path in sorted(glob.glob(os.path.join(base, pattern)))
    ]
    return [path for path in found if _written_s(path) >= since_s - 1.0]


def told_by(paths: Sequence[str], catalog: Catalog, evidence: Sequence[Evidence]) -> tuple[Evidence, ...]:
    """What those of these files tell that are no logs, in order after `evidence`."""
    found = attached(paths, catalog=catalog)
    last = max((one.order for one in evidence), default=0)
    return tuple(replace(one, order=last + one.order) for one in found)


def _written_s(path: str) -> float:
    """When a file was written last; never, where it cannot be seen (a link that leads nowhere)."""
    try:
        return os.path.getmtime(path)
    except OSError:
        return float("-inf")
