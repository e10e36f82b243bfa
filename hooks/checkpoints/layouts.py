"""The table of all layouts in the order in which they are asked; modules are imported on demand. (I/O)"""

from __future__ import annotations

import functools
import importlib

from ftrun.hooks.checkpoints.model import Expected, Layout

TABLE = (
    ("layout_nemo", "NEMO"), ("layout_megatron", "MEGATRON"), ("layout_huggingface", "TRANSFORMERS"),
    ("layout_orbax", "ORBAX"), ("layout_huggingface", "ACCELERATE"), ("layout_mindspore", "MINDSPORE"),
    ("layout_torch", "LIGHTNING"), ("layout_deepspeed", "DEEPSPEED"), ("layout_flax", "FLAX"),
    ("layout_torch", "DCP"), ("layout_huggingface", "SAFETENSORS"), ("layout_torch", "TORCH"),
)  # fmt: skip
"""Module and name. The first layout that recognises a path counts, so the most specific come first."""

ANY = Layout(
    name="any",
    recognise=lambda place: True,
    expected=lambda tree: Expected({}, "a layout that is not known: it has bytes", sure=False),
)
"""What no layout knows: it counts as it stands."""


@functools.cache
def all_layouts() -> tuple[Layout, ...]:
    """The known layouts in the order in which they are asked; ANY is none of them."""
    modules = ((importlib.import_module(f"ftrun.hooks.checkpoints.{module}"), name) for module, name in TABLE)
    return tuple(getattr(module, name) for module, name in modules)


def layout_of(name: str) -> Layout:
    """The layout of that name; ANY where none has it (a record of another version)."""
    return next((layout for layout in all_layouts() if layout.name == name), ANY)
