"""`deepspeed`: a tag folder (`global_step100`) of DeepSpeed. (I/O)

It has model states, ZeRO's partitions, layers of a pipeline, and experts. Each family of files is numbered
without gaps, so a gap is a missing shard. The pickles have the counts: `mp_world_size` in the model states,
`partition_count` in a partition of ZeRO (which counts where MiCS or sequence parallelism make it differ from
`dp_world_size`). The numbers are searched in the bytes of the pickle; no object is made. Layers without
parameters have no file, so layers may have gaps. A universal checkpoint has a folder for every parameter
below `zero/`.

Sources: deepspeed/runtime/engine.py, runtime/pipe/module.py, checkpoint/ds_to_universal.py, runtime/zero/ of
0.19.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple, Optional

from ftrun.hooks.checkpoints import pickle_reader
from ftrun.hooks.checkpoints.listing import Tree
from ftrun.hooks.checkpoints.model import TORN, Damaged, Expected, Layout, Need
from ftrun.hooks.checkpoints.torch_reader import first_pickle

MODEL = re.compile(r"^mp_rank_(\d+)_model_states\.pt$")
ZERO = re.compile(r"^((?:bf16_|fp16_)?zero_pp_rank_)(\d+)_mp_rank_(\d+)(_?(?:optim|model)_states\.pt)$")
LAYER = re.compile(r"^layer_(\d+)(?:-model_(\d+))?-model_states\.pt$")
OF_LAYER = re.compile(rb"(?:X[^\0]\0\0\0|\x8c.)(\d+)\.[a-zA-Z_]{2,}", re.DOTALL)  # "3.weight", not a version
EXPERT = re.compile(r"^layer_(\d+)_expert_(\d+)_mp_rank_(\d+)_model_states\.pt$")
EXPERT_OPTIMIZER = re.compile(r"^expp_rank_(\d+)_mp_rank_(\d+)_optim_states\.pt$")
PARAMETER = re.compile(r"^zero/(.+)/[^/]+\.pt$")
FAMILIES = (MODEL, ZERO, LAYER, EXPERT, EXPERT_OPTIMIZER)
# `stage` as the first key of its settings, as nearly everybody writes them; another `stage` may be anything.
MEMO = rb"(?:q.|r....|\x94)?"
STAGE = re.compile(
    rb"zero_optimization%b\}%b\(?(?:X\x05\0\0\0|\x8c\x05)stage%bK[\x01-\x03]" % (MEMO, MEMO, MEMO), re.DOTALL
)
NEED = Need("torch")


class Zero(NamedTuple):
    """One partition's file: prefix, rank among the partitions and in the model, ending (older: without `_`)."""

    prefix: str
    part: int
    model: int
    ending: str

    @property
    def kind(self) -> str:
        """`optim` or `model`."""
        return "model" if "model" in self.ending else "optim"

    def at(self, part: int, model: int) -> str:
        """The name of the same kind of file of other ranks."""
        return f"{self.prefix}{part}_mp_rank_{model:02d}{self.ending}"


def _expect_deepspeed(tree: Tree) -> Expected:
    """The files of all ranks that the pickles tell of, and none missing between two others."""
    names = tree.files
    models = [int(found[1]) for found in map(MODEL.match, names) if found]
    zeros = [Zero(f[1], int(f[2]), int(f[3]), f[4]) for f in map(ZERO.match, names) if f]
    content = _model_pickle(tree, models, zeros)
    told = pickle_reader.number_after(content, "mp_world_size")
    width = max([told or 0, *(rank + 1 for rank in models), *(zero.model + 1 for zero in zeros)])
    needs = {f"mp_rank_{rank:02d}_model_states.pt": NEED for rank in range(width)} if models else {}
    parts = _partition_count(tree, zeros)
    for example in {(zero.prefix, zero.ending): zero for zero in zeros}.values():
        same = [zero for zero in zeros if (zero.prefix, zero.ending) == (example.prefix, example.ending)]
        count = max([parts or 0, *(zero.part + 1 for zero in same)])
        needs.update((example.at(part, model), NEED) for part in range(count) for model in range(width))
    _check_families(tree, models, zeros, content)
    needs.update(dict.fromkeys(_layers(tree, models), NEED))
    needs.update(dict.fromkeys(_experts(names), NEED))
    needs.update(dict.fromkeys(_parameters(names), NEED))
    sure = bool(told and (parts or not zeros))
    world = pickle_reader.number_after(content, "dp_world_size")
    return Expected(
        needs,
        f"{len(needs)} files: model width {width}" + (f", {parts} partitions" if parts else "")
        if sure
        else f"{len(needs)} files without a gap; how many ranks there were is not known",
        sure=sure,
        world=world * width if world else None,
    )


def _check_families(tree: Tree, models: list[int], zeros: list[Zero], content: bytes) -> None:
    """No good checkpoint is without model states, nor without partitions where its settings made some."""
    kinds = {zero.kind for zero in zeros}
    if not models and "model" not in kinds:
        raise Damaged(TORN, "mp_rank_00_model_states.pt and all other model states are missing")
    partitioned = STAGE.search(content) is not None or "model" in kinds
    if partitioned and "optim" not in kinds and not any(map(PARAMETER.match, tree.files)):
        raise Damaged(TORN, "the partitions of its optimizer are missing: its states say that ZeRO made some")


def _model_pickle(tree: Tree, models: Iterable[int], zeros: Iterable[Zero]) -> bytes:
    """The pickle of the first model states that can be read."""
    names = [f"mp_rank_{rank:02d}_model_states.pt" for rank in sorted(models)]
    names += [zero.at(zero.part, zero.model) for zero in zeros if zero.kind == "model"]
    return first_pickle(tree, names)


def _partition_count(tree: Tree, zeros: Iterable[Zero]) -> Optional[int]:
    """How many partitions ZeRO made; None where groups of parameters differ in it or it is not told."""
    names = [zero.at(zero.part, zero.model) for zero in sorted(zeros) if zero.kind == "optim"]
    content = first_pickle(tree, names)
    return pickle_reader.number_after(content, "partition_count") or pickle_reader.repeated_number_after(
        content, "partition_count"
    )


def _layers(tree: Tree, models: Iterable[int]) -> Iterable[str]:
    """The files of all layers and ranks; with ZeRO the model states name the layers with parameters."""
    found = [(int(row[1]), row[2]) for row in map(LAYER.match, tree.files) if row]
    ranks = sorted({rank for _, rank in found if rank})
    layers = {layer for layer, _ in found}
    if layers and not ranks:
        contents = [first_pickle(tree, [f"mp_rank_{rank:02d}_model_states.pt"]) for rank in models]
        layers |= {int(number) for content in contents for number in OF_LAYER.findall(content)}
    return [
        f"layer_{layer:02d}{ending}-model_states.pt"
        for layer in layers
        for ending in [f"-model_{rank}" for rank in ranks] or [""]
    ]


def _experts(names: Iterable[str]) -> Iterable[str]:
    found = [(row[1], int(row[2]), row[3]) for row in map(EXPERT.match, names) if row]
    for layer, last, rank in found:
        for expert in range(last):
            yield f"layer_{layer}_expert_{expert}_mp_rank_{rank}_model_states.pt"
    for row in filter(None, map(EXPERT_OPTIMIZER.match, names)):
        for part in range(int(row[1])):
            yield f"expp_rank_{part}_mp_rank_{row[2]}_optim_states.pt"


def _parameters(names: Iterable[str]) -> Iterable[str]:
    """Every parameter of a universal checkpoint has its weights in full precision."""
    folders = {row[1] for row in map(PARAMETER.match, names) if row}
    return [f"zero/{folder}/fp32.pt" for folder in folders]


DEEPSPEED = Layout(
    name="deepspeed",
    recognise=lambda candidate: any(one.match(name) for name in candidate.names for one in FAMILIES),
    expected=_expect_deepspeed,
    within=("global_step*", "*"),
    trackers=("latest", "latest_universal"),
)
