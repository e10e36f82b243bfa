"""`flax`: a file `checkpoint_100` without an ending, as flax.training.checkpoints wrote it before Orbax. (I/O)

How it thinks. The file is one MessagePack map, written under a temporary name (`tmp_`, `tmp`) and renamed. Its lengths lead from the first byte to the last, so a cut
shows, and tensors need not be read. Arrays that several processes hold lie beside it in `checkpoint_100_gda` folders of Orbax's kind, of which nothing is said here.

Source: flax/training/checkpoints.py (save_checkpoint, names), flax/serialization.py (its extension types); files written by flax 0.12.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ftrun.hooks.checkpoints import msgpack
from ftrun.hooks.layouts import Expected, Layout, Need

if TYPE_CHECKING:
    from ftrun.hooks.checkpoints.look import Place, Tree

__all__ = ["LAYOUT"]

NAME = re.compile(r"(?:checkpoint|ckpt|model|state)[-_][0-9]+(?:\.[0-9]+)?")


def recognise(place: Place) -> bool:
    """A file of such a name that begins as a map does; and one of Flax's own name that begins with zeros, which nobody writes."""
    if place.is_folder or not NAME.fullmatch(place.name):
        return False
    return msgpack.begins(place.head) or (
        place.name.startswith("checkpoint_") and not place.head.strip(b"\0")
    )


def expected(tree: Tree) -> Expected:
    """The one file."""
    return Expected({name: Need("msgpack") for name in tree.files}, "one file")


LAYOUT = Layout(
    name="flax",
    recognise=recognise,
    expected=expected,
    within=("checkpoint_*", "ckpt_*"),
)
