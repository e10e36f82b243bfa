"""The states of a checkpoint, the levels of inspection, and what a layout is. (pure)

A good checkpoint judged torn costs the progress since the previous one; a torn one judged good costs one
failed start, which sets it aside. So a checkpoint is `complete` unless something proves the opposite, and
`why` says how much was proven.

A layout describes the checkpoints of one framework: how to recognise one, where they are in a folder of
checkpoints, and which files a complete one has. It is a `Layout` in a module `layout_<framework>`, with a row
in the table of `layouts`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Callable, NamedTuple, Optional

from ftrun.hooks.checkpoints import names

if TYPE_CHECKING:
    from ftrun.hooks.checkpoints.listing import Candidate, Tree

COMPLETE = "complete"
WRITING = "writing"  # not complete, and it changed within the last minute or during the inspection
TORN = "torn"  # truncated, a wrong size or checksum, a missing shard
EMPTY = "empty"  # no files, or a shard of zero bytes
UNFLUSHED = "unflushed"  # of the right length, with holes or zeros instead of data
TEMPORARY = "temporary"  # by its name, unfinished
STATES = (COMPLETE, WRITING, TORN, EMPTY, UNFLUSHED, TEMPORARY)

RULE = "rule"  # names and sizes only: the layout is unknown, or time ran out
QUICK = "quick"  # structure: expected shards, sizes, directories and headers
DEEP = "deep"  # every byte: checksums of records or of the manifest
LEVELS = (RULE, QUICK, DEEP)


class Found(NamedTuple):
    """A checkpoint: its absolute path, the name of its layout, its step (None: unknown). `root`: the folder
    with the tracker file (`latest`, `latest_checkpointed_iteration.txt`) that the framework loads from; ""
    for none.
    """

    path: str
    layout: str
    step: Optional[int] = None
    root: str = ""


class Inspection(NamedTuple):
    """The result of an inspection. `why`: one line that names the decisive file; `level`: the level reached.
    `written_s`: when its youngest file was written (Unix seconds by the file system's clock; 0 without
    files). `shards`: the number of files. `world`: how many processes wrote it, if its metadata says so.
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
    """The checkpoint to load (None: none) and why; `passed`: (path, why) of rejected ones, newest first."""

    chosen: Optional[Inspection]
    why: str
    passed: Sequence[tuple[str, str]] = ()


class Damaged(Exception):
    """A file proves that its checkpoint is damaged: `state` is one of STATES, `why` names the file."""

    def __init__(self, state: str, why: str) -> None:
        super().__init__(state, why)
        self.state = state
        self.why = why


UNREADABLE = (ValueError, KeyError, IndexError, TypeError, AttributeError, ArithmeticError, RecursionError)
"""Exceptions of reading content that does not have the expected form."""


def damage(content: bytes, why: str) -> Damaged:
    """Damage to a file with this content: unflushed if it is all zeros, else torn."""
    return Damaged(TORN if content.strip(b"\0") else UNFLUSHED, why)


class Need(NamedTuple):
    """The requirements on one file. `kind`: how to read it (file_check.READERS), "" for by its name.
    `size_bytes`: its exact size; `size_min_bytes`: its least size; `may_be_empty`: it may have no byte at
    all. `sha256`: its checksum for the deep level, in hexadecimal digits ("": unknown).
    """

    kind: str = ""
    size_bytes: Optional[int] = None
    size_min_bytes: int = 1
    may_be_empty: bool = False
    sha256: str = ""


UNASKED = Need(size_min_bytes=0, may_be_empty=True)
"""For a file that no layout asked for: its content must fit its name."""


class Expected(NamedTuple):
    """The files that a good checkpoint must have, by path in its folder. Other files need only be sound.
    `sure`: the list comes from metadata, so a complete set is proven; `by`: from what it is known ("world
    size 8 in common.pt"), or what is unknown.
    """

    needs: Mapping[str, Need]
    by: str
    sure: bool = True
    world: Optional[int] = None


class Layout(NamedTuple):
    """One layout. `recognise(candidate)`: whether the path is a checkpoint of this kind, damaged or not;
    reads names and first bytes only. `expected(tree)`: its files; raises Damaged if metadata proves damage,
    OSError. `within`: glob patterns from a folder of checkpoints to candidates. `trackers`: names of the
    files beside checkpoints that name the one to load. `temporary(path)`: whether it is unfinished by its
    name. `step(candidate)`: called if the name has no step, or first if the number in the name is not the
    step (`step_first`). `tree(path, before_s)`: its files, if they are not those in the path.
    """

    name: str
    recognise: Callable[[Candidate], bool]
    expected: Callable[[Tree], Expected]
    within: tuple[str, ...] = ()
    trackers: tuple[str, ...] = ()
    temporary: Callable[[str], bool] = names.is_temporary
    step: Callable[[Candidate], Optional[int]] = lambda _: None
    step_first: bool = False
    tree: Optional[Callable[[str, float], Tree]] = None

    def expected_in(self, tree: Tree, folder: str) -> Expected:
        """Its files in a folder of another checkpoint, by path from that one's base. Raises as `expected`."""
        try:
            part = self.expected(tree.below(folder))
        except Damaged as damaged:
            raise Damaged(damaged.state, f"{folder}/{damaged.why}") from None
        needs = {f"{folder}/{name}": need for name, need in part.needs.items()}
        return part._replace(needs=needs, by=f"{folder}: {part.by}")
