"""All layouts as the table names them, loaded when the first path is asked of them. (pure)"""

from __future__ import annotations

import functools
import importlib

from ftrun.hooks.layouts import NAMES, Expected, Layout

__all__ = ["ANY", "all_layouts", "layout_of"]

ANY = Layout(
    name="any",
    recognise=lambda place: True,
    expected=lambda tree: Expected({}, "a layout that is not known: it has bytes", sure=False),
)
"""What no layout knows: it counts as it stands."""


@functools.cache
def all_layouts() -> tuple[Layout, ...]:
    """The known layouts in the order they are asked; ANY is none of them."""
    return tuple(importlib.import_module(f"ftrun.hooks.layouts.{name}").LAYOUT for name in NAMES)


def layout_of(name: str) -> Layout:
    """The layout of that name; ANY where none has it (a record of another version)."""
    return next((layout for layout in all_layouts() if layout.name == name), ANY)
