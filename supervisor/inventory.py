"""All checkpoints of a run, or in a folder: each judged, the one that the next start would take, why not another. (I/O)

How it thinks. A start judges from the newest downwards and stops at the first that may be loaded; a person wants to see all of them. So all are judged,
many at once, and the choice is the same function as the start's, with what the run's journal knows: checkpoints that a start failed to load,
and the time when the training diverged.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

from ftrun.hooks.checkpoints import listing, manifest
from ftrun.hooks.checkpoints.diverged import Poison
from ftrun.hooks.checkpoints.find import find
from ftrun.hooks.checkpoints.inspection import compared_with_siblings, inspect
from ftrun.hooks.checkpoints.layouts import layout_of
from ftrun.hooks.checkpoints.model import COMPLETE, DEEP, QUICK, Choice, Inspection
from ftrun.hooks.checkpoints.selection import Request, choose, mark_poisoned, newness
from ftrun.slurm.records import dataclass, replace
from ftrun.supervisor import checkpoints, context
from ftrun.supervisor.run_types import Run

__all__ = ["Inventory", "Place", "of_run", "place", "survey", "with_manifest"]


@dataclass(frozen=True, slots=True)
class Place:
    """Where to look, and what is known of what lies there.

    `title`: what a person calls it; `run`: its run, "" for none; `marker`: the name of the completeness marker; `aside`: paths that a
    start failed to load; `poisons`: when trainings diverged; `run_dir`: the run's folder.
    """

    title: str
    patterns: tuple[str, ...]
    cwd: str
    run: str = ""
    marker: str = ""
    aside: tuple[str, ...] = ()
    poisons: tuple[Poison, ...] = ()
    run_dir: str = ""


@dataclass(frozen=True, slots=True)
class Inventory:
    """What lies in a place: `judged` newest first, and the choice of the next start."""

    place: Place
    judged: tuple[Inspection, ...]
    choice: Choice


def of_run(run_dir: str, run: Run) -> Place:
    """Where a run says that its checkpoints are; no pattern where it says nothing."""
    cwd = context.cwd(run_dir) or "/"
    return Place(
        run.id,
        tuple(str(run.settings.get("checkpoint", "")).splitlines()),
        cwd,
        run=run.id,
        marker=str(run.settings.get("checkpoint-marker", "")),
        aside=tuple(os.path.join(cwd, path) for path in checkpoints.still_aside(run.set_aside)),
        poisons=run.poisoned,
        run_dir=run_dir,
    )


def place(pattern: str) -> Place:
    """A file, a folder of checkpoints or a glob, from the working folder."""
    plain = pattern.removeprefix("./") or "."
    return Place(pattern, (plain,), str(Path.cwd()))


def survey(where: Place, *, deep: bool = False) -> Inventory:
    """Judge all of them; `deep` reads every byte that has a checksum."""
    now_s = time.time()
    level = DEEP if deep else QUICK
    found = find(where.patterns, cwd=where.cwd, marker=where.marker)
    seen = listing.map_parallel(
        lambda one: inspect(one, level=level, marker=where.marker, now_s=now_s, run_dir=where.run_dir),
        found,
        float("inf"),
    )
    seen = [compared_with_siblings(one, found, before_s=float("inf"), now_s=now_s) for one in seen]
    return _chosen(where, seen)


def with_manifest(inventory: Inventory) -> tuple[Inventory, tuple[tuple[str, str], ...]]:
    """Write ftrun's manifest for each complete checkpoint that has none. Returns what is known then, and (path, reason) where it was not written."""
    done, refused = [], []
    for one in inventory.judged:
        why = _without(one)
        if not why:
            try:
                _write(one)
                one = one._replace(why=f"ftrun's manifest, written now; {one.why}")  # noqa: PLW2901
            except OSError as error:
                why = f"its manifest cannot be written: {error.strerror}"
        if why:
            refused.append((one.found.path, why))
        done.append(one)
    return replace(inventory, judged=tuple(done)), tuple(refused)


def _chosen(where: Place, seen: Sequence[Inspection]) -> Inventory:
    question = Request(where.patterns, where.cwd, poisons=where.poisons, run_dir=where.run_dir)
    judged = sorted(mark_poisoned(seen, question), key=newness, reverse=True)
    return Inventory(where, tuple(judged), choose(judged, aside=where.aside))


def _without(one: Inspection) -> str:
    """Why no manifest is written for it; "" where one is."""
    if one.state != COMPLETE:
        return f"{one.state}: {one.why}"
    path = one.found.path
    places = (manifest.place_of(path, name) for name in (manifest.MANIFEST, manifest.MARKER))
    return "it has one" if all(map(os.path.exists, places)) else ""


def _write(one: Inspection) -> None:
    tree = (layout_of(one.found.layout).tree or listing.list_tree)(one.found.path, float("inf"))
    written = manifest.of_tree(tree, one.found.step, sums=True)._replace(world=one.world)
    manifest.write(one.found.path, written)
    manifest.write_marker(one.found.path)
