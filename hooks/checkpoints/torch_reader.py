"""Checks a file of torch.save: a zip of records, the format before it, or a plain pickle. (I/O)

The older format (torch.save before 1.6, or on request) is five pickles and then every storage with its length
in front, so its end is known once the fourth pickle is walked. A small plain pickle is walked. A file that
begins otherwise proves nothing: its suffix has other uses.

Source: torch.serialization (_legacy_save, _legacy_load) and the storages' own _write_file: a little-endian
length of 8 bytes, then elements.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping, Sequence
from typing import Any, Optional

from ftrun.hooks.checkpoints import pickle_reader, zip_reader
from ftrun.hooks.checkpoints.listing import FileFact, Tree, begins_in_hole, read_part
from ftrun.hooks.checkpoints.model import TORN, UNFLUSHED, Damaged

MAGIC = 0x1950A86A20F9469CFC6C
STRICT = (".pickle", ".pkl", ".pt", ".pth")  # formats with other endings may begin with zeros
PROTOCOL = b"\x80"
PAGE_BYTES = 4096
ARRAYS_BETWEEN = b"joblib.numpy_pickle"  # joblib writes arrays as they are between the opcodes
PICKLE_BYTES_MAX = 8 << 20  # some seconds of walking
FACTS_BYTES_MAX = 4 << 20
ELEMENT_BYTES: Mapping[str, int] = {
    "DoubleStorage": 8, "LongStorage": 8, "ComplexFloatStorage": 8, "ComplexDoubleStorage": 16,
    "FloatStorage": 4, "IntStorage": 4, "HalfStorage": 2, "BFloat16Storage": 2, "ShortStorage": 2,
    "ByteStorage": 1, "CharStorage": 1, "BoolStorage": 1, "UntypedStorage": 1,
}  # fmt: skip


def check_torch(path: str, fact: FileFact, level: str, before_s: float) -> str:
    """Check it; "" for a file that begins as none of the formats. Raises Damaged, OSError, DeadlinePassed."""
    head = read_part(path, 0, PAGE_BYTES)
    if zip_reader.LOCAL_MARK.startswith(head) or head == PROTOCOL:
        raise Damaged(TORN, f"is cut: {len(head)} bytes")
    if head[:4] == zip_reader.LOCAL_MARK:
        return zip_reader.check_zip(path, fact, level, before_s)
    if not head.strip(b"\0"):
        if path.endswith(STRICT) or (not path.endswith(".bin") and begins_in_hole(path)):
            raise Damaged(UNFLUSHED, "begins with zeros where a zip or a pickle must be")
        if read_part(path, max(0, fact.size_bytes - zip_reader.END.size), 4) == zip_reader.END_MARK:
            raise Damaged(UNFLUSHED, "begins with zeros, and ends as the zip that it was to be")
    if head[:1] == PROTOCOL and head[1:2] in (b"\2", b"\3", b"\4", b"\5"):
        return _check_pickle(path, fact)
    return ""


def pickle_bytes(path: str) -> bytes:
    """The pickle of a file of torch.save, or its beginning; b"" if that takes long. Raises OSError."""
    if read_part(path, 0, 4) != zip_reader.LOCAL_MARK:
        return read_part(path, 0, FACTS_BYTES_MAX)
    with zip_reader.OpenFile(path, os.path.getsize(path)) as source:
        try:
            found = zip_reader.read_directory(source, source.size_bytes, begin=0)
            row = next((row for row in found.records if row.name.endswith("/data.pkl")), None)
            return (zip_reader.read_record(source, row, FACTS_BYTES_MAX) or b"") if row else b""
        except Damaged:  # its own check says so
            return b""


def first_pickle(tree: Tree, names: Sequence[str]) -> bytes:
    """The pickle of the first of these files that has one (of three); b"" for none. Raises OSError."""
    contents = (pickle_bytes(tree.at(name)) for name in names[:3] if name in tree.files)
    return next(filter(None, contents), b"")


def _check_pickle(path: str, fact: FileFact) -> str:
    content = read_part(path, 0, min(fact.size_bytes, PICKLE_BYTES_MAX))
    is_all = len(content) == fact.size_bytes
    if ARRAYS_BETWEEN in content:
        return ""
    try:
        value, at = pickle_reader.walk(content)
        if value != MAGIC:
            return "pickle walked" if at else ""
        for _ in range(2):  # its version, the machine that wrote it
            _, at = pickle_reader.walk(content, at)
        begin = at
        _, at = pickle_reader.walk(content, begin)
        widths = _widths(content[begin:at])
        keys, at = pickle_reader.walk(content, at)
    except pickle_reader.Broken as broken:
        if content[broken.at : broken.at + 64].strip(b"\0") == b"" and broken.at < len(content):
            raise Damaged(UNFLUSHED, "has zeros inside its pickle") from None
        if broken.is_cut and is_all:
            raise Damaged(TORN, "is cut inside its pickle") from None
        return ""
    return _check_storages(
        path, fact, at, [widths.get(key) for key in keys] if isinstance(keys, list) else []
    )


def _widths(content: bytes) -> Mapping[Any, tuple[int, int]]:
    """Of each storage by its key: bytes of an element, and how many there are. Raises Broken."""
    widths: dict[Any, tuple[int, int]] = {}
    for stored in pickle_reader.persistent_ids(content):
        if isinstance(stored, tuple) and len(stored) >= 5 and stored[0] == "storage":
            kind, key, count = stored[1], stored[2], stored[4]
            width = ELEMENT_BYTES.get(kind.name if isinstance(kind, pickle_reader.Global) else "")
            if width and isinstance(key, str) and isinstance(count, int):
                widths.setdefault(key, (width, count))
    return widths


def _check_storages(path: str, fact: FileFact, at: int, widths: list[Optional[tuple[int, int]]]) -> str:
    """Walk from storage to storage; "" where one is of a kind that is not known."""
    for known in widths:
        if known is None:
            return ""
        width, count = known
        length = read_part(path, at, 8)
        if len(length) < 8:
            raise Damaged(TORN, f"is cut: {fact.size_bytes} bytes, and a storage begins at {at}")
        (told,) = struct.unpack("<q", length)
        if told != count:
            if told == 0:
                raise Damaged(UNFLUSHED, f"has zeros at {at} where a storage must begin")
            return ""
        at += 8 + width * count
    if fact.size_bytes < at:
        raise Damaged(TORN, f"is cut: {fact.size_bytes} of {at} bytes")
    return "lengths of the older torch format"
