"""A rank of torch's that trains until it is ended, for bench_torchrun: `torch_rank.py FOLDER STEP_S`, under torchrun or as a task of Slurm. (I/O)

Rank 0 writes each step with its time into FOLDER/steps.jsonl and a checkpoint every ten steps; each rank its pid into FOLDER/pid.HOST.
"""

import datetime as dt
import glob
import json
import os
import re
import socket
import sys
import time

import torch
import torch.distributed as dist

from ftrun.hooks import beat  # by PYTHONPATH: nothing of ftrun is installed beside torch

EVERY = 10
PATIENCE_S = 30


def main() -> None:
    """Train on and on."""
    folder, step_s = sys.argv[1], float(sys.argv[2])
    with open(os.path.join(folder, f"pid.{socket.gethostname()}"), "w") as stream:
        stream.write(str(os.getpid()))
    if "RANK" not in os.environ:  # no torchrun: what Slurm and ftrun say
        os.environ["RANK"], os.environ["WORLD_SIZE"] = os.environ["SLURM_PROCID"], os.environ["SLURM_NTASKS"]
        os.environ["MASTER_ADDR"] = os.environ["FTRUN_MASTER_ADDR"]
        os.environ["MASTER_PORT"] = os.environ["FTRUN_MASTER_PORT"]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=dt.timedelta(seconds=PATIENCE_S))
    saved = sorted(glob.glob(os.path.join(folder, "step-*.pt")))
    step = int(re.findall(r"\d+", saved[-1])[-1]) if saved else 0
    weights = torch.load(saved[-1]) if saved else torch.zeros(1000)
    start = f"{socket.gethostname()}.{os.getpid()}.{time.time():.0f}"
    while True:
        step += 1
        beat(step)
        share = torch.ones(1000)
        dist.all_reduce(share)
        weights += share / dist.get_world_size()
        time.sleep(step_s)
        if dist.get_rank() == 0:
            print(f"step {step}", flush=True)
            row = {"at": time.time(), "step": step, "ranks": dist.get_world_size(), "job": start}
            with open(os.path.join(folder, "steps.jsonl"), "a") as stream:
                stream.write(json.dumps(row) + "\n")
            if step % EVERY == 0:
                path = os.path.join(folder, f"step-{step:08d}.pt")
                torch.save(weights, path + ".tmp")
                os.replace(path + ".tmp", path)


if __name__ == "__main__":
    main()
