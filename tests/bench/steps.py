"""A trainer whose steps can be counted out: rank 0 makes so many steps as it is told to, and says how long each took. (torch, else standard library)

    srun -n N python steps.py FOLDER TOKEN BEAT        BEAT: "beat", or "" for none; ftrun must be importable then

Rank 0 reads numbers from FOLDER/do.TOKEN (a FIFO; 0 = leave), and answers each by a line of seconds in FOLDER/took.TOKEN. Each step prints a line, as a trainer's does. With torch it is
DistributedDataParallel on gloo; without, the same in small: some arithmetic, then a sum over all ranks by sockets.
"""

import importlib
import importlib.util
import os
import sys
import time
from typing import Any

torch: Any = None
dist: Any = None
if importlib.util.find_spec("torch"):
    torch = importlib.import_module("torch")
    dist = importlib.import_module("torch.distributed")


class Ddp:
    """A step of torch's DistributedDataParallel."""

    def __init__(self, folder: str, token: str, rank: int, ranks: int) -> None:
        torch.set_num_threads(1)
        dist.init_process_group(
            "gloo", init_method=f"file://{folder}/meet.{token}", rank=rank, world_size=ranks
        )
        layers = [torch.nn.Linear(256, 256) for _ in range(4)]
        self.model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-4)
        self.data = torch.randn(256, 256)

    def step(self, go: bool) -> bool:
        """One step; False where rank 0 said that it was the last."""
        told = torch.tensor([int(go)])
        dist.broadcast(told, 0)
        if not told.item():
            return False
        self.optimizer.zero_grad()
        self.model(self.data).square().mean().backward()
        self.optimizer.step()
        return True


class Sums:
    """The same without torch: a star of sockets."""

    def __init__(self, folder: str, token: str, rank: int, ranks: int) -> None:
        sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
        pair = importlib.import_module("pair")

        self.rank = rank
        self.peers: list[Any] = pair.joined(folder, token, rank, ranks)

    def step(self, go: bool) -> bool:
        """One step; False where rank 0 said that it was the last."""
        if self.rank:
            go = self.peers[0].recv(1) == b"1"
        for peer in self.peers if not self.rank else ():
            peer.sendall(b"1" if go else b"0")
        if not go:
            return False
        sum(number * number for number in range(100_000))
        for peer in self.peers:
            peer.sendall(b"x")
            peer.recv(1)
        return True


def main() -> None:
    """Steps, as many as are asked for."""
    folder, token, wanted = sys.argv[1:]
    rank, ranks = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"])
    beat = _beat(wanted)
    work = (Ddp if torch else Sums)(folder, token, rank, ranks)
    done = 0
    if rank:
        while work.step(True):
            done += 1
            beat(done)
        return
    with open(f"{folder}/took.{token}", "w") as took:
        while count := _told(f"{folder}/do.{token}"):
            times = []
            for _ in range(count):
                began = time.perf_counter()
                work.step(True)
                done += 1
                beat(done)
                print(f"step {done} loss 2.5", flush=True)
                times.append(time.perf_counter() - began)
            took.write(" ".join(f"{one:.6f}" for one in times) + "\n")
            took.flush()
    work.step(False)


def _told(path: str) -> int:
    with open(path) as stream:
        return int(stream.readline() or 0)


def _beat(wanted: str) -> Any:
    return importlib.import_module("ftrun.hooks.progress.beat").beat if wanted else lambda step: None


if __name__ == "__main__":
    main()
