"""`transformers`: a `checkpoint-<step>` folder of the Hugging Face Trainer, with FSDP's or DeepSpeed's inside where they are used. (pure)

How it thinks. The Trainer writes the model with `training_args.bin`, then optimizer, scheduler and random states, and `trainer_state.json`
last; resuming reads it first. So a folder without it was never finished. Random states are written by each rank for itself and
resuming goes on without those that are missing: they are asked for nothing but to be sound.

Source: transformers/trainer.py (_save_checkpoint, _save_optimizer_and_scheduler, _load_rng_state, _load_optimizer_and_scheduler); folders written by 5.23.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ftrun.hooks.layouts import Expected, Layout, Need
from ftrun.hooks.layouts.inner import TORCH_FILE, Inner, loaded, whole_state
from ftrun.hooks.layouts.safetensors import shards

if TYPE_CHECKING:
    from ftrun.hooks.checkpoints.look import Place, Tree

__all__ = ["LAYOUT"]

STATE = "trainer_state.json"
ARGUMENTS = "training_args.bin"  # written with the model, before all else
OPTIMIZER, SCHEDULER = "optimizer.pt", "scheduler.pt"
OTHERS = {OPTIMIZER, SCHEDULER}
NAME = re.compile(r"checkpoint-[0-9]+")
RANDOM = re.compile(r"rng_state_([0-9]+)\.pth")
ANY_RANDOM = re.compile(r"rng_state(?:_[0-9]+)?\.pth")
FOLDERS = {
    re.compile(r"(?:pytorch_model_fsdp|optimizer)(?:_[0-9]+)?"): "dcp",
    re.compile(r"global_step[0-9]+"): "deepspeed",
}


def recognise(place: Place) -> bool:
    """A folder with the Trainer's state, or with its name and what only the Trainer writes.

    Hand-written loops have folders of that name, too, and an optimizer.pt in them; all of them without the state.
    The Trainer's output folder has its state too in the end: where checkpoints lie in it, it is none.
    """
    if not place.is_folder or any(NAME.fullmatch(name) and place.names[name] for name in place.names):
        return False
    if STATE in place.names:
        return True
    own = ARGUMENTS in place.names or (
        OTHERS.issubset(place.names) and any(ANY_RANDOM.fullmatch(name) for name in place.names)
    )
    return own and NAME.fullmatch(place.name) is not None


def expected(tree: Tree) -> Expected:
    """The state, all shards of the model, and what FSDP or DeepSpeed has in folders of its own."""
    parts = Inner()
    parts.needs.update(loaded(tree))
    parts.needs[STATE] = Need("json")
    parts.by.append(f"{STATE}, which is written last")
    needs, by = shards(tree)
    parts.needs.update(needs)
    parts.by += [by] if by else []
    if (
        ARGUMENTS in tree.files and OPTIMIZER in tree.files
    ):  # without its scheduler it is not loaded, and nobody is told
        parts.needs[SCHEDULER] = TORCH_FILE
    parts.add_folders(tree, FOLDERS)
    whole_state(tree, FOLDERS)
    ranks = [int(match[1]) for match in map(RANDOM.fullmatch, tree.files) if match]
    world = max(ranks) + 1 if ranks else 1 if "rng_state.pth" in tree.files else parts.world
    return parts.expected()._replace(world=world)


LAYOUT = Layout(
    name="transformers",
    recognise=recognise,
    expected=expected,
    within=("checkpoint-*", "*/checkpoint-*"),
)
