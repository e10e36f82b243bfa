"""The folder `diverged` of a run: recorded divergences, and late checkpoints of diverged trainings. (I/O)

A rank that was frozen or cut off may wake and save once more before it is killed, after the divergence was
recorded. So a checkpoint that did not exist then is attributed to that training until a later start has
begun, or for a quarter of an hour if no start is recorded. One that existed is judged by its time alone: who
touches it afterwards trusts it.

Beside `diverged/NAME` is NAME.seen with the paths of the checkpoints that existed, a line each; NAME is
`<attempt>.<launch>.<start>`.
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
    """The divergences in the run's folder: a job that Slurm requeues has no newer ones."""
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
    """Record the present checkpoints before the divergence `name`; nothing if that exists. Raises OSError."""
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
    """Why a checkpoint written after the divergences were recorded is not trusted; "" if it is."""
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
    """When the first start after this one was recorded, by the file system's clock; infinity without one."""
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
