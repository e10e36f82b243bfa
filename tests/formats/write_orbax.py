"""Checkpoints of Orbax, written by the real library: `python write_orbax.py FOLDER`. (I/O)

Runs where jax and orbax-checkpoint are, and nothing of ftrun is.
"""

# mypy: ignore-errors
# The libraries are not there where types are checked.

import os
import sys

os.environ["JAX_PLATFORMS"] = "cpu"

import jax.numpy as jnp
import orbax.checkpoint as ocp

TREE = {
    "params": {"w": jnp.arange(2000.0).reshape(40, 50), "b": jnp.ones(10)},
    "step": 3,
    "opt": [jnp.zeros(30)],
}


def manager(folder):
    """Steps of a CheckpointManager: one item, and items by name under a prefix."""
    plain = ocp.CheckpointManager(f"{folder}/manager", options=ocp.CheckpointManagerOptions(max_to_keep=3))
    for step in (100, 200):
        plain.save(step, args=ocp.args.StandardSave(TREE))
    plain.wait_until_finished()
    plain.close()
    named = ocp.CheckpointManager(
        f"{folder}/composite",
        options=ocp.CheckpointManagerOptions(step_prefix="step", step_format_fixed_length=8),
    )
    named.save(
        20, args=ocp.args.Composite(state=ocp.args.StandardSave(TREE), extra=ocp.args.JsonSave({"a": 1}))
    )
    named.wait_until_finished()
    named.close()


def alone(folder):
    """Folders without a manager: OCDBT, zarr 2 and zarr 3."""
    for name, ocdbt, zarr3 in (("ocdbt", True, False), ("zarr", False, False), ("zarr3", False, True)):
        handler = ocp.PyTreeCheckpointHandler(use_ocdbt=ocdbt, use_zarr3=zarr3)
        ocp.Checkpointer(handler).save(f"{folder}/{name}/50", TREE)


if __name__ == "__main__":
    manager(sys.argv[1])
    alone(sys.argv[1])
