"""Checkpoints as facts for people and programs: on disk, staged in memory, verified. (I/O)

**On disk** (`survey`). A start inspects checkpoints from the newest downwards and stops at the first that may
be loaded. Here all are inspected, in parallel, and the choice is made by the same function as a start's, with
what the run's journal knows: checkpoints that a start failed to load, and the time when training diverged.

**Staged** (`staged_facts`). Each node writes a report into the attempt's folder. A set is as far as its slowest
node: it is published when all nodes that have a part of it say so. The reports of a job that is over show how
it ended.

**Verified** (`verified_facts`). The checkpoints that were read in full in the background, and the result.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ftrun.hooks.checkpoints import deep_results, listing, manifest
from ftrun.hooks.checkpoints.diverged import Divergence
from ftrun.hooks.checkpoints.find import find
from ftrun.hooks.checkpoints.inspection import compared_with_siblings, inspect
from ftrun.hooks.checkpoints.layouts import layout_of
from ftrun.hooks.checkpoints.model import COMPLETE, DEEP, QUICK, Choice, Inspection
from ftrun.hooks.checkpoints.selection import Request, choose, mark_diverged, newness
from ftrun.slurm import records
from ftrun.slurm.records import dataclass, replace
from ftrun.supervisor.config.settings import text_of
from ftrun.supervisor.model.run import Run
from ftrun.supervisor.store import checkpoints, submission_context
from ftrun.supervisor.store import run_dir as store_run_dir


def lack_of_checkpoints(run_dir: str, run: Run) -> str:
    """Why a restart of the run would go on from no checkpoint that ftrun knows; "" where it has one, or is over."""
    if run.final:
        return ""
    pattern = text_of(run.settings, "checkpoint") if run.settings.get("checkpoint") else ""
    if not pattern:
        return "no checkpoint setting: ftrun cannot tell from where a restart goes on (`ftrun init SCRIPT` proposes one)"
    if (
        run.best_step is None
        or run.best_checkpoint
        or checkpoints.complete_checkpoints(pattern, cwd=submission_context.cwd(run_dir))
    ):
        return ""
    return f"step {run.best_step} is reached, and nothing matches --ft-checkpoint={pattern}: a restart begins from nothing"


@dataclass(frozen=True, slots=True)
class Place:
    """Where to look for checkpoints, and what the run knows of them.

    `title`: the user's name for it; `run`: its run, "" for none; `marker`: name of the completeness marker;
    `aside`: paths that a start failed to load; `poisons`: when trainings diverged; `run_dir`: the folder of
    the run.
    """

    title: str
    patterns: tuple[str, ...]
    cwd: str
    run: str = ""
    marker: str = ""
    aside: tuple[str, ...] = ()
    poisons: tuple[Divergence, ...] = ()
    run_dir: str = ""


@dataclass(frozen=True, slots=True)
class Inventory:
    """The checkpoints of a place: `judged`, newest first, and the choice of the next start."""

    place: Place
    judged: tuple[Inspection, ...]
    choice: Choice


def place_of_run(run_dir: str, run: Run) -> Place:
    """The place that a run's settings name; without a pattern if they name none."""
    cwd = submission_context.cwd(run_dir) or "/"
    return Place(
        run.id,
        tuple(text_of(run.settings, "checkpoint").splitlines()),
        cwd,
        run=run.id,
        marker=text_of(run.settings, "checkpoint-marker"),
        aside=tuple(os.path.join(cwd, path) for path in checkpoints.unchanged_since_set_aside(run.set_aside)),
        poisons=run.poisoned,
        run_dir=run_dir,
    )


def place_of_path(pattern: str) -> Place:
    """The place of a file, a folder of checkpoints or a glob, relative to the working directory."""
    plain = pattern.removeprefix("./") or "."
    return Place(pattern, (plain,), str(Path.cwd()))


def survey(where: Place, *, deep: bool = False) -> Inventory:
    """Inspect all checkpoints of a place; `deep` reads every byte that has a checksum."""
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
    """Write a manifest for each complete checkpoint without one; of the others: (path, why not)."""
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
    judged = sorted(mark_diverged(seen, question), key=newness, reverse=True)
    return Inventory(where, tuple(judged), choose(judged, aside=where.aside))


def _without(one: Inspection) -> str:
    """Why no manifest is to be written for it; "" if one is."""
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


REPORT_MAX_BYTES = 1 << 20
_ORDER = (
    "given up",
    "refused",
    "writing",
    "sealed",
    "published",
)  # the earliest of these that any node reports is the state of the set


def staged_facts(run_dir: str, run: Run) -> dict[str, Any] | None:
    """The staged checkpoints of a run's present attempt; None if it stages none, or no node has reported."""
    if not run.settings.get("stage") or run.attempt is None:
        return None
    folder = os.path.join(run_dir, "attempts", str(run.attempt.number), "stage")
    try:
        names = sorted(name for name in os.listdir(folder) if name.endswith(".json"))
    except OSError:
        return None
    reports = [_read(os.path.join(folder, name)) for name in names]
    known = [report for report in reports if report.get("launch") == run.attempt.launch.number]
    return {"to": run.settings["stage"], **sum_reports(known)} if known else None


def sum_reports(reports: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The reports of all nodes, summed up."""
    sets: dict[tuple[str, str], dict[str, Any]] = {}
    for report in reports:
        for row in report.get("sets", ()):
            one = sets.setdefault(
                (row["start"], row["set"]),
                {"set": row["set"], "start": row["start"], "state": "published", "size_bytes": 0, "nodes": 0, "why": "", "sealed_s": 0.0},
            )  # fmt: skip
            one["size_bytes"] += row["size_bytes"]
            one["nodes"] += 1
            one["sealed_s"] = max(one["sealed_s"], row["sealed_s"])
            if _rank(row["state"]) < _rank(one["state"]) or (row["state"] == one["state"] and not one["why"]):
                one["state"], one["why"] = row["state"], row["why"]
    return {
        "nodes": len(reports),
        "sets": sorted(sets.values(), key=lambda one: (one["sealed_s"], one["set"])),
        "backlog_bytes": sum(report.get("backlog_bytes", 0) for report in reports),
        "used_bytes": max((report.get("used_bytes", 0) for report in reports), default=0),
        "limit_bytes": min((report.get("limit_bytes", 0) for report in reports), default=0),
        "flushed_bytes": sum(report.get("flushed_bytes", 0) for report in reports),
        "dropped": sorted({name for report in reports for name in report.get("dropped", ())}),
        "why": next((report["why"] for report in reports if report.get("why")), ""),
    }


def staged_text(told: Mapping[str, Any]) -> str:
    """The state of staging in one line."""
    published = [one for one in told["sets"] if one["state"] == "published"]
    waiting = [one for one in told["sets"] if one["state"] in ("writing", "sealed")]
    refused = refusals(told)
    if published:
        said = [
            f"{published[-1]['set']} published"
            + (f" ({published[-1]['why']})" if published[-1]["why"] else "")
        ]
    else:
        said = ["none published" if refused else "none published yet"]
    if waiting:
        said.append(f"{waiting[-1]['set']} in memory ({told['backlog_bytes'] / 2**30:.1f} GiB to go out)")
    said += refused[-2:]
    if told["dropped"]:
        said.append(f"dropped for want of room: {', '.join(told['dropped'])}")
    if told["why"]:
        said.append(told["why"])
    return "; ".join(said)


def refusals(told: Mapping[str, Any]) -> list[str]:
    """The sets that were refused or given up and not published since, each with its reason, oldest first."""
    done = {one["set"] for one in told["sets"] if one["state"] == "published"}
    bad = [
        one
        for one in told["sets"]
        if _rank(one["state"]) < _ORDER.index("writing") and one["set"] not in done
    ]
    return list({one["set"]: f"{one['set']} {one['state']}: {one['why']}" for one in bad}.values())


def staging_problem(told: Mapping[str, Any]) -> str:
    """What keeps the newest checkpoints from being published, in one line; "" for nothing."""
    newest = max(told["sets"], key=lambda one: (one["sealed_s"], one["set"]), default=None)
    is_bad = newest is not None and newest["state"] in _ORDER[:2]
    last = (
        refusals(told)[-1:] if is_bad or not any(one["state"] == "published" for one in told["sets"]) else []
    )
    return "; ".join([*last, *filter(None, [told["why"]])])


def _rank(state: str) -> int:
    return _ORDER.index(state) if state in _ORDER else 0


def _read(path: str) -> dict[str, Any]:
    try:
        told = json.loads(store_run_dir.read_untrusted(path, REPORT_MAX_BYTES) or b"{}")
    except (OSError, ValueError):
        return {}
    return told if isinstance(told, dict) else {}


def verified_facts(run_dir: str) -> list[dict[str, Any]]:
    """Each verified checkpoint, the last one last: result, time (Unix seconds), duration."""
    return [
        records.columns(one, "path state level why size_bytes at=at_s seconds")
        for one in deep_results.load_all(run_dir)
    ]


def shown_rows(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The broken checkpoints, and the last one."""
    return [row for row in rows if row["state"] != COMPLETE or row is rows[-1]]


def verified_line(row: dict[str, Any]) -> str:
    """One verified checkpoint in a line."""
    took = f"{row['size_bytes'] / (1 << 20):.1f} MiB in {row['seconds']:.0f} s"
    return f"{row['path']}: {row['state']}: {row['why']} ({took})"
