"""`dcp`: a folder of torch.distributed.checkpoint: shards `__<rank>_<n>.distcp` and `.metadata`, which is written last. (I/O)

How it thinks. The coordinator writes `.metadata` under a temporary name once every rank has told what it wrote, and renames it, so that it is
there says that all were done; what it lists (file, offset, length of every tensor) says which files there must be and how long they are at
least. Walking that list costs a second for each megabyte or two, so of large ones only the names are picked out; that a shard was cut shows at
its own end, too. Without collectives every rank writes a `__<rank>.metadata` of its own, after its shards.

Sources: torch/distributed/checkpoint/{filesystem,metadata,state_dict_saver}.py of 2.13; async_save and FSDP's state dicts end in the same writer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Optional

from ftrun.hooks.checkpoints import pickles
from ftrun.hooks.checkpoints.model import TORN, UNFLUSHED, Damaged
from ftrun.hooks.layouts import Expected, Layout, Need

if TYPE_CHECKING:
    from ftrun.hooks.checkpoints.look import Place, Tree

__all__ = ["LAYOUT", "METADATA", "SHARD", "expected"]

METADATA = ".metadata"
SHARD = re.compile(r"(?:^|/)[\w.-]*__(\d+)_\d+\.distcp$")
OWN_METADATA = re.compile(r"^__(\d+)\.metadata$")
PICKLE = b"\x80"
ENDING = b".distcp"
WALKED_BYTES_MAX = 192 << 10  # what is walked in a tenth of a second
READ_BYTES_MAX = 1 << 30
SHORT_TEXT = 0x8C  # the opcode before a text of up to 255 bytes, and one byte of its length
SHARD_NEED = Need(kind="zipchain")


def recognise(place: Place) -> bool:
    """A folder with shards, or with a `.metadata` that is a pickle: others call other things so, folders too."""
    if any(SHARD.search(name) or OWN_METADATA.match(name) for name in place.names):
        return True
    return place.names.get(METADATA) is False and place.below(METADATA).head[:1] == PICKLE


def expected(tree: Tree) -> Expected:
    """The shards that the metadata lists, each at least as long as what lies in it."""
    shards = [name for name in tree.files if SHARD.search(name)]
    if METADATA in tree.files:
        sizes = _listed(tree, METADATA)
        if sizes is not None:
            return _needs(sizes, [METADATA], f"{len(sizes)} shards in {METADATA}")
        return Expected(
            {METADATA: Need()}, f"{METADATA}, which lists its shards in an unknown way", sure=False
        )
    ranks = {found[1] for found in map(OWN_METADATA.match, tree.files) if found}
    if not ranks:
        raise Damaged(TORN, f"{METADATA} is missing: it is written when all shards are")
    for name in sorted(shards):
        found = SHARD.search(name)
        if found and found[1] not in ranks:
            raise Damaged(
                TORN, f"__{found[1]}.metadata is missing: rank {found[1]} had not written all of its shards"
            )
    owns = [f"__{rank}.metadata" for rank in sorted(ranks, key=int)]
    sizes = {}
    for name in owns:
        sizes.update(_listed(tree, name) or {})
    return _needs(sizes, owns, f"{len(sizes)} shards in the metadata of {len(owns)} ranks")._replace(
        sure=False
    )


def _needs(sizes: Mapping[str, int], metadata: list[str], by: str) -> Expected:
    needs = {name: Need() for name in metadata}
    for name, size in sizes.items():
        needs[name] = (
            SHARD_NEED._replace(size_min_bytes=size) if SHARD.search(name) else Need(size_min_bytes=size)
        )
    # Shards of an older save in the same folder are nobody's: they are looked at as they lie.
    return Expected(needs, by)


def _listed(tree: Tree, name: str) -> Optional[Mapping[str, int]]:
    """The files that metadata lists, by the bytes they have at least; None where it is of a form that is not known."""
    content = tree.read(name, READ_BYTES_MAX)
    if not content:
        raise Damaged(UNFLUSHED if tree.files[name].size_bytes else TORN, f"{name} has no byte")
    if content[-1:] != b".":
        state = TORN if content[-512:].strip(b"\0") else UNFLUSHED
        raise Damaged(state, f"{name} is cut: it does not end as a pickle does")
    if len(content) > WALKED_BYTES_MAX:
        names = _names_in(content)
        if names:
            return dict.fromkeys(names, 1)
    return _walked(name, content)


def _walked(name: str, content: bytes) -> Optional[Mapping[str, int]]:
    try:
        metadata, _ = pickles.one(content)
    except pickles.Broken as broken:
        state = TORN if content[broken.at : broken.at + 64].strip(b"\0") else UNFLUSHED
        raise Damaged(state, f"{name} is no whole pickle: {broken}") from None
    rows = metadata.get("storage_data") if isinstance(metadata, pickles.Made) else None
    if not isinstance(rows, dict):
        return None
    sizes: dict[str, int] = {}
    for row in rows.values():
        path, offset, length = (_field(row, key) for key in ("relative_path", "offset", "length"))
        if not (isinstance(path, str) and isinstance(offset, int) and isinstance(length, int)):
            return None
        sizes[path] = max(sizes.get(path, 1), offset + length)
    return sizes


def _field(row: object, key: str) -> object:
    return row.get(key) if isinstance(row, pickles.Made) else None


def _names_in(content: bytes) -> set[str]:
    """The names of shards in a pickle that is too long to walk: texts that end as shards do, with their length in front."""
    names = set()
    at = content.find(ENDING)
    while at >= 0:
        end = at + len(ENDING)
        for length in range(len(ENDING), min(256, end - 1)):
            if content[end - length - 2] == SHORT_TEXT and content[end - length - 1] == length:
                names.add(content[end - length : end].decode("utf-8", "replace"))
                break
        at = content.find(ENDING, end)
    return names


LAYOUT = Layout(
    name="dcp",
    recognise=recognise,
    expected=expected,
    within=("*",),
)
