"""What is said of a checkpoint, its states and levels, and what a layout is. (pure)

To call a good checkpoint torn costs its user the progress since the one before; to call a torn one good costs one start
that fails and sets it aside. So `complete` is what is said wherever nothing proves the opposite, and `why` says how much was proven.

A layout is how one framework lays out its checkpoints. It says three things: whether a path is a checkpoint of its kind, where checkpoints
of its kind lie in a folder of them, and which files a complete one must have. It is a `Layout` in a module `layout_<framework>`, with a row
in the table of `layouts`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Callable, NamedTuple, Optional

from ftrun.hooks.checkpoints import names

if TYPE_CHECKING:
    from ftrun.hooks.checkpoints.listing import Candidate, Tree

COMPLETE = "complete"
WRITING = "writing"  # not complete, and it changed within the last minute or while it was looked at
TORN = "torn"  # cut, a wrong size or checksum, a shard that is missing
EMPTY = "empty"  # no file in it, or a shard of zero bytes
UNFLUSHED = "unflushed"  # of the right length, with holes or zeros where there must be data
TEMPORARY = "temporary"  # by its name, what a writer had not finished
STATES = (COMPLETE, WRITING, TORN, EMPTY, UNFLUSHED, TEMPORARY)

RULE = "rule"  # names and sizes only: nothing more is known of the layout, or time ran out
QUICK = "quick"  # structure: expected shards, sizes, directories and headers
DEEP = "deep"  # every byte: checksums of records or of the manifest
LEVELS = (RULE, QUICK, DEEP)


class Found(NamedTuple):
    """A checkpoint: an absolute path, the name of its layout, its step (None where none is known).

    `root` is the folder whose tracker file (`latest`, `latest_checkpointed_iteration.txt`) the framework loads from; "" for none.
    """

    path: str
    layout: str
    step: Optional[int] = None
    root: str = ""


class Inspection(NamedTuple):
    """What was seen of a checkpoint. `why` is one line and names the file that decided; `level` is how far one could look.

    `written_s`: when the youngest file was written (Unix seconds by the file system's clock; 0 where nothing is there).
    `shards`: the files in it. `world`: the processes that wrote it, as far as its metadata says.
    """

    found: Found
    state: str
    why: str
    size_bytes: int = 0
    shards: int = 0
    written_s: float = 0.0
    level: str = RULE
    world: Optional[int] = None


class Choice(NamedTuple):
    """The checkpoint to load (None: none may be) and why; `passed`: (path, why) of those that were passed over, newest first."""

    chosen: Optional[Inspection]
    why: str
    passed: Sequence[tuple[str, str]] = ()


class Damaged(Exception):
    """A file proves that its checkpoint cannot be loaded: `state` is one of STATES, `why` names the file."""

    def __init__(self, state: str, why: str) -> None:
        super().__init__(state, why)
        self.state = state
        self.why = why


UNREADABLE = (ValueError, KeyError, IndexError, TypeError, AttributeError, ArithmeticError, RecursionError)
"""What is raised where a file's content is read as what it was to be, and is not."""


def damage(content: bytes, why: str) -> Damaged:
    """The damage of a file with this content: unflushed where there is nothing but zeros, else torn."""
    return Damaged(TORN if content.strip(b"\0") else UNFLUSHED, why)


class Need(NamedTuple):
    """What must be true of one file. `kind`: how its content is read (file_check.READERS), "" for what its name and first bytes say.
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


def no_step(_place: Candidate) -> Optional[int]:
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
    recognise: Callable[[Candidate], bool]
    expected: Callable[[Tree], Expected]
    within: tuple[str, ...] = ()
    trackers: tuple[str, ...] = ()
    temporary: Callable[[str], bool] = names.is_temporary
    step: Callable[[Candidate], Optional[int]] = no_step
    step_first: bool = False
    tree: Optional[Callable[[str, float], Tree]] = None

    def expected_in(self, tree: Tree, folder: str) -> Expected:
        """What it asks for in a folder of another checkpoint, by paths from that one's base; `by` names the folder. Raises what `expected` does."""
        try:
            part = self.expected(tree.below(folder))
        except Damaged as damaged:
            raise Damaged(damaged.state, f"{folder}/{damaged.why}") from None
        needs = {f"{folder}/{name}": need for name, need in part.needs.items()}
        return part._replace(needs=needs, by=f"{folder}: {part.by}")
