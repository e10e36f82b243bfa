"""The folder `diverged` of a run: the divergences that are noted there, and what diverged trainings may still write afterwards. (I/O)

A rank that stood still while the others died, or whose node was cut off, may wake and save once more before it is ended: weights as
bad as those before, later than all that was known when the divergence was noted. So a checkpoint that nobody had seen by then counts as that
training's until a later start has begun, or, where no record tells of one, for a quarter of an hour. What had been seen is judged by its time
alone: whoever touches it afterwards trusts it.

Beside `diverged/NAME` lies NAME.seen, the paths of the checkpoints that were there, a line each; NAME is `<attempt>.<launch>.<start>`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from typing import Optional

from ftrun.hooks.checkpoints.diverged import Divergence, from_lines

FOLDER = "diverged"
SEEN = ".seen"
DRAFT = ".since"  # a name that nobody reads as a divergence
LATE_S = 900.0
LINE_BYTES_MAX = 4096
READ_BYTES_MAX = 16 << 20
RECORD = re.compile(r"launch\.(?P<launch>\d+)|begun\.(?P<launch_begun>\d+)\.(?P<start>\d+)")


def noted_divergences(run_dir: str) -> tuple[Divergence, ...]:
    """The divergences that stand in the run's folder: a job that Slurm starts again by itself has no newer word."""
    folder = os.path.join(run_dir, FOLDER)
    try:
        names = sorted(os.listdir(folder)) if run_dir else []
    except OSError:
        return ()
    found: list[Divergence] = []
    for name in names:
        if not name.endswith((DRAFT, SEEN)):
            try:
                with open(os.path.join(folder, name), encoding="utf-8") as stream:
                    found += from_lines(stream.read(LINE_BYTES_MAX))
            except (OSError, ValueError):
                continue
    return tuple(found)


def note_seen(run_dir: str, name: str, paths: Iterable[str]) -> None:
    """Note which checkpoints are there, before the divergence of start `name` is noted; nothing where it has been. Raises OSError."""
    folder = os.path.join(run_dir, FOLDER)
    if os.path.exists(os.path.join(folder, name)):
        return
    os.makedirs(folder, mode=0o700, exist_ok=True)
    final = os.path.join(folder, name + SEEN)
    draft = f"{final}.{os.getpid()}{DRAFT}"
    with open(draft, "w", encoding="utf-8", errors="surrogateescape") as stream:
        stream.writelines(f"{path}\n" for path in paths if "\n" not in path)
    os.replace(draft, final)


def why_written_late(
    path: str, step: Optional[int], written_s: float, poisons: Sequence[Divergence], run_dir: str
) -> str:
    """Why a checkpoint that was written after the divergences were noted is not to be trusted; "" where it is, and where nothing was kept."""
    for one in poisons if run_dir else ():
        if not one.until_s < written_s <= one.until_s + LATE_S:
            continue
        if one.step is None or step is None or step < one.step:
            continue
        seen = _seen(run_dir, one.name)
        if seen is not None and path not in seen and written_s <= _next_start_s(run_dir, one.name):
            return f"step {step} was written by a training that had diverged (at step {one.step}), after its end was judged"
    return ""


def _seen(run_dir: str, name: str) -> Optional[frozenset[str]]:
    path = os.path.join(run_dir, FOLDER, name + SEEN)
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as stream:
            return frozenset(stream.read(READ_BYTES_MAX).splitlines())
    except (OSError, ValueError):
        return None


def _next_start_s(run_dir: str, name: str) -> float:
    """When the first start after this one left its record, by the file system's clock; without an end where none did."""
    times = []
    try:
        attempt, launch, start = map(int, name.split("."))
        folder = os.path.join(run_dir, "attempts")
        for number in (int(one) for one in os.listdir(folder) if one.isdigit() and int(one) >= attempt):
            if os.path.isdir(os.path.join(folder, str(number), "tasks")):
                return 0.0  # tasks of an array have records of their own
            for entry in os.scandir(os.path.join(folder, str(number))):
                record = RECORD.fullmatch(entry.name)
                if record is None:
                    continue
                place = int(record["launch"] or record["launch_begun"]), int(record["start"] or 1)
                if (number, *place) > (attempt, launch, start):
                    times.append(entry.stat().st_mtime)
    except (OSError, ValueError):
        return 0.0
    return min(times, default=float("inf"))
