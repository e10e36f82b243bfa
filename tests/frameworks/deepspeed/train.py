"""DeepSpeed's engine with ZeRO 1 on a CPU."""

# mypy: ignore-errors

import argparse
import os

import deepspeed
import torch
from witness import note

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=10)
parser.add_argument("--save-dir", default="engine")
parser.add_argument("--load-dir", default=None)
parser.add_argument("--local_rank", default=0)
args = parser.parse_args()

deepspeed.init_distributed(dist_backend="gloo")
torch.manual_seed(3)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Linear(16, 1))
settings = {
    "train_micro_batch_size_per_gpu": 4,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "torch_adam": True}},
    "zero_optimization": {"stage": 1},
    "bf16": {"enabled": True},
}
engine, *_ = deepspeed.initialize(model=model, model_parameters=list(model.parameters()), config=settings)
if args.load_dir:
    engine.load_checkpoint(args.load_dir)
for step in range(engine.global_steps + 1, args.steps + 1):
    data = torch.randn(4, 8, generator=torch.Generator().manual_seed(step)).to(torch.bfloat16)
    loss = (engine(data).float() ** 2).mean()
    engine.backward(loss)
    engine.step()
    if step % 2 == 0:
        engine.save_checkpoint(args.save_dir)
    note(step, loss)
os._exit(0)
