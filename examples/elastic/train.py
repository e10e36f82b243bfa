"""Train a tiny transformer on as many ranks as there are, with the same batch and in the same order of samples at any number of them.

What makes a training elastic, and all of it is here:

- The batch of a step is chosen for the whole run, not by each rank for itself, and dealt out: over ranks and, where there are fewer ranks than the
  batch wants, over FTRUN_GRAD_ACCUM micro batches that each rank adds up before it makes the step.
- The place in the data is in the checkpoint, beside weights, optimizer and step.
- What a sample does to the weights does not depend on the rank that has it: no dropout, no noise drawn by rank.

What is left are sums in another order, so the last digits differ. No bias in the attention: that of the keys has a gradient of rounding errors only, and Adam would
make steps of full size of it.

    srun python train.py [--steps N] [--global-batch B] [--micro-batch b] [--double]

torch's DistributedDataParallel on gloo, so that it runs anywhere. Checkpoints go to ./checkpoints, the loss of each step (JSON lines) to ./losses.jsonl, the weights
to ./final.pt. Ranks are those of Slurm or of torchrun.
"""

import argparse
import contextlib
import datetime as dt
import json
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

try:
    from ftrun.hooks import beat
except ImportError:  # ftrun is not installed in this environment: nothing is lost but the beats

    def beat(step):
        """Tell nobody."""


EVERY = 5
STEP_S = float(os.environ.get("EXAMPLE_STEP_S", "0.1"))  # what a real step would take
TOKENS, LENGTH, SAMPLES, WIDTH = 17, 12, 512, 32


def samples():
    """Sequences x -> a x + c (mod TOKENS), each with its own a and c: the same on every rank."""
    made = torch.Generator().manual_seed(1)
    a, c, x = (
        torch.randint(low, high, (SAMPLES,), generator=made) for low, high in ((1, 5), (0, 4), (0, TOKENS))
    )
    rows = []
    for _ in range(LENGTH + 1):
        rows.append(x)
        x = (a * x + c) % TOKENS
    return torch.stack(rows, dim=1)


class Dealer:
    """Which samples make the next batch of the whole run; a new order in each epoch. Its state is two numbers."""

    def __init__(self, batch):
        self.batch, self.epoch, self.place = batch, 0, 0

    def next(self):
        """Their indices."""
        if self.place + self.batch > SAMPLES:
            self.epoch, self.place = self.epoch + 1, 0
        order = torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(1000 + self.epoch))
        self.place += self.batch
        return order[self.place - self.batch : self.place]


class Model(nn.Module):
    """Two layers of a decoder."""

    def __init__(self):
        super().__init__()
        self.token, self.position = nn.Embedding(TOKENS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        layer = nn.TransformerEncoderLayer(
            WIDTH, 2, 2 * WIDTH, dropout=0.0, bias=False, batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(WIDTH, TOKENS)

    def forward(self, x):
        """Scores of the token that comes after each."""
        past = torch.triu(torch.ones(LENGTH, LENGTH, dtype=torch.bool), diagonal=1)
        return self.out(self.layers(self.token(x) + self.position.weight, mask=past))


def save(path, state):
    """A reader finds the whole file or none."""
    torch.save(state, path + ".tmp")
    os.replace(path + ".tmp", path)


def step_of(parallel, batch, accum, rank, ranks):
    """Gradients of the mean over the whole batch, in accum parts; the loss of that mean."""
    parts = batch.chunk(accum * ranks)
    total = torch.zeros(())
    for turn in range(accum):
        rows = parts[turn * ranks + rank]
        last = turn == accum - 1
        with contextlib.nullcontext() if last else parallel.no_sync():
            scores = parallel(rows[:, :-1]).flatten(0, 1)
            loss = nn.functional.cross_entropy(scores, rows[:, 1:].flatten()) / accum
            loss.backward()
        total += loss.detach()
    dist.all_reduce(total)
    return total.item() / ranks


def main():
    """Train to the last step."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--global-batch", type=int, default=24)
    parser.add_argument("--micro-batch", type=int, default=4)
    parser.add_argument("--double", action="store_true")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    for ours, slurms in (("RANK", "SLURM_PROCID"), ("WORLD_SIZE", "SLURM_NTASKS")):
        os.environ.setdefault(ours, os.environ.get(slurms, ""))
    dist.init_process_group("gloo", timeout=dt.timedelta(seconds=60))
    rank, ranks = dist.get_rank(), dist.get_world_size()
    accum = int(os.environ.get("FTRUN_GRAD_ACCUM") or asked.global_batch // (asked.micro_batch * ranks))
    assert accum * asked.micro_batch * ranks == asked.global_batch, (
        f"global batch {asked.global_batch} is not divisible by micro batch {asked.micro_batch} times {ranks} ranks"
    )

    torch.set_default_dtype(torch.float64 if asked.double else torch.float32)
    torch.manual_seed(0)
    model, dealer, done = Model(), Dealer(asked.global_batch), 0
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    resume = os.environ.get("FTRUN_RESUME_FROM")
    if resume:
        state = torch.load(resume)
        done = state["step"]
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        dealer.epoch, dealer.place = state["dealer"]
    print(f"rank {rank} of {ranks} pid {os.getpid()} accum {accum} from step {done}", flush=True)

    parallel, data = DistributedDataParallel(model), samples()
    os.makedirs("checkpoints", exist_ok=True)
    for step in range(done + 1, asked.steps + 1):
        beat(step)
        optimizer.zero_grad()
        loss = step_of(parallel, data[dealer.next()], accum, rank, ranks)
        optimizer.step()
        time.sleep(STEP_S)
        if rank == 0:
            print(f"step {step}/{asked.steps} loss {loss:.6f}", flush=True)
            with open("losses.jsonl", "a") as stream:
                stream.write(json.dumps({"step": step, "ranks": ranks, "loss": loss}) + "\n")
            if step % EVERY == 0:
                path = f"checkpoints/step-{step:06d}.pt"
                kept = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                save(path, {"step": step, "dealer": (dealer.epoch, dealer.place), **kept})
                print(f"saved checkpoint {path} at step {step}", flush=True)
    if rank == 0:
        save("final.pt", model.state_dict())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
