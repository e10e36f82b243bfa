"""A .ckpt file of MindSpore: protocol buffers to its last byte, each tensor with all its slices. (I/O)

How it thinks. The file is one `Checkpoint` message: field 1, repeated, of `Value {1: tag, 2: TensorProto {1: dims, 2: type, 3: content}}`.
So the lengths of the values lead from one to the next without reading a tensor, and a cut file ends inside one. A large tensor is
written in slices under one tag. With crc_check the file ends in "crc_num" and ten bytes, the CRC-32 of everything before. A file that
does not begin so (an encrypted one) is nothing that could be proven.

Sources: mindspore/ccsrc/utils/checkpoint.proto and mindspore/train/serialization.py; files written by MindSpore 2.10.
"""

from __future__ import annotations

import functools
import time
import zlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple, Optional

from ftrun.hooks.checkpoints.look import Late, part
from ftrun.hooks.checkpoints.model import DEEP, TORN, UNFLUSHED, Damaged

if TYPE_CHECKING:
    from ftrun.hooks.checkpoints.look import Fact

__all__ = ["Value", "begins", "check", "number_in", "values"]

VALUE = TAG = 0x0A  # field 1, with a length
TENSOR = 0x12  # field 2, with a length
MAP = 0x1A  # field 3, with a length
DIM = 0x08  # field 1, a number
DIMS = 0x0A  # field 1, numbers with a length: what packs them
CONTENT = 0x1A  # field 3, with a length
HEAD_BYTES = 4096  # of a value: its tag, dimensions and type; a tag is a parameter's name
CRC = b"crc_num"
CRC_BYTES = len(CRC) + 10
CHUNK_BYTES = 4 << 20
SIZES = {
    "Bool": 1, "Int8": 1, "UInt8": 1, "Int16": 2, "UInt16": 2, "Float16": 2, "BFloat16": 2, "Int32": 4, "UInt32": 4, "Float32": 4,
    "Int64": 8, "UInt64": 8, "Float64": 8, "Complex64": 8, "Complex128": 16,
}  # fmt: skip

Read = Callable[[int, int], bytes]


class Value(NamedTuple):
    """One value: where it ends in the file, its tag; of a tensor its dimensions, type and the bytes of this slice (else none)."""

    end: int
    tag: str
    dims: tuple[int, ...] = ()
    kind: str = ""
    content_at: int = 0
    content_bytes: int = 0


def begins(head: bytes) -> bool:
    """Whether a file's first bytes, as many as there are, are those of a value with a tag and a tensor or a map of them."""
    if head[:1] != bytes([VALUE]):
        return False
    try:
        _, at = _number(head, 1)
        if head[at] != TAG:
            return False
        length, at = _number(head, at + 1)
        return at + length >= len(head) or head[at + length] in (TENSOR, MAP)
    except (IndexError, ValueError):
        return False


def check(path: str, fact: Fact, level: str, before_s: float) -> str:
    """Prove it. Raises Damaged, OSError, Late."""
    read = functools.partial(part, path)
    head = read(0, HEAD_BYTES)
    if not head.strip(b"\0"):
        raise Damaged(UNFLUSHED, "begins with zeros where its values must be")
    if not begins(head):
        return ""
    has: dict[str, list[int]] = {}
    end = 0
    for value in values(read, fact.size_bytes):
        if time.monotonic() > before_s:
            raise Late
        end = value.end
        if value.kind in SIZES:
            has.setdefault(value.tag, [_wanted(value), 0])[1] += value.content_bytes
    short = [tag for tag, (wanted, got) in has.items() if got and got < wanted]
    if short:
        wanted, got = has[short[0]]
        raise Damaged(TORN, f"has {got} of the {wanted} bytes of {short[0]}")
    if level == DEEP and end < fact.size_bytes:
        _summed(read, end, before_s)
        return "checksum"
    return "protobuf values"


def values(read: Read, size_bytes: int) -> Iterator[Value]:
    """The values one after the other, no tensor read. Raises Damaged where the file ends inside one, or something else follows."""
    at = 0
    while at < size_bytes:
        head = read(at, HEAD_BYTES)
        if at and head.startswith(CRC):
            if size_bytes - at != CRC_BYTES:
                raise Damaged(TORN, "is cut inside its checksum")
            return
        try:
            if head[0] != VALUE:
                raise ValueError
            length, begin = _number(head, 1)
            value = _value(head, begin, at, begin + length)
        except IndexError:
            if at + len(head) < size_bytes:  # longer than anybody's names are: nothing is said of it
                return
            raise Damaged(TORN, f"is cut inside a value at byte {at}") from None
        except ValueError:
            state = UNFLUSHED if not head.strip(b"\0") else TORN
            raise Damaged(state, f"has no value at byte {at}") from None
        if value.end > size_bytes:
            raise Damaged(TORN, f"is cut inside {value.tag}: {size_bytes} bytes, and it ends at {value.end}")
        yield value
        at = value.end


def number_in(read: Read, size_bytes: int, tag: str) -> Optional[int]:
    """The value of an Int64 that was appended under that tag (`step_num`); None where there is none, or the file is torn."""
    try:
        for value in values(read, size_bytes):
            if value.tag == tag and value.kind == "Int64" and value.content_bytes == 8:
                return int.from_bytes(read(value.content_at, 8), "little", signed=True)
    except Damaged:
        return None
    return None


def _value(head: bytes, at: int, base: int, end: int) -> Value:
    """`at`: where the value's first field begins in `head`, `end`: where it ends there, which may be behind what was read."""
    tag = ""
    tensor = Value(base + end, "")
    while at < min(end, len(head)):
        field = head[at]
        length, at = _number(head, at + 1)
        if field == TAG:
            tag = head[at : at + length].decode("utf-8", "replace")
        elif field == TENSOR:
            tensor = _tensor(head, at, base, at + length)
        elif field & 7 != 2:
            raise ValueError(field)
        at += length
    if not tag:
        raise IndexError if end > len(head) else ValueError
    return tensor._replace(end=base + end, tag=tag)


def _tensor(head: bytes, at: int, base: int, end: int) -> Value:
    dims: list[int] = []
    kind, content_at, content = "", 0, 0
    while at < min(end, len(head)):
        field = head[at]
        number, at = _number(head, at + 1)
        if field == DIM:
            dims.append(number)
        elif field == DIMS:
            stop = at + number
            while at < stop:
                number, at = _number(head, at)
                dims.append(number)
        elif field == CONTENT:
            content_at, content = base + at, number
            at += number
        elif field & 7 == 2:
            kind = head[at : at + number].decode("ascii", "replace")
            at += number
        else:
            raise ValueError(field)
    return Value(0, "", tuple(dims), kind, content_at, content)


def _wanted(value: Value) -> int:
    wanted = SIZES[value.kind]
    for dim in value.dims:
        wanted *= dim
    return wanted


def _number(text: bytes, at: int) -> tuple[int, int]:
    """A varint and where it ends. Raises IndexError where the text ends in it, ValueError where it is none."""
    number = shift = 0
    while True:
        byte = text[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
        shift += 7
        if shift > 63:
            raise ValueError(number)


def _summed(read: Read, end: int, before_s: float) -> None:
    crc = 0
    for at in range(0, end, CHUNK_BYTES):
        if time.monotonic() > before_s:
            raise Late
        crc = zlib.crc32(read(at, min(CHUNK_BYTES, end - at)), crc)
    if crc != int.from_bytes(read(end + len(CRC), 10), "big"):
        raise Damaged(TORN, "does not have the CRC-32 that it ends with")
