"""`megatron`: an `iter_0000100` folder of Megatron-LM, by model-parallel rank or distributed. (I/O)

The older form has a folder `mp_rank_TT[_PPP][_EEE]` for each rank of the model; the arguments in each of its
files have the number of ranks. The distributed form is the folder of torch.distributed.checkpoint (or zarr
arrays) with a `metadata.json` that is written last, and a `common.pt` until Megatron moved the common state
into the shards. The tracker file beside the folders names the one that the next start loads; that it names
another one proves nothing, since users edit it.

Sources: megatron/training/checkpointing.py, megatron/core/dist_checkpointing/ (core 0.16 and the state of
August 2026).
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Iterable, Mapping

from ftrun.hooks.checkpoints import pickle_reader
from ftrun.hooks.checkpoints.layout_torch import DCP, DCP_METADATA
from ftrun.hooks.checkpoints.listing import Candidate, Tree
from ftrun.hooks.checkpoints.model import TORN, UNASKED, UNREADABLE, Damaged, Expected, Layout, Need
from ftrun.hooks.checkpoints.torch_reader import first_pickle, pickle_bytes

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
TORCH_NEED = Need("torch")
NEEDS_OF_MODEL = ("tensor_model_parallel_size", "pipeline_model_parallel_size")
ELEMENT = re.compile(r"^[<>|][a-zA-Z](\d+)$")


def _is_megatron(candidate: Candidate) -> bool:
    """A folder with rank folders or files of the distributed form, or the first of them by Megatron's name."""
    names = candidate.names
    is_own = candidate.is_folder and FOLDER.match(candidate.name) is not None
    if is_own and (not names or COMMON in names or CONFIG in names or DCP.recognise(candidate)):
        return True
    ranks = [name for name in names if names[name] and RANK.match(name)]
    if ranks and any(name.endswith(".pt") for name in candidate.below(min(ranks)).names):
        return True
    if COMMON in names and (CONFIG in names or DCP_METADATA in names):
        return True
    return CONFIG in names and b"sharded_backend" in candidate.below(CONFIG).head


def _expect_megatron(tree: Tree) -> Expected:
    """What the form of the checkpoint asks for."""
    if CONFIG in tree.files:
        return _with_sums(tree, _distributed(tree))
    if COMMON in tree.files or _has_common_key(tree):
        raise Damaged(TORN, f"{CONFIG} is missing: it is written when all shards are")
    if any(RANK.match(name.partition("/")[0]) for name in tree.files):
        return _by_rank(tree)
    return DCP.expected(tree)


def _distributed(tree: Tree) -> Expected:
    backend = _backend(tree)
    needs = {CONFIG: Need("json")}
    if backend == "zarr":
        by = "zarr arrays whose chunks are all to be there"
        return Expected({**needs, COMMON: TORCH_NEED, **_arrays(tree)}, by)
    if backend != "torch_dist":
        return Expected({}, f"the backend {backend or 'of somebody else'}, which is not known", sure=False)
    shards = DCP.expected(tree)
    if COMMON in tree.files or not _has_common_key(tree):
        needs[COMMON] = TORCH_NEED
    world = pickle_reader.number_after(first_pickle(tree, [COMMON]), "world_size")
    return shards._replace(needs={**needs, **shards.needs}, world=world)


def _backend(tree: Tree) -> str:
    """The backend that `metadata.json` names; "" for a file of somebody else's under that name."""
    try:
        config = json.loads(tree.read(CONFIG, JSON_BYTES_MAX))
    except (ValueError, RecursionError):
        if COMMON in tree.files or DCP_METADATA in tree.files:
            raise Damaged(TORN, f"{CONFIG} is no whole JSON") from None
        return ""
    return str(config.get("sharded_backend", "")) if isinstance(config, dict) else ""


def _with_sums(tree: Tree, found: Expected) -> Expected:
    """With the checksums in Megatron's optional integrity.json, which has those of all files."""
    if SUMS not in tree.files:
        return found
    try:
        told = json.loads(tree.read(SUMS, LISTED_BYTES_MAX))
        sums = {str(name): str(digest) for name, digest in told["files"].items()}
        known = told.get("algorithm", "sha256") == "sha256"
    except UNREADABLE:
        raise Damaged(TORN, f"{SUMS} is no whole JSON") from None
    needs = dict(found.needs)
    for name, digest in sums.items() if known else ():
        needs[name] = needs.get(name, UNASKED)._replace(sha256=digest)
    return found._replace(needs=needs)


def _has_common_key(tree: Tree) -> bool:
    return DCP_METADATA in tree.files and COMMON_KEY in tree.read(DCP_METADATA, LISTED_BYTES_MAX)


def _arrays(tree: Tree) -> Mapping[str, Need]:
    """The chunks of every zarr array without a fill value; uncompressed ones have their full size."""
    needs: dict[str, Need] = {}
    for name in tree.files:
        folder, _, last = name.rpartition("/")
        if last != ".zarray":
            continue
        needs[name] = Need("json")
        try:
            array = json.loads(tree.read(name, JSON_BYTES_MAX))
            chunks, shape = array["chunks"], array["shape"]
            counts = [math.ceil(whole / part) for whole, part in zip(shape, chunks)]
            width = ELEMENT.match(str(array["dtype"]))
            is_raw = array.get("compressor") is None and not array.get("filters") and width
            is_full = array.get("fill_value") is None
        except UNREADABLE:
            raise Damaged(TORN, f"{name} cannot be read") from None
        size = math.prod(chunks) * int(width[1]) if is_raw and width else None
        if is_full and math.prod(counts) <= len(tree.files):
            separator = str(array.get("dimension_separator", "."))
            for place in itertools.product(*map(range, counts)):
                needs[f"{folder}/{separator.join(map(str, place)) or '0'}"] = Need(size_bytes=size)
        elif is_full:
            raise Damaged(TORN, f"{folder} has fewer chunks than its {math.prod(counts)}")
    return needs


def _by_rank(tree: Tree) -> Expected:
    """A shard for every rank of the model, by the arguments that one of the shards has in it."""
    folders = sorted(name for name in {name.partition("/")[0] for name in tree.files} if RANK.match(name))
    bases = [shard for shard in SHARDS if any(f"{folder}/{shard}" in tree.files for folder in folders)]
    if not bases:
        return Expected({}, "rank folders whose files are not known", sure=False)
    base = bases[0]
    content = first_pickle(tree, [f"{folder}/{base}" for folder in folders])
    tensor, pipeline = (pickle_reader.number_after(content, key) for key in NEEDS_OF_MODEL)
    experts = pickle_reader.number_after(content, "expert_model_parallel_size") or 1
    # Every pair of ranks exists if experts are cut as the rest is.
    experts_cut = pickle_reader.number_after(content, "expert_tensor_parallel_size")
    world = pickle_reader.number_after(content, "world_size")
    if base != SHARDS[0] or not tensor or not pipeline or (experts > 1 and experts_cut not in (None, tensor)):
        _no_gap(folders)
        return Expected(
            {f"{folder}/{base}": TORCH_NEED for folder in folders},
            f"{len(folders)} ranks without a gap; how many there were is not known",
            sure=False,
            world=world,
        )
    needs = [
        f"mp_rank_{t:02d}" + (f"_{p:03d}" if pipeline > 1 else "") + (f"_{e:03d}" if experts > 1 else "")
        for t, p, e in itertools.product(range(tensor), range(pipeline), range(experts))
    ]
    widths = (("tensor", tensor), ("pipeline", pipeline), ("expert", experts))
    named = " x ".join(f"{word} {count}" for word, count in widths if count > 1)
    wanted = {**{f"{folder}/{base}": TORCH_NEED for folder in needs}, **_optimizers(tree, needs, base)}
    by = f"{len(needs)} ranks" + (f" ({named} parallel)" if named else "") + " by its arguments"
    return Expected(wanted, by, world=world)


def _optimizers(tree: Tree, folders: Iterable[str], base: str) -> dict[str, Need]:
    """The distributed optimizer's files: if some ranks have one, each rank whose shard names an optimizer has."""
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
        state, _ = pickle_reader.walk(pickle_bytes(tree.at(name)))
    except pickle_reader.Broken:
        return False
    return isinstance(state, dict) and "optimizer" in state


def _no_gap(folders: list[str]) -> None:
    ranks = {int(found[1]) for found in map(RANK.match, folders) if found}
    for rank in range(max(ranks)):
        if rank not in ranks:
            raise Damaged(TORN, f"mp_rank_{rank:02d} is missing: there is one of a higher rank")


MEGATRON = Layout(
    name="megatron",
    recognise=_is_megatron,
    expected=_expect_megatron,
    within=("iter_*", "release"),
    trackers=(TRACKER,),
)
