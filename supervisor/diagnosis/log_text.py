"""The lines of a log as they stand, for what no signature tells: its beginning and its end. (I/O)

The scan of a log keeps only lines that signatures know. Where those do not explain an end, the log is read a
second time, and no more of it than a person would read: HEAD_BYTES at its begin, where set-up speaks, and
END_BYTES at its end.
"""

from __future__ import annotations

import gzip
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import IO, NamedTuple, cast

from ftrun.supervisor.signatures.scanner import clean
from ftrun.supervisor.telemetry.tail import LogPath

HEAD_BYTES = 1 << 18
"""How much of the begin of each file is read."""

END_BYTES = 1 << 20
"""How much of the end of each file is read."""

FILES_MAX = 64
"""How many files are read."""

PACKED_BYTES_MAX = 1 << 26
"""How much of a packed file is read."""

COUNTED_BYTES = 1 << 24
"""Lines further behind have no number: counting would mean reading."""

_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"


class TextLine(NamedTuple):
    """A line without terminal codes. `number` is 0 where the lines before it were not counted; `offset_bytes` is
    where it begins.
    """

    file: str
    number: int
    text: str
    offset_bytes: int


def read_log_text(logs: Sequence[str | LogPath], stdin: bytes = b"") -> tuple[TextLine, ...]:
    """The first and last lines of these logs, and of `stdin`. What cannot be read is left out."""
    found = _of_bytes("<stdin>", stdin) if stdin else []
    for log in logs[:FILES_MAX]:
        path = log if isinstance(log, LogPath) else LogPath(log)
        try:
            found += _read(path)
        except (OSError, EOFError, ValueError):
            continue
    return tuple(found)


def text_lines(file: str, content: bytes, *, number: int = 1, offset_bytes: int = 0) -> Iterator[TextLine]:
    """The lines of `content` that are not empty. `number` 0 = nobody counted."""
    for raw in content.split(b"\n"):
        text = clean(raw)
        if text:
            yield TextLine(file, number, text, offset_bytes)
        offset_bytes += len(raw) + 1
        number += 1 if number else 0


def _of_bytes(file: str, content: bytes) -> list[TextLine]:
    tail = len(content) - END_BYTES
    if tail <= HEAD_BYTES:
        return list(text_lines(file, content))
    number = content.count(b"\n", 0, tail) + 1
    return [
        *text_lines(file, content[:HEAD_BYTES]),
        *text_lines(file, content[tail:], number=number, offset_bytes=tail),
    ]


def _read(log: LogPath) -> list[TextLine]:
    with opened_log(log.path) as stream:
        size = os.stat(log.path).st_size if _is_plain(log.path) else _packed_size(stream)
        end = size if log.end_offset_bytes is None else min(size, log.end_offset_bytes)
        start = min(log.start_offset_bytes, end)
        tail = max(start, end - END_BYTES)
        if tail <= start + HEAD_BYTES:
            return _lines_between(stream, log.path, start, end)
        head = _lines_between(stream, log.path, start, start + HEAD_BYTES)
        return head + _lines_between(stream, log.path, tail, end)


def _is_plain(path: str) -> bool:
    with open(path, "rb") as plain:
        magic = plain.read(4)
    return not (magic.startswith(_GZIP) or magic == _ZSTD)


def _packed_size(stream: IO[bytes]) -> int:
    """The size of what is packed, or PACKED_BYTES_MAX if it is larger."""
    size = 0
    while size < PACKED_BYTES_MAX and (chunk := stream.read(END_BYTES)):
        size += len(chunk)
    stream.seek(0)
    return size


def _lines_between(stream: IO[bytes], file: str, start: int, end: int) -> list[TextLine]:
    stream.seek(0)
    number = stream.read(start).count(b"\n") + 1 if start <= COUNTED_BYTES else 0
    stream.seek(start)
    return list(text_lines(file, stream.read(end - start), number=number, offset_bytes=start))


@contextmanager
def opened_log(path: str) -> Iterator[IO[bytes]]:
    """The unpacked content of a file. Raises OSError, EOFError or ValueError where it cannot be read."""
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
