"""`torch`: one file that torch.save wrote. (I/O)

Sources: torch/serialization.py and caffe2/serialize/inline_container.cc (the zip), torch.serialization._legacy_save (before 1.6).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ftrun.hooks.layouts import Expected, Layout, Need

if TYPE_CHECKING:
    from ftrun.hooks.checkpoints.look import Place, Tree

__all__ = ["LAYOUT"]

SUFFIXES = (".pt", ".pth", ".ckpt", ".bin", ".tar")


def recognise(place: Place) -> bool:
    """A file with one of the usual endings, also an empty or zeroed one: that is what a torn one looks like."""
    return not place.is_folder and place.name.endswith(SUFFIXES)


def expected(tree: Tree) -> Expected:
    """The one file."""
    return Expected({name: Need() for name in tree.files}, "one file", sure=False, world=None)


LAYOUT = Layout(
    name="torch",
    recognise=recognise,
    expected=expected,
    within=("*.pt", "*.pth", "*.ckpt", "*.pth.tar", "checkpoints/*.pt"),
)
