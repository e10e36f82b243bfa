"""`nemo`: a `.nemo` archive, `.ckpt` files in a folder for each rank, or `weights/` with `context/`. (I/O)

NeMo creates an empty file NAME-unfinished beside a checkpoint before it writes or removes it, and deletes
that file when all ranks are done; its own next start deletes a marked checkpoint. So no start of ours loads
one. The content has known formats: zips of torch, and Megatron's distributed form. A `.ckpt` in `mp_rank_00/`
is one shard; every such folder has one of the same name.

Sources: nemo/lightning/pytorch/callbacks/model_checkpoint.py, nemo/lightning/ckpt_utils.py,
nemo/utils/callbacks/nemo_model_checkpoint.py, nemo/core/connectors/save_restore_connector.py (1.x to
September 2025).
"""

from __future__ import annotations

import os
import re

from ftrun.hooks.checkpoints.layout_megatron import COMMON, CONFIG, MEGATRON
from ftrun.hooks.checkpoints.layout_torch import DCP_METADATA, DCP_SHARD
from ftrun.hooks.checkpoints.listing import Candidate, Tree, list_tree
from ftrun.hooks.checkpoints.model import TORN, Damaged, Expected, Layout, Need

UNFINISHED = "-unfinished"
WEIGHTS, CONTEXT = "weights", "context"
RANK = re.compile(r"^(?:mp_rank_(\d+)|tp_rank_(\d+)_pp_rank_(\d+))$")
NAMED = re.compile(r"--.*=")  # `megatron_gpt--val_loss=2.31-step=400-consumed_samples=3200.0-last`
MARKS = {CONFIG, COMMON, DCP_METADATA}


def _is_nemo(candidate: Candidate) -> bool:
    """An archive, a `.ckpt` by NeMo's naming or in a rank's folder, or such a folder."""
    named = NAMED.search(candidate.name) is not None
    if not candidate.is_folder:
        is_shard = named or RANK.match(os.path.basename(os.path.dirname(candidate.path)))
        return candidate.name.endswith(".nemo") or (candidate.name.endswith(".ckpt") and bool(is_shard))
    has = {name for name, is_folder in candidate.names.items() if is_folder}
    if CONTEXT in has and (WEIGHTS in has or named):
        return True
    return named and (WEIGHTS in has or not MARKS.isdisjoint(candidate.names))


def _nemo_tree(path: str, before_s: float) -> Tree:
    """Its files; for a shard in a rank's folder those of the other ranks too, from the folder above."""
    folder, name = os.path.split(path)
    above, rank = os.path.split(folder)
    if not (RANK.match(rank) and name.endswith(".ckpt")):
        return list_tree(path, before_s)
    paths = {f"{other}/{name}": os.path.join(above, other, name) for other in _rank_folders(above)}
    files = {
        short: list_tree(one, before_s).files[name] for short, one in paths.items() if os.path.exists(one)
    }
    return Tree(path, above, files, before_s)


def _rank_folders(folder: str) -> list[str]:
    return sorted(name for name in os.listdir(folder) if RANK.match(name))


def _expect_nemo(tree: Tree) -> Expected:
    """The shards of its form, and no mark that it is unfinished."""
    _check_finished(tree)
    name = os.path.basename(tree.path)
    if name.endswith(".nemo"):
        return Expected({name: Need("tar")}, "an archive")
    if tree.base == tree.path:
        return _expect_folder(tree)
    if name in tree.files:
        return Expected({name: Need("torch")}, "one file")
    ranks = _rank_folders(tree.base)
    _check_gap(ranks)
    needs = {f"{rank}/{name}": Need("torch") for rank in ranks}
    return Expected(needs, f"a shard in each of {len(ranks)} rank folders")


def _expect_folder(tree: Tree) -> Expected:
    weights = [name[len(WEIGHTS) + 1 :] for name in tree.files if name.startswith(WEIGHTS + "/")]
    if not weights and not MARKS.isdisjoint(tree.files):
        return MEGATRON.expected(tree)
    if not weights and not any("weights" in name for name in tree.files):
        raise Damaged(TORN, f"{WEIGHTS} is missing")
    if MARKS.isdisjoint(weights) and not any(map(DCP_SHARD.search, weights)):
        return Expected({}, "weights of a form that is not known", sure=False)
    return MEGATRON.expected_in(tree, WEIGHTS)


def _check_finished(tree: Tree) -> None:
    """Raise Damaged where the mark lies beside the checkpoint, or above the ranks' folders."""
    stem = os.path.basename(tree.path)
    for ending in (".ckpt", "-EMA"):
        stem = stem[: -len(ending)] if stem.endswith(ending) else stem
    marker = stem + UNFINISHED
    if any(os.path.exists(os.path.join(at, marker)) for at in (os.path.dirname(tree.path), tree.base)):
        raise Damaged(TORN, f"{marker} says that NeMo had not finished it")


def _check_gap(ranks: list[str]) -> None:
    """Ranks are numbered without gaps: every tensor rank has the same pipeline ranks."""
    pairs = {(int(row[1] or row[2]), int(row[3] or 0)) for row in map(RANK.match, ranks) if row}
    tensor = 1 + max((t for t, _ in pairs), default=-1)
    pipeline = 1 + max((p for _, p in pairs), default=-1)
    if len(pairs) < tensor * pipeline:
        raise Damaged(TORN, f"a rank folder is missing: {len(pairs)} of {tensor} x {pipeline}")


NEMO = Layout(
    name="nemo",
    recognise=_is_nemo,
    expected=_expect_nemo,
    within=("*.nemo", "*.ckpt", "*", "mp_rank_00/*.ckpt", "tp_rank_00_pp_rank_000/*.ckpt"),
    tree=_nemo_tree,
)
