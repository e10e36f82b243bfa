"""Checks a tar by its chain of headers and the torch files in it; a gzipped one by its checksum. (I/O)

A tar has no directory, but a header before each member with its size and a checksum of the header, and two
blocks of zeros at the end. Walking the headers reads 512 bytes for each member, however large it is.

Source: POSIX.1-2001 ustar and pax as Python's tarfile reads them.
"""

from __future__ import annotations

import tarfile
import zlib

from ftrun.hooks.checkpoints import zip_reader
from ftrun.hooks.checkpoints.listing import FileFact, read_chunks, read_part
from ftrun.hooks.checkpoints.model import DEEP, TORN, UNFLUSHED, Damaged

GZIP = b"\x1f\x8b"
BLOCK_BYTES = 512
TORCH_ENDINGS = (".ckpt", ".pt", ".pth")


def check_tar(path: str, fact: FileFact, level: str, before_s: float) -> str:
    """Check it. Raises Damaged; its text follows the file's name; OSError, DeadlinePassed past `before_s`."""
    head = read_part(path, 0, BLOCK_BYTES)
    if head[:2] == GZIP:
        return _check_gzip(path, before_s) if level == DEEP else ""
    if not head.strip(b"\0"):
        raise Damaged(UNFLUSHED, "begins with zeros where a tar must begin")
    try:
        with tarfile.open(path, "r:") as archive:
            members = archive.getmembers()
            end = archive.offset
    except (tarfile.TarError, EOFError, ValueError, OverflowError):
        raise Damaged(TORN, "is cut inside its tar headers") from None
    # tarfile ends in silence where a header is zeros or missing.
    if read_part(path, end, BLOCK_BYTES) != bytes(BLOCK_BYTES):
        raise Damaged(TORN, "is cut: it has no end of a tar")
    for member in members:
        if member.isfile() and member.offset_data + member.size > fact.size_bytes:
            raise Damaged(TORN, f"is cut inside its member {member.name}")
    # Only padding follows the end: a page of zeros in the middle would hide the rest.
    rest_bytes = fact.size_bytes - end
    if rest_bytes > 1 << 20 or read_part(path, end, rest_bytes).strip(b"\0"):
        raise Damaged(UNFLUSHED, f"has zeros at {end} where a tar header must be")
    with zip_reader.OpenFile(path, fact.size_bytes) as source:
        for member in members:
            if member.isfile() and member.name.endswith(TORCH_ENDINGS):
                _check_member(source, member, level, before_s)
    return "tar headers"


def _check_member(source: zip_reader.OpenFile, member: tarfile.TarInfo, level: str, before_s: float) -> None:
    if source.read(member.offset_data, 4) != zip_reader.LOCAL_MARK:
        return
    try:
        found = zip_reader.read_directory(source, member.offset_data + member.size, begin=member.offset_data)
        zip_reader.check_records(source, found, level, before_s)
    except Damaged as damaged:
        raise Damaged(damaged.state, f"{damaged.why}, inside its member {member.name}") from None


def _check_gzip(path: str, before_s: float) -> str:
    """Unpack to the end: gzip keeps a checksum there."""
    unpack = zlib.decompressobj(31)
    try:
        for chunk in read_chunks(path, before_s):
            piece = chunk
            while piece:
                unpack.decompress(piece)
                piece = unpack.unused_data
                if unpack.eof and piece:
                    unpack = zlib.decompressobj(31)
    except zlib.error:
        raise Damaged(TORN, "cannot be unpacked") from None
    if not unpack.eof:
        raise Damaged(TORN, "is cut: its packed data have no end")
    return "gzip checksum"
