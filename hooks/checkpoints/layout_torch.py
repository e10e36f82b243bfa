"""PyTorch: `torch` (one file of torch.save), `dcp` (torch.distributed.checkpoint), `lightning` (both). (I/O)

`dcp` is a folder of shards `__<rank>_<n>.distcp`. The coordinator renames `.metadata` into place when all
ranks are done. It lists file, offset and length of every tensor, and so the files and their least sizes.
Walking that list takes a second for each megabyte or two, so from large ones only the names are extracted.
Without collectives every rank writes a `__<rank>.metadata` after its shards.

A file of `lightning` is one of torch.save. A folder of its FSDP or model-parallel strategy is a DCP
checkpoint with `meta.pt`, which rank 0 writes last; DeepSpeed's has its shards in `checkpoint/`.

Sources: torch/serialization.py, caffe2/serialize/inline_container.cc (the zip) and
torch.serialization._legacy_save (before 1.6);
torch/distributed/checkpoint/{filesystem,metadata,state_dict_saver}.py of 2.13 (async_save and FSDP's state
dicts end in the same writer); lightning/fabric/utilities/cloud_io.py (_atomic_save),
lightning/pytorch/strategies/{fsdp,model_parallel,deepspeed}.py,
lightning/pytorch/callbacks/model_checkpoint.py (names), files written by 2.6.
"""

from __future__ import annotations

import pickletools
import re
from collections.abc import Mapping
from typing import Optional

from ftrun.hooks.checkpoints import pickle_reader
from ftrun.hooks.checkpoints.layout_deepspeed import DEEPSPEED
from ftrun.hooks.checkpoints.listing import Candidate, Tree, read_part
from ftrun.hooks.checkpoints.model import TORN, UNFLUSHED, Damaged, Expected, Layout, Need, damage
from ftrun.hooks.checkpoints.zip_reader import LOCAL, LOCAL_MARK

TORCH_FILE = Need("torch", size_min_bytes=4)  # it begins as a zip or as a pickle


TORCH_SUFFIXES = (".pt", ".pth", ".ckpt", ".bin", ".tar")


DCP_METADATA = ".metadata"
DCP_SHARD = re.compile(r"(?:^|/)[\w.-]*__(\d+)_\d+\.distcp$")
OWN_METADATA = re.compile(r"^__(\d+)\.metadata$")
PICKLE = b"\x80"
SHARD_ENDING = b".distcp"
WALKED_BYTES_MAX = 192 << 10  # what is walked in a tenth of a second
READ_BYTES_MAX = 1 << 30
SHORT_TEXT = 0x8C  # the opcode before a text of up to 255 bytes, and one byte of its length


def _is_dcp(candidate: Candidate) -> bool:
    """A folder with shards, or with a `.metadata` that is a pickle: the name has other uses."""
    if any(DCP_SHARD.search(name) or OWN_METADATA.match(name) for name in candidate.names):
        return True
    return candidate.names.get(DCP_METADATA) is False and candidate.below(DCP_METADATA).head[:1] == PICKLE


def _expect_dcp(tree: Tree) -> Expected:
    """The shards that the metadata lists, each at least as long as what lies in it."""
    if DCP_METADATA in tree.files:
        sizes = _sizes_by_metadata(tree, DCP_METADATA)
        if sizes is None:
            by = f"{DCP_METADATA}, which lists its shards in an unknown way"
            return Expected({DCP_METADATA: Need()}, by, sure=False)
        return _dcp_needs(sizes, [DCP_METADATA], f"{len(sizes)} shards in {DCP_METADATA}")
    ranks = {found[1] for found in map(OWN_METADATA.match, tree.files) if found}
    if not ranks:
        raise Damaged(TORN, f"{DCP_METADATA} is missing: it is written when all shards are")
    for found in filter(None, map(DCP_SHARD.search, sorted(tree.files))):
        if found[1] not in ranks:
            why = f"rank {found[1]} had not written all of its shards"
            raise Damaged(TORN, f"__{found[1]}.metadata is missing: {why}")
    owns = [f"__{rank}.metadata" for rank in sorted(ranks, key=int)]
    listed: dict[str, int] = {}
    for name in owns:
        listed.update(_sizes_by_metadata(tree, name) or {})
    told = _dcp_needs(listed, owns, f"{len(listed)} shards in the metadata of {len(owns)} ranks")
    return told._replace(sure=False)


def _dcp_needs(sizes: Mapping[str, int], metadata: list[str], by: str) -> Expected:
    # Shards of an older save in the same folder are nobody's: they are looked at as they lie.
    needs = {
        name: Need("zipchain" if DCP_SHARD.search(name) else "", size_min_bytes=size)
        for name, size in sizes.items()
    }
    return Expected({**dict.fromkeys(metadata, Need()), **needs}, by)


def _sizes_by_metadata(tree: Tree, name: str) -> Optional[Mapping[str, int]]:
    """The files in the metadata with their least sizes; None if it has an unknown form."""
    content = tree.read(name, READ_BYTES_MAX)
    if not content:
        raise Damaged(UNFLUSHED if tree.files[name].size_bytes else TORN, f"{name} has no byte")
    if content[-1:] != b".":
        raise damage(content[-512:], f"{name} is cut: it does not end as a pickle does")
    if len(content) > WALKED_BYTES_MAX:
        shards = _shard_names(content)
        if shards:
            return dict.fromkeys(shards, 1)
    try:
        metadata, _ = pickle_reader.walk(content)
    except pickle_reader.Broken as broken:
        raise damage(content[broken.at : broken.at + 64], f"{name} is no whole pickle: {broken}") from None
    rows = metadata.get("storage_data") if isinstance(metadata, pickle_reader.Call) else None
    if not isinstance(rows, dict):
        return None
    sizes: dict[str, int] = {}
    for row in rows.values():
        if not isinstance(row, pickle_reader.Call):
            return None
        path, offset, length = row.get("relative_path"), row.get("offset"), row.get("length")
        if not (isinstance(path, str) and isinstance(offset, int) and isinstance(length, int)):
            return None
        sizes[path] = max(sizes.get(path, 1), offset + length)
    return sizes


def _shard_names(content: bytes) -> set[str]:
    """The names of shards in a pickle that is too long to walk: texts with such an end and their length in front."""
    found = set()
    at = content.find(SHARD_ENDING)
    while at >= 0:
        end = at + len(SHARD_ENDING)
        for length in range(len(SHARD_ENDING), min(256, end - 1)):
            if content[end - length - 2] == SHORT_TEXT and content[end - length - 1] == length:
                found.add(content[end - length : end].decode("utf-8", "replace"))
                break
        at = content.find(SHARD_ENDING, end)
    return found


META = "meta.pt"
DEEPSPEED_FOLDER = "checkpoint"
CKPT_NAME = re.compile(r"(?:.*(?:epoch|step)=[0-9]+.*|last(?:-v[0-9]+)?|hpc_ckpt_[0-9]+)\.ckpt")
STEP_KEY = "global_step"
STEP_NAMED = re.compile(r"step[-_=.]?[0-9]", re.IGNORECASE)
HEAD_BYTES = 8192


def _is_lightning(candidate: Candidate) -> bool:
    """A .ckpt file that is a zip or has a name of Lightning's; a .ckpt folder of its strategies."""
    if not candidate.name.endswith(".ckpt"):
        return False
    named = CKPT_NAME.fullmatch(candidate.name) is not None
    if not candidate.is_folder:
        return named or candidate.head.startswith(LOCAL_MARK)
    has = candidate.names
    sharded = DCP_METADATA in has or any(name.endswith(".distcp") for name in has)
    return (sharded and (named or META in has)) or has.get(DEEPSPEED_FOLDER, False)


def _expect_lightning(tree: Tree) -> Expected:
    """The one file; of a folder what DCP or DeepSpeed asks for, and `meta.pt`."""
    if tree.path != tree.base:
        return Expected(dict.fromkeys(tree.files, TORCH_FILE), "one file", sure=False)
    if any(name.startswith(f"{DEEPSPEED_FOLDER}/") for name in tree.files):
        return DEEPSPEED.expected_in(tree, DEEPSPEED_FOLDER)
    shards = _expect_dcp(tree)
    by = f"{shards.by}; {META}, which is written last"
    return shards._replace(needs={**shards.needs, META: TORCH_FILE}, by=by)


def _lightning_step(candidate: Candidate) -> Optional[int]:
    """The step in the file, if the name has none: the number in `last.ckpt` or `model-0.36.ckpt` is no step."""
    if STEP_NAMED.search(candidate.name):
        return None
    path = f"{candidate.path}/{META}" if candidate.is_folder else candidate.path
    try:
        return global_step(read_part(path, 0, HEAD_BYTES))
    except OSError:
        return None


def global_step(head: bytes) -> Optional[int]:
    """The step in a .ckpt file's first bytes: among the first entries of the pickle, which is walked, not loaded."""
    if not head.startswith(LOCAL_MARK) or len(head) < LOCAL.size:
        return None
    *_, name_bytes, extra_bytes = LOCAL.unpack_from(head)
    named = False
    try:
        for opcode, argument, _ in pickletools.genops(head[LOCAL.size + name_bytes + extra_bytes :]):
            if named and isinstance(argument, int) and opcode.name.startswith(("BININT", "INT", "LONG")):
                return argument
            if "UNICODE" in opcode.name:
                named = argument == STEP_KEY
            elif not opcode.name.endswith(("PUT", "MEMOIZE")):
                named = False
    except (ValueError, TypeError):  # the head ends inside the pickle, or it is none
        return None
    return None


TORCH = Layout(
    name="torch",
    # Also an empty or zeroed file with one of the usual endings: that is what a torn one looks like.
    recognise=lambda candidate: not candidate.is_folder and candidate.name.endswith(TORCH_SUFFIXES),
    expected=lambda tree: Expected(dict.fromkeys(tree.files, Need()), "one file", sure=False),
    within=("*.pt", "*.pth", "*.ckpt", "*.pth.tar", "checkpoints/*.pt"),
)
DCP = Layout(name="dcp", recognise=_is_dcp, expected=_expect_dcp, within=("*",))
LIGHTNING = Layout(
    name="lightning",
    recognise=_is_lightning,
    expected=_expect_lightning,
    within=(
        "*.ckpt",
        "*=*/*.ckpt",
        "best/*.ckpt",
        "checkpoints/*=*/*.ckpt",
        "checkpoints/*.ckpt",
        "version_*/checkpoints/*.ckpt",
        "*/version_*/checkpoints/*.ckpt",
    ),
    step=_lightning_step,
    step_first=True,
)
