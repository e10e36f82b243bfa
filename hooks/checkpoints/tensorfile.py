"""A safetensors file: its header can be read and the tensors that it lists fill the file to its last byte. (I/O)

Source: the format's description in huggingface/safetensors: eight bytes of length, little-endian; a JSON object from tensors to
`data_offsets` [begin, end) from the end of the header; the loader refuses a file whose tensors end before or behind its last byte.
"""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING

from ftrun.hooks.checkpoints.look import part
from ftrun.hooks.checkpoints.model import TORN, UNFLUSHED, Damaged

if TYPE_CHECKING:
    from ftrun.hooks.checkpoints.look import Fact

__all__ = ["check", "data_bytes"]

LENGTH_BYTES = 8
HEADER_BYTES_MAX = 100_000_000  # what the library reads at most


def check(path: str, fact: Fact, level: str, before_s: float) -> str:  # noqa: ARG001 - as every kind is asked
    """Prove it; there are no checksums in the format, so the deep level knows no more. Raises Damaged, OSError."""
    first = part(path, 0, LENGTH_BYTES)
    if len(first) < LENGTH_BYTES:
        raise Damaged(TORN, f"has {fact.size_bytes} bytes, too few for a header")
    (length,) = struct.unpack("<Q", first)
    if not length:
        raise Damaged(UNFLUSHED, "begins with zeros where its header must be")
    if length > HEADER_BYTES_MAX:
        raise Damaged(TORN, "begins with no header")
    header = part(path, LENGTH_BYTES, length)
    if len(header) < length:
        raise Damaged(TORN, f"is cut inside its header: {fact.size_bytes} of {length + LENGTH_BYTES} bytes")
    wanted = LENGTH_BYTES + length + data_bytes(header)
    if fact.size_bytes < wanted:
        raise Damaged(TORN, f"is cut: {fact.size_bytes} of {wanted} bytes")
    if fact.size_bytes > wanted:
        raise Damaged(TORN, f"has {fact.size_bytes} bytes, more than the {wanted} of its tensors")
    return "tensor headers"


def data_bytes(header: bytes) -> int:
    """Where the last tensor of a header ends, in bytes from the header's end. Raises Damaged where it cannot be read."""
    try:
        tensors = json.loads(header)
        ends = [int(entry["data_offsets"][1]) for name, entry in tensors.items() if name != "__metadata__"]
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError):
        state = UNFLUSHED if b"\0" in header else TORN
        raise Damaged(state, "has a header that cannot be read") from None
    return max(ends, default=0)
