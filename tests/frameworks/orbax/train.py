"""JAX with Orbax's CheckpointManager; an option names the checkpoint to restore."""

# mypy: ignore-errors

import argparse
import os

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
from witness import note

parser = argparse.ArgumentParser()
parser.add_argument("--workdir", default="jax_ckpt")
parser.add_argument("--steps", type=int, default=10)
parser.add_argument("--restore-from", default="")
args = parser.parse_args()


def loss_of(weights, data):
    """The squared output."""
    return ((data @ weights["w"] + weights["b"]) ** 2).mean()


state = {
    "weights": {"w": jnp.ones((8, 1)), "b": jnp.zeros(1)},
    "moment": {"w": jnp.zeros((8, 1)), "b": jnp.zeros(1)},
}
manager = ocp.CheckpointManager(os.path.abspath(args.workdir))
first = 1
if args.restore_from:
    step = int(os.path.basename(args.restore_from))
    state = manager.restore(step, args=ocp.args.StandardRestore(state))
    first = step + 1
for step in range(first, args.steps + 1):
    data = jax.random.normal(jax.random.key(step), (4, 8))
    loss, slope = jax.value_and_grad(loss_of)(state["weights"], data)
    moment = jax.tree.map(lambda m, g: 0.9 * m + g, state["moment"], slope)
    state = {"weights": jax.tree.map(lambda w, m: w - 0.01 * m, state["weights"], moment), "moment": moment}
    if step % 2 == 0:
        manager.save(step, args=ocp.args.StandardSave(state))
        manager.wait_until_finished()
    note(step, loss)
