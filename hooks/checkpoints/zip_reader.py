"""Checks a zip, or zips one after the other: quick by the directory, deep by each record's checksum. (I/O)

The directory is at the end and written last, so one read of the last 64 KiB shows a truncation of any size. A
crashed machine leaves files of the right length with zeros inside: the quick level checks whether a hole
covers a record's header, or a record whose checksum is not that of zeros. Holes alone prove nothing.

torch.distributed.checkpoint writes a zip for each tensor of a shard, one after the other. The end of a zip
has its beginning, so such a file is read backwards. Anything that is no zip ends the reading: a plugin may
write other formats. (The standard library's zipfile reads neither these nor holes.)

Sources: PKWARE's APPNOTE.TXT 6.3; torch's writer keeps records uncompressed, each with a data descriptor, and
always adds the zip64 end. With torch.serialization.set_crc32_options(False) all checksums are 0.
"""

from __future__ import annotations

import functools
import math
import os
import struct
import time
import zlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Optional

from ftrun.hooks.checkpoints.listing import DeadlinePassed, FileFact, begins_in_hole, read_open
from ftrun.hooks.checkpoints.model import DEEP, TORN, UNFLUSHED, Damaged, damage

END = struct.Struct(
    "<4s4H2LH"
)  # signature, disks, records here, records, directory's size and offset, comment's length
END64 = struct.Struct("<4sQ2H2L4Q")
LOCATOR = struct.Struct("<4sLQL")
ENTRY = struct.Struct("<4s6H3L5H2L")
LOCAL = struct.Struct("<4s5H3L2H")
END_MARK, END64_MARK, LOCATOR_MARK, ENTRY_MARK, LOCAL_MARK = (
    b"PK\5\6", b"PK\6\6", b"PK\6\7", b"PK\1\2", b"PK\3\4",
)  # fmt: skip
TAIL_BYTES = 1 << 16
ENDS_BYTES = 1 << 12  # of one of many zips, which are small
CHUNK_BYTES = 4 << 20
HEADERS_LOOKED_AT = 4  # on the quick level
FIRST_BYTES_MAX = (
    256 << 10
)  # a first record of up to this size is read on the quick level too: it is torch's pickle
ZEROS_BYTES_MAX = 64 << 20
PARTLY_BYTES_MAX = 1 << 20  # of records with holes in them, on the quick level
LOOKED_AT_BYTES = 4096  # of what is said to be a hole
STORED, DEFLATED = 0, 8
FULL32 = 0xFFFFFFFF
ZIP64_FIELD = 1


class Record(NamedTuple):
    """One record: where its header begins in the file, its checksum, how it is packed and its sizes."""

    name: str
    offset: int
    crc: int
    method: int
    packed_bytes: int
    size_bytes: int


class Directory(NamedTuple):
    """The records in the order of the directory; `begin` and `end` of the zip in the file."""

    records: Sequence[Record]
    begin: int
    end: int

    @property
    def has_sums(self) -> bool:
        """Whether whoever wrote it computed checksums."""
        return any(row.crc for row in self.records)


class OpenFile:
    """An open file whose last 64 KiB are read once: directories lie there, and of small files all else."""

    __slots__ = ("_at", "_tail", "number", "size_bytes")

    def __init__(self, path: str, size_bytes: int) -> None:
        self.number = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.size_bytes = size_bytes
        self._at = size_bytes
        self._tail = b""

    def __enter__(self) -> OpenFile:  # noqa: PYI034 - Python 3.9 has no Self
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.number)

    def read(self, at: int, size_bytes: int) -> bytes:
        """Bytes of it, fewer where it ends. Raises OSError."""
        if at < self._at and at + size_bytes > self.size_bytes - TAIL_BYTES:
            begin = max(0, self.size_bytes - TAIL_BYTES)
            if at >= begin:
                self._tail = read_open(self.number, begin, self.size_bytes - begin)
                self._at = begin
        if at >= self._at:
            return self._tail[at - self._at : at - self._at + size_bytes]
        return read_open(self.number, at, size_bytes)


def check_zip(path: str, fact: FileFact, level: str, before_s: float) -> str:
    """Check a file that is one zip. Raises Damaged; its text follows the file's name; OSError, DeadlinePassed."""
    with OpenFile(path, fact.size_bytes) as source:
        found = read_directory(source, fact.size_bytes, begin=0)
        return check_records(source, found, level, before_s)


def check_records(source: OpenFile, found: Directory, level: str, before_s: float) -> str:
    """Prove the records of a zip in an open file. Raises Damaged, OSError, DeadlinePassed."""
    rows = found.records
    if level == DEEP:
        for row in rows:
            _check_record(source, row, before_s)
        return "record checksums" if found.has_sums else "record headers (it was written without checksums)"
    for row in rows[:: max(1, len(rows) // HEADERS_LOOKED_AT)]:
        if row is rows[0] and found.has_sums and row.packed_bytes <= FIRST_BYTES_MAX:
            _check_record(source, row, before_s)
        else:
            _data_at(source, row)
    _check_holes(source, found)
    return "zip directory"


def read_directory(source: OpenFile, end: int, begin: Optional[int] = None) -> Directory:
    """Read the directory of the zip that ends at byte `end` of an open file. Raises Damaged, OSError.
    `begin`: where it begins at the earliest; None for one of many zips behind each other, of which less is
    read at once.
    """
    tail_at = max(begin or 0, end - (ENDS_BYTES if begin is None else TAIL_BYTES))
    tail = source.read(tail_at, end - tail_at)
    size, offset, count, directory_end = _find_end(tail, tail_at)
    start = directory_end - size - offset
    if start < (
        begin or 0
    ):  # later is fine: who saves into an open file again and again has the last one at its end
        raise Damaged(TORN, "has a zip directory that does not fit its length")
    at = start + offset
    listed = tail[at - tail_at : at - tail_at + size] if at >= tail_at else source.read(at, size)
    if len(listed) < size:
        raise Damaged(TORN, "is cut inside its zip directory")
    rows = list(_read_rows(listed, count, start))
    for row in rows:
        if row.offset + LOCAL.size + row.packed_bytes > at:
            raise Damaged(TORN, f"has a zip directory that does not fit its record {row.name}")
    return Directory(rows, start, end)


def read_record(source: OpenFile, row: Record, limit_bytes: int) -> Optional[bytes]:
    """The content of an uncompressed record within the limit; else None. Raises Damaged, OSError."""
    if row.method != STORED or row.packed_bytes > limit_bytes:
        return None
    return source.read(_data_at(source, row), row.packed_bytes)


def _find_end(tail: bytes, tail_at: int) -> tuple[int, int, int, int]:
    """Size and offset of the directory, the count of its records, and where it ends in the file."""
    at = len(tail) - END.size
    if at < 0 or tail[at : at + 4] != END_MARK:
        at = _end_before_comment(tail)
    _, _, _, _, count, size, offset, _ = END.unpack_from(tail, at)
    place = at - LOCATOR.size
    if place < 0 or tail[place : place + 4] != LOCATOR_MARK:
        return size, offset, count, tail_at + at
    # The record of 56 bytes stands before its locator, whose own offset is that from the zip's beginning.
    place -= END64.size
    if place < 0 or tail[place : place + 4] != END64_MARK:
        raise Damaged(TORN, "has no zip64 end where its locator says")
    *_, count, size, offset = END64.unpack_from(tail, place)
    return size, offset, count, tail_at + place


def _end_before_comment(tail: bytes) -> int:
    """Where the end stands that has a comment behind it. Raises Damaged where there is none."""
    at = tail.rfind(END_MARK)
    while at >= 0:
        if at + END.size <= len(tail) and at + END.size + END.unpack_from(tail, at)[-1] == len(tail):
            return at
        at = tail.rfind(END_MARK, 0, at)
    if tail and not tail[-4096:].strip(b"\0"):
        raise Damaged(UNFLUSHED, "ends in zeros where its zip directory must be")
    raise Damaged(TORN, "is cut: no zip directory at its end")


def _read_rows(listed: bytes, count: int, start: int) -> Iterator[Record]:
    at = 0
    for _ in range(count):
        if listed[at : at + 4] != ENTRY_MARK or at + ENTRY.size > len(listed):
            raise damage(listed[at : at + ENTRY.size], "has a zip directory that cannot be read")
        _, _, _, _, method, _, _, crc, packed, size, name, extra, comment, _, _, _, offset = (
            ENTRY.unpack_from(listed, at)
        )
        at += ENTRY.size
        said = listed[at : at + name].decode("utf-8", "replace")
        if FULL32 in (packed, size, offset):
            size, packed, offset = _wide(listed[at + name : at + name + extra], size, packed, offset)
        at += name + extra + comment
        yield Record(said, start + offset, crc, method, packed, size)
    if at != len(listed):
        raise Damaged(TORN, "has a zip directory of another length than it says")


def _wide(extra: bytes, size: int, packed: int, offset: int) -> tuple[int, int, int]:
    """The numbers that did not fit into 32 bits, out of the zip64 field, which has them in this order."""
    at = 0
    while at + 4 <= len(extra):
        kind, length = struct.unpack_from("<2H", extra, at)
        at += 4
        if kind == ZIP64_FIELD:
            numbers = iter(struct.unpack_from(f"<{min(length, len(extra) - at) // 8}Q", extra, at))
            wide = [next(numbers, told) if told == FULL32 else told for told in (size, packed, offset)]
            return wide[0], wide[1], wide[2]
        at += length
    return size, packed, offset


def _data_at(source: OpenFile, row: Record) -> int:
    """Where a record's bytes begin: behind its own header, which must be there."""
    header = source.read(row.offset, LOCAL.size)
    if len(header) < LOCAL.size or header[:4] != LOCAL_MARK:
        raise damage(header, f"has no header at its record {row.name}")
    *_, name, extra = LOCAL.unpack(header)
    return row.offset + LOCAL.size + int(name) + int(extra)


def _check_record(source: OpenFile, row: Record, before_s: float) -> None:
    """Read a record to its end and compare its checksum."""
    at = _data_at(source, row)
    end = at + row.packed_bytes
    unpack = zlib.decompressobj(-15) if row.method == DEFLATED else None
    crc = 0
    seen = False
    while at < end:
        if time.monotonic() > before_s:
            raise DeadlinePassed
        piece = source.read(at, min(CHUNK_BYTES, end - at))
        if not piece:
            raise Damaged(TORN, f"is cut inside its record {row.name}")
        at += len(piece)
        seen = seen or piece.count(0) < len(piece)
        try:
            crc = zlib.crc32(unpack.decompress(piece) if unpack else piece, crc)
        except zlib.error:
            raise Damaged(TORN, f"cannot be unpacked at its record {row.name}") from None
    # 0 is what torch notes for a record that somebody else writes, or without computing it.
    if row.crc and row.method in (STORED, DEFLATED) and crc != row.crc:
        state = TORN if seen else UNFLUSHED
        raise Damaged(state, f"has a wrong checksum in its record {row.name}")


def _check_holes(source: OpenFile, found: Directory) -> None:
    """Raises Damaged if a hole covers a record's header, or a record whose checksum is not that of zeros."""
    holes = list(_holes(source.number, found.begin, found.end))
    left = PARTLY_BYTES_MAX
    for row in found.records if holes else ():
        data = row.offset + LOCAL.size
        can_tell = row.crc and row.method == STORED and 0 < row.packed_bytes <= ZEROS_BYTES_MAX
        for begin, end in holes:
            if begin <= row.offset < end:
                _data_at(source, row)
            is_whole = begin <= data and data + row.packed_bytes <= end
            if can_tell and is_whole and row.crc != _sum_of_zeros(row.packed_bytes):
                if source.read(_data_at(source, row), LOOKED_AT_BYTES).strip(b"\0"):
                    continue  # not all that file systems call a hole is one: some do so of what is not on disk yet
                raise Damaged(UNFLUSHED, f"has a hole where its record {row.name} must be")
            is_partly = begin < data + row.packed_bytes and data < end
            if can_tell and is_partly and not is_whole and row.packed_bytes <= left:
                left -= row.packed_bytes
                _check_partly(source, row)


def _check_partly(source: OpenFile, row: Record) -> None:
    """Raise Damaged where a record with a hole in it has a wrong checksum: it was not flushed."""
    try:
        _check_record(source, row, math.inf)
    except Damaged as damaged:
        raise Damaged(UNFLUSHED, f"has a hole in its record {row.name}, whose checksum is wrong") from damaged


def _holes(number: int, begin: int, end: int) -> Iterator[tuple[int, int]]:
    """The holes of a file, none where the file system does not tell."""
    hole = _sought(number, begin, os.SEEK_HOLE, end)
    while hole < end:
        data = min(end, _sought(number, hole, os.SEEK_DATA, end))
        yield hole, data
        hole = _sought(number, data, os.SEEK_HOLE, end)


def _sought(number: int, at: int, whence: int, end: int) -> int:
    try:
        return os.lseek(number, at, whence)
    except OSError:  # no data behind a last hole; or a file system that does not tell
        return end


@functools.lru_cache(maxsize=64)
def _sum_of_zeros(size_bytes: int) -> int:
    crc = 0
    for at in range(0, size_bytes, CHUNK_BYTES):
        crc = zlib.crc32(bytes(min(CHUNK_BYTES, size_bytes - at)), crc)
    return crc


PAGE_BYTES = 4096
TENSORS = b'{"__metadata__":{'
SEARCHED_BYTES = 16 << 20


def check_zip_chain(path: str, fact: FileFact, level: str, before_s: float) -> str:
    """Check the last zip, deep all; "" for a file that begins otherwise. Raises Damaged, OSError, DeadlinePassed."""
    with OpenFile(path, fact.size_bytes) as source:
        head = source.read(0, min(PAGE_BYTES, fact.size_bytes))
        if LOCAL_MARK.startswith(head):
            raise Damaged(TORN, f"is cut: {len(head)} bytes")
        if head[:4] != LOCAL_MARK:
            _check_beginning(source, head, begins_in_hole(path))
            return ""
        end = fact.size_bytes
        said = ""
        while end > 0:
            if time.monotonic() > before_s:
                raise DeadlinePassed
            try:
                found = read_directory(source, end)
            except Damaged:
                if TENSORS in source.read(0, SEARCHED_BYTES):
                    return ""
                raise
            said = check_records(source, found, level, before_s)
            if level != DEEP:
                return said
            end = found.begin
        return said


def _check_beginning(source: OpenFile, head: bytes, is_hole: bool) -> None:
    """Raises Damaged if zeros precede zips: no writer begins so."""
    if head.strip(b"\0"):
        return
    try:
        read_directory(source, source.size_bytes)
    except Damaged as damaged:
        if not is_hole and damaged.state != UNFLUSHED:
            return
    raise Damaged(UNFLUSHED, "begins with zeros where its first tensor must be")
