"""Repairs a broken checkpoint in a view of links, if identical shards allow it. (I/O)

Ranks of one data-parallel group often save the same bytes under different names. Such a twin may replace a
torn or missing shard of a newer checkpoint than the chosen one, only if checksums prove it:

- ftrun's manifest of this checkpoint has the lost shard's checksum, and a file with that checksum is there; or
- a complete earlier checkpoint of the run has both files under the same names with equal checksums, and here
  all remaining files that were equal there are equal again.

Names only select candidates. The view is inspected before it is loaded. The user's files are not changed.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Collection, Mapping
from typing import NamedTuple, Optional

from ftrun.hooks.checkpoints import manifest, model
from ftrun.hooks.checkpoints.diverged import why_diverged
from ftrun.hooks.checkpoints.file_check import check_file
from ftrun.hooks.checkpoints.inspection import inspect
from ftrun.hooks.checkpoints.layouts import layout_of
from ftrun.hooks.checkpoints.listing import DeadlinePassed, Tree, list_tree, map_parallel
from ftrun.hooks.checkpoints.model import Damaged, Inspection, Need
from ftrun.hooks.checkpoints.names import without_step
from ftrun.hooks.checkpoints.selection import Request, Selection

TRIED_MAX = 2
BROKEN_MAX = 64
ENOUGH_S = 1.0  # with less time left no repair is begun
NUMBERED = re.compile(r"(rank|replica|dp|proc|process|worker|node|host|part)([-_.]?)[0-9]+", re.IGNORECASE)

Sums = Mapping[str, str]
"""Checksums by name; "" or absent: unknown."""


class RepairPlan(NamedTuple):
    """The replacement of each broken shard, and the proof; `why_not`: why there is no plan, or ""."""

    instead: Mapping[str, str]
    proof: str
    why_not: str = ""


def select_repaired(selection: Selection, request: Request, view: str) -> tuple[Selection, str]:
    """The selection, with a newer checkpoint if one was repaired in `view`, and what to load ("": itself)."""
    tried = 0
    for one in selection.inspected:
        if selection.chosen is not None and one.found.path == selection.chosen.found.path:
            break
        if not _is_worth(one, request):
            continue
        tried += 1
        if tried > TRIED_MAX or time.monotonic() > request.before_s - ENOUGH_S:
            break
        place = os.path.join(view, os.path.basename(one.found.path))
        repaired = _repair(one, selection.chosen, request, place)
        if repaired is not None:
            paths = [path for path, _ in selection.passed]
            newer = selection.passed[: paths.index(one.found.path)] if one.found.path in paths else ()
            return Selection(repaired, repaired.why, newer, "", selection.inspected), place
    return selection, ""


def _is_worth(one: Inspection, request: Request) -> bool:
    return (
        one.state in (model.TORN, model.EMPTY, model.UNFLUSHED)
        and one.found.path not in request.paths_aside
        and one.size_bytes > 0
        and os.path.isdir(one.found.path)
        and not why_diverged(one.found.step, one.written_s, request.poisons)
    )


def _repair(
    one: Inspection, whole: Optional[Inspection], request: Request, view: str
) -> Optional[Inspection]:
    """The inspection of the repaired view; None if it cannot be repaired. `whole`: the chosen checkpoint."""
    before_s = request.before_s
    try:
        tree = list_tree(one.found.path, before_s)
        files = {name: fact for name, fact in tree.files.items() if not manifest.is_ours(name)}
        tree = tree._replace(files=files)
        listed = manifest.read(one.found.path)
        if listed:
            needs: Mapping[str, Need] = {
                name: Need(size_bytes=entry.size_bytes, may_be_empty=True)
                for name, entry in listed.files.items()
            }
        else:
            needs = layout_of(one.found.layout).expected(tree).needs
        broken = _broken_files(tree, needs, before_s)
        if not broken or len(broken) > BROKEN_MAX:
            return None
        sums = {name: entry.sha256 for name, entry in listed.files.items()} if listed else {}
        sound = files.keys() - broken
        lost = {sums[name] for name in broken if sums.get(name)}
        wanted = {twin for name in broken for twin in _twins(name, sound)}
        wanted |= {name for name in sound if sums.get(name) in lost}
        if not wanted:
            return None
        here = _checksums(tree, wanted)
        earlier = {} if all(map(sums.get, broken)) else _earlier(one, whole, wanted | broken, before_s)
        plan = plan_repair(broken, here=here, listed=sums, earlier=earlier)
        if plan.why_not:
            return None
        _link_view(tree, plan.instead, view)
    except (OSError, DeadlinePassed, Damaged):
        return None
    later_s = time.time() + 3600.0  # links are young, what they lead to is not
    seen = inspect(one.found._replace(path=view), marker=request.marker, now_s=later_s, before_s=before_s)
    if seen.state != model.COMPLETE:
        shutil.rmtree(os.path.dirname(view), ignore_errors=True)
        return None
    name, source = min(plan.instead.items())
    more = f" and {len(plan.instead) - 1} more" if len(plan.instead) > 1 else ""
    why = f"mended: {source} stands in for {name}{more}, proven by {plan.proof}"
    return seen._replace(found=one.found, why=why, written_s=one.written_s)


def _broken_files(tree: Tree, needs: Mapping[str, Need], before_s: float) -> set[str]:
    """The files that are missing or damaged."""

    def is_broken(name: str) -> bool:
        try:
            check_file(tree, name, needs.get(name, model.UNASKED), model.QUICK, before_s)
        except Damaged:
            return True
        return False

    names = sorted(tree.files)
    broken = {name for name, bad in zip(names, map_parallel(is_broken, names, before_s)) if bad}
    return broken | (needs.keys() - tree.files.keys())


def _checksums(tree: Tree, names: Collection[str]) -> Sums:
    here = sorted(name for name in names if name in tree.files)
    return dict(zip(here, map_parallel(lambda name: manifest.sha256(tree.at(name)), here, tree.before_s)))


def _earlier(one: Inspection, whole: Optional[Inspection], names: Collection[str], before_s: float) -> Sums:
    """The checksums of the chosen checkpoint, from its manifest or computed; names may contain the step."""
    if whole is None or not os.path.isdir(whole.found.path):
        return {}
    wanted = {name: without_step(name, one.found.step) for name in names}
    listed = manifest.read(whole.found.path)
    if listed and all(entry.sha256 for entry in listed.files.values()):
        sums: Sums = {name: entry.sha256 for name, entry in listed.files.items()}
    else:
        tree = list_tree(whole.found.path, before_s)
        places = set(wanted.values())
        sums = _checksums(
            tree, [name for name in tree.files if without_step(name, whole.found.step) in places]
        )
    by_place = {without_step(name, whole.found.step): value for name, value in sums.items()}
    return {name: by_place.get(place, "") for name, place in wanted.items()}


def _link_view(tree: Tree, instead: Mapping[str, str], view: str) -> None:
    """Make the folder of links, without what an interrupted start left there."""
    shutil.rmtree(view, ignore_errors=True)
    for name, source in {**{name: name for name in tree.files}, **instead}.items():
        target = os.path.join(view, name)
        os.makedirs(os.path.dirname(target), mode=0o700, exist_ok=True)
        os.symlink(os.path.realpath(tree.at(source)), target)


def plan_repair(broken: Collection[str], *, here: Sums, listed: Sums, earlier: Sums) -> RepairPlan:
    """Find a twin for each broken shard, all or none. Checksums: of the sound files of this checkpoint
    (`here`), of its manifest (`listed`), and of a complete checkpoint of the same run (`earlier`).
    """
    instead, proofs = {}, []
    for name in sorted(broken):
        source, proof = _by_manifest(name, here, listed), "the manifest's checksum"
        if not source:
            source, proof = _by_earlier(name, here, earlier), "the same bytes in an earlier checkpoint"
        if not source:
            return RepairPlan({}, "", f"nothing proves that another file is the same as {name}")
        instead[name] = source
        proofs.append(proof)
    return RepairPlan(instead, " and ".join(dict.fromkeys(proofs)))


def _by_manifest(name: str, here: Sums, listed: Sums) -> str:
    wanted = listed.get(name, "")
    return next((other for other in sorted(here) if wanted and here[other] == wanted), "")


def _by_earlier(name: str, here: Sums, earlier: Sums) -> str:
    then = earlier.get(name, "")
    same = [other for other in _twins(name, here) if then and earlier.get(other) == then]
    return same[0] if same and len({here[other] for other in same}) == 1 else ""


def _twins(name: str, names: Collection[str]) -> list[str]:
    """The other names that may have the same bytes."""
    shape = NUMBERED.sub(r"\1\2#", name)
    if shape == name:
        return []
    return sorted(other for other in names if other != name and NUMBERED.sub(r"\1\2#", other) == shape)
