"""The folder for frameworks that look for the newest checkpoint themselves. (I/O)

Megatron and DeepSpeed get a folder and read the newest checkpoint's name in a tracker file there; others take
the highest step. If the user's own folder leads them to the chosen checkpoint, it is used. If not (the newest
is torn or poisoned, or a crash came between checkpoint and tracker), they get a resume view: a private folder
of the run with a link to the chosen checkpoint and a tracker file that names it. The user's files are not
changed. A view is for loading only.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Optional

from ftrun.hooks.checkpoints.layouts import layout_of
from ftrun.hooks.checkpoints.model import Found

MADE_BY_STEP = frozenset({"latest_checkpointed_iteration.txt"})
"""Tracker files that name a step; others name a folder."""

TRACKER_BYTES_MAX = 4096
REPAIRED = "mended"
OF_A_RANK = re.compile(r"rank_[0-9]+")


def resume_root(found: Found, passed: Sequence[str], view: str) -> str:
    """The folder that leads to `found`, not to `passed`: its own, or `view`, made then. Raises OSError."""
    container = os.path.dirname(found.path)
    if OF_A_RANK.fullmatch(os.path.basename(container)):  # the folders of all ranks belong together
        return os.path.dirname(container)
    trackers = layout_of(found.layout).trackers if os.path.isdir(found.path) else ()
    if leads_to(container, found, passed, trackers):
        return container
    there = [name for name in trackers if os.path.exists(os.path.join(container, name))]
    return _make_view(found, view, there or trackers[:1])


def leads_to(container: str, found: Found, passed: Sequence[str], trackers: Sequence[str]) -> bool:
    """Whether a framework that gets the user's own folder loads this checkpoint."""
    told = [said for name in trackers if (said := _read_tracker(os.path.join(container, name))) is not None]
    if told:
        return all(_names(said, found) for said in told)
    return not trackers and all(os.path.dirname(path) != container for path in passed)


def _read_tracker(path: str) -> Optional[str]:
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            return stream.read(TRACKER_BYTES_MAX).strip()
    except OSError:
        return None


def _names(said: str, found: Found) -> bool:
    if said.isdigit() and found.step is not None:
        return int(said) == found.step
    return os.path.basename(said.rstrip("/")) == os.path.basename(found.path)


def _make_view(found: Found, view: str, trackers: Sequence[str]) -> str:
    os.makedirs(view, mode=0o700, exist_ok=True)
    for entry in os.scandir(view):  # left by an interrupted start
        if entry.name != REPAIRED:
            os.unlink(entry.path)
    name = os.path.basename(found.path)
    os.symlink(found.path, os.path.join(view, name))
    for tracker in trackers:
        by_step = tracker in MADE_BY_STEP and found.step is not None
        with open(os.path.join(view, tracker), "w", encoding="utf-8") as stream:
            stream.write(str(found.step) if by_step else name)
    return view
