"""`mindspore`: a .ckpt file, MindFormers' `rank_<n>` folders, or its `iteration_<step>` folders. (I/O)

In rank folders a step is complete when each rank's folder has its file. Folders of an earlier, larger run
stay behind: a rank is not expected once two newer steps have no file of it. The path of such a checkpoint is
rank 0's file. In an iteration folder `metadata.json` names the files with every parameter, and `common.json`
is written after the weights; without `metadata.json` the names of the files have their number.

The step in the name is that of its epoch (`-2_400.ckpt`). That of the run is `step_num` in the file, if the
callback appended it; otherwise it is computed from the files beside it.

A .ckpt file is one `Checkpoint` message of protocol buffers: field 1, repeated, of `Value {1: tag, 2:
TensorProto {1: dims, 2: type, 3: content}}`, whose lengths lead from one to the next without reading a tensor.
A large tensor is written in slices under one tag. With crc_check the file ends in "crc_num" and ten bytes,
the CRC-32 of everything before. Nothing is proven of a file that begins otherwise, such as an encrypted one.

Sources: mindspore/train/callback/_checkpoint.py, mindspore/train/serialization.py,
mindspore/ccsrc/utils/checkpoint.proto and files of MindSpore 2.10; MindFormers' core/callback (rank folders,
meta.json), tools/resume_ckpt.py, checkpoint/{checkpoint,metadata,utils}.py of 2.1.
"""

from __future__ import annotations

import functools
import json
import math
import os
import re
import time
import zlib
from collections.abc import Callable, Iterator
from typing import NamedTuple, Optional

from ftrun.hooks.checkpoints import listing, model
from ftrun.hooks.checkpoints.listing import Candidate, DeadlinePassed, FileFact, Tree, read_chunks, read_part
from ftrun.hooks.checkpoints.model import Damaged, Expected, Layout, Need, damage

FILE = re.compile(r"(?P<stem>.*)-(?P<epoch>[0-9]+)_(?P<step>[0-9]+)(?P<end>\.ckpt|\.safetensors)")
RANK = re.compile(r"rank_([0-9]+)")
SHARD = re.compile(r"(?P<stem>(?:.*-)?(?:model|opt))-(?P<rank>[0-9]{7})-(?P<world>[0-9]{7})\.safetensors")
COMMON = "common.json"
METADATA = "metadata.json"
METADATA_BYTES_MAX = 256 << 20
NEWER_WITHOUT = 2  # so many newer steps without a rank, and it is none of the run any more


def _is_mindspore(candidate: Candidate) -> bool:
    """A file by its first bytes or in a rank's folder, or a folder with weights by MindFormers' names."""
    if candidate.is_folder:
        return any(SHARD.fullmatch(name) for name in candidate.names)
    return _is_of_rank(candidate.path) or (
        candidate.name.endswith(".ckpt") and begins_as_ckpt(candidate.head)
    )


def _mindspore_tree(path: str, before_s: float) -> Tree:
    """The files of one step in all rank folders, else of the path alone. Raises OSError, DeadlinePassed."""
    if os.path.isdir(path) or not _is_of_rank(path):
        return listing.list_tree(path, before_s)
    alone = listing.list_tree(path, before_s)  # raises where it is gone
    base = os.path.dirname(os.path.dirname(path))
    folders = [name for name in os.listdir(base) if RANK.fullmatch(name)]
    names = [_of_rank(path, folder) for folder in folders]
    facts = listing.map_parallel(lambda name: _file_fact(os.path.join(base, name), before_s), names, before_s)
    files = {name: fact for name, fact in zip(names, facts) if fact is not None}
    own = os.path.relpath(path, base)
    return alone._replace(base=base, files={own: alone.files[os.path.basename(path)], **files})


def _expect_mindspore(tree: Tree) -> Expected:
    """One file of its kind; each rank's; or what an iteration's metadata names."""
    if tree.path == tree.base:
        return _expect_iteration(tree)
    end = os.path.splitext(tree.path)[1]
    kind = "mindspore" if end == ".ckpt" else "safetensors"
    if not _is_of_rank(tree.path):
        return Expected({name: Need(kind) for name in tree.files}, "one file")
    ranks = _ranks(tree)
    needs = {name: Need(kind) for name in ranks}
    return Expected(needs, f"{len(needs)} rank folders", world=len(needs))


def _mindspore_step(candidate: Candidate) -> Optional[int]:
    """The step of the run, from the file or the files beside it; None for a name of another kind."""
    if candidate.is_folder:
        return None
    named = FILE.fullmatch(candidate.name)
    if not named or not candidate.name.endswith(".ckpt"):
        return _counted_step(candidate, named) if named else None
    try:
        size_bytes = os.path.getsize(candidate.path)
        read = functools.partial(listing.read_part, candidate.path)
        appended = read_number(read, size_bytes, "step_num")
    except OSError:
        appended = None
    return _counted_step(candidate, named) if appended is None else appended


def _counted_step(candidate: Candidate, named: re.Match[str]) -> int:
    """Steps of whole epochs before it, as long as the longest that is seen, and those in its own."""
    epoch, within = int(named["epoch"]), int(named["step"])
    if epoch <= 1:
        return within
    try:
        beside = [FILE.fullmatch(name) for name in os.listdir(os.path.dirname(candidate.path))]
    except OSError:
        beside = []
    longest = max(
        (int(one["step"]) for one in beside if one and one["stem"] == named["stem"]), default=within
    )
    return (epoch - 1) * max(longest, within) + within


def _expect_iteration(tree: Tree) -> Expected:
    shards = [match for match in map(SHARD.fullmatch, tree.files) if match]
    world = max(int(match["world"]) for match in shards) if shards else None
    needs = {COMMON: Need("json")}
    if METADATA in tree.files:
        named = _files_by_metadata(tree)
        needs.update((name, Need("safetensors")) for name in named)
        return Expected(needs, f"{len(named)} files in {METADATA}", world=world)
    for stem, count in sorted({(match["stem"], match["world"]) for match in shards}):
        needs.update(
            (f"{stem}-{rank:07d}-{count}.safetensors", Need("safetensors")) for rank in range(int(count))
        )
    return Expected(needs, f"{world} ranks by the names", world=world)


def _files_by_metadata(tree: Tree) -> list[str]:
    """Every file that a parameter has a part in: the loader asks for all of them, replicas too."""
    text = tree.read(METADATA, METADATA_BYTES_MAX)
    try:
        stored = json.loads(text)["storage_data"].values()
        return sorted({str(place["file_name"]) for places in stored for place in places})
    except model.UNREADABLE:
        raise Damaged(model.TORN, f"{METADATA} cannot be read") from None


def _is_of_rank(path: str) -> bool:
    """Whether it is a file of a step in a rank's folder."""
    folder, name = os.path.split(path)
    return bool(RANK.fullmatch(os.path.basename(folder)) and FILE.fullmatch(name))


def _of_rank(path: str, folder: str) -> str:
    """The same step's file in another rank's folder, by path from the folder of both. The name may have the
    rank in it (`llama_rank_0-2_400.ckpt`), and a number where a run began anew beside older files
    (`llama_rank_0_1-2_400.ckpt`), which not all ranks need to have: there the step decides, if one file alone
    has it.
    """
    base = os.path.dirname(os.path.dirname(path))
    own, name = os.path.basename(os.path.dirname(path)), os.path.basename(path)
    named = re.sub(rf"(?<![A-Za-z]){own}(?![0-9])", folder, name)
    if not os.path.exists(os.path.join(base, folder, named)):
        place = _place_of(name)
        same = [one for one in os.listdir(os.path.join(base, folder)) if place and _place_of(one) == place]
        if len(same) == 1:
            return f"{folder}/{same[0]}"
    return f"{folder}/{named}"


def _place_of(name: str) -> Optional[tuple[str, ...]]:
    """Epoch, step and ending of a file's name."""
    match = FILE.fullmatch(name)
    return match.group("epoch", "step", "end") if match else None


def _file_fact(path: str, before_s: float) -> Optional[listing.FileFact]:
    try:
        return listing.list_tree(path, before_s).files[os.path.basename(path)]
    except FileNotFoundError:
        return None


def _ranks(tree: Tree) -> list[str]:
    """The file of each rank that is still one of the run, by path from the base."""
    folders = sorted(name for name in os.listdir(tree.base) if RANK.fullmatch(name))
    mine = _epochs_and_steps(os.path.dirname(tree.path))
    wanted = []
    for folder in folders:
        name = _of_rank(tree.path, folder)
        if name not in tree.files:
            newest = max(_epochs_and_steps(os.path.join(tree.base, folder)), default=None)
            newer = [key for key in mine if newest is None or key > newest]
            if newest is None or len(newer) >= NEWER_WITHOUT:
                continue
        wanted.append(name)
    return wanted


def _epochs_and_steps(folder: str) -> set[tuple[int, int]]:
    """Epoch and step of the files in a rank's folder."""
    found = (FILE.fullmatch(name) for name in os.listdir(folder))
    return {(int(match["epoch"]), int(match["step"])) for match in found if match}


MINDSPORE = Layout(
    name="mindspore",
    recognise=_is_mindspore,
    expected=_expect_mindspore,
    within=(
        "*.ckpt",
        "rank_0/*.ckpt",
        "rank_0/*.safetensors",
        "checkpoint/rank_0/*.ckpt",
        "checkpoint/rank_0/*.safetensors",
        "iteration_*",
        "iter_*",
        "checkpoint/iteration_*",
    ),
    trackers=("latest_checkpointed_iteration.txt",),
    step=_mindspore_step,
    step_first=True,
    tree=_mindspore_tree,
)


VALUE = TAG = 0x0A  # field 1, with a length
TENSOR = 0x12  # field 2, with a length
MAP = 0x1A  # field 3, with a length
DIM = 0x08  # field 1, a number
DIMS = 0x0A  # field 1, numbers with a length: what packs them
CONTENT = 0x1A  # field 3, with a length
HEAD_BYTES = 4096  # of a value: its tag, dimensions and type; a tag is a parameter's name
CRC = b"crc_num"
CRC_BYTES = len(CRC) + 10
SIZES = {
    "Bool": 1, "Int8": 1, "UInt8": 1, "Int16": 2, "UInt16": 2, "Float16": 2, "BFloat16": 2, "Int32": 4, "UInt32": 4, "Float32": 4,
    "Int64": 8, "UInt64": 8, "Float64": 8, "Complex64": 8, "Complex128": 16,
}  # fmt: skip

Read = Callable[[int, int], bytes]


class Value(NamedTuple):
    """One value: its end in the file, its tag; of a tensor dimensions, type and the bytes of this slice."""

    end: int
    tag: str
    dims: tuple[int, ...] = ()
    kind: str = ""
    content_at: int = 0
    content_bytes: int = 0


def begins_as_ckpt(head: bytes) -> bool:
    """Whether these first bytes of a file are a value with a tag and a tensor, or a map of them."""
    if head[:1] != bytes([VALUE]):
        return False
    try:
        _, at = _varint(head, 1)
        if head[at] != TAG:
            return False
        length, at = _varint(head, at + 1)
        return at + length >= len(head) or head[at + length] in (TENSOR, MAP)
    except (IndexError, ValueError):
        return False


def check_ckpt(path: str, fact: FileFact, level: str, before_s: float) -> str:
    """Prove it. Raises Damaged, OSError, DeadlinePassed."""
    read = functools.partial(read_part, path)
    head = read(0, HEAD_BYTES)
    if not head.strip(b"\0"):
        raise Damaged(model.UNFLUSHED, "begins with zeros where its values must be")
    if not begins_as_ckpt(head):
        return ""
    has: dict[str, list[int]] = {}
    end = 0
    for value in read_values(read, fact.size_bytes):
        if time.monotonic() > before_s:
            raise DeadlinePassed
        end = value.end
        if value.kind in SIZES:
            has.setdefault(value.tag, [math.prod(value.dims, start=SIZES[value.kind]), 0])[1] += (
                value.content_bytes
            )
    short = [tag for tag, (wanted, got) in has.items() if got and got < wanted]
    if short:
        wanted, got = has[short[0]]
        raise Damaged(model.TORN, f"has {got} of the {wanted} bytes of {short[0]}")
    if level == model.DEEP and end < fact.size_bytes:
        _check_crc(path, end, before_s)
        return "checksum"
    return "protobuf values"


def read_values(read: Read, size_bytes: int) -> Iterator[Value]:
    """The values in order, without reading tensors. Raises Damaged if the file ends inside one."""
    at = 0
    while at < size_bytes:
        head = read(at, HEAD_BYTES)
        if at and head.startswith(CRC):
            if size_bytes - at != CRC_BYTES:
                raise Damaged(model.TORN, "is cut inside its checksum")
            return
        try:
            if head[0] != VALUE:
                raise ValueError
            length, begin = _varint(head, 1)
            value = _value(head, begin, at, begin + length)
        except IndexError:
            if at + len(head) < size_bytes:  # longer than anybody's names are: nothing is said of it
                return
            raise Damaged(model.TORN, f"is cut inside a value at byte {at}") from None
        except ValueError:
            raise damage(head, f"has no value at byte {at}") from None
        if value.end > size_bytes:
            raise Damaged(
                model.TORN, f"is cut inside {value.tag}: {size_bytes} bytes, and it ends at {value.end}"
            )
        yield value
        at = value.end


def read_number(read: Read, size_bytes: int, tag: str) -> Optional[int]:
    """The Int64 that was appended under that tag (`step_num`); None without one, or in a torn file."""
    try:
        for value in read_values(read, size_bytes):
            if value.tag == tag and value.kind == "Int64" and value.content_bytes == 8:
                return int.from_bytes(read(value.content_at, 8), "little", signed=True)
    except Damaged:
        return None
    return None


def _value(head: bytes, at: int, base: int, end: int) -> Value:
    """`at`: where the value's first field begins in `head`; `end`: its end there, perhaps beyond `head`."""
    tag = ""
    tensor = Value(base + end, "")
    for field, length, begin in _fields(head, at, end):
        if field == TAG:
            tag = head[begin : begin + length].decode("utf-8", "replace")
        elif field == TENSOR:
            tensor = _tensor(head, begin, base, begin + length)
        elif field & 7 != 2:
            raise ValueError(field)
    if not tag:
        raise IndexError if end > len(head) else ValueError
    return tensor._replace(end=base + end, tag=tag)


def _tensor(head: bytes, at: int, base: int, end: int) -> Value:
    dims: list[int] = []
    kind, content_at, content = "", 0, 0
    for field, number, begin in _fields(head, at, end):
        if field == DIM:
            dims.append(number)
        elif field == DIMS:
            place = begin
            while place < begin + number:
                dim, place = _varint(head, place)
                dims.append(dim)
        elif field == CONTENT:
            content_at, content = base + begin, number
        elif field & 7 == 2:
            kind = head[begin : begin + number].decode("ascii", "replace")
        else:
            raise ValueError(field)
    return Value(0, "", tuple(dims), kind, content_at, content)


def _fields(head: bytes, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Each field, its number or length, and where it stands or begins."""
    while at < min(end, len(head)):
        field = head[at]
        number, at = _varint(head, at + 1)
        yield field, number, at
        at += number if field & 7 == 2 else 0


def _varint(text: bytes, at: int) -> tuple[int, int]:
    """A varint and its end. Raises IndexError if the text ends in it, ValueError if it is none."""
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


def _check_crc(path: str, end: int, before_s: float) -> None:
    crc = 0
    for piece in read_chunks(path, before_s, end):
        crc = zlib.crc32(piece, crc)
    if crc != int.from_bytes(read_part(path, end + len(CRC), 10), "big"):
        raise Damaged(model.TORN, "does not have the CRC-32 that it ends with")
