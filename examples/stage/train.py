"""Train a tiny network, and save with torch.distributed.checkpoint into a folder that ftrun names: nothing else is needed to save at memory speed.

What makes a resumed training the same to the last bit, and all of it is here:

- Everything that a step depends on is in the checkpoint: weights, optimizer, the step, and the state of each rank's random numbers (there is dropout).
- Data are drawn from those random numbers, so that their place is saved with them.
- The sums of gradients are made in the same order: by as many ranks as before, and by DistributedDataParallel in the buckets that it keeps after its first
  pass, which is why each start makes a pass before its first step.

    srun python train.py [--steps N] [--fsdp]

DistributedDataParallel, or with --fsdp fully_shard, which keeps a part of each weight on each rank; both on gloo, so that it runs anywhere. Without ftrun checkpoints go to ./checkpoints. The loss of
each step (JSON lines, all its digits) goes to ./losses.jsonl, the weights to ./final.pt.
"""

import argparse
import datetime as dt
import json
import os
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

try:
    from ftrun.hooks import beat
except ImportError:  # ftrun is not installed in this environment: nothing is lost but the beats

    def beat(step):
        """Tell nobody."""


EVERY = 5
STEP_S = float(os.environ.get("EXAMPLE_STEP_S", "0.1"))  # what a real step would take
WIDTH, BATCH = 64, 16


def built(sharded):
    """(model as it is called, optimizer): the same weights on every rank, or a part of each on each."""
    torch.manual_seed(0)
    layers = [
        nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Dropout(0.1), nn.Linear(4 * WIDTH, WIDTH))
        for _ in range(3)
    ]
    model = nn.Sequential(*layers)
    if sharded:
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        for layer in layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    else:
        model = DistributedDataParallel(model)
    return model, torch.optim.AdamW(model.parameters(), lr=2e-3)


def state_of(model, optimizer, step):
    """All that the next step depends on. Random numbers are each rank's own."""
    weights, moments = get_state_dict(model, optimizer)
    return {
        "model": weights,
        "optimizer": moments,
        "step": step,
        f"random-{dist.get_rank()}": torch.get_rng_state(),
    }


def resumed(model, optimizer, folder):
    """The step that the checkpoint was saved after; model, optimizer and random numbers are as they were then."""
    state = state_of(model, optimizer, 0)
    dcp.load(state, checkpoint_id=folder)
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    torch.set_rng_state(state[f"random-{dist.get_rank()}"])
    return state["step"]


def step_of(model, optimizer):
    """One step on a batch that each rank draws for itself; the mean loss."""
    x = torch.randn(BATCH, WIDTH)
    loss = (model(x) - x.roll(1, dims=1).tanh()).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    total = loss.detach().clone()
    dist.all_reduce(total)
    return total.item() / dist.get_world_size()


def main():
    """Train to the last step."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--fsdp", action="store_true")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    for ours, slurms in (("RANK", "SLURM_PROCID"), ("WORLD_SIZE", "SLURM_NTASKS")):
        os.environ.setdefault(ours, os.environ.get(slurms, ""))
    dist.init_process_group("gloo", timeout=dt.timedelta(seconds=60))
    rank, ranks = dist.get_rank(), dist.get_world_size()

    model, optimizer = built(asked.fsdp)
    model(torch.randn(BATCH, WIDTH)).sum().backward()
    optimizer.zero_grad()
    torch.manual_seed(1000 + rank)
    where = os.environ.get("FTRUN_STAGE_DIR") or "checkpoints"  # the one line that ftrun needs
    source, done = os.environ.get("FTRUN_RESUME_FROM"), 0
    if source:
        began_s = time.monotonic()
        done = resumed(model, optimizer, source)
        print(f"rank {rank} loaded {source} in {time.monotonic() - began_s:.3f} s", flush=True)
    print(f"rank {rank} of {ranks} pid {os.getpid()} from step {done}", flush=True)

    for step in range(done + 1, asked.steps + 1):
        beat(step)
        loss = step_of(model, optimizer)
        time.sleep(STEP_S)
        if rank == 0:
            print(f"step {step}/{asked.steps} loss {loss:.6f}", flush=True)
            with open("losses.jsonl", "a") as stream:
                stream.write(json.dumps({"step": step, "loss": loss}) + "\n")
        if step % EVERY == 0:
            began_s = time.monotonic()
            dcp.save(state_of(model, optimizer, step), checkpoint_id=f"{where}/step-{step:06d}")
            if rank == 0:
                print(f"saved checkpoint at step {step} in {time.monotonic() - began_s:.3f} s", flush=True)

    weights = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    if rank == 0:
        torch.save(weights, "final.pt.tmp")
        os.replace("final.pt.tmp", "final.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
