"""The file in which entries of compile caches travel between nodes: one header, then the entries one behind the other. (I/O)

How it thinks. A thousand nodes that open ten thousand small files of one folder bring a shared file system to its knees; one that is read from
its begin to its end costs a read. So a pack is written once, under a name of its own, and never changed. Its first line has the length and the sum of the
header, and the header the length and the sum of every entry: whatever was cut, half flushed or overwritten is noticed before it reaches a
node, and costs only what it hit.

    ftrun-cache 1 <bytes of the header> <sha256 of the header>
    {"class": ..., "facts": {...}, "writers": {...}, "made_s": ..., "node": ..., "epoch": ..., "entries": [[...], ...]}
    <bytes of the first entry><bytes of the second>...
"""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, BinaryIO, Callable, NamedTuple, Optional

__all__ = [
    "SUFFIX",
    "Damaged",
    "Entry",
    "Header",
    "is_safe",
    "names",
    "read_bodies",
    "read_header",
    "unit_of",
    "write",
]

SUFFIX = ".pack"
MAGIC = b"ftrun-cache 1 "
HEADER_BYTES_MAX = 64 << 20
ENTRY_BYTES_MAX = 2 << 30
SQUEEZED_AT_MOST = 0.9  # what zlib does not make smaller than this is kept as it is
LEVEL = 1  # compiled code becomes a third; more effort makes little difference


class Damaged(Exception):
    """A pack whose header cannot be believed: cut, half written, or no pack. One line."""


class Entry(NamedTuple):
    """One file of a cache: its path below the node's folder, bytes, bytes as they are kept, sum, when it was written, permissions."""

    path: str
    size: int
    stored: int
    sha256: str
    mtime_ns: int
    mode: int

    @property
    def squeezed(self) -> bool:
        """Whether it is kept compressed."""
        return self.stored != self.size


class Header(NamedTuple):
    """What a pack says of itself. `writers`: framework -> version that wrote its entries; `offset`: where the first entry begins."""

    node_class: str
    facts: Mapping[str, str]
    writers: Mapping[str, str]
    made_s: float
    node: str
    epoch: int
    entries: Sequence[Entry]
    offset: int


def unit_of(path: str) -> str:
    """What belongs together and is taken or left as a whole: the files of one folder, except where each stands for itself."""
    folder, _, name = path.rpartition("/")
    return (
        path
        if folder in ("jax", "") or "/fxgraph/" in path or "/aotautograd/" in path or not name
        else folder
    )


def is_safe(path: str) -> bool:
    """A path that stays below the folder that it is told for."""
    parts = path.split("/")
    return bool(path) and "\0" not in path and not path.startswith("/") and not {"", ".", ".."} & set(parts)


def names(folder: str) -> list[str]:
    """The packs of a folder, newest first; none where it is not there. Raises OSError where it cannot be read."""
    try:
        found = os.listdir(folder)
    except FileNotFoundError:
        return []
    return sorted((one for one in found if one.endswith(SUFFIX) and one[:1] != "."), reverse=True)


# ---------------------------------------------------------------------- writing


def write(
    folder: str, scratch: str, about: Mapping[str, Any], put: Callable[[BinaryIO], Sequence[Entry]]
) -> Optional[str]:
    """A new pack in `folder` of what `put` writes into a stream; its name, None where nothing went in. `about` is the header without its entries.

    Raises OSError; then nothing is left of it.
    """
    made_s = float(about["made_s"])
    name = f"{int(made_s * 1000):013d}-{os.urandom(4).hex()}{SUFFIX}"
    # The bodies are made first, since the header tells of them: on the node, so that the shared folder sees one write from begin to end.
    draft, bodies = os.path.join(folder, f".{name}.tmp"), os.path.join(scratch, f".{name}.bodies")
    try:
        with open(bodies, "wb") as stream:
            entries = put(stream)
        if not entries:
            return None
        header = json.dumps(
            {**about, "entries": [list(one) for one in entries]}, separators=(",", ":")
        ).encode()
        line = MAGIC + f"{len(header)} {hashlib.sha256(header).hexdigest()}\n".encode()
        with open(draft, "wb") as stream, open(bodies, "rb") as source:
            stream.write(line + header + b"\n")
            while chunk := source.read(1 << 20):
                stream.write(chunk)
            stream.flush()
            os.fsync(stream.fileno())
        os.rename(draft, os.path.join(folder, name))
    finally:
        for left in (draft, bodies):
            if os.path.exists(left):
                os.unlink(left)
    return name


def put_files(stream: BinaryIO, root: str, paths: Sequence[str], room_bytes: int) -> list[Entry]:
    """Files of `root` into a stream, whole units and no more than `room_bytes`; one that goes away or changes meanwhile is left out."""
    units: dict[str, list[str]] = {}
    for path in paths:
        units.setdefault(unit_of(path), []).append(path)
    found: list[Entry] = []
    for members in units.values():
        at = stream.tell()
        put = [entry for path in members if (entry := _put_file(stream, root, path)) is not None]
        if len(put) == len(members) and stream.tell() <= room_bytes:
            found += put
        else:
            stream.seek(at)
            stream.truncate()
    return found


def put_content(stream: BinaryIO, path: str, content: bytes, mtime_ns: int, mode: int) -> Entry:
    """One entry into a stream."""
    small = zlib.compress(content, LEVEL)
    kept = small if len(small) < SQUEEZED_AT_MOST * len(content) else content
    stream.write(kept)
    return Entry(path, len(content), len(kept), hashlib.sha256(content).hexdigest(), mtime_ns, mode & 0o700)


def _put_file(stream: BinaryIO, root: str, path: str) -> Optional[Entry]:
    try:
        with open(
            os.open(os.path.join(root, path), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb"
        ) as source:
            fact = os.fstat(source.fileno())
            content = source.read(ENTRY_BYTES_MAX + 1)
            after = os.fstat(source.fileno())
    except OSError:
        return None
    if (
        len(content) > ENTRY_BYTES_MAX
        or len(content) != after.st_size
        or fact.st_mtime_ns != after.st_mtime_ns
    ):
        return None
    return put_content(stream, path, content, fact.st_mtime_ns, fact.st_mode)


# ---------------------------------------------------------------------- reading


def read_header(stream: BinaryIO) -> Header:
    """The header of an open pack, which then stands at its first entry. Raises Damaged, OSError."""
    line = stream.readline(200)
    words = line[len(MAGIC) :].split()
    if not line.startswith(MAGIC) or not line.endswith(b"\n") or len(words) != 2 or not words[0].isdigit():
        raise Damaged("it does not begin as a pack does")
    length = int(words[0])
    if length > HEADER_BYTES_MAX:
        raise Damaged("its header is longer than any is")
    text = stream.read(length + 1)
    if len(text) != length + 1 or hashlib.sha256(text[:-1]).hexdigest().encode() != words[1]:
        raise Damaged("its header is cut or was changed")
    try:
        return _header(json.loads(text), len(line) + len(text))
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise Damaged(f"its header is none: {type(error).__name__}") from None


def _header(table: Mapping[str, Any], offset: int) -> Header:
    entries = [Entry(str(p), int(n), int(k), str(s), int(t), int(m)) for p, n, k, s, t, m in table["entries"]]
    for one in entries:
        if (
            not is_safe(one.path)
            or not 0 <= one.stored <= ENTRY_BYTES_MAX
            or not 0 <= one.size <= ENTRY_BYTES_MAX
        ):
            raise ValueError(one.path)
    texts = [{str(k): str(v) for k, v in table[key].items()} for key in ("facts", "writers")]
    return Header(
        str(table["class"]),
        texts[0],
        texts[1],
        float(table["made_s"]),
        str(table["node"]),
        int(table["epoch"]),
        entries,
        offset,
    )


def read_bodies(
    stream: BinaryIO, header: Header, wanted: frozenset[str]
) -> Iterator[tuple[Entry, Optional[bytes]]]:
    """The wanted entries of a pack that stands behind its header, in order, with their content; None for one that is damaged. Raises OSError."""
    for entry in header.entries:
        if entry.path not in wanted:
            stream.seek(entry.stored, os.SEEK_CUR)
            continue
        kept = stream.read(entry.stored)
        yield entry, _believed(entry, kept)


def _believed(entry: Entry, kept: bytes) -> Optional[bytes]:
    """The content, where it is what was put in."""
    if len(kept) != entry.stored:
        return None
    if entry.squeezed:
        try:
            # A little more than it should be, so that what is too long is noticed and cannot fill the memory.
            kept = zlib.decompressobj().decompress(kept, entry.size + 1)
        except zlib.error:
            return None
    return kept if len(kept) == entry.size and hashlib.sha256(kept).hexdigest() == entry.sha256 else None
