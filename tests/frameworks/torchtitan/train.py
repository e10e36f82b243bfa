"""torchtitan's own program on a CPU, with losses handed on to their last bit."""

# mypy: ignore-errors

import json
import os
import types

import torch
from witness import note

# torchtitan takes what is no accelerator for CUDA, and asks the device for things that a CPU does not have.
torch._utils._get_available_device_type = lambda: "cpu"
torch.cpu.current_device = lambda: 0
torch.cpu.get_device_name = lambda *_: "cpu"
torch.cpu.get_device_properties = lambda *_: types.SimpleNamespace(total_memory=1 << 30)
torch.cpu.memory_stats = lambda *_: {}
torch.cpu.reset_peak_memory_stats = torch.cpu.empty_cache = lambda *_: None
# torchtitan 0.3 is written for a later Torch; up to 2.13 the function has this name only.
torch.distributed.set_timeout = torch.distributed.distributed_c10d._set_pg_timeout

from torchtitan.components.metrics import MetricsProcessor  # noqa: E402
from torchtitan.train import main  # noqa: E402


def log(self, step, loss, *_, **__):
    """Called after each step, before its checkpoint."""
    note(step, loss)


def make_data():
    """A tokenizer and a text, where torchtitan's sources have theirs; the package brings none."""
    words = ["the", "cat", "sat", "on", "a", "mat", "and", "saw", "nine", "red", "birds", "fly", "by"]
    numbers = {word: number for number, word in enumerate(["<s>", "</s>", *words])}
    special = [{"id": number, "content": word, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True} for word, number in numbers.items() if number < 2]  # fmt: skip
    model = {"type": "WordLevel", "vocab": numbers, "unk_token": "the"}
    tokenizer = {"version": "1.0", "added_tokens": special, "pre_tokenizer": {"type": "Whitespace"}, "model": model}  # fmt: skip
    for name, value in (
        ("tokenizer/tokenizer.json", tokenizer),
        ("tokenizer/tokenizer_config.json", {"bos_token": "<s>", "eos_token": "</s>"}),
        ("c4_test/data.json", {"text": " ".join(words[n * n % 13] for n in range(3000)), "timestamp": "", "url": ""}),
    ):  # fmt: skip
        path = os.path.join("tests/assets", name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as stream:
            json.dump(value, stream)


make_data()
MetricsProcessor.log = log
main()
