"""A model of NeMo with its experiment manager, configured by Hydra."""

# mypy: ignore-errors

import lightning.pytorch as pl
import torch
from nemo.core.classes import ModelPT
from nemo.core.config import hydra_runner
from nemo.utils.exp_manager import exp_manager
from witness import note


class Small(ModelPT):
    """A few numbers to train."""

    def __init__(self, cfg, trainer=None):
        super().__init__(cfg, trainer)
        self.layers = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Linear(16, 1))

    def setup_training_data(self, _):
        """An epoch has one step: see docs/frameworks.md."""
        data = torch.randn(2, 8, generator=torch.Generator().manual_seed(5))
        self._train_dl = torch.utils.data.DataLoader(data, batch_size=2)

    def setup_validation_data(self, _):
        """There is none."""

    @classmethod
    def list_available_models(cls):
        """There are none."""
        return []

    def training_step(self, batch, _):
        """Its loss is the squared output."""
        return (self.layers(batch) ** 2).mean()


class Losses(pl.Callback):
    """Hands each loss on."""

    def on_train_batch_end(self, trainer, module, outputs, batch, index):
        """Called after each step."""
        note(trainer.global_step, outputs["loss"])


@hydra_runner(config_path=".", config_name="config")
def main(cfg):
    """Train."""
    torch.manual_seed(3)
    trainer = pl.Trainer(callbacks=[Losses()], **cfg.trainer)
    exp_manager(trainer, cfg.exp_manager)
    model = Small(cfg.model, trainer)
    model.setup_training_data(None)
    trainer.fit(model)


main()
