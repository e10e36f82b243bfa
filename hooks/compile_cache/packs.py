"""Entries of compile caches, and packs: the files that carry entries between nodes. (I/O)

Frameworks do not verify an entry: PyTorch loads a truncated library and dies of a bus error at every start.
So visibly torn entries are dropped. Only the format is checked: ELF (elf(5)), zstd (RFC 8878), zlib (RFC
1950), JSON, and the last opcode of a pickle.

A thousand nodes that open ten thousand small files overload a shared file system. So a pack is written once,
under a unique name, and never changed. Its first line has length and SHA-256 of the header, and the header
those of every entry: damage is detected before it reaches a node, and costs only the damaged entries.

    ftrun-cache 1 <bytes of the header> <sha256 of the header>
    {"class", "facts", "writers", "made_s", "node", "epoch", "entries": [[...], ...]}
    <bytes of the first entry><bytes of the second>...
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, BinaryIO, Callable, NamedTuple, Optional

READ_BYTES_MAX = 64 << 20
"""Of a larger file only its beginning is checked."""


class Kind(NamedTuple):
    """One framework's caches: its folder below the node's, and whether a name always has the same content."""

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
    """The kind of an entry by its path below the node's folder; None for other files."""
    return _BY_FOLDER.get(path.partition("/")[0])


def is_entry(path: str) -> bool:
    """Whether a path is an entry by its name: neither a lock nor a temporary file."""
    parts = path.split("/")
    if kind_of(path) is None or len(parts) < 2 or "locks" in parts[:-1]:
        return False
    return not any(one.endswith(_PASSING) or one.startswith(_PASSING_BEGIN) for one in parts)


def unit_of(path: str) -> str:
    """What is taken together with an entry: its folder, or only the file if its files are independent."""
    folder, _, name = path.rpartition("/")
    is_alone = folder in ("jax", "") or "/fxgraph/" in path or "/aotautograd/" in path or not name
    return path if is_alone else folder


def is_safe(path: str) -> bool:
    """Whether a path stays inside its folder."""
    parts = path.split("/")
    return bool(path) and "\0" not in path and not path.startswith("/") and not {"", ".", ".."} & set(parts)


def torn_reason(path: str, content: bytes, size: int) -> str:
    """How an entry of `size` bytes that begins with `content` is visibly incomplete; "" if it is not."""
    if not size:
        return "it is empty"
    if content[:4] == b"\x7fELF":
        return _torn_elf_reason(content, size)
    if len(content) < size:
        return ""
    if not content.strip(b"\0"):
        return "it holds nothing but zeros"
    if path.startswith("jax/") and path.endswith("-cache"):
        return _torn_jax_reason(content)
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


def _torn_elf_reason(content: bytes, size: int) -> str:
    """The table of sections is at the end of an ELF file, and its offset in the header."""
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


def _torn_jax_reason(content: bytes) -> str:
    """An entry of JAX is a zstd frame or a zlib stream."""
    if content[:4] == b"\x28\xb5\x2f\xfd":
        return "" if _ends_as_zstd(content) else "its zstd frame is cut"
    unpacked = zlib.decompressobj()
    try:
        for at in range(0, len(content), 1 << 20):
            unpacked.decompress(content[at : at + (1 << 20)])
    except zlib.error:
        return ""  # another format, which may be complete
    return "" if unpacked.eof else "its zlib stream is cut"


def _ends_as_zstd(content: bytes) -> bool:
    """Whether the blocks of the first frame, walked by their headers, lead to its end."""
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


SUFFIX = ".pack"
MAGIC = b"ftrun-cache 1 "
HEADER_BYTES_MAX = 64 << 20
ENTRY_BYTES_MAX = 2 << 30
COMPRESSED_AT_MOST = 0.9  # an entry that zlib shrinks less is stored as it is
LEVEL = 1  # compiled code shrinks to a third; higher levels gain little


class Damaged(Exception):
    """A pack with an invalid header: truncated, incomplete, or no pack. One line."""


class Entry(NamedTuple):
    """A file of a cache: path below the node's folder, size, stored size, checksum, time, permissions."""

    path: str
    size: int
    stored: int
    sha256: str
    mtime_ns: int
    mode: int

    @property
    def compressed(self) -> bool:
        """Whether it is stored compressed."""
        return self.stored != self.size


class Header(NamedTuple):
    """The header of a pack. `writers`: framework -> version; `offset`: of the first entry."""

    node_class: str
    facts: Mapping[str, str]
    writers: Mapping[str, str]
    made_s: float
    node: str
    epoch: int
    entries: Sequence[Entry]
    offset: int


def pack_names(folder: str) -> list[str]:
    """The packs of a folder, newest first; none if it does not exist. Raises OSError."""
    try:
        found = os.listdir(folder)
    except FileNotFoundError:
        return []
    return sorted((one for one in found if one.endswith(SUFFIX) and one[:1] != "."), reverse=True)


def write_pack(
    folder: str, scratch: str, about: Mapping[str, Any], put: Callable[[BinaryIO], Sequence[Entry]]
) -> Optional[str]:
    """Write what `put` writes into a stream as a pack in `folder`; returns its name, None if it is empty.
    `about`: the header without its entries. Raises OSError; then nothing of the pack is left.
    """
    made_s = float(about["made_s"])
    name = f"{int(made_s * 1000):013d}-{os.urandom(4).hex()}{SUFFIX}"
    # The entries are collected on the node, since the header describes them.
    draft, bodies = os.path.join(folder, f".{name}.tmp"), os.path.join(scratch, f".{name}.bodies")
    try:
        with open(bodies, "wb") as stream:
            entries = put(stream)
        if not entries:
            return None
        header = json.dumps({**about, "entries": entries}, separators=(",", ":")).encode()
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


def append_files(stream: BinaryIO, root: str, paths: Sequence[str], room_bytes: int) -> list[Entry]:
    """Append files of `root`, `room_bytes` at most, in whole units whose files do not change meanwhile."""
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


def append_entry(stream: BinaryIO, path: str, content: bytes, mtime_ns: int, mode: int) -> Entry:
    """Append one entry to a stream."""
    small = zlib.compress(content, LEVEL)
    kept = small if len(small) < COMPRESSED_AT_MOST * len(content) else content
    stream.write(kept)
    return Entry(path, len(content), len(kept), hashlib.sha256(content).hexdigest(), mtime_ns, mode & 0o700)


def _put_file(stream: BinaryIO, root: str, path: str) -> Optional[Entry]:
    try:
        number = os.open(os.path.join(root, path), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        with open(number, "rb") as source:
            fact = os.fstat(number)
            content = source.read(ENTRY_BYTES_MAX + 1)
            after = os.fstat(number)
    except OSError:
        return None
    is_same = (after.st_size, after.st_mtime_ns) == (len(content), fact.st_mtime_ns)
    if len(content) > ENTRY_BYTES_MAX or not is_same:
        return None
    return append_entry(stream, path, content, fact.st_mtime_ns, fact.st_mode)


@contextlib.contextmanager
def open_pack(folder: str, name: str, epoch: Optional[int] = None) -> Iterator[tuple[BinaryIO, Header]]:
    """A pack at its first entry, and its header. Raises OSError; Damaged, also for another `epoch`."""
    with open(os.path.join(folder, name), "rb") as stream:
        header = _read_header(stream)
        if epoch not in (None, header.epoch):
            raise Damaged("it is from before the caches were cleared")
        yield stream, header


def _read_header(stream: BinaryIO) -> Header:
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
        if not is_safe(one.path) or not all(0 <= size <= ENTRY_BYTES_MAX for size in (one.stored, one.size)):
            raise ValueError(one.path)
    facts, writers = ({str(k): str(v) for k, v in table[key].items()} for key in ("facts", "writers"))
    made_s, node, epoch = float(table["made_s"]), str(table["node"]), int(table["epoch"])
    return Header(str(table["class"]), facts, writers, made_s, node, epoch, entries, offset)


def read_entries(
    stream: BinaryIO, header: Header, wanted: frozenset[str]
) -> Iterator[tuple[Entry, Optional[bytes]]]:
    """The wanted entries of an open pack in order, with content, None if damaged. Raises OSError."""
    for entry in header.entries:
        if entry.path not in wanted:
            stream.seek(entry.stored, os.SEEK_CUR)
            continue
        yield entry, _verified(entry, stream.read(entry.stored))


def _verified(entry: Entry, kept: bytes) -> Optional[bytes]:
    """The content of an entry; None if it is damaged."""
    if len(kept) != entry.stored:
        return None
    if entry.compressed:
        try:
            # One byte more than expected, so that longer content is detected and cannot fill the memory.
            kept = zlib.decompressobj().decompress(kept, entry.size + 1)
        except zlib.error:
            return None
    return kept if len(kept) == entry.size and hashlib.sha256(kept).hexdigest() == entry.sha256 else None
