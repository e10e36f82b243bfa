"""A GPT of megatron-core over two tensor-parallel ranks; each checkpoint and its tracker file as Megatron-LM's program writes them."""

# mypy: ignore-errors

import argparse
import contextlib
import os

import torch
from witness import note

torch.cuda.current_device = lambda: "cpu"  # megatron-core asks without looking whether there is one
torch.cuda.synchronize = lambda *_: None

from megatron.core import dist_checkpointing, parallel_state, tensor_parallel  # noqa: E402
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec  # noqa: E402
from megatron.core.models.gpt.gpt_model import GPTModel  # noqa: E402
from megatron.core.optimizer import OptimizerConfig  # noqa: E402
from megatron.core.optimizer.optimizer import FP32Optimizer, MegatronOptimizer  # noqa: E402
from megatron.core.transformer.transformer_config import TransformerConfig  # noqa: E402

tensor_parallel.random.CudaRNGStatesTracker.fork = lambda *_: (
    contextlib.nullcontext()
)  # for dropout, which is off
TRACKER = "latest_checkpointed_iteration.txt"
GROUP = {"wd_mult": 1.0, "lr_mult": 1.0, "is_expert_parallel": False, "is_decoupled_lr": False}


class Optimizer(FP32Optimizer):
    """Megatron's own, without the one tensor that its constructor puts on a GPU."""

    def __init__(self, optimizer, config):
        MegatronOptimizer.__init__(self, optimizer, config, fill)
        self.is_stub_optimizer = False


def fill(optimizer, _):
    """Give each parameter the state that a checkpoint is read into."""
    for group in optimizer.param_groups:
        for one in group["params"]:
            optimizer.state[one] = {
                "step": torch.tensor(0.0),
                "exp_avg": torch.zeros_like(one),
                "exp_avg_sq": torch.zeros_like(one),
            }


def sharded(iteration, loading=False):
    """What Megatron-LM puts into a checkpoint."""
    weights = model.sharded_state_dict()
    moments = optimizer.sharded_state_dict(weights, is_loading=loading)
    return {"model": weights, "optimizer": moments, "iteration": iteration, "args": args}


if __name__ == "__main__":  # the writers of megatron-core start by importing this file
    parser = argparse.ArgumentParser()
    parser.add_argument("--tensor-model-parallel-size", type=int, default=1)
    parser.add_argument("--train-iters", type=int, default=10)
    parser.add_argument("--save-interval", type=int, default=2)
    parser.add_argument("--save", default=None)
    parser.add_argument("--load", default=None)
    args = parser.parse_args()

    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    parallel_state.initialize_model_parallel(args.tensor_model_parallel_size)
    torch.manual_seed(3)
    config = TransformerConfig(
        num_layers=2,
        hidden_size=16,
        num_attention_heads=2,
        tensor_model_parallel_size=args.tensor_model_parallel_size,
        use_cpu_initialization=True,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        gradient_accumulation_fusion=False,
    )
    model = GPTModel(config, get_gpt_layer_local_spec(), vocab_size=64, max_sequence_length=8)
    optimizer = Optimizer(
        torch.optim.AdamW([{"params": list(model.parameters()), **GROUP}], lr=0.01),
        OptimizerConfig(optimizer="adam", lr=0.01, clip_grad=0.0),
    )
    first = 1
    if args.load:
        with open(os.path.join(args.load, TRACKER)) as stream:
            iteration = int(stream.read())
        saved = dist_checkpointing.load(
            sharded(0, loading=True), os.path.join(args.load, f"iter_{iteration:07d}")
        )
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        first = saved["iteration"] + 1
    places = torch.arange(8).repeat(2, 1)
    mask = torch.ones(1, 1, 8, 8).triu(1).bool()
    for iteration in range(first, args.train_iters + 1):
        words = torch.randint(64, (2, 9), generator=torch.Generator().manual_seed(iteration))
        loss = model(words[:, :-1].contiguous(), places, mask, labels=words[:, 1:].contiguous()).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if iteration % args.save_interval == 0:
            to = os.path.join(args.save, f"iter_{iteration:07d}")
            os.makedirs(to, exist_ok=True)
            torch.distributed.barrier()
            dist_checkpointing.save(sharded(iteration), to)
            if rank == 0:
                with open(os.path.join(args.save, TRACKER), "w") as stream:
                    stream.write(str(iteration))
        if rank == 0:
            note(iteration, loss.detach())
        torch.distributed.barrier()
