"""What a diverged training may still write after its end was judged. (I/O)

How it thinks. A rank that stood still while the others died, or whose node was cut off, may wake and save once more before it is ended: weights as bad as those before,
later than all that was known when the divergence was noted. So a checkpoint that nobody had seen by then counts as that training's until a later start has
begun, or, where no record tells of one, for a quarter of an hour. What had been seen is judged by its time alone: whoever touches it afterwards trusts it.

Beside `diverged/NAME` lies NAME.seen, the paths of the checkpoints that were there, a line each; NAME is `<attempt>.<launch>.<start>`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from typing import Optional

from ftrun.hooks.checkpoints.poison import Poison

__all__ = ["SEEN", "against_late", "saw"]

SEEN = ".seen"
LATE_S = 900.0
READ_BYTES_MAX = 16 << 20
LAUNCH = re.compile(r"launch\.(\d+)")
BEGUN = re.compile(r"begun\.(\d+)\.(\d+)")


def saw(run_dir: str, name: str, paths: Iterable[str]) -> None:
    """Note which checkpoints are there, before the divergence of start `name` is noted; nothing where it has been. Raises OSError."""
    folder = os.path.join(run_dir, "diverged")
    if os.path.exists(os.path.join(folder, name)):
        return
    os.makedirs(folder, mode=0o700, exist_ok=True)
    final = os.path.join(folder, name + SEEN)
    draft = f"{final}.{os.getpid()}.since"  # a name that nobody reads as a divergence
    with open(draft, "w", encoding="utf-8", errors="surrogateescape") as stream:
        stream.writelines(f"{path}\n" for path in paths if "\n" not in path)
    os.replace(draft, final)


def against_late(
    path: str, step: Optional[int], written_s: float, poisons: Sequence[Poison], run_dir: str
) -> str:
    """Why a checkpoint that was written after the divergences were noted is not to be trusted; "" where it is, and where nothing was kept."""
    for one in poisons if run_dir else ():
        if not one.until_s < written_s <= one.until_s + LATE_S:
            continue
        if one.step is None or step is None or step < one.step:
            continue
        seen = _seen(run_dir, one.name)
        if seen is not None and path not in seen and written_s <= _next_s(run_dir, one.name):
            return f"step {step} was written by a training that had diverged (at step {one.step}), after its end was judged"
    return ""


def _seen(run_dir: str, name: str) -> Optional[frozenset[str]]:
    try:
        with open(
            os.path.join(run_dir, "diverged", name + SEEN), encoding="utf-8", errors="surrogateescape"
        ) as stream:
            return frozenset(stream.read(READ_BYTES_MAX).splitlines())
    except (OSError, ValueError):
        return None


def _next_s(run_dir: str, name: str) -> float:
    """When the first start after this one left its record, by the file system's clock; without an end where none did."""
    try:
        attempt, launch, start = map(int, name.split("."))
        folder = os.path.join(run_dir, "attempts")
        numbers = [int(one) for one in os.listdir(folder) if one.isdigit() and int(one) >= attempt]
        times = []
        for number in numbers:
            if os.path.isdir(os.path.join(folder, str(number), "tasks")):
                return 0.0  # tasks of an array have records of their own
            for one in os.scandir(os.path.join(folder, str(number))):
                place = _place(one.name)
                if place is not None and (number, *place) > (attempt, launch, start):
                    times.append(one.stat().st_mtime)
    except (OSError, ValueError):
        return 0.0
    return min(times, default=float("inf"))


def _place(name: str) -> Optional[tuple[int, int]]:
    """The launch and the start that a record is of."""
    launch, begun = LAUNCH.fullmatch(name), BEGUN.fullmatch(name)
    if launch:
        return int(launch[1]), 1
    return (int(begun[1]), int(begun[2])) if begun else None
