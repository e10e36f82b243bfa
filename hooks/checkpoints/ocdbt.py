"""Files of an OCDBT database, in which Orbax keeps arrays: a manifest is whole, a data file does not end inside a node. (I/O)

How it thinks. Manifest, version tree nodes and B+tree nodes have one frame: a magic number, their whole length, a version, how the body is
compressed, the body, the CRC-32C of everything before. So a manifest is proven to its last byte. A data file is values and nodes one behind
the other, and tensorstore writes it as a whole: where its last node does not end inside the file, it was cut. How far files must reach
is told by the nodes (ocdbt_tree).

Source: tensorstore's description of the format (kvstore/ocdbt/index.rst), its kvstore/ocdbt/format; files written by Orbax 0.5 and 0.12.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from ftrun.hooks.checkpoints.look import part
from ftrun.hooks.checkpoints.model import TORN, UNFLUSHED, Damaged

if TYPE_CHECKING:
    from ftrun.hooks.checkpoints.look import Fact

__all__ = ["FRAME_BYTES", "MANIFEST_BYTES_MAX", "check", "crc32c", "node_bytes"]

MANIFEST = b"\x0c\xdb\x3a\x2a"
NODE = b"\x0c\xdb\x20\xde"
FRAME_BYTES = 12  # magic and length
MANIFEST_BYTES_MAX = 1 << 20  # of versions inline there are 16, some kilobytes
NODE_BYTES_MAX = 1 << 27
TAIL_BYTES = 1 << 16
POLYNOMIAL = 0x82F63B78


def check(path: str, fact: Fact, level: str, before_s: float) -> str:  # noqa: ARG001 - as every kind is asked
    """Prove a manifest whole, or a data file not cut inside its last node. Raises Damaged, OSError."""
    head = part(path, 0, FRAME_BYTES)
    if head[:4] == MANIFEST:
        return _manifest(part(path, 0, MANIFEST_BYTES_MAX), fact.size_bytes)
    if path.endswith("manifest.ocdbt"):
        zeros = not head.strip(b"\0")
        raise Damaged(
            UNFLUSHED if zeros else TORN,
            "begins with zeros" if zeros else "does not begin as a manifest",
        )
    begin = max(0, fact.size_bytes - TAIL_BYTES)
    tail = part(path, begin, TAIL_BYTES)
    at = tail.rfind(NODE)
    if at < 0 or len(tail) < at + FRAME_BYTES + 2:
        return ""
    (length,) = struct.unpack_from("<Q", tail, at + 4)
    # A version of 0 and a compression of 0 or 1 follow: bytes of a value that happen to be the magic number do not look so.
    is_node = FRAME_BYTES < length < NODE_BYTES_MAX and tail[at + 12] == 0 and tail[at + 13] in (0, 1)
    if is_node and begin + at + length > fact.size_bytes:
        raise Damaged(TORN, f"is cut inside a node: {fact.size_bytes} of {begin + at + length} bytes")
    return "OCDBT nodes" if is_node else ""


def _manifest(text: bytes, size_bytes: int) -> str:
    (length,) = struct.unpack_from("<Q", text.ljust(FRAME_BYTES, b"\0"), 4)
    if length != size_bytes:
        raise Damaged(TORN, f"has {size_bytes} of {length} bytes")
    if size_bytes <= MANIFEST_BYTES_MAX and crc32c(text[:-4]) != int.from_bytes(text[-4:], "little"):
        state = UNFLUSHED if not text[FRAME_BYTES:].strip(b"\0") else TORN
        raise Damaged(state, "does not have the CRC-32C that it ends with")
    return "OCDBT manifest"


def node_bytes(head: bytes) -> int:
    """The length of the node that begins with these bytes; 0 where none does."""
    return struct.unpack_from("<Q", head, 4)[0] if head[:4] == NODE and len(head) >= FRAME_BYTES else 0


def crc32c(text: bytes) -> int:
    """The CRC-32C (Castagnoli) of some bytes."""
    crc = 0xFFFFFFFF
    for byte in text:
        crc = TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


def _table() -> tuple[int, ...]:
    table = []
    for number in range(256):
        crc = number
        for _ in range(8):
            crc = (crc >> 1) ^ (POLYNOMIAL if crc & 1 else 0)
        table.append(crc)
    return tuple(table)


TABLE = _table()
