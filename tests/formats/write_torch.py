"""Checkpoints of torch.save and torch.distributed.checkpoint, written by torch itself. (I/O)

    python write_torch.py FOLDER    saves/ (a zip, the older format, a zip without checksums) and dcp/ (two ranks: FSDP, async, each for itself)

Runs where torch is, and nothing of ftrun is.
"""

# mypy: ignore-errors
# The libraries are not there where types are checked.

import os
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

RANKS = 2


def trained(width=8, mesh=None):
    """A model and its optimizer after one step."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.Linear(width, 2))
    if mesh is not None:
        fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(2, width)).sum().backward()
    optimizer.step()
    return model, optimizer


def saves(folder):
    """The three forms of torch.save's file."""
    os.makedirs(folder, exist_ok=True)
    model, optimizer = trained(32)
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 30}
    torch.save(state, f"{folder}/step_30.pt")
    torch.save(state, f"{folder}/step_10.pt", _use_new_zipfile_serialization=False)
    torch.serialization.set_crc32_options(False)
    torch.save(state, f"{folder}/step_20.pt")
    torch.serialization.set_crc32_options(True)


def sharded(rank, folder, port):
    """FSDP's state by save and async_save, and by ranks that do not talk to each other."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port, RANK=str(rank), WORLD_SIZE=str(RANKS))
    dist.init_process_group("gloo", rank=rank, world_size=RANKS)
    model, optimizer = trained(mesh=init_device_mesh("cpu", (RANKS,)))
    weights, moments = get_state_dict(model, optimizer)
    state = {"model": weights, "step": 100}
    dcp.save({**state, "optimizer": moments}, checkpoint_id=f"{folder}/step_100")
    dcp.async_save(state, checkpoint_id=f"{folder}/step_200").result()
    writer = dcp.FileSystemWriter(f"{folder}/step_300", single_file_per_rank=False, thread_count=2)
    dcp.save(state, storage_writer=writer)
    dcp.save(state, storage_writer=dcp.FileSystemWriter(f"{folder}/step_400"), use_collectives=False)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    top = sys.argv[1]
    saves(f"{top}/saves")
    torch.multiprocessing.spawn(sharded, args=(f"{top}/dcp", "29761"), nprocs=RANKS)
