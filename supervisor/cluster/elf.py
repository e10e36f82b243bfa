"""What a program or library of a package needs, read from its file: no program or loader is asked, so any architecture will do. (pure)"""

from __future__ import annotations

import posixpath
import struct

_LOAD, _DYNAMIC, _INTERPRETER = 1, 2, 3  # types of segments
_END, _NEEDED, _STRINGS = 0, 1, 5  # tags of the dynamic section


def needed(content: bytes) -> tuple[list[str], str]:
    """The names of the libraries that an ELF file needs, and that of its loader ("" for a library).

    Raises ValueError for what is no 64-bit little-endian ELF file, and struct.error for a cut one.
    """
    if content[:6] != b"\x7fELF\x02\x01":
        raise ValueError("no 64-bit little-endian ELF file")
    (first,), (size, count) = (
        struct.unpack_from("<Q", content, 0x20),
        struct.unpack_from("<HH", content, 0x36),
    )
    segments = [struct.unpack_from("<IIQQQQ", content, first + size * index) for index in range(count)]
    loader, names, strings = "", list[int](), 0
    for kind, _flags, offset, _address, _physical, length in segments:
        if kind == _INTERPRETER:
            loader = _text(content, offset)
        elif kind == _DYNAMIC:
            for at in range(offset, offset + length, 16):
                tag, value = struct.unpack_from("<qQ", content, at)
                if tag == _END:
                    break
                if tag == _NEEDED:
                    names.append(value)
                elif tag == _STRINGS:
                    strings = value
    for kind, _flags, offset, address, _physical, length in segments:
        if kind == _LOAD and address <= strings < address + length:
            return [_text(content, strings - address + offset + name) for name in names], posixpath.basename(
                loader
            )
    if names:
        raise ValueError("an ELF file without the names of its libraries")
    return [], posixpath.basename(loader)


def _text(content: bytes, offset: int) -> str:
    return content[offset : content.index(b"\0", offset)].decode()
