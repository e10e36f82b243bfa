"""Checkpoints of Lightning, written by the real library. (I/O)

    python write_lightning.py FOLDER           files, `last.ckpt` as a file
    python write_lightning.py FOLDER sharded   two processes: folders of the model-parallel strategy

Runs where lightning and torch are, and nothing of ftrun is.
"""

# mypy: ignore-errors
# The libraries are not there where types are checked.

import os
import sys

os.environ["CUDA_VISIBLE_DEVICES"] = ""

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.strategies import ModelParallelStrategy


class Model(lightning.LightningModule):
    """A few numbers to train; in shards where there is a mesh."""

    def __init__(self, sharded=False):
        super().__init__()
        self.sharded = sharded
        self.layer = torch.nn.Linear(8, 4)

    def configure_model(self):
        """Shard it once."""
        if self.sharded:
            from torch.distributed.fsdp import fully_shard

            fully_shard(self.layer, mesh=self.device_mesh["data_parallel"])

    def training_step(self, batch, _):
        """Its loss is the sum of what comes out."""
        return self.layer(batch).sum()

    def configure_optimizers(self):
        """Adam, which has a state to save."""
        return torch.optim.Adam(self.parameters())


def main(folder, sharded):
    """Four steps, a checkpoint after every second."""
    saver = ModelCheckpoint(
        dirpath=folder if sharded else None, every_n_train_steps=2, save_top_k=-1, save_last=not sharded
    )
    strategy = ModelParallelStrategy(
        data_parallel_size=2, tensor_parallel_size=1, process_group_backend="gloo"
    )
    trainer = lightning.Trainer(
        default_root_dir=folder,
        max_steps=4,
        accelerator="cpu",
        devices=2 if sharded else 1,
        strategy=strategy if sharded else "auto",
        callbacks=[saver],
        enable_progress_bar=False,
        logger=False if sharded else CSVLogger(folder),
    )
    trainer.fit(Model(sharded), torch.utils.data.DataLoader(torch.ones(16, 8), batch_size=2))


if __name__ == "__main__":
    main(sys.argv[1], len(sys.argv) > 2)
