"""`accelerate`: a folder that Accelerate's save_state wrote, with FSDP's or DeepSpeed's inside where they are used. (pure)

How it thinks. The main process writes model, optimizer, scheduler, samplers and scaler, and then, as every process does, its random state; so
`random_states_0.pkl` is what says that all of them are there. Random states of other ranks are written without waiting for anybody, and
load_state goes on without them: they are asked for nothing but to be sound.

Source: accelerate/checkpointing.py (save_accelerator_state), accelerate/accelerator.py (save_state), accelerate/utils/fsdp_utils.py; folders
written by 1.15.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ftrun.hooks.layouts import Expected, Layout
from ftrun.hooks.layouts.inner import TORCH_FILE, Inner, loaded, whole_state
from ftrun.hooks.layouts.safetensors import shards

if TYPE_CHECKING:
    from ftrun.hooks.checkpoints.look import Place, Tree

__all__ = ["LAYOUT"]

LAST = "random_states_0.pkl"
RANDOM = re.compile(r"random_states_([0-9]+)\.pkl")
AUTOMATIC = re.compile(r"/checkpoints/checkpoint_[0-9]+$")
MODELS = re.compile(r"(?:model|pytorch_model)(?:_[0-9]+|-[0-9]{5}-of-[0-9]{5})?\.(?:safetensors|bin)")
FOLDERS = {
    re.compile(r"(?:pytorch_model_fsdp|optimizer)_[0-9]+"): "dcp",
    re.compile(r"pytorch_model(?!_fsdp).*"): "deepspeed",  # the tag that save_state gives it
}


def recognise(place: Place) -> bool:
    """A folder with random states, or with a model in the place and under the name that Accelerate itself gives."""
    if not place.is_folder:
        return False
    if any(RANDOM.fullmatch(name) for name in place.names):
        return True
    # Other loops use the same names for their files, and write no random states.
    return AUTOMATIC.search(place.path) is not None and any(MODELS.fullmatch(name) for name in place.names)


def expected(tree: Tree) -> Expected:
    """The main process's random state, all shards of the model, and what lies in folders of FSDP or DeepSpeed."""
    parts = Inner()
    parts.needs.update(loaded(tree))
    parts.needs[LAST] = TORCH_FILE
    parts.by.append(f"{LAST}, which the main process writes last")
    needs, by = shards(tree)
    parts.needs.update(needs)
    parts.by += [by] if by else []
    parts.add_folders(tree, FOLDERS)
    if LAST in tree.files:
        whole_state(tree, FOLDERS)
    ranks = [int(match[1]) for match in map(RANDOM.fullmatch, tree.files) if match]
    return parts.expected()._replace(world=max(ranks) + 1 if ranks else None)


LAYOUT = Layout(
    name="accelerate",
    recognise=recognise,
    expected=expected,
    within=("checkpoint_*", "checkpoints/checkpoint_*", "checkpoint-*", "step_*", "epoch_*"),
)
