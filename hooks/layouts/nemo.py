"""`nemo`: what NeMo writes: a `.nemo` archive, `.ckpt` files in a folder for each rank of the model, folders with `weights/` and `context/`. (I/O)

How it thinks. NeMo puts an empty file NAME-unfinished beside a checkpoint before it writes (or removes) it and takes it away when all ranks
are done; its own next start deletes what bears the mark. So does no start of ours load it. What lies inside is what others know: zips of
torch, and Megatron's distributed form. A `.ckpt` in `mp_rank_00/` is one shard of a checkpoint that has one of the same name in every such folder.

Sources: nemo/lightning/pytorch/callbacks/model_checkpoint.py, nemo/lightning/ckpt_utils.py, nemo/utils/callbacks/nemo_model_checkpoint.py,
nemo/core/connectors/save_restore_connector.py (1.x to September 2025).
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from ftrun.hooks.checkpoints import look
from ftrun.hooks.checkpoints.model import TORN, Damaged
from ftrun.hooks.layouts import Expected, Layout, Need, dcp, megatron
from ftrun.hooks.layouts.inner import inner

if TYPE_CHECKING:
    from ftrun.hooks.checkpoints.look import Place, Tree

__all__ = ["LAYOUT"]

UNFINISHED = "-unfinished"
WEIGHTS, CONTEXT = "weights", "context"
RANK = re.compile(r"^(?:mp_rank_(\d+)|tp_rank_(\d+)_pp_rank_(\d+))$")
NAMED = re.compile(r"--.*=")  # `megatron_gpt--val_loss=2.31-step=400-consumed_samples=3200.0-last`
MARKS = {megatron.CONFIG, megatron.COMMON, dcp.METADATA}


def recognise(place: Place) -> bool:
    """An archive, a `.ckpt` by NeMo's naming or in a rank's folder, a folder by its naming or with weights and context."""
    if not place.is_folder:
        in_rank = RANK.match(os.path.basename(os.path.dirname(place.path))) is not None
        return place.name.endswith(".nemo") or (
            place.name.endswith(".ckpt") and (in_rank or NAMED.search(place.name) is not None)
        )
    has = {name for name, is_folder in place.names.items() if is_folder}
    if CONTEXT in has and (WEIGHTS in has or NAMED.search(place.name)):
        return True
    return NAMED.search(place.name) is not None and (WEIGHTS in has or not MARKS.isdisjoint(place.names))


def tree(path: str, before_s: float) -> Tree:
    """Its files; for a shard in a rank's folder those of the other ranks too, from the folder above."""
    folder, name = os.path.split(path)
    above, rank = os.path.split(folder)
    if not (RANK.match(rank) and name.endswith(".ckpt")):
        return look.tree(path, before_s)
    ranks = sorted(other for other in os.listdir(above) if RANK.match(other))
    files = {}
    for other in ranks:
        if os.path.exists(os.path.join(above, other, name)):
            files[f"{other}/{name}"] = look.tree(os.path.join(above, other, name), before_s).files[name]
    return look.Tree(path, above, files, before_s)


def expected(tree: Tree) -> Expected:
    """The shards of its form, and no mark that it is unfinished."""
    marker = _marker(tree)
    if marker:
        raise Damaged(TORN, f"{marker} says that NeMo had not finished it")
    name = os.path.basename(tree.path)
    if name.endswith(".nemo"):
        return Expected({name: Need(kind="tar")}, "an archive")
    if tree.base == tree.path:
        return _folder(tree)
    if name in tree.files:
        return Expected({name: Need(kind="torch")}, "one file")
    ranks = sorted(rank for rank in os.listdir(tree.base) if RANK.match(rank))
    needs = {f"{rank}/{name}": Need(kind="torch") for rank in ranks}
    _no_gap(ranks)
    return Expected(needs, f"a shard in each of {len(ranks)} rank folders", world=None)


def _folder(tree: Tree) -> Expected:
    if not any(file.startswith(WEIGHTS + "/") for file in tree.files):
        if MARKS.isdisjoint(tree.files):
            if any("weights" in file for file in tree.files):
                return Expected({}, "weights of a form that is not known", sure=False)
            raise Damaged(TORN, f"{WEIGHTS} is missing")
        return megatron.expected(tree)
    if not any(f"{WEIGHTS}/{mark}" in tree.files for mark in MARKS) and not _has_shards(tree):
        return Expected({}, "weights of a form that is not known", sure=False)
    part = inner(tree, WEIGHTS, megatron.LAYOUT)
    return part._replace(by=f"{WEIGHTS}: {part.by}")


def _has_shards(tree: Tree) -> bool:
    return any(file.startswith(WEIGHTS + "/") and dcp.SHARD.search(file) for file in tree.files)


def _marker(tree: Tree) -> str:
    """The name of the mark that it is unfinished; "" for none. It lies beside the checkpoint, or above the ranks' folders."""
    stem = os.path.basename(tree.path)
    for ending in (".ckpt", "-EMA"):
        stem = stem[: -len(ending)] if stem.endswith(ending) else stem
    places = {os.path.dirname(tree.path), tree.base}
    return next(
        (stem + UNFINISHED for at in places if os.path.exists(os.path.join(at, stem + UNFINISHED))), ""
    )


def _no_gap(ranks: list[str]) -> None:
    """Ranks are numbered without gaps: every tensor rank has the same pipeline ranks."""
    pairs = {(int(row[1] or row[2]), int(row[3] or 0)) for row in map(RANK.match, ranks) if row}
    tensor = 1 + max((t for t, _ in pairs), default=-1)
    pipeline = 1 + max((p for _, p in pairs), default=-1)
    if len(pairs) < tensor * pipeline:
        raise Damaged(TORN, f"a rank folder is missing: {len(pairs)} of {tensor} x {pipeline}")


LAYOUT = Layout(
    name="nemo",
    recognise=recognise,
    expected=expected,
    within=("*.nemo", "*.ckpt", "*", "mp_rank_00/*.ckpt", "tp_rank_00_pp_rank_000/*.ckpt"),
    tree=tree,
)
