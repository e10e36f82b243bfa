"""`megatron`: an `iter_0000100` folder of Megatron-LM: a file for each model-parallel rank, or a distributed checkpoint. (I/O)

How it thinks. The older form has a folder `mp_rank_TT[_PPP][_EEE]` for each rank of the model; the arguments that Megatron keeps in every
one of them say how many there are. The distributed form is torch.distributed.checkpoint's folder (or zarr arrays) with a `metadata.json` that is
written last; `common.pt` beside it until Megatron put the common state among the shards. Which folder the next start loads is told by the
tracker file beside them; that it names another one proves nothing, since people edit it.

Sources: megatron/training/checkpointing.py, megatron/core/dist_checkpointing/ (core 0.16 and the state of August 2026).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Optional

from ftrun.hooks.checkpoints import pickles, torchfile
from ftrun.hooks.checkpoints.model import TORN, Damaged
from ftrun.hooks.layouts import UNASKED, Expected, Layout, Need, dcp

if TYPE_CHECKING:
    from ftrun.hooks.checkpoints.look import Place, Tree

__all__ = ["LAYOUT", "expected"]

TRACKER = "latest_checkpointed_iteration.txt"
CONFIG = "metadata.json"
COMMON = "common.pt"
SUMS = "integrity.json"
COMMON_KEY = b"common_state/shard_"
FOLDER = re.compile(r"^iter_\d{7}$")
RANK = re.compile(r"^mp_rank_(\d\d+)(?:_(\d{3}))?(?:_(\d{3}))?$")
OPTIMIZER = "distrib_optim.pt"
SHARDS = ("model_optim_rng.pt", "model_rng.pt")
JSON_BYTES_MAX = 1 << 20
LISTED_BYTES_MAX = 1 << 30
TORCH_NEED = Need(kind="torch")
NEEDS_OF_MODEL = ("tensor_model_parallel_size", "pipeline_model_parallel_size")
ELEMENT = re.compile(r"^[<>|][a-zA-Z](\d+)$")


def recognise(place: Place) -> bool:
    """A folder with rank folders, or with the distributed form's own files, the first of them too where the name is Megatron's."""
    names = place.names
    is_own = place.is_folder and FOLDER.match(place.name) is not None
    if is_own and (not names or COMMON in names or CONFIG in names or dcp.recognise(place)):
        return True
    ranks = [name for name in names if names[name] and RANK.match(name)]
    if ranks and any(name.endswith(".pt") for name in place.below(min(ranks)).names):
        return True
    if COMMON in names and (CONFIG in names or dcp.METADATA in names):
        return True
    return CONFIG in names and b"sharded_backend" in place.below(CONFIG).head


def expected(tree: Tree) -> Expected:
    """What the form of the checkpoint asks for."""
    if CONFIG in tree.files:
        return _summed(tree, _distributed(tree))
    if COMMON in tree.files or (dcp.METADATA in tree.files and _has_common_key(tree)):
        raise Damaged(TORN, f"{CONFIG} is missing: it is written when all shards are")
    if any(RANK.match(name.partition("/")[0]) for name in tree.files):
        return _by_rank(tree)
    return dcp.expected(tree)


def _distributed(tree: Tree) -> Expected:
    backend = _backend(tree)
    needs = {CONFIG: Need(kind="json")}
    if backend == "zarr":
        return Expected(
            {**needs, COMMON: TORCH_NEED, **_arrays(tree)}, "zarr arrays whose chunks are all to be there"
        )
    if backend != "torch_dist":
        return Expected({}, f"the backend {backend or 'of somebody else'}, which is not known", sure=False)
    shards = dcp.expected(tree)
    if COMMON in tree.files or not _has_common_key(tree):
        needs[COMMON] = TORCH_NEED
    return shards._replace(needs={**needs, **shards.needs}, world=_world(tree, [COMMON]))


def _backend(tree: Tree) -> str:
    """The backend that `metadata.json` names; "" for a file of somebody else's under that name."""
    try:
        config = json.loads(tree.read(CONFIG, JSON_BYTES_MAX))
    except (ValueError, RecursionError):
        if COMMON in tree.files or dcp.METADATA in tree.files:
            raise Damaged(TORN, f"{CONFIG} is no whole JSON") from None
        return ""
    return str(config.get("sharded_backend", "")) if isinstance(config, dict) else ""


def _summed(tree: Tree, found: Expected) -> Expected:
    """With the checksums that Megatron notes where it was told to: integrity.json has them of all files in the folder."""
    if SUMS not in tree.files:
        return found
    try:
        told = json.loads(tree.read(SUMS, LISTED_BYTES_MAX))
        sums = {str(name): str(digest) for name, digest in told["files"].items()}
        known = told.get("algorithm", "sha256") == "sha256"
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise Damaged(TORN, f"{SUMS} is no whole JSON") from None
    needs = dict(found.needs)
    for name, digest in sums.items() if known else ():
        needs[name] = needs.get(name, UNASKED)._replace(sha256=digest)
    return found._replace(needs=needs)


def _has_common_key(tree: Tree) -> bool:
    return COMMON_KEY in tree.read(dcp.METADATA, LISTED_BYTES_MAX) if dcp.METADATA in tree.files else False


def _arrays(tree: Tree) -> Mapping[str, Need]:
    """The chunks of every zarr array that has no fill value: each was written, and has its full size if it is not compressed."""
    needs: dict[str, Need] = {}
    for name in tree.files:
        folder, _, last = name.rpartition("/")
        if last != ".zarray":
            continue
        needs[name] = Need(kind="json")
        try:
            array = json.loads(tree.read(name, JSON_BYTES_MAX))
            chunks, shape = array["chunks"], array["shape"]
            counts = [math.ceil(whole / part) for whole, part in zip(shape, chunks)]
            width = ELEMENT.match(str(array["dtype"]))
            is_raw = array.get("compressor") is None and not array.get("filters") and width
            is_full = array.get("fill_value") is None
        except (ValueError, KeyError, TypeError, ZeroDivisionError, RecursionError):
            raise Damaged(TORN, f"{name} cannot be read") from None
        size = math.prod(chunks) * int(width[1]) if is_raw and width else None
        if is_full and math.prod(counts) <= len(tree.files):
            separator = str(array.get("dimension_separator", "."))
            for place in _places(counts):
                needs[f"{folder}/{separator.join(map(str, place)) or '0'}"] = Need(size_bytes=size)
        elif is_full:
            raise Damaged(TORN, f"{folder} has fewer chunks than its {math.prod(counts)}")
    return needs


def _places(counts: list[int]) -> list[tuple[int, ...]]:
    places: list[tuple[int, ...]] = [()]
    for count in counts:
        places = [(*place, number) for place in places for number in range(count)]
    return places


def _by_rank(tree: Tree) -> Expected:
    """A shard for every rank of the model, by the arguments that one of the shards has in it."""
    folders = sorted(name for name in {name.partition("/")[0] for name in tree.files} if RANK.match(name))
    base = next(
        (shard for shard in SHARDS if any(f"{folder}/{shard}" in tree.files for folder in folders)), ""
    )
    if not base:
        return Expected({}, "rank folders whose files are not known", sure=False)
    content = _arguments(tree, [f"{folder}/{base}" for folder in folders])
    tensor, pipeline = (pickles.number(content, key) for key in NEEDS_OF_MODEL)
    experts = pickles.number(content, "expert_model_parallel_size") or 1
    world = pickles.number(content, "world_size")
    if base != SHARDS[0] or not tensor or not pipeline or (experts > 1 and not _is_square(content, tensor)):
        _no_gap(folders)
        return Expected(
            {f"{folder}/{base}": TORCH_NEED for folder in folders},
            f"{len(folders)} ranks without a gap; how many there were is not known",
            sure=False,
            world=world,
        )
    needs = [
        f"mp_rank_{t:02d}" + (f"_{p:03d}" if pipeline > 1 else "") + (f"_{e:03d}" if experts > 1 else "")
        for t in range(tensor)
        for p in range(pipeline)
        for e in range(experts)
    ]
    named = " x ".join(
        f"{word} {count}"
        for word, count in (("tensor", tensor), ("pipeline", pipeline), ("expert", experts))
        if count > 1
    )
    wanted = {**{f"{folder}/{base}": TORCH_NEED for folder in needs}, **_optimizers(tree, needs, base)}
    by = f"{len(needs)} ranks" + (f" ({named} parallel)" if named else "") + " by its arguments"
    return Expected(wanted, by, world=world)


def _optimizers(tree: Tree, folders: Iterable[str], base: str) -> dict[str, Need]:
    """The distributed optimizer's files: where some ranks have one, each has whose own shard tells of an optimizer."""
    if not any(name.endswith(f"/{OPTIMIZER}") for name in tree.files):
        return {}
    return {
        f"{folder}/{OPTIMIZER}": TORCH_NEED
        for folder in folders
        if f"{folder}/{OPTIMIZER}" in tree.files or _tells_of_optimizer(tree, f"{folder}/{base}")
    }


def _tells_of_optimizer(tree: Tree, name: str) -> bool:
    if name not in tree.files:
        return False
    try:
        state, _ = pickles.one(torchfile.content_of(tree.at(name)))
    except pickles.Broken:
        return False
    return isinstance(state, dict) and "optimizer" in state


def _is_square(content: bytes, tensor: int) -> bool:
    """Whether experts are cut as the rest is, so that every pair of ranks exists."""
    told = pickles.number(content, "expert_tensor_parallel_size")
    return told is None or told == tensor


def _no_gap(folders: list[str]) -> None:
    ranks = {int(found[1]) for found in map(RANK.match, folders) if found}
    for rank in range(max(ranks)):
        if rank not in ranks:
            raise Damaged(TORN, f"mp_rank_{rank:02d} is missing: there is one of a higher rank")


def _arguments(tree: Tree, names: list[str]) -> bytes:
    """The pickle of the first shard that can be read."""
    for name in names[:3]:
        if name in tree.files:
            content = torchfile.content_of(tree.at(name))
            if content:
                return content
    return b""


def _world(tree: Tree, names: list[str]) -> Optional[int]:
    return pickles.number(_arguments(tree, names), "world_size")


LAYOUT = Layout(
    name="megatron",
    recognise=recognise,
    expected=expected,
    within=("iter_*", "release"),
    trackers=(TRACKER,),
)
