"""What is said of a checkpoint: where it is, what it is, whether a start may load it. (pure)

How it thinks. To call a good checkpoint torn costs its user the progress since the one before; to call a torn one good costs one start
that fails and sets it aside. So `complete` is what is said wherever nothing proves the opposite, and `why` says how much was proven.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Optional

__all__ = [
    "COMPLETE", "DEEP", "EMPTY", "LEVELS", "QUICK", "RULE", "STATES", "TEMPORARY", "TORN", "UNFLUSHED", "WRITING",
    "Choice", "Damaged", "Found", "Judged",
]  # fmt: skip

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


class Judged(NamedTuple):
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

    judged: Optional[Judged]
    why: str
    passed: Sequence[tuple[str, str]] = ()


class Damaged(Exception):
    """A file proves that its checkpoint cannot be loaded: `state` is one of STATES, `why` names the file."""

    def __init__(self, state: str, why: str) -> None:
        super().__init__(state, why)
        self.state = state
        self.why = why
