"""Checkpoints of Megatron and NeMo on CPUs: the distributed form by megatron-core itself, the others by torch under their names. (I/O)

    python write_megatron.py FOLDER    megatron/ (two ranks), older/ (two by two ranks), nemo/

Megatron-LM's own loop, which writes the older form, is in no package, and NeMo's needs GPUs: what they write is written here by torch.save and
tarfile, as megatron/training/checkpointing.py and NeMo's save_restore_connector.py and model_checkpoint.py do it.
Runs where torch and megatron-core are, and nothing of ftrun is.
"""

# mypy: ignore-errors
# The libraries are not there where types are checked.

import argparse
import os
import shutil
import sys
import tarfile

import torch
import torch.distributed as dist

RANKS = 2


def work(rank, folder, port):
    """Save iterations 100 and 200, and the tracker file as Megatron-LM writes it."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port, RANK=str(rank), WORLD_SIZE=str(RANKS))
    dist.init_process_group("gloo", rank=rank, world_size=RANKS)
    torch.cuda.current_device = lambda: "cpu"  # it asks without looking whether there is one
    torch.cuda.synchronize = lambda *_: None
    from megatron.core import dist_checkpointing
    from megatron.core.dist_checkpointing import ShardedTensor
    from megatron.core.dist_checkpointing.mapping import ShardedObject

    arguments = argparse.Namespace(
        tensor_model_parallel_size=RANKS, pipeline_model_parallel_size=1, world_size=RANKS
    )
    for iteration in (100, 200):
        to = f"{folder}/iter_{iteration:07d}"
        os.makedirs(to, exist_ok=True)
        dist.barrier()
        state = {
            "weight": ShardedTensor.from_rank_offsets("weight", torch.randn(8, 8), (0, rank, RANKS)),
            "random": ShardedObject("random", {"seed": rank}, (RANKS,), (rank,)),
            "args": arguments,
            "iteration": iteration,
        }
        dist_checkpointing.save(state, to)
    dist.barrier()
    if rank == 0:
        with open(f"{folder}/latest_checkpointed_iteration.txt", "w") as tracker:
            tracker.write("200")
    dist.destroy_process_group()


def older(folder):
    """A file for each tensor and pipeline rank, the distributed optimizer's beside it."""
    arguments = argparse.Namespace(
        tensor_model_parallel_size=2, pipeline_model_parallel_size=2, world_size=8, optimizer="adam", rank=0
    )
    for tensor in range(2):
        for pipeline in range(2):
            to = f"{folder}/iter_0000300/mp_rank_{tensor:02d}_{pipeline:03d}"
            os.makedirs(to)
            state = {
                "args": arguments,
                "checkpoint_version": 3.0,
                "iteration": 300,
                "model": {"w": torch.randn(8, 8)},
                "optimizer": {"lr": 0.1},
            }
            torch.save(state, f"{to}/model_optim_rng.pt")
            torch.save({0: torch.randn(8)}, f"{to}/distrib_optim.pt")
    with open(f"{folder}/latest_checkpointed_iteration.txt", "w") as tracker:
        tracker.write("300")


def nemo(folder, distributed):
    """An archive, a file in the folder of each rank, and a folder with weights and context."""
    name = "gpt--val_loss=2.31-step=400-consumed_samples=3200.0"
    state = {"state_dict": {"w": torch.randn(8, 8)}, "global_step": 400}
    for rank in range(2):
        os.makedirs(f"{folder}/ranks/mp_rank_{rank:02d}")
        torch.save(state, f"{folder}/ranks/mp_rank_{rank:02d}/{name}.ckpt")
    shutil.copytree(distributed, f"{folder}/two/{name}/weights")
    os.makedirs(f"{folder}/two/{name}/context")
    with open(f"{folder}/two/{name}/context/model.yaml", "w") as context:
        context.write("_target_: nemo.collections.llm.gpt.model.llama.LlamaModel\n")
    torch.save(state["state_dict"], f"{folder}/model_weights.ckpt")
    shutil.copy(f"{folder}/two/{name}/context/model.yaml", f"{folder}/model_config.yaml")
    with tarfile.open(f"{folder}/gpt.nemo", "w:") as archive:
        for member in ("model_config.yaml", "model_weights.ckpt"):
            archive.add(f"{folder}/{member}", arcname=f"./{member}")
            os.remove(f"{folder}/{member}")


if __name__ == "__main__":
    torch.multiprocessing.spawn(work, args=(f"{sys.argv[1]}/megatron", "29791"), nprocs=RANKS)
    older(f"{sys.argv[1]}/older")
    nemo(f"{sys.argv[1]}/nemo", f"{sys.argv[1]}/megatron/iter_0000100")
