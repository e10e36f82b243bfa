"""Train a small model with torch's DistributedDataParallel on gloo, so that it runs anywhere.

Everything that ftrun needs of a training script is here: checkpoints that are moved into place when they are whole, a resume from
$FTRUN_RESUME_FROM, and a line for each step. The three lines with `beat` are optional: they name the rank that stands still.

    torchrun ... train.py [STEPS]        checkpoints go to ./checkpoints, the sum over all weights to ./final.txt
"""

import datetime as dt
import os
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

try:
    from ftrun.hooks import beat
except ImportError:  # ftrun is not installed in this environment: nothing is lost but the beats

    def beat(step):
        """Tell nobody."""


EVERY = 10
STEP_S = float(os.environ.get("EXAMPLE_STEP_S", "0.1"))  # what a real step would take


def save(path, step, model, optimizer):
    """A reader finds the whole file or none."""
    state = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(state, path + ".tmp")
    os.replace(path + ".tmp", path)
    print(f"saved checkpoint {path} at step {step}", flush=True)


def main():
    """Train to the last step."""
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    dist.init_process_group("gloo", timeout=dt.timedelta(seconds=60))
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(1)
    # torchrun deals out ranks anew at each start, so sums differ in their last digits; in doubles these are far behind any real difference.
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    done = 0
    resume = os.environ.get("FTRUN_RESUME_FROM")
    if resume:
        state = torch.load(resume)
        done = state["step"]
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    parallel = DistributedDataParallel(model)
    os.makedirs("checkpoints", exist_ok=True)
    for step in range(done + 1, steps + 1):
        beat(step)
        data = torch.randn(32, 16, generator=torch.Generator().manual_seed(step * ranks + rank))
        loss = torch.nn.functional.mse_loss(parallel(data), data.sum(dim=1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(STEP_S)
        if rank == 0:
            print(f"step {step}/{steps} loss {loss.item():.4f}", flush=True)
            if step % EVERY == 0:
                save(f"checkpoints/step-{step:06d}.pt", step, model, optimizer)
    if rank == 0:
        with open("final.txt", "w") as stream:
            stream.write(f"{sum(weights.abs().sum().item() for weights in model.parameters())!r}\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
