"""Two ranks under torchrun, with a file for each checkpoint."""

# mypy: ignore-errors

import argparse
import os

import torch
from witness import note

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=10)
parser.add_argument("--out", default="ckpt")
parser.add_argument("--resume", default="")
args = parser.parse_args()

torch.distributed.init_process_group("gloo")
rank = torch.distributed.get_rank()
os.makedirs(args.out, exist_ok=True)
torch.manual_seed(3)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
first = 1
if args.resume:
    saved = torch.load(args.resume)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    first = saved["step"] + 1
for step in range(first, args.steps + 1):
    data = torch.randn(4, 8, generator=torch.Generator().manual_seed(100 * step + rank))
    loss = (model(data) ** 2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if rank == 0 and step % 2 == 0:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
        torch.save(state, os.path.join(args.out, f"step_{step}.pt.tmp"))
        os.replace(os.path.join(args.out, f"step_{step}.pt.tmp"), os.path.join(args.out, f"step_{step}.pt"))
    if rank == 0:
        note(step, loss.detach())
    torch.distributed.barrier()
