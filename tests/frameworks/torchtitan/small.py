"""torchtitan's debug model, with the attention that has a backward on CPUs."""

# mypy: ignore-errors

from torchtitan.models.common.attention import ScaledDotProductAttention
from torchtitan.models.llama3.config_registry import llama3_debugmodel


def debug():
    """What --config debug stands for."""
    config = llama3_debugmodel()
    config.training.local_batch_size = 2
    config.training.seq_len = 64
    config.validator.enable = False
    for layer in config.model_spec.model.layers:
        layer.attention.inner_attention = ScaledDotProductAttention.Config()
    return config
