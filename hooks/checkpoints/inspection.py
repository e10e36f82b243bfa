"""Decides whether a checkpoint is complete: by itself without loading it, or by its siblings. (I/O)

The inspection stops at the first proof of damage: the name is a temporary one; the user's marker is missing;
ftrun's manifest disagrees; shards in the layout's metadata are missing; a file is not sound; something changed
meanwhile. Damage in a checkpoint that was written to within the last minute is `writing`. What could not be
read is no damage: the checkpoint is complete by rule.

A folder without a known layout must have what its two nearest neighbours by step have; of one neighbour alone
only if that is older, since a run that continues with fewer ranks has smaller sets. Only certain parts are
compared: one of several files with the same name except for a number, or a file with a hundredth of the
folder's bytes. A part is truncated if it has less than `CUT` of the smallest part beside it, or if it is
smaller while the others are of one size, as tensors are.
"""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple, Optional

from ftrun.hooks.checkpoints import deep_results, file_check, listing, manifest, model, names
from ftrun.hooks.checkpoints.layouts import layout_of
from ftrun.hooks.checkpoints.listing import DeadlinePassed, Tree
from ftrun.hooks.checkpoints.model import Damaged, Expected, Found, Inspection, Layout

YOUNG_S = 60.0


class Proof(NamedTuple):
    """That no damage was found: in words, the level reached, and how many processes wrote it."""

    why: str
    level: str
    world: Optional[int] = None


def inspect(
    found: Found,
    *,
    level: str = model.QUICK,
    marker: str = "",
    now_s: float,
    before_s: float = math.inf,
    run_dir: str = "",
) -> Inspection:
    """Inspect one checkpoint at a level (QUICK or DEEP). Never raises. `now_s`: the present time (Unix
    seconds), compared with times of writing. `before_s`: a deadline (monotonic); what was not read by then
    counts as sound, and `level` says so. `marker`: the user's completeness marker. `run_dir`: the run's
    folder with earlier results of the deep level ("": none).
    """
    try:
        look = partial(_inspect, level=level, marker=marker, now_s=now_s, before_s=before_s, run_dir=run_dir)
        return listing.map_parallel(look, [found], before_s)[0]
    except DeadlinePassed:
        return Inspection(found, model.COMPLETE, "time ran out: taken as it stands")


def tree_of(found: Found, before_s: float = math.inf) -> Tree:
    """All files of a checkpoint. Raises OSError, DeadlinePassed."""
    return (layout_of(found.layout).tree or listing.list_tree)(found.path, before_s)


def _inspect(
    found: Found, *, level: str, marker: str, now_s: float, before_s: float, run_dir: str
) -> Inspection:
    layout, name = layout_of(found.layout), os.path.basename(found.path)
    if layout.temporary(found.path):
        return Inspection(found, model.TEMPORARY, f"{name} is the name of something unfinished")
    try:
        tree = tree_of(found, before_s)
    except (FileNotFoundError, NotADirectoryError):
        return Inspection(found, model.TORN, f"{name} is gone")
    except (OSError, DeadlinePassed) as error:
        why = f"its files could not be listed ({_reason(error)}): taken as it stands"
        return Inspection(found, model.COMPLETE, why)
    files = {name: fact for name, fact in tree.files.items() if not manifest.is_ours(name)}
    seen = Inspection(
        found,
        model.COMPLETE,
        "",
        size_bytes=sum(fact.size_bytes for fact in files.values()),
        shards=len(files),
        written_s=max((fact.written_s for fact in files.values()), default=0.0),
    )
    is_young = abs(now_s - seen.written_s) < YOUNG_S
    try:
        if not seen.size_bytes:
            raise Damaged(model.EMPTY, f"{name} has no byte in {len(files)} files")
        _check_marker(found.path, marker)
        proof = _prove(layout, tree._replace(files=files), level, before_s)
        if is_young:
            _check_unchanged(found, tree)
    except Damaged as damaged:
        state = model.WRITING if is_young else damaged.state
        return seen._replace(state=state, why=damaged.why, level=level)
    except (OSError, DeadlinePassed) as error:
        return seen._replace(why=f"it could not be looked into ({_reason(error)}): taken as it stands")
    seen = seen._replace(why=proof.why, level=proof.level, world=proof.world)
    return seen if level == model.DEEP else deep_results.with_deep_result(seen, tree, run_dir)


def _prove(layout: Layout, tree: Tree, level: str, before_s: float) -> Proof:
    """Raises Damaged if anything proves damage."""
    listed = manifest.read(tree.path)
    if listed is None:
        return _prove_files(layout.expected(tree), tree, level, before_s)
    needs = {
        # A note may have grown since.
        name: model.UNASKED._replace(size_min_bytes=one.size_bytes)
        if names.is_note(name)
        else model.UNASKED._replace(size_bytes=one.size_bytes, sha256=one.sha256)
        for name, one in listed.files.items()
    }
    try:
        return _prove_files(Expected(needs, "ftrun's manifest", world=listed.world), tree, level, before_s)
    except Damaged:
        if max(fact.written_s for fact in tree.files.values()) <= listed.written_s:
            raise
        return _prove_rewritten(layout, tree, level, before_s)


def _prove_rewritten(layout: Layout, tree: Tree, level: str, before_s: float) -> Proof:
    """A checkpoint that was written again after its manifest: its layout alone must prove it."""
    expected = layout.expected(tree)
    proof = _prove_files(expected, tree, level, before_s)
    # A folder may have files of both saves; a single unproven file is judged as without a manifest.
    if len(tree.files) > 1 and (proof.level == model.RULE or not expected.sure):
        raise Damaged(
            model.TORN, "it differs from ftrun's manifest, which is older, and nothing else proves it"
        )
    return proof._replace(why=f"{proof.why}; written again since ftrun's manifest")


def _prove_files(expected: Expected, tree: Tree, level: str, before_s: float) -> Proof:
    missing = sorted(set(expected.needs) - set(tree.files))
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise Damaged(model.TORN, f"{missing[0]}{more} is missing: {expected.by}")
    proven = listing.map_parallel(
        lambda name: file_check.check_file(
            tree, name, expected.needs.get(name, model.UNASKED), level, before_s
        ),
        sorted(tree.files),
        before_s,
    )
    words = sorted({word for word in proven if word})
    reached = level if expected.sure or words else model.RULE
    return Proof("; ".join([expected.by, *words]), reached, expected.world)


def _check_marker(path: str, marker: str) -> None:
    """As in batch.sh: the marker is in the folder, or beside it under its name and the marker's."""
    if not marker or os.path.exists(path + marker):
        return
    if not (os.path.isdir(path) and os.path.exists(os.path.join(path, marker))):
        raise Damaged(model.TORN, f"its marker {marker} is not there")


def _check_unchanged(found: Found, tree: Tree) -> None:
    again = tree_of(found, tree.before_s)
    for name in sorted({*tree.files, *again.files}):
        if not names.is_note(name) and tree.files.get(name) != again.files.get(name):
            raise Damaged(model.WRITING, f"{name} changed while it was looked at")


def _reason(error: Exception) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else "time ran out"


NEAREST = 2
CUT = 0.9
FIXED_MIN_BYTES = 4096  # smaller files may have the same size by chance
SHARE = 0.01
FILES_MAX = 10_000
DIGITS = re.compile(r"\d+")

Sizes = Mapping[str, int]


def compared_with_siblings(
    one: Inspection, others: Sequence[Found], *, before_s: float, now_s: float
) -> Inspection:
    """The inspection, changed to torn if `others`, found with it, prove that. Never raises OSError."""
    if one.state != model.COMPLETE or not _is_plain(one.found):
        return one
    folder = os.path.dirname(one.found.path)
    beside = [
        other
        for other in others
        if other.path != one.found.path and _is_plain(other) and os.path.dirname(other.path) == folder
    ]
    try:
        if manifest.read(one.found.path) is not None:  # it is judged by that list
            return one
        why = _why_torn(one.found, _nearest(one.found, beside), before_s)
    except (OSError, DeadlinePassed, Damaged):
        return one
    if not why:
        return one
    return one._replace(state=model.WRITING if abs(now_s - one.written_s) < YOUNG_S else model.TORN, why=why)


def _is_plain(found: Found) -> bool:
    return found.layout == "any" and found.step is not None and os.path.isdir(found.path)


def _nearest(one: Found, beside: Sequence[Found]) -> list[Found]:
    """The neighbours, older ones first: a newer one may be torn itself, and is ignored alone."""

    def distance(other: Found) -> tuple[bool, int]:
        steps = (other.step or 0) - (one.step or 0)
        return steps > 0, abs(steps)

    nearest = sorted((other for other in beside if other.step != one.step), key=distance)[:NEAREST]
    return [] if len(nearest) == 1 and distance(nearest[0])[0] else nearest


def _why_torn(one: Found, beside: Sequence[Found], before_s: float) -> str:
    """Why it is torn; "" if nothing proves that. Raises OSError, DeadlinePassed."""
    mine = _sizes(one.path, before_s)
    known = [(other, sizes) for other in beside if (sizes := _sizes(other.path, before_s))]
    if not known or max(map(len, (mine, *(sizes for _, sizes in known)))) > FILES_MAX:
        return ""
    first, sizes = known[0]
    called = [_names_there(sizes, first, theirs, other) for other, theirs in (*known, (one, mine))]
    told = []
    for name in sorted(_parts(sizes)):
        has = [theirs.get(way[name], 0) for way, (_, theirs) in zip(called, known)]
        if not all(has):
            continue
        here = called[-1][name]
        size_bytes, there = mine.get(here), f"{has[0]} bytes in {os.path.basename(first.path)}"
        if size_bytes is None:
            told.append(f"{here} is missing, which has {there}")
        elif not size_bytes:
            told.append(f"{here} is empty, which has {there}")
        elif _is_cut(size_bytes, has):
            told.append(f"{here} has {size_bytes} bytes, and {there}")
    return " and ".join(told[:1] + ([f"{len(told) - 1} more of its parts are not whole"] if told[1:] else []))


def _is_cut(size_bytes: int, beside: Sequence[int]) -> bool:
    least = min(beside)
    fixed = len(beside) > 1 and len(set(beside)) == 1 and least >= FIXED_MIN_BYTES
    return size_bytes < least * (1.0 if fixed else CUT)


def _parts(sizes: Sizes) -> list[str]:
    """The files that are certainly parts of the checkpoint."""
    families = Counter(DIGITS.sub("#", name) for name in sizes)
    least = SHARE * sum(sizes.values())
    return [
        name
        for name, size_bytes in sizes.items()
        if size_bytes and (families[DIGITS.sub("#", name)] > 1 or size_bytes >= least)
    ]


def _names_there(sizes: Sizes, of: Found, theirs: Sizes, there: Found) -> Mapping[str, str]:
    """The name of each part in another folder: the same, or with that folder's step, as fits most parts."""
    step, other = of.step or 0, there.step or 0
    ways = [{name: name for name in sizes}]
    ways += [{name: names.with_step(name, step, other, count) for name in sizes} for count in (1, 0)]
    return max(ways, key=lambda way: len(set(way.values()) & theirs.keys()))


def _sizes(path: str, before_s: float) -> Sizes:
    files = listing.list_tree(path, before_s).files
    return {
        name: fact.size_bytes
        for name, fact in files.items()
        if not names.is_note(name) and not manifest.is_ours(name)
    }
