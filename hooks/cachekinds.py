"""What lies in compile caches: which files are entries, and which of them are whole. (pure)

How it thinks. Frameworks name an entry by what it was made from and look no further than the name: PyTorch loads a library that was cut when its
compiler was killed, and dies of a bus error at every start; JAX reads a cut entry, warns, compiles and never replaces it. So
what shows that it is not whole is dropped. Nothing more is asked of a file than its own form: which entry is the right one is for the framework to
know. Formats: ELF (elf(5)), zstd (RFC 8878), zlib (RFC 1950), JSON, and the last opcode of a pickle.
"""

from __future__ import annotations

import json
import struct
import zlib
from typing import NamedTuple, Optional

__all__ = ["KINDS", "READ_BYTES_MAX", "Kind", "is_entry", "kind_of", "why_not_whole"]

READ_BYTES_MAX = 64 << 20
"""Larger files are judged by no more than this of their begin."""


class Kind(NamedTuple):
    """One framework's caches: the folder below the node's, and whether a name stands for one content for good."""

    folder: str
    framework: str
    is_keyed: bool


KINDS = (
    Kind("inductor", "torch", True),
    Kind("triton", "triton", True),
    Kind("jax", "jax", True),
    Kind("mindspore", "mindspore", False),
    Kind("ascend", "cann", False),
)
_BY_FOLDER = {one.folder: one for one in KINDS}
_PASSING = (".lock", ".tmp", ".temp", ".partial")
_PASSING_BEGIN = (".", "tmp.", "tmp_", "tmp-")


def kind_of(path: str) -> Optional[Kind]:
    """Whose entry a path below the node's folder is; None for nobody's, such as what users keep there themselves."""
    return _BY_FOLDER.get(path.partition("/")[0])


def is_entry(path: str) -> bool:
    """Whether a path is an entry by its name: no lock, and nothing that is still being written."""
    parts = path.split("/")
    if kind_of(path) is None or len(parts) < 2 or "locks" in parts[:-1]:
        return False
    return not any(one.endswith(_PASSING) or one.startswith(_PASSING_BEGIN) for one in parts)


def why_not_whole(path: str, content: bytes, size: int) -> str:
    """What shows that an entry was cut or not written to its end; "" for nothing. `content` is all of it, or its begin where `size` is more."""
    if not size:
        return "it is empty"
    if content[:4] == b"\x7fELF":
        return _why_not_elf(content, size)
    if len(content) < size:
        return ""
    if not content.strip(b"\0"):
        return "it holds nothing but zeros"
    if path.startswith("jax/") and path.endswith("-cache"):
        return _why_not_packed(content)
    if path.endswith((".json", ".best_config")):
        try:
            json.loads(content)
        except ValueError:
            return "it is no whole JSON"
    elif content[:1] == b"\x80" and ("/fxgraph/" in path or "/aotautograd/" in path) and content[-1:] != b".":
        return "its pickle is cut"
    elif path.endswith((".so", ".o", ".cubin", ".hsaco")):
        return "it is no ELF file"
    elif (
        path.endswith((".py", ".cpp", ".ttir", ".ttgir", ".llir", ".ptx", ".source"))
        and content[-1:] == b"\0"
    ):
        return "its end was never written"
    return ""


def _why_not_elf(content: bytes, size: int) -> str:
    """Linkers put the table of sections at the end, and what tells where it is at the begin."""
    if len(content) < 64 or content[4] not in (1, 2) or content[5] not in (1, 2):
        return "its ELF header is cut"
    order = "<" if content[5] == 1 else ">"
    at, form = (40, "Q") if content[4] == 2 else (32, "I")
    (sections,) = struct.unpack_from(order + form, content, at)
    entry, count, strings = struct.unpack_from(order + "HHH", content, 58 if content[4] == 2 else 46)
    if not sections:
        return ""
    if sections + entry * count > size:
        return "it is shorter than its table of sections"
    row = sections + entry * strings
    if (
        strings < count
        and row + 8 <= len(content)
        and struct.unpack_from(order + "I", content, row + 4)[0] != 3
    ):
        return "its table of sections was never written"
    return ""


def _why_not_packed(content: bytes) -> str:
    """An entry of JAX is one frame of zstd, or else one stream of zlib."""
    if content[:4] == b"\x28\xb5\x2f\xfd":
        return "" if _ends_as_zstd(content) else "its zstd frame is cut"
    unpacked = zlib.decompressobj()
    try:
        for at in range(0, len(content), 1 << 20):
            unpacked.decompress(content[at : at + (1 << 20)])
    except zlib.error:
        return ""  # another form, which may well be whole
    return "" if unpacked.eof else "its zlib stream is cut"


def _ends_as_zstd(content: bytes) -> bool:
    """Walk the blocks of the first frame by their headers."""
    if len(content) < 6:
        return False
    told = content[4]
    single, checksum, dictionary = bool(told & 0x20), bool(told & 4), (0, 1, 2, 4)[told & 3]
    content_size = (1 if single else 0, 2, 4, 8)[told >> 6]
    at = 5 + (0 if single else 1) + dictionary + content_size
    while at + 3 <= len(content):
        block = int.from_bytes(content[at : at + 3], "little")
        at += 3 + (1 if block >> 1 & 3 == 1 else block >> 3)
        if block & 1:
            return at + (4 if checksum else 0) <= len(content)
    return False
