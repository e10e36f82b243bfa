"""Decompresses a small zstd frame by the system's libzstd, since the standard library can only from Python 3.14. (I/O)

libzstd is part of nearly every Linux: package managers, systemd and the kernel's tools use it. Where it is
missing a frame is not understood, which proves nothing of a checkpoint.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any

OUT_BYTES_MAX = 1 << 20


def decompress(frame: bytes) -> bytes:
    """The content of the frame that stands at the beginning. Raises ValueError."""
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
    try:
        found = ctypes.CDLL("libzstd.so.1")
    except OSError:
        return None
    found.ZSTD_findFrameCompressedSize.argtypes = (ctypes.c_char_p, ctypes.c_size_t)
    found.ZSTD_decompress.argtypes = (ctypes.c_char_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t)
    found.ZSTD_isError.argtypes = (ctypes.c_size_t,)
    found.ZSTD_findFrameCompressedSize.restype = found.ZSTD_decompress.restype = ctypes.c_size_t
    return found
