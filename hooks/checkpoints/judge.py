"""Whether a checkpoint is complete, judged without loading it. (I/O)

How it thinks. What can be proven is proven in this order, and the first proof of damage ends it: the name is not a temporary one; the
user's marker is there; ftrun's manifest, where there is one, agrees; the shards that the layout's metadata asks for are there; each
file is sound inside as far as the level reads it; nothing changed meanwhile. Damage in a checkpoint that somebody wrote to within the last
minute is `writing`. What could not be looked at, because time ran out or the file system refused, is no damage: it is complete by rule.
"""

from __future__ import annotations

import math
import os
import re
from typing import NamedTuple, Optional

from ftrun.hooks.checkpoints import contents, look, manifest, verdicts
from ftrun.hooks.checkpoints.look import Late, Tree
from ftrun.hooks.checkpoints.model import (
    COMPLETE,
    DEEP,
    EMPTY,
    QUICK,
    RULE,
    TEMPORARY,
    TORN,
    WRITING,
    Damaged,
    Found,
    Judged,
)
from ftrun.hooks.checkpoints.registry import layout_of
from ftrun.hooks.layouts import UNASKED, Expected, Layout, Need

__all__ = ["YOUNG_S", "judge", "tree_of"]

YOUNG_S = 60.0
# What others go on writing into a folder that is complete: logs, curves, results of an evaluation.
NOTES = re.compile(r"\.(?:log|out|err|txt|jsonl|csv|lock)$|tfevents", re.IGNORECASE)


class Asked(NamedTuple):
    """What `judge` was asked, as it says."""

    level: str
    marker: str
    now_s: float
    before_s: float
    run_dir: str


class Proof(NamedTuple):
    """That nothing speaks against it: in what words, how far one looked, and the processes that wrote it."""

    why: str
    level: str
    world: Optional[int] = None


def judge(
    found: Found,
    *,
    level: str = QUICK,
    marker: str = "",
    now_s: float,
    before_s: float = math.inf,
    run_dir: str = "",
) -> Judged:
    """Judge one checkpoint at a level (QUICK or DEEP).

    `now_s`: the time (Unix seconds), compared with when files were written. `before_s`: a deadline by time.monotonic; what was not
    looked at by then is taken as it stands, and `level` says so. `marker`: the name of the user's own completeness marker. `run_dir`: the folder of the
    run, where what the deep level found before is kept ("" = nowhere). Never raises.
    """
    asked = Asked(level, marker, now_s, before_s, run_dir)
    try:
        return look.each(lambda one: _judged(one, asked), [found], before_s)[0]
    except Late:
        return Judged(found, COMPLETE, "time ran out: taken as it stands")


def tree_of(found: Found, before_s: float = math.inf) -> Tree:
    """All files of a checkpoint. Raises OSError, Late."""
    return _tree(layout_of(found.layout), found.path, before_s)


def _judged(found: Found, asked: Asked) -> Judged:
    layout, level, before_s = layout_of(found.layout), asked.level, asked.before_s
    if layout.temporary(found.path):
        return Judged(found, TEMPORARY, f"{os.path.basename(found.path)} is the name of something unfinished")
    try:
        tree = _tree(layout, found.path, before_s)
    except (FileNotFoundError, NotADirectoryError):
        return Judged(found, TORN, f"{os.path.basename(found.path)} is gone")
    except (OSError, Late) as error:
        return Judged(found, COMPLETE, f"its files could not be listed ({_said(error)}): taken as it stands")
    files = {name: fact for name, fact in tree.files.items() if not manifest.is_ours(name)}
    seen = Judged(
        found,
        COMPLETE,
        "",
        size_bytes=sum(fact.size_bytes for fact in files.values()),
        shards=len(files),
        written_s=max((fact.written_s for fact in files.values()), default=0.0),
    )
    is_young = abs(asked.now_s - seen.written_s) < YOUNG_S
    try:
        if not seen.size_bytes:
            raise Damaged(EMPTY, f"{os.path.basename(found.path)} has no byte in {len(files)} files")
        _marked(found.path, asked.marker)
        proof = _proof(layout, tree._replace(files=files), level, before_s)
        if is_young:
            _unchanged(layout, tree, before_s)
    except Damaged as damaged:
        state = WRITING if is_young else damaged.state
        return seen._replace(state=state, why=damaged.why, level=level)
    except (OSError, Late) as error:
        return seen._replace(why=f"it could not be looked into ({_said(error)}): taken as it stands")
    seen = seen._replace(why=proof.why, level=proof.level, world=proof.world)
    return seen if level == DEEP else verdicts.applied(seen, tree, asked.run_dir)


def _proof(layout: Layout, tree: Tree, level: str, before_s: float) -> Proof:
    """Raise Damaged where anything speaks against it."""
    listed = manifest.read(tree.path)
    if listed is None:
        return _looked(layout.expected(tree), tree, level, before_s)
    needs = {name: _listed(name, one) for name, one in listed.files.items()}
    try:
        return _looked(Expected(needs, "ftrun's manifest", world=listed.world), tree, level, before_s)
    except Damaged:
        if max(fact.written_s for fact in tree.files.values()) <= listed.written_s:
            raise
        return _rewritten(layout, tree, level, before_s)


def _listed(name: str, entry: manifest.Entry) -> Need:
    if NOTES.search(name):  # it may have grown since
        return UNASKED._replace(size_min_bytes=entry.size_bytes)
    return UNASKED._replace(size_bytes=entry.size_bytes, sha256=entry.sha256)


def _rewritten(layout: Layout, tree: Tree, level: str, before_s: float) -> Proof:
    """A checkpoint that was written again under its name, after its manifest: its layout must prove it without that."""
    expected = layout.expected(tree)
    proof = _looked(expected, tree, level, before_s)
    # A folder may hold files of both saves; one file that nothing proves is what it would be without a manifest.
    if len(tree.files) > 1 and (proof.level == RULE or not expected.sure):
        raise Damaged(TORN, "it differs from ftrun's manifest, which is older, and nothing else proves it")
    return proof._replace(why=f"{proof.why}; written again since ftrun's manifest")


def _looked(expected: Expected, tree: Tree, level: str, before_s: float) -> Proof:
    missing = sorted(set(expected.needs) - set(tree.files))
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise Damaged(TORN, f"{missing[0]}{more} is missing: {expected.by}")
    proven = look.each(
        lambda name: contents.check(tree, name, expected.needs.get(name, UNASKED), level, before_s),
        sorted(tree.files),
        before_s,
    )
    words = sorted({word for word in proven if word})
    reached = level if expected.sure or words else RULE
    return Proof("; ".join([expected.by, *words]), reached, expected.world)


def _marked(path: str, marker: str) -> None:
    """The rule of batch.sh: the marker lies in the folder, or beside it under its name and the marker's."""
    if not marker or os.path.exists(path + marker):
        return
    if not (os.path.isdir(path) and os.path.exists(os.path.join(path, marker))):
        raise Damaged(TORN, f"its marker {marker} is not there")


def _tree(layout: Layout, path: str, before_s: float) -> Tree:
    return (layout.tree or look.tree)(path, before_s)


def _unchanged(layout: Layout, tree: Tree, before_s: float) -> None:
    again = _tree(layout, tree.path, before_s)
    for name in sorted(set(tree.files) | set(again.files)):
        if NOTES.search(name):
            continue
        if tree.files.get(name) != again.files.get(name):
            raise Damaged(WRITING, f"{name} changed while it was looked at")


def _said(error: Exception) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else "time ran out"
