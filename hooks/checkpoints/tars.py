"""A tar archive: its chain of headers leads to its end, and the torch files in it are sound; gzip-packed, its own checksum. (I/O)

How it thinks. A tar has no directory, but a header before each member with its size and a checksum of itself, and two blocks of zeros at the end.
Walking from header to header reads 512 bytes for each member, however large it is.

Source: POSIX.1-2001 ustar and pax as Python's tarfile reads them.
"""

from __future__ import annotations

import os
import tarfile
import time
import zlib
from typing import TYPE_CHECKING

from ftrun.hooks.checkpoints import zips
from ftrun.hooks.checkpoints.look import Late, part, part_of
from ftrun.hooks.checkpoints.model import DEEP, TORN, UNFLUSHED, Damaged

if TYPE_CHECKING:
    from ftrun.hooks.checkpoints.look import Fact

__all__ = ["check"]

GZIP = b"\x1f\x8b"
BLOCK_BYTES = 512
CHUNK_BYTES = 4 << 20
TORCH = (".ckpt", ".pt", ".pth")


def check(path: str, fact: Fact, level: str, before_s: float) -> str:
    """Prove it. Raises Damaged, whose words follow the file's name; OSError; Late past `before_s`."""
    head = part(path, 0, BLOCK_BYTES)
    if head[:2] == GZIP:
        return _unpacked(path, before_s) if level == DEEP else ""
    if not head.strip(b"\0"):
        raise Damaged(UNFLUSHED, "begins with zeros where a tar must begin")
    try:
        with tarfile.open(path, "r:") as archive:
            members = archive.getmembers()
            end = archive.offset
    except (tarfile.TarError, EOFError, ValueError, OverflowError):
        raise Damaged(TORN, "is cut inside its tar headers") from None
    # tarfile ends in silence where a header is zeros or missing.
    if part(path, end, BLOCK_BYTES) != bytes(BLOCK_BYTES):
        raise Damaged(TORN, "is cut: it has no end of a tar")
    for member in members:
        if member.isfile() and member.offset_data + member.size > fact.size_bytes:
            raise Damaged(TORN, f"is cut inside its member {member.name}")
    _rest_is_zeros(path, end, fact.size_bytes)
    with zips.Source(path, fact.size_bytes) as source:
        for member in members:
            if member.isfile() and member.name.endswith(TORCH):
                _member(source, member, level, before_s)
    return "tar headers"


def _member(source: zips.Source, member: tarfile.TarInfo, level: str, before_s: float) -> None:
    if source.read(member.offset_data, 4) != zips.LOCAL_MARK:
        return
    try:
        found = zips.directory(source, member.offset_data + member.size, begin=member.offset_data)
        zips.check_part(source, found, level, before_s)
    except Damaged as damaged:
        raise Damaged(damaged.state, f"{damaged.why}, inside its member {member.name}") from None


def _rest_is_zeros(path: str, end: int, size_bytes: int) -> None:
    """Behind the end there is nothing but padding; a page of zeros in the middle would hide all that follows."""
    if size_bytes - end > 1 << 20 or part(path, end, size_bytes - end).strip(b"\0"):
        raise Damaged(UNFLUSHED, f"has zeros at {end} where a tar header must be")


def _unpacked(path: str, before_s: float) -> str:
    """Unpack to the end: gzip keeps a checksum there."""
    unpack, at = zlib.decompressobj(31), 0
    number = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        while piece := part_of(number, at, CHUNK_BYTES):
            at += len(piece)
            if time.monotonic() > before_s:
                raise Late
            try:
                while piece:
                    unpack.decompress(piece)
                    piece = unpack.unused_data
                    if unpack.eof and piece:
                        unpack = zlib.decompressobj(31)
            except zlib.error:
                raise Damaged(TORN, "cannot be unpacked") from None
    finally:
        os.close(number)
    if not unpack.eof:
        raise Damaged(TORN, "is cut: its packed data have no end")
    return "gzip checksum"
