"""Checkpoints of DeepSpeed on CPUs, written by DeepSpeed itself: ZeRO 1 and 3, a pipeline, a universal one. (I/O)

    python write_deepspeed.py FOLDER    zero1/, zero3/, pipeline/, universal/

Runs where torch and deepspeed are, and nothing of ftrun is.
"""

# mypy: ignore-errors
# The libraries are not there where types are checked.

import os
import subprocess
import sys

import torch

TAG = "global_step100"


def settings(stage):
    """DeepSpeed's own, for an optimizer that runs on a CPU."""
    return {
        "train_micro_batch_size_per_gpu": 1,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
        "zero_optimization": {"stage": stage},
        "bf16": {"enabled": True},
    }


def work(rank, ranks, kind, folder, port):
    """Train one step and save."""
    told = {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "WORLD_SIZE": ranks,
        "LOCAL_WORLD_SIZE": ranks,
        "MASTER_PORT": port,
    }
    os.environ.update({name: str(value) for name, value in told.items()})
    os.environ.update(MASTER_ADDR="127.0.0.1", DS_ACCELERATOR="cpu")
    import deepspeed
    from deepspeed.pipe import LayerSpec, PipelineModule

    deepspeed.init_distributed(dist_backend="gloo")
    if kind == "pipeline":
        layers = [
            LayerSpec(torch.nn.Linear, 8, 8),
            torch.relu,
            LayerSpec(torch.nn.Linear, 8, 8),
            LayerSpec(torch.nn.Linear, 8, 4),
        ]
        model = PipelineModule(
            layers=layers, num_stages=2, loss_fn=lambda out, told: ((out - told) ** 2).mean()
        )
        stage = 1
    else:
        model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 4))
        stage = int(kind[-1])
    engine, *_ = deepspeed.initialize(
        model=model, model_parameters=list(model.parameters()), config=settings(stage)
    )
    if kind != "pipeline":
        engine.backward(engine(torch.ones(1, 8, dtype=torch.bfloat16)).float().sum())
        engine.step()
    engine.save_checkpoint(folder, tag=TAG)
    torch.distributed.barrier()
    os._exit(0)


if __name__ == "__main__":
    top = sys.argv[1]
    for number, (kind, ranks) in enumerate((("zero1", 2), ("zero3", 2), ("pipeline", 4))):
        torch.multiprocessing.spawn(work, args=(ranks, kind, f"{top}/{kind}", 29771 + number), nprocs=ranks)
    told = ["--input_folder", f"{top}/zero1/{TAG}", "--output_folder", f"{top}/universal/{TAG}_universal"]
    merge = [*told, "--inject_missing_state", "--num_extract_workers", "1", "--num_merge_workers", "1"]
    subprocess.run([sys.executable, "-m", "deepspeed.checkpoint.ds_to_universal", *merge], check=True)
