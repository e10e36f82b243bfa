"""Finds checkpoints by patterns: a match is a checkpoint, or a folder of checkpoints. (I/O)

`ckpts/*` means what the shell finds there; `ckpts` means what is in it. So each layout is asked about a match
first. Then, if the match is a folder without a step of its own, the places where layouts put their
checkpoints are searched. If no layout knows anything there, the match itself is a checkpoint (layout `any`).
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable, Sequence
from typing import Optional

from ftrun.hooks.checkpoints import manifest
from ftrun.hooks.checkpoints import names as checkpoints_names
from ftrun.hooks.checkpoints.layouts import ANY, all_layouts
from ftrun.hooks.checkpoints.listing import HEAD_BYTES, Candidate
from ftrun.hooks.checkpoints.model import Found, Layout

# A name that is a step: `iter_0000100`, `step-100`, `100`. Such a folder is one checkpoint.
OWN_STEP = re.compile(r"(?:step|iter|epoch)[a-z_=.-]*[0-9]|^[0-9]+$", re.IGNORECASE)
STEP_WORD = re.compile(
    r"^(?:global_?)?(?:step|iter(?:ation)?|epoch|checkpoint|ckpt)[-_=.]?[0-9]+$", re.IGNORECASE
)
# Names in a folder of checkpoints: a step, a number (`checkpoint-500`, `-2_400.ckpt`), `last`.
OF_A_RUN = re.compile(
    rf"{OWN_STEP.pattern}|(?:^|[-_=.])[0-9]+(?:[-_.]|$)|^(?:best|last|release)", re.IGNORECASE
)
# A file of a rank or shard; MindFormers has the rank in the names of whole sets, before epoch and step.
OF_A_PART = re.compile(r"(?:rank|shard|model_?[0-9]|worker)(?!.*-[0-9]+_[0-9]+\.)", re.IGNORECASE)


def find(patterns: Sequence[str], *, cwd: str, marker: str = "") -> list[Found]:
    """The checkpoints, sorted by path. `cwd`: for relative patterns; `marker`: the user's own."""
    found: dict[str, Found] = {}
    for pattern in patterns:
        path = os.path.join(os.path.abspath(cwd), os.path.expanduser(pattern))
        if ".." not in path.split("/"):  # after a link `..` is another folder
            path = os.path.normpath(path)
        named = not glob.has_magic(pattern)
        for match in glob.glob(path):
            candidate = Candidate(match.rstrip("/") or match)
            if named or not _is_beside(candidate, marker):
                found.update((one.path, one) for one in _find_at(candidate, named=named))
    links = {path: os.path.realpath(path) for path in found if os.path.islink(path)}
    # `last.ckpt` is often a link to a checkpoint beside it, which is returned once, under its own name.
    return [found[path] for path in sorted(found) if links.get(path) not in found]


def found_at(path: str) -> Found:
    """One path as a checkpoint, even if no layout knows it."""
    candidate = Candidate(os.path.abspath(path))
    return _recognised(candidate) or _found(candidate, ANY)


def _find_at(candidate: Candidate, *, named: bool) -> Iterable[Found]:
    known = _recognised(candidate)
    if known:
        return [known]
    if candidate.is_folder and (named or not _is_one(candidate)):
        inside = _find_inside(candidate) or _find_by_step(candidate)
        if inside:
            return inside
    return [_found(candidate, ANY)]


def _is_one(folder: Candidate) -> bool:
    """Whether it bears a step, or is a link (`latest`) to one of those beside it: no folder of checkpoints.
    Where a metric has a slash in its name, Lightning makes a folder of what stands before it:
    `epoch=1-val/loss=0.3.ckpt`.
    """
    is_of_metric = folder.names and all("=" in name and name.endswith(".ckpt") for name in folder.names)
    if "=" in folder.name and is_of_metric:
        return False
    if OWN_STEP.search(folder.name) or STEP_WORD.search(folder.name):
        return True
    beside = os.path.realpath(os.path.dirname(folder.path))
    return os.path.islink(folder.path) and os.path.dirname(os.path.realpath(folder.path)) == beside


def _find_by_step(container: Candidate) -> list[Found]:
    """Folders named by a step word (`step_100`), whatever is in them; a bare number may be a rank."""
    names = [name for name, is_folder in container.names.items() if is_folder and STEP_WORD.search(name)]
    return [_found(container.below(name), ANY) for name in sorted(names)]


def _recognised(candidate: Candidate) -> Optional[Found]:
    for layout in all_layouts():
        if layout.recognise(candidate):
            return _found(candidate, layout)
    return None


def _find_inside(container: Candidate) -> list[Found]:
    """The checkpoints in a folder of checkpoints; a name without a number is part of something else."""
    found: dict[str, Found] = {}
    top = glob.escape(container.path)
    for pattern in sorted({pattern for layout in all_layouts() for pattern in layout.within}):
        for match in glob.glob(os.path.join(top, pattern)):
            if match in found:
                continue
            candidate = Candidate(match)
            if OF_A_RUN.search(candidate.name) and not OF_A_PART.search(candidate.name):
                known = _recognised(candidate)
                if known:
                    found[match] = known
    return list(found.values())


def _found(candidate: Candidate, layout: Layout) -> Found:
    step = layout.step(candidate) if layout.step_first else None
    if step is None:
        step = checkpoints_names.step_of(candidate.path)
    if step is None and not layout.step_first:
        step = layout.step(candidate)
    root = os.path.dirname(candidate.path)
    tracked = any(os.path.exists(os.path.join(root, name)) for name in layout.trackers)
    return Found(candidate.path, layout.name, step, root if tracked else "")


def _is_beside(candidate: Candidate, marker: str) -> bool:
    """Whether it is a file beside checkpoints: a manifest, a marker, or a framework's short tracker file."""
    if candidate.is_folder:
        return False
    if manifest.is_ours(candidate.name) or (marker and candidate.name.endswith(marker)):
        return True
    return (
        any(candidate.name in layout.trackers for layout in all_layouts())
        and len(candidate.head) < HEAD_BYTES
    )
