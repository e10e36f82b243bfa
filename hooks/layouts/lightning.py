"""`lightning`: a .ckpt file of Lightning, or a .ckpt folder of its FSDP, model-parallel and DeepSpeed strategies. (I/O)

How it thinks. A file is one that torch.save wrote. A folder of FSDP or of the model-parallel strategy is a DCP checkpoint with `meta.pt`, which
rank 0 writes when all shards are there; DeepSpeed's has its shards in `checkpoint/`.

Source: lightning/fabric/utilities/cloud_io.py (_atomic_save), lightning/pytorch/strategies/{fsdp,model_parallel,deepspeed}.py,
lightning/pytorch/callbacks/model_checkpoint.py (names); files written by 2.6.
"""

from __future__ import annotations

import pickletools
import re
from typing import TYPE_CHECKING, Optional

from ftrun.hooks.checkpoints.look import part
from ftrun.hooks.checkpoints.registry import layout_of
from ftrun.hooks.layouts import Expected, Layout
from ftrun.hooks.layouts.inner import TORCH_FILE, Inner

if TYPE_CHECKING:
    from ftrun.hooks.checkpoints.look import Place, Tree

__all__ = ["LAYOUT", "global_step"]

META = "meta.pt"
DEEPSPEED = "checkpoint"
NAME = re.compile(r"(?:.*(?:epoch|step)=[0-9]+.*|last(?:-v[0-9]+)?|hpc_ckpt_[0-9]+)\.ckpt")
ZIP = b"PK\x03\x04"
STEP = "global_step"
STEP_NAMED = re.compile(r"step[-_=.]?[0-9]", re.IGNORECASE)
HEAD_BYTES = 8192


def recognise(place: Place) -> bool:
    """A .ckpt file that is a zip or has one of Lightning's names; a .ckpt folder with what its strategies write."""
    if not place.name.endswith(".ckpt"):
        return False
    named = NAME.fullmatch(place.name) is not None
    if not place.is_folder:
        return named or place.head.startswith(ZIP)
    names = place.names
    sharded = ".metadata" in names or any(name.endswith(".distcp") for name in names)
    return (META in names and sharded) or (named and sharded) or names.get(DEEPSPEED, False)


def expected(tree: Tree) -> Expected:
    """The one file; of a folder what DCP or DeepSpeed asks for, and `meta.pt`."""
    if tree.path != tree.base:
        return Expected(dict.fromkeys(tree.files, TORCH_FILE), "one file", sure=False)
    if any(name.startswith(f"{DEEPSPEED}/") for name in tree.files):
        parts = Inner()
        parts.add(tree, DEEPSPEED, layout_of("deepspeed"))
        return parts.expected()
    shards = layout_of("dcp").expected(tree)
    needs = {**shards.needs, META: TORCH_FILE}
    return shards._replace(needs=needs, by=f"{shards.by}; {META}, which is written last")


def step(place: Place) -> Optional[int]:
    """What the file says itself, where its name says no step: the number in `last.ckpt`, or in `model-0.36.ckpt`, is none."""
    if STEP_NAMED.search(place.name):
        return None
    try:
        path = f"{place.path}/{META}" if place.is_folder else place.path
        return global_step(part(path, 0, HEAD_BYTES))
    except OSError:
        return None


def global_step(head: bytes) -> Optional[int]:
    """The step from a .ckpt file's first bytes: a number among the first entries of the pickle, which is walked and never loaded."""
    if not head.startswith(ZIP) or len(head) < 30:
        return None
    begin = 30 + int.from_bytes(head[26:28], "little") + int.from_bytes(head[28:30], "little")
    named = False
    try:
        for opcode, argument, _ in pickletools.genops(head[begin:]):
            if named and isinstance(argument, int) and opcode.name.startswith(("BININT", "INT", "LONG")):
                return argument
            if "UNICODE" in opcode.name:
                named = argument == STEP
            elif not opcode.name.endswith(("PUT", "MEMOIZE")):
                named = False
    except (ValueError, TypeError):  # the head ends inside the pickle, or it is none
        return None
    return None


LAYOUT = Layout(
    name="lightning",
    recognise=recognise,
    expected=expected,
    within=(
        "*.ckpt",
        "*=*/*.ckpt",
        "best/*.ckpt",
        "checkpoints/*=*/*.ckpt",
        "checkpoints/*.ckpt",
        "version_*/checkpoints/*.ckpt",
        "*/version_*/checkpoints/*.ckpt",
    ),
    step=step,
    step_first=True,
)
