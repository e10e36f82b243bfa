"""How the frameworks lay out their checkpoints, one file each; a file's `LAYOUT` is its layout. (pure)

A layout says three things: whether a path is a checkpoint of its kind, where checkpoints of its kind lie in a folder of them, and which
files a complete one must have. It is a file `<name>.py` here with `LAYOUT = Layout(...)`, and its name in NAMES.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Callable, NamedTuple, Optional

from ftrun.hooks.checkpoints import names

if TYPE_CHECKING:
    from ftrun.hooks.checkpoints.look import Place, Tree

__all__ = ["NAMES", "UNASKED", "Expected", "Layout", "Need"]

NAMES = (
    "nemo",
    "megatron",
    "transformers",
    "orbax",
    "accelerate",
    "mindspore",
    "lightning",
    "deepspeed",
    "flax",
    "dcp",
    "safetensors",
    "torch",
)
"""In the order they are asked: the first that recognises a path has it, so those with more marks of their own come first."""


class Need(NamedTuple):
    """What must be true of one file. `kind`: how its content is read (contents.KINDS), "" for what its name and first bytes say.
    `sha256`: what the deep level must find, in hexadecimal digits ("" = not known).

    `size_bytes`: its exact size; `size_min_bytes`: what it has at least. A file that may have no byte at all says `may_be_empty`.
    """

    kind: str = ""
    size_bytes: Optional[int] = None
    size_min_bytes: int = 1
    may_be_empty: bool = False
    sha256: str = ""


UNASKED = Need(size_min_bytes=0, may_be_empty=True)
"""Of a file that no layout asked for: what its name says that it is, it must be."""


class Expected(NamedTuple):
    """The files that must be there, by their path from the checkpoint's folder. A file that is there and not named needs only be sound.

    `sure` is whether the list is known from metadata, so that a complete set is proven; `by` says from what ("world size 8 in
    common.pt"), or what is not known. A layout names a file only where a good checkpoint cannot be without it.
    """

    needs: Mapping[str, Need]
    by: str
    sure: bool = True
    world: Optional[int] = None


def no_step(_place: Place) -> Optional[int]:
    """For layouts whose step is in the name."""
    return None


class Layout(NamedTuple):
    """One layout.

    `recognise(place)`: whether the path is a checkpoint of this kind, also a torn one; reads names and first bytes only.
    `expected(tree)`: its files; raises checkpoints.model.Damaged where metadata proves damage, OSError where it cannot be read.
    `within`: glob patterns from a folder of checkpoints to them; what they match is asked of `recognise` again.
    `trackers`: names of the files beside checkpoints that say which one the framework loads.
    `temporary(path)`: whether it is unfinished by its name. `step(place)`: asked where the name has none, or first where the number in
    the name is not the step (`step_first`). `tree(path, before_s)`: its files, where they are not those that lie in the path.
    """

    name: str
    recognise: Callable[[Place], bool]
    expected: Callable[[Tree], Expected]
    within: tuple[str, ...] = ()
    trackers: tuple[str, ...] = ()
    temporary: Callable[[str], bool] = names.is_temporary
    step: Callable[[Place], Optional[int]] = no_step
    step_first: bool = False
    tree: Optional[Callable[[str, float], Tree]] = None
