"""A broken checkpoint made whole in a view of links, where identical shards allow it. (I/O)

How it thinks. What is newer than the choice and broken in a few of its files is worth a look, for each checkpoint more is work that need not be done again. The plan
is `repair`'s; here files are told apart (sound, broken, missing), read for their checksums as long as there is time, and linked. The view is judged as any
checkpoint is before anybody loads it. The user's files stay as they are.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Optional

from ftrun.hooks.checkpoints import contents, look, manifest, poison, repair
from ftrun.hooks.checkpoints.judge import judge
from ftrun.hooks.checkpoints.look import Late, Tree
from ftrun.hooks.checkpoints.model import COMPLETE, EMPTY, QUICK, TORN, UNFLUSHED, Damaged, Judged
from ftrun.hooks.checkpoints.picking import Picked, Question
from ftrun.hooks.checkpoints.registry import layout_of
from ftrun.hooks.layouts import Expected, Need

__all__ = ["mended"]

TRIED_MAX = 2
BROKEN_MAX = 64
ENOUGH_S = 1.0  # with less time left nothing is begun


def mended(picked: Picked, question: Question, view: str) -> tuple[Picked, str]:
    """The choice, and what to load for it ("" = itself): a newer checkpoint through `view`, where one could be made whole there."""
    tried = 0
    for one in picked.looked:
        if one is picked.judged or (picked.judged is not None and one.found.path == picked.judged.found.path):
            break
        if not _worth(one, question) or tried == TRIED_MAX or time.monotonic() > question.before_s - ENOUGH_S:
            continue
        tried += 1
        made = _made(one, picked, question, os.path.join(view, os.path.basename(one.found.path)))
        if made is not None:
            newer = [(path, why) for path, why in picked.passed if _before(path, one, picked.passed)]
            return Picked(made, made.why, newer, "", picked.looked), os.path.join(
                view, os.path.basename(one.found.path)
            )
    return picked, ""


def _before(path: str, one: Judged, passed: Sequence[tuple[str, str]]) -> bool:
    """Passed over before this one was reached."""
    order = [each for each, _ in passed]
    return order.index(path) < order.index(one.found.path) if one.found.path in order else False


def _worth(one: Judged, question: Question) -> bool:
    aside = {os.path.join(question.cwd, path) for path in question.aside}
    return (
        one.state in (TORN, EMPTY, UNFLUSHED)
        and one.found.path not in aside
        and one.size_bytes > 0
        and os.path.isdir(one.found.path)
        and not poison.against(one.found.step, one.written_s, question.poisons)
    )


def _made(one: Judged, picked: Picked, question: Question, view: str) -> Optional[Judged]:
    """The checkpoint as it is in the view; None where it cannot be made whole."""
    before_s = question.before_s
    try:
        tree = look.tree(one.found.path, before_s)
        listed = manifest.read(one.found.path)
        broken = _broken(one, tree, listed, before_s)
        if not broken or len(broken) > BROKEN_MAX:
            return None
        told = {name: entry.sha256 for name, entry in listed.files.items()} if listed else {}
        sound = [name for name in tree.files if name not in broken and not manifest.is_ours(name)]
        wanted = {other for name in broken for other in repair.twins(name, sound)}
        wanted |= {
            name for name in sound if told.get(name) and told[name] in {told.get(each) for each in broken}
        }
        if not wanted:
            return None
        here = _sums(tree, wanted, before_s)
        earlier = (
            {}
            if all(told.get(name) for name in broken)
            else _earlier(one, picked, {*wanted, *broken}, before_s)
        )
        made = repair.plan(broken, here=here, listed=told, earlier=earlier)
        if made.why_not:
            return None
        _link(tree, made.instead, view)
    except (OSError, Late, Damaged):
        return None
    seen = judge(
        one.found._replace(path=view), marker=question.marker, now_s=time.time() + 3600.0, before_s=before_s
    )
    if seen.state != COMPLETE:
        shutil.rmtree(os.path.dirname(view), ignore_errors=True)
        return None
    name, source = next(iter(sorted(made.instead.items())))
    more = f" and {len(made.instead) - 1} more" if len(made.instead) > 1 else ""
    why = f"mended: {source} stands in for {name}{more}, proven by {made.proof}"
    return seen._replace(found=one.found, why=why, written_s=one.written_s)


def _broken(one: Judged, tree: Tree, listed: Optional[manifest.Manifest], before_s: float) -> set[str]:
    """The files that are missing, or not sound. Raises Damaged where that is more than files."""
    if listed:
        needs = {
            name: Need(size_bytes=entry.size_bytes, may_be_empty=True) for name, entry in listed.files.items()
        }
        expected = Expected(needs, "ftrun's manifest")
    else:
        expected = layout_of(one.found.layout).expected(tree)
    names = sorted(name for name in tree.files if not manifest.is_ours(name))

    def unsound(name: str) -> bool:
        try:
            contents.check(
                tree,
                name,
                expected.needs.get(name, Need(size_min_bytes=0, may_be_empty=True)),
                QUICK,
                before_s,
            )
        except Damaged:
            return True
        return False

    found = look.each(unsound, names, before_s)
    return {name for name, bad in zip(names, found) if bad} | (set(expected.needs) - set(names))


def _sums(tree: Tree, names: Collection[str], before_s: float) -> Mapping[str, str]:
    ordered = sorted(name for name in names if name in tree.files)
    return dict(zip(ordered, look.each(lambda name: manifest.sha256(tree.at(name)), ordered, before_s)))


def _earlier(one: Judged, picked: Picked, names: Collection[str], before_s: float) -> Mapping[str, str]:
    """The checksums of the checkpoint that would be loaded else: by its manifest, or read. Names may bear the step."""
    if picked.judged is None or not os.path.isdir(picked.judged.found.path):
        return {}
    path = picked.judged.found.path
    listed = manifest.read(path)
    if listed and all(entry.sha256 for entry in listed.files.values()):
        sums: Mapping[str, str] = {name: entry.sha256 for name, entry in listed.files.items()}
    else:
        tree = look.tree(path, before_s)
        wanted = {_without_step(name, one.found.step) for name in names}
        ours = [name for name in tree.files if _without_step(name, picked.judged.found.step) in wanted]
        sums = _sums(tree, ours, before_s)
    by_place = {_without_step(name, picked.judged.found.step): value for name, value in sums.items()}
    return {name: by_place.get(_without_step(name, one.found.step), "") for name in names}


def _without_step(name: str, step: Optional[int]) -> str:
    """The name of a shard as it is at every step."""
    return name if step is None else re.sub(rf"(?<![0-9])0*{step}(?![0-9])", "#", name)


def _link(tree: Tree, instead: Mapping[str, str], view: str) -> None:
    """A folder of links. What a start that was cut off had left there goes first."""
    shutil.rmtree(view, ignore_errors=True)
    names = {name: name for name in tree.files if not manifest.is_ours(name)} | dict(instead)
    for name, source in names.items():
        target = os.path.join(view, name)
        os.makedirs(os.path.dirname(target), mode=0o700, exist_ok=True)
        os.symlink(os.path.realpath(tree.at(source)), target)
