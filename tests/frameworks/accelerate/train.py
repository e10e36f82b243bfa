"""A loop with Accelerate that saves its state under names of its own."""

# mypy: ignore-errors

import argparse
import os
import re

import torch
from accelerate import Accelerator
from witness import note

parser = argparse.ArgumentParser()
parser.add_argument("--output_dir", default="out")
parser.add_argument("--steps", type=int, default=10)
parser.add_argument("--resume_from_checkpoint", default=None)
args = parser.parse_args()

accelerator = Accelerator(cpu=True)
torch.manual_seed(3)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(0.2), torch.nn.Linear(16, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
model, optimizer = accelerator.prepare(model, optimizer)
first = 1
if args.resume_from_checkpoint:
    accelerator.load_state(args.resume_from_checkpoint)
    first = int(re.search(r"step_(\d+)", args.resume_from_checkpoint)[1]) + 1
for step in range(first, args.steps + 1):
    data = torch.randn(4, 8, generator=torch.Generator().manual_seed(step))
    loss = (model(data) ** 2).mean()
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    if step % 2 == 0:
        accelerator.save_state(os.path.join(args.output_dir, f"step_{step}"))
    note(step, loss)
