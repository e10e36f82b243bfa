"""Reads files of an OCDBT database, in which Orbax keeps arrays. (I/O)

Manifest, version tree nodes and B+tree nodes have one frame: a magic number, their length, a version, the
compression, the body, and the CRC-32C of everything before. tensorstore writes a data file as a whole: if its
last node does not end inside the file, it was truncated.

The manifest names the root of each version with the bytes of all nodes and values below it; a node names its
children, or the places of its values. A file name has a base, which is a prefix of the names in that file's
nodes. A small tree is walked; of a large one only the bytes are counted. What is not understood proves nothing.

A zstd frame is decompressed by the system's libzstd, since the standard library can only from Python 3.14. libzstd is
part of nearly every Linux: package managers, systemd and the kernel's tools use it. Where it is missing a frame is not
understood.

Source: tensorstore's description of the format (kvstore/ocdbt/index.rst), its kvstore/ocdbt/format; files
written by Orbax 0.5 and 0.12.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Optional

from ftrun.hooks.checkpoints.listing import FileFact, read_part
from ftrun.hooks.checkpoints.model import TORN, Damaged, damage

MANIFEST = b"\x0c\xdb\x3a\x2a"
NODE = b"\x0c\xdb\x20\xde"
FRAME_BYTES = 12  # magic and length
MANIFEST_BYTES_MAX = 1 << 20  # of versions inline there are 16, some kilobytes
NODE_BYTES_MAX = 1 << 27
TAIL_BYTES = 1 << 16
POLYNOMIAL = 0x82F63B78
OUT_BYTES_MAX = 1 << 20


def check_ocdbt(path: str, fact: FileFact, level: str, before_s: float) -> str:  # noqa: ARG001 - as every kind is asked
    """Prove a manifest whole, or a data file not cut inside its last node. Raises Damaged, OSError."""
    head = read_part(path, 0, FRAME_BYTES)
    if head[:4] == MANIFEST:
        return _check_manifest(read_part(path, 0, MANIFEST_BYTES_MAX), fact.size_bytes)
    if path.endswith("manifest.ocdbt"):
        zeros = not head.strip(b"\0")
        raise damage(head, "begins with zeros" if zeros else "does not begin as a manifest")
    begin = max(0, fact.size_bytes - TAIL_BYTES)
    tail = read_part(path, begin, TAIL_BYTES)
    at = tail.rfind(NODE)
    if at < 0 or len(tail) < at + FRAME_BYTES + 2:
        return ""
    (length,) = struct.unpack_from("<Q", tail, at + 4)
    # Version 0 and compression 0 or 1 follow, unlike bytes of a value that happen to be the magic number.
    is_node = FRAME_BYTES < length < NODE_BYTES_MAX and tail[at + 12] == 0 and tail[at + 13] in (0, 1)
    if is_node and begin + at + length > fact.size_bytes:
        raise Damaged(TORN, f"is cut inside a node: {fact.size_bytes} of {begin + at + length} bytes")
    return "OCDBT nodes" if is_node else ""


def _check_manifest(text: bytes, size_bytes: int) -> str:
    (length,) = struct.unpack_from("<Q", text.ljust(FRAME_BYTES, b"\0"), 4)
    if length != size_bytes:
        raise Damaged(TORN, f"has {size_bytes} of {length} bytes")
    if size_bytes <= MANIFEST_BYTES_MAX and crc32c(text[:-4]) != int.from_bytes(text[-4:], "little"):
        raise damage(text[FRAME_BYTES:], "does not have the CRC-32C that it ends with")
    return "OCDBT manifest"


def node_bytes(head: bytes) -> int:
    """The length of the node that begins with these bytes; 0 where none does."""
    return struct.unpack_from("<Q", head, 4)[0] if head[:4] == NODE and len(head) >= FRAME_BYTES else 0


def crc32c(text: bytes) -> int:
    """The CRC-32C (Castagnoli) of some bytes."""
    crc = 0xFFFFFFFF
    for byte in text:
        crc = CRC_TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


def _crc_table() -> tuple[int, ...]:
    table = []
    for number in range(256):
        crc = number
        for _ in range(8):
            crc = (crc >> 1) ^ (POLYNOMIAL if crc & 1 else 0)
        table.append(crc)
    return tuple(table)


CRC_TABLE = _crc_table()


BODY_AT, CRC_BYTES = 14, 4
WALKED_BYTES_MAX = 96 << 10  # of all nodes: some thousand keys, read in some tenths of a second
NODES_MAX = 1000
MISSING = 1 << 62  # an offset of a tree that is empty


class Span(NamedTuple):
    """Bytes of a file: its path in the database's folder, the prefix of names in it, begin and end."""

    name: str
    base: str
    begin: int
    end: int


class Root(NamedTuple):
    """The newest version: where its root node lies, and the bytes of all nodes and of all values below it."""

    place: Span
    node_bytes: int
    value_bytes: int


Read = Callable[[Span], bytes]


def newest_root(manifest: bytes) -> Optional[Root]:
    """The newest version in a sound manifest; None where it has none inside, or is not understood."""
    try:
        return _read_root(_Reader(_body(manifest)))
    except (IndexError, ValueError):
        return None


def file_ends(top: Root, read: Read) -> Optional[Mapping[str, int]]:
    """Path -> least size of each file; None for a large tree or an unknown form. Raises as `read`."""
    if top.node_bytes > WALKED_BYTES_MAX:
        return None
    ends: dict[str, int] = {}
    waiting, seen = [top.place], 0
    try:
        while waiting:
            place = waiting.pop()
            ends[place.name] = max(ends.get(place.name, 0), place.end)
            seen += 1
            if seen > NODES_MAX or place.end - place.begin > top.node_bytes:
                return None
            height, below = _read_node(_Reader(_body(read(place))), place.base)
            if height:
                waiting += below
            for one in below:
                ends[one.name] = max(ends.get(one.name, 0), one.end)
    except (IndexError, ValueError):
        return None
    return ends


def _body(framed: bytes) -> bytes:
    """What lies between the frame and the checksum. Raises ValueError, IndexError."""
    version, compression, body = framed[12], framed[13], framed[BODY_AT:-CRC_BYTES]
    if version or compression > 1:
        raise ValueError(version)
    if not compression:
        return body
    return decompress(body)


class _Reader:
    """The columns of a body, one number after the other."""

    __slots__ = ("at", "text")

    def __init__(self, text: bytes) -> None:
        self.text = text
        self.at = 0

    def number(self) -> int:
        number = shift = 0
        while True:
            byte = self.text[self.at]
            self.at += 1
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                return number
            shift += 7

    def numbers(self, count: int) -> list[int]:
        if count > len(self.text):
            raise IndexError
        return [self.number() for _ in range(count)]

    def bytes(self, count: int) -> bytes:
        self.at += count
        if self.at > len(self.text):
            raise IndexError
        return self.text[self.at - count : self.at]


def _read_root(reader: _Reader) -> Optional[Root]:
    reader.bytes(16)  # the database's number
    if reader.number():  # its versions lie in other files
        return None
    reader.numbers(2)  # bytes of a value kept inline, bytes of a decoded node
    reader.bytes(1)  # the version tree's arity
    if reader.number():  # zstd, and its level
        reader.bytes(4)
    files = _read_files(reader, "")
    count = reader.number()
    reader.numbers(count)  # generations
    reader.bytes(count)  # heights
    places = [reader.numbers(count) for _ in range(3)]
    _keys, nodes, values = (reader.numbers(count) for _ in range(3))
    if places[1][-1] >= MISSING:
        return None
    return Root(_spans(files, *(column[-1:] for column in places))[0], nodes[-1], values[-1])


def _read_node(reader: _Reader, base: str) -> tuple[int, list[Span]]:
    """A node's height, and the places of its children or, at height 0, of its values that lie in files."""
    height = reader.bytes(1)[0]
    files = _read_files(reader, base)
    count = reader.number()
    reader.numbers(count - 1)  # bytes that keys share with the one before
    own = reader.numbers(count)
    if height:
        reader.numbers(count)  # bytes that all keys below share
    reader.bytes(sum(own))
    if height:
        return height, _spans(files, *(reader.numbers(count) for _ in range(3)))
    lengths = reader.numbers(count)
    lengths = [length for length, kind in zip(lengths, reader.bytes(count)) if kind]
    ids, begins = reader.numbers(len(lengths)), reader.numbers(len(lengths))
    return height, _spans(files, ids, begins, lengths)


def _spans(files: list[tuple[str, str]], ids: list[int], begins: list[int], lengths: list[int]) -> list[Span]:
    return [
        Span(*files[number], begin, begin + length) for number, begin, length in zip(ids, begins, lengths)
    ]


def _read_files(reader: _Reader, base: str) -> list[tuple[str, str]]:
    """The table of data files: path and base of each, from the database's folder."""
    count = reader.number()
    shared = [0, *reader.numbers(max(0, count - 1))]
    rest, bases = reader.numbers(count), reader.numbers(count)
    files: list[tuple[str, str]] = []
    before = ""
    for begin, length, own in zip(shared, rest, bases):
        before = before[:begin] + reader.bytes(length).decode()
        files.append((base + before, base + before[:own]))
    return files


def decompress(frame: bytes) -> bytes:
    """The content of the frame that stands at the beginning. Raises ValueError."""
    import ctypes  # for those who need it

    library = _library()
    frame_bytes = library.ZSTD_findFrameCompressedSize(frame, len(frame)) if library else 0
    if not library or library.ZSTD_isError(frame_bytes):
        raise ValueError("no zstd frame, or no library for it")
    out = ctypes.create_string_buffer(OUT_BYTES_MAX)
    size_bytes = library.ZSTD_decompress(out, OUT_BYTES_MAX, frame, frame_bytes)
    if library.ZSTD_isError(size_bytes):
        raise ValueError("a damaged zstd frame, or more than a database's node has")
    return out.raw[:size_bytes]


@functools.cache
def _library() -> Any:
    """The library; None without one."""
    import ctypes

    try:
        found = ctypes.CDLL("libzstd.so.1")
    except OSError:
        return None
    found.ZSTD_findFrameCompressedSize.argtypes = (ctypes.c_char_p, ctypes.c_size_t)
    found.ZSTD_decompress.argtypes = (ctypes.c_char_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t)
    found.ZSTD_isError.argtypes = (ctypes.c_size_t,)
    found.ZSTD_findFrameCompressedSize.restype = found.ZSTD_decompress.restype = ctypes.c_size_t
    return found
