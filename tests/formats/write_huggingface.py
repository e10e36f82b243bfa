"""Checkpoints of the Hugging Face Trainer, Accelerate, save_pretrained and safetensors, written by the real libraries. (I/O)

    python write_huggingface.py FOLDER            one process: trainer, accelerate, model, safetensors
    torchrun --nproc-per-node 2 write_huggingface.py FOLDER   also what two ranks write: ranks, fsdp

Runs where transformers, accelerate and torch are, and nothing of ftrun is.
"""

# mypy: ignore-errors
# The libraries are not there where types are checked.

import os
import sys

os.environ.update(HF_HUB_OFFLINE="1", CUDA_VISIBLE_DEVICES="", TRANSFORMERS_VERBOSITY="error")

import torch
from accelerate import Accelerator
from accelerate.utils import FullyShardedDataParallelPlugin, ProjectConfiguration
from accelerate.utils.fsdp_utils import save_fsdp_model, save_fsdp_optimizer
from transformers import Trainer, TrainingArguments


class Model(torch.nn.Module):
    """A few numbers to train."""

    def __init__(self, width=8):
        super().__init__()
        self.layer = torch.nn.Linear(width, width)

    def forward(self, x, labels=None):
        """Its loss is the mean of what comes out."""
        out = self.layer(x)
        return {"loss": out.mean(), "logits": out}


class Numbers(torch.utils.data.Dataset):
    """Sixteen times the same input."""

    def __len__(self):
        return 16

    def __getitem__(self, index):
        return {"x": torch.ones(8), "labels": torch.zeros(8)}


def trainer(folder):
    """Checkpoints of steps 2 and 4."""
    told = TrainingArguments(
        output_dir=folder,
        save_steps=2,
        max_steps=4,
        per_device_train_batch_size=2,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    Trainer(model=Model(), args=told, train_dataset=Numbers()).train()


def accelerate(folder, ranks):
    """Two states under the names that Accelerate gives, the second after a step more."""
    made = ProjectConfiguration(project_dir=folder, automatic_checkpoint_naming=True, total_limit=3)
    state = Accelerator(cpu=True, project_config=made)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters())
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    model, optimizer, schedule = state.prepare(model, optimizer, schedule)
    for _ in range(1 if ranks > 1 else 2):
        model(torch.ones(1, 8))["loss"].backward()
        optimizer.step()
        schedule.step()
        state.save_state()


def fsdp(folder):
    """The folders of Accelerate's FSDP, by its own functions: its Accelerator itself takes FSDP on accelerators only."""
    from torch.distributed.fsdp import FullyShardedDataParallel, ShardedOptimStateDictConfig
    from torch.distributed.fsdp.api import ShardedStateDictConfig, StateDictType

    state = Accelerator(cpu=True)
    model = FullyShardedDataParallel(Model(), device_id=torch.device("cpu"))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 8))["loss"].backward()
    optimizer.step()
    plugin = FullyShardedDataParallelPlugin(state_dict_type="SHARDED_STATE_DICT")
    plugin.state_dict_type = StateDictType.SHARDED_STATE_DICT
    plugin.state_dict_config = ShardedStateDictConfig(offload_to_cpu=True)
    plugin.optim_state_dict_config = ShardedOptimStateDictConfig(offload_to_cpu=True)
    save_fsdp_model(plugin, state, model, folder)
    save_fsdp_optimizer(plugin, state, optimizer, model, folder)
    torch.distributed.barrier()
    torch.save(
        {"rank": torch.distributed.get_rank()}, f"{folder}/random_states_{torch.distributed.get_rank()}.pkl"
    )


def pretrained(folder):
    """A model in one file and in shards, with their index."""
    from transformers import GPT2Config, GPT2LMHeadModel

    tiny = GPT2Config(n_layer=1, n_head=1, n_embd=8, vocab_size=16, n_positions=8)
    model = GPT2LMHeadModel(tiny)
    model.save_pretrained(f"{folder}/single")
    model.save_pretrained(f"{folder}/sharded", max_shard_size="2KB")


def main(folder):
    """Write everything that so many processes can."""
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    if ranks > 1:
        trainer(f"{folder}/ranks/trainer")
        accelerate(f"{folder}/ranks/accelerate", ranks)
        fsdp(f"{folder}/ranks/fsdp/step_100")
        return
    trainer(f"{folder}/trainer")
    accelerate(f"{folder}/accelerate", ranks)
    pretrained(f"{folder}/model")


if __name__ == "__main__":
    main(sys.argv[1])
