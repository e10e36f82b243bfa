"""What the manifest and the nodes of an OCDBT database say of its files: which there are, and how far they must reach. (pure)

How it thinks. The manifest names the root of each version with the bytes of all nodes and values below it; a node names its children, or the places
of its values. A file name has a base, which goes before the names that nodes in that file tell. A small tree is walked, and then every
place is known; of a large one, which would take seconds, the bytes are counted only. What is not understood is None, and proves nothing.

Source: as in ocdbt.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, Optional

from ftrun.hooks.checkpoints import zstd

__all__ = ["Place", "Root", "reaches", "root"]

BODY_AT, CRC_BYTES = 14, 4
WALKED_BYTES_MAX = 96 << 10  # of all nodes: some thousand keys, read in some tenths of a second
NODES_MAX = 1000
MISSING = 1 << 62  # an offset of a tree that is empty


class Place(NamedTuple):
    """Bytes of a file: its path from the database's folder, the part of that which goes before names told there, begin and end."""

    name: str
    base: str
    begin: int
    end: int


class Root(NamedTuple):
    """The newest version: where its root node lies, and the bytes of all nodes and of all values below it."""

    place: Place
    node_bytes: int
    value_bytes: int


Read = Callable[[Place], bytes]


def root(manifest: bytes) -> Optional[Root]:
    """The newest version in a sound manifest; None where it has none inside, or is not understood."""
    try:
        return _newest(_Reader(_body(manifest)))
    except (IndexError, ValueError):
        return None


def reaches(top: Root, read: Read) -> Optional[Mapping[str, int]]:
    """How many bytes each file must have at least, by path; None for a large tree, or one that is not understood. Raises what `read` does."""
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
            height, below = _node(_Reader(_body(read(place))), place.base)
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
    return zstd.decompressed(body) if compression else body


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


def _newest(reader: _Reader) -> Optional[Root]:
    reader.bytes(16)  # the database's number
    if reader.number():  # its versions lie in other files
        return None
    reader.numbers(2)  # bytes of a value kept inline, bytes of a decoded node
    reader.bytes(1)  # the version tree's arity
    if reader.number():  # zstd, and its level
        reader.bytes(4)
    files = _files(reader, "")
    count = reader.number()
    reader.numbers(count)  # generations
    reader.bytes(count)  # heights
    places = [reader.numbers(count) for _ in range(3)]
    _keys, nodes, values = (reader.numbers(count) for _ in range(3))
    if places[1][-1] >= MISSING:
        return None
    return Root(_places(files, *(column[-1:] for column in places))[0], nodes[-1], values[-1])


def _node(reader: _Reader, base: str) -> tuple[int, list[Place]]:
    """A node's height, and the places of its children or, at height 0, of its values that lie in files."""
    height = reader.bytes(1)[0]
    files = _files(reader, base)
    count = reader.number()
    reader.numbers(count - 1)  # bytes that keys share with the one before
    own = reader.numbers(count)
    if height:
        reader.numbers(count)  # bytes that all keys below share
    reader.bytes(sum(own))
    if height:
        return height, _places(files, *(reader.numbers(count) for _ in range(3)))
    lengths = reader.numbers(count)
    lengths = [length for length, kind in zip(lengths, reader.bytes(count)) if kind]
    ids, begins = reader.numbers(len(lengths)), reader.numbers(len(lengths))
    return height, _places(files, ids, begins, lengths)


def _places(
    files: list[tuple[str, str]], ids: list[int], begins: list[int], lengths: list[int]
) -> list[Place]:
    return [
        Place(*files[number], begin, begin + length) for number, begin, length in zip(ids, begins, lengths)
    ]


def _files(reader: _Reader, base: str) -> list[tuple[str, str]]:
    """The table of data files, whose names share their beginnings: path and base of each, from the database's folder."""
    count = reader.number()
    shared = [0, *reader.numbers(max(0, count - 1))]
    rest, bases = reader.numbers(count), reader.numbers(count)
    files: list[tuple[str, str]] = []
    before = ""
    for begin, length, own in zip(shared, rest, bases):
        before = before[:begin] + reader.bytes(length).decode()
        files.append((base + before, base + before[:own]))
    return files
