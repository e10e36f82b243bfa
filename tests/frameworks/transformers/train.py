"""Hugging Face's Trainer with its own parser of arguments."""

# mypy: ignore-errors

import torch
from transformers import HfArgumentParser, Trainer, TrainerCallback, TrainingArguments
from witness import note


class Model(torch.nn.Module):
    """A few numbers to train."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(8, 16), torch.nn.Dropout(0.2), torch.nn.Linear(16, 1)
        )

    def forward(self, x, labels=None):
        """Its loss is the squared error."""
        out = self.layers(x)
        return {"loss": ((out - labels) ** 2).mean(), "logits": out}


class Numbers(torch.utils.data.Dataset):
    """Inputs that differ."""

    def __len__(self):
        return 64

    def __getitem__(self, index):
        made = torch.Generator().manual_seed(index)
        return {"x": torch.randn(8, generator=made), "labels": torch.randn(1, generator=made)}


class Losses(TrainerCallback):
    """Hands each loss on."""

    def on_log(self, args, state, control, logs=None, **_):
        """Called after each step."""
        if logs and "loss" in logs:
            note(state.global_step, logs["loss"])


if __name__ == "__main__":
    (arguments,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
    torch.manual_seed(3)
    trainer = Trainer(model=Model(), args=arguments, train_dataset=Numbers(), callbacks=[Losses()])
    trainer.train(resume_from_checkpoint=arguments.resume_from_checkpoint)
