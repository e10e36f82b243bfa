"""Lightning with a ModelCheckpoint in a folder of its own."""

# mypy: ignore-errors

import argparse

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from witness import note

parser = argparse.ArgumentParser()
parser.add_argument("--max-steps", type=int, default=10)
parser.add_argument("--ckpt-path", default=None)
args = parser.parse_args()


class Model(lightning.LightningModule):
    """A few numbers to train."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Linear(16, 1))

    def training_step(self, batch, _):
        """Its loss is the squared output."""
        return (self.layers(batch) ** 2).mean()

    def configure_optimizers(self):
        """Adam, which has a state to save."""
        return torch.optim.Adam(self.parameters(), lr=0.01)


class Losses(lightning.Callback):
    """Hands each loss on, after the checkpoint of its step."""

    def on_train_batch_end(self, trainer, module, outputs, batch, index):
        """Called after each step."""
        note(trainer.global_step, outputs["loss"])


torch.manual_seed(3)
data = torch.randn(
    4, 8, generator=torch.Generator().manual_seed(5)
)  # an epoch has two steps: see docs/frameworks.md
saver = ModelCheckpoint(dirpath="saved", filename="{step}", every_n_train_steps=2, save_top_k=-1)
trainer = lightning.Trainer(
    max_steps=args.max_steps,
    accelerator="cpu",
    callbacks=[Losses(), saver],
    enable_progress_bar=False,
    logger=False,
    enable_model_summary=False,
)
trainer.fit(
    Model(), torch.utils.data.DataLoader(data, batch_size=2), ckpt_path=args.ckpt_path, weights_only=False
)
