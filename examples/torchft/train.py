"""Train with torchft on gloo: a rank that dies comes back alone, and the others keep their processes and go on meanwhile.

Each rank is a replica of its own. The lighthouse (see job.sh) tells who is there; whoever comes back gets the weights from a living replica.

    TORCHFT_LIGHTHOUSE=http://HOST:PORT srun python3 train.py [STEPS]     each rank writes its pid and its weights' sum to ./end.RANK
"""

import datetime as dt
import os
import socket
import sys
import time

import torch
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo

try:
    from ftrun.hooks import beat
except ImportError:  # ftrun is not installed in this environment: nothing is lost but the beats

    def beat(step):
        """Tell nobody."""


STEP_S = float(os.environ.get("EXAMPLE_STEP_S", "0.1"))  # what a real step would take


def main():
    """Train to the last step."""
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    rank, ranks = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"])
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
    inner = torch.optim.SGD(model.parameters(), lr=0.01)

    def load(state):
        model.load_state_dict(state["model"])
        inner.load_state_dict(state["optimizer"])

    # Where torchrun is not, nobody else holds the store that the processes of one replica share.
    host = socket.gethostname()
    store = torch.distributed.TCPStore(host, 0, is_master=True, wait_for_workers=False)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=dt.timedelta(seconds=5)),
        load_state_dict=load,
        state_dict=lambda: {"model": model.state_dict(), "optimizer": inner.state_dict()},
        min_replica_size=max(1, ranks - 1),
        replica_id=f"rank-{rank}",
        rank=0,
        world_size=1,
        store_addr=host,
        store_port=store.port,
        timeout=dt.timedelta(seconds=20),
    )
    parallel, optimizer = DistributedDataParallel(manager, model), Optimizer(manager, inner)
    while manager.current_step() < steps:
        step = manager.current_step() + 1
        beat(step)
        data = torch.randn(32, 16, generator=torch.Generator().manual_seed(step * ranks + rank))
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(parallel(data), data.sum(dim=1, keepdim=True))
        loss.backward()
        optimizer.step()
        time.sleep(STEP_S)
        print(
            f"rank {rank} pid {os.getpid()} step {manager.current_step()}/{steps} loss {loss.item():.4f} of {manager.num_participants()}",
            flush=True,
        )
    with open(f"end.{rank}", "w") as stream:
        stream.write(f"{os.getpid()} {sum(weights.abs().sum().item() for weights in model.parameters())!r}\n")
    manager.shutdown()


if __name__ == "__main__":
    main()
