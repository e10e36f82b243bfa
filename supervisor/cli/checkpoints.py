"""`ftrun checkpoints`: list checkpoints, their state, and the one that the next start takes. (I/O)"""

from __future__ import annotations

import glob
import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any

from ftrun.hooks.checkpoints.model import COMPLETE, Inspection
from ftrun.hooks.runtime.formats import size_text
from ftrun.supervisor.cli import common
from ftrun.supervisor.cli.options import Json, argument, option
from ftrun.supervisor.model.errors import UserError
from ftrun.supervisor.reports import view_checkpoints
from ftrun.supervisor.reports.view_checkpoints import Inventory, Place
from ftrun.supervisor.reports.view_run import zoned_clock_text
from ftrun.supervisor.store import run_dir as store_run_dir

Where = Annotated[
    list[str] | None,
    argument(
        "RUN|DIR|GLOB",
        "A run id or job id; a checkpoint, a folder of them or a glob. Default: all runs that are not over.",
        show_default=False,
    ),
]
Deep = Annotated[bool, option("--deep", "Read every byte that has a checksum.")]
WithManifest = Annotated[
    bool,
    option(
        "--manifest",
        "Write ftrun's list of files with their SHA-256 sums for each complete checkpoint that has none (implies --deep).",
    ),
]
Marker = Annotated[
    str,
    option(
        "--marker",
        "The file that marks a checkpoint as complete, where no run names it: as --ft-checkpoint-marker.",
        "NAME",
    ),
]


def checkpoints(
    where: Where = None,
    deep: Deep = False,
    with_manifest: WithManifest = False,
    marker: Marker = "",
    json: Json = False,
) -> int:
    """List checkpoints, newest first: whether each is complete, why not, and which one the next start takes.

    Nothing is loaded or unpickled, and nothing is written without --manifest. The settings and the journal of
    a run say where its checkpoints are, which of them a start failed to load, and since when its training had
    diverged.
    """
    listed: list[dict[str, Any]] = []
    failed = False
    for place in _places(where or [], marker):
        found = view_checkpoints.survey(place, deep=deep or with_manifest)
        refused: Sequence[tuple[str, str]] = ()
        if with_manifest:
            found, refused = view_checkpoints.with_manifest(found)
            failed = failed or any("cannot be written" in why for _, why in refused)
        if json:
            listed.append(_facts(found, dict(refused)))
        else:
            _show(found, titled=len(where or []) != 1)
            for path, why in refused:
                print(f"ftrun: no manifest for {_short(path, found.place)}: {why}", file=sys.stderr)
    if json:
        common.print_json({"places": listed})
    return int(failed)


def _places(where: Sequence[str], marker: str) -> list[Place]:
    if not where:
        home_dir = common.home()
        runs = [(run_dir, run) for run_dir, run in common.all_runs(home_dir) if not run.final]
        places = [view_checkpoints.place_of_run(run_dir, run) for run_dir, run in runs]
        found = [place for place in places if place.patterns]
        if not found:
            raise UserError("no open run says where its checkpoints are; name a run, a folder or a glob", 1)
        return found
    return [_place(name, marker) for name in where]


def _place(name: str, marker: str) -> Place:
    """The place of a run, or of a path; a name that is no run may still be a folder here."""
    is_path = "/" in name or name.startswith(("~", ".")) or glob.has_magic(name)
    if not is_path and (store_run_dir.find_run(common.home(), name) or not os.path.exists(name)):
        try:
            run_dir = common.find_run_dir(name)
        except UserError as error:
            raise UserError(f"{error}; no file or folder {name} is here either") from None
        run = common.load_run(run_dir)
        place = view_checkpoints.place_of_run(run_dir, run)
        if not place.patterns:
            raise UserError(
                f"{run.id} was not told where its checkpoints are (--ft-checkpoint); name their folder", 1
            )
        return place
    if not glob.glob(os.path.expanduser(name)):
        raise UserError(f"{name}: no such file or folder", 1)
    found = view_checkpoints.place_of_path(name)
    return Place(found.title, found.patterns, found.cwd, marker=marker)


def _facts(found: Inventory, refused: dict[str, str]) -> dict[str, Any]:
    chosen, passed = _next(found), dict(found.choice.passed)
    rows = [
        {
            "path": one.found.path,
            "step": one.found.step,
            "written_at": one.written_s or None,
            "size_bytes": one.size_bytes,
            "files": one.shards,
            "world": one.world,
            "layout": one.found.layout,
            "state": one.state,
            "level": one.level,
            "why": one.why,
            "root": one.found.root or None,
            "next": one.found.path == chosen,
            "passed_over": passed.get(one.found.path),
            **({"no_manifest": refused[one.found.path]} if one.found.path in refused else {}),
        }
        for one in found.judged
    ]
    return {
        "of": found.place.title,
        "run": found.place.run or None,
        "next": chosen or None,
        "why": found.choice.why,
        "checkpoints": rows,
    }


def _show(found: Inventory, *, titled: bool) -> None:
    if titled:
        common.print_styled(f"{found.place.title}:", style="bold")
    if not found.judged:
        print(f"no checkpoint: nothing matches {', '.join(found.place.patterns)} from {found.place.cwd}")
        return
    chosen, passed = _next(found), dict(found.choice.passed)
    rows = [
        [
            "next" if one.found.path == chosen else None,
            one.found.step,
            zoned_clock_text(one.written_s or None),
            size_text(one.size_bytes) if one.shards else None,
            one.shards or None,
            one.found.layout,
            one.state,
            one.level,
            _short(one.found.path, found.place),
            _why(one, passed.get(one.found.path, "")),
        ]
        for one in found.judged
    ]
    common.print_table(
        ["", "STEP", "WRITTEN", "SIZE", "FILES", "LAYOUT", "STATE", "LEVEL", "CHECKPOINT", "WHY"], rows
    )
    if not chosen:
        print("the next start would resume from none of them")


def _next(found: Inventory) -> str:
    return found.choice.chosen.found.path if found.choice.chosen else ""


def _why(one: Inspection, passed: str) -> str:
    """Why it has its state; for a complete one that is passed over, why it is."""
    return passed if passed and one.state == COMPLETE else one.why


def _short(path: str, place: Place) -> str:
    """The path relative to the folder of its pattern, where it lies below."""
    return os.path.relpath(path, place.cwd) if path.startswith(place.cwd.rstrip("/") + "/") else path
