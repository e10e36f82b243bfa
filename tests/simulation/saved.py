"""The checkpoints of a simulated training, as files that are whole, cut, or written by a training that had diverged. (I/O)

How it thinks. In some lives they are what torch.save leaves, so that the judge sees what is cut; in the others nobody can tell that before a start has
failed to load them. What a start is given is chosen by the very code that batch.sh asks, with what the submitted file says.
"""

from __future__ import annotations

import io
import os
import time
import zipfile
from pathlib import Path
from typing import NamedTuple

from ftrun.hooks.checkpoints import diverged
from ftrun.hooks.checkpoints.diverged import Divergence
from ftrun.hooks.checkpoints.model import COMPLETE, Found, Inspection
from ftrun.hooks.checkpoints.selection import Request, Selection, select
from ftrun.supervisor.diagnosis import resumable
from ftrun.supervisor.model.run import Run
from ftrun.supervisor.store import checkpoints

__all__ = ["Content", "choose", "content", "read", "spoilt"]


class Content(NamedTuple):
    """What a checkpoint holds: the step, and whether the weights in it are numbers."""

    step: int
    sick: bool


def content(known: Content, *, like_torch: bool, torn: bool) -> bytes:
    """The bytes of its file."""
    text = f"step {known.step} {'sick' if known.sick else 'well'} whole\n".encode()
    if not like_torch:
        return text[:-4] if torn else text
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("archive/data.pkl", text)
    return packed.getvalue()[:-30] if torn else packed.getvalue()


def read(path: str) -> Content | None:
    """What is in it; None where it cannot be loaded."""
    try:
        held = Path(path).read_bytes()
        if held.startswith(b"PK"):
            with zipfile.ZipFile(io.BytesIO(held)) as archive:
                held = archive.read("archive/data.pkl")
    except (OSError, zipfile.BadZipFile):
        return None
    words = held.decode().split(" ")
    if words[-1] != "whole\n":
        return None
    return Content(int(words[1]), words[2] == "sick")


def choose(
    pattern: str,
    cwd: str,
    *,
    aside: tuple[str, ...],
    poisons: tuple[Divergence, ...],
    had: bool,
    fresh: bool,
    by_rule: bool,
    run_dir: str = "",
) -> Selection:
    """As batch.sh does by the names (`by_rule`), or `ftrun-hook pick` on the node; all of a life's checkpoints were written since the run began."""
    if by_rule:
        run = Run("r", set_aside=tuple((path, "") for path in aside), poisoned=poisons)
        path = resumable.newest_by_name({"checkpoint": pattern}, run, cwd)
        left = not path and bool(checkpoints.complete_checkpoints(pattern, cwd=cwd))
        stuck = "none of them may be loaded" if left and not fresh else ""
        return Selection(Inspection(Found(path, "any"), COMPLETE, "") if path else None, "", (), stuck)
    return select(
        Request(
            patterns=[pattern],
            cwd=cwd,
            aside=aside,
            poisons=poisons,
            had=had,
            fresh=fresh,
            before_s=time.monotonic() + 60.0,
            run_dir=run_dir,
        )
    )


def spoilt(path: str, poisons: tuple[Divergence, ...], step: int) -> bool:
    """Whether a checkpoint as it lies there now is one of a training that had diverged, by what was noted."""
    try:
        return bool(diverged.why_diverged(step, os.stat(path).st_mtime, poisons))
    except OSError:
        return True
