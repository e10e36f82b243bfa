"""MindSpore with files of its own; an option names the one to load."""

# mypy: ignore-errors

import argparse
import os

import mindspore
import numpy as np
from mindspore import nn
from witness import note

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=10)
parser.add_argument("--ckpt_dir", default="net")
parser.add_argument("--load_checkpoint", default="")
args = parser.parse_args()

mindspore.set_device("CPU")
mindspore.set_seed(3)
os.makedirs(args.ckpt_dir, exist_ok=True)
net = nn.Dense(8, 1)
optimizer = nn.Adam(net.trainable_params(), learning_rate=0.01)
first = 1
if args.load_checkpoint:
    saved = mindspore.load_checkpoint(args.load_checkpoint)
    mindspore.load_param_into_net(net, saved)
    mindspore.load_param_into_net(optimizer, saved)
    first = int(saved["step_num"].asnumpy()) + 1
one_step = nn.TrainOneStepCell(nn.WithLossCell(net, nn.MSELoss()), optimizer)
for step in range(first, args.steps + 1):
    data = mindspore.Tensor(np.random.RandomState(step).randn(4, 8).astype(np.float32))
    loss = one_step(data, mindspore.Tensor(np.zeros((4, 1), np.float32)))
    if step % 2 == 0:
        told = {"step_num": step}
        mindspore.save_checkpoint(
            optimizer, os.path.join(args.ckpt_dir, f"net-{step}.ckpt"), append_dict=told
        )
    note(step, loss.asnumpy())
