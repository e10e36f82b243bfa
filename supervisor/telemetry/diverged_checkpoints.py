"""Which of a run's checkpoints a divergence spoils, by the clocks of their file systems. (I/O)"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ftrun.hooks.checkpoints import diverged_folder, listing, names
from ftrun.hooks.checkpoints.diverged import Divergence
from ftrun.hooks.checkpoints.find import find as find_all
from ftrun.supervisor.store import checkpoints, submission_context
from ftrun.supervisor.telemetry import divergence

if TYPE_CHECKING:
    from ftrun.supervisor.telemetry.divergence import DivergenceSign


LOOKED_INTO = 4
LIMIT_S = 10.0


def poison_of(
    found: DivergenceSign,
    settings: Mapping[str, Any],
    run_dir: str,
    *,
    name: str,
    resumed_from: str,
    now_s: float,
) -> Divergence:
    """What a sign in the log of start `name` spoils, by the clocks of the file systems of the run's folder
    and its checkpoints.

    Existing checkpoints are noted first, for later ones (`diverged_folder`).
    """
    found_now = find_all(
        str(settings.get("checkpoint", "")).splitlines(), cwd=submission_context.cwd(run_dir)
    )
    with contextlib.suppress(OSError):
        diverged_folder.note_seen(run_dir, name, [one.path for one in found_now])
    return divergence.poison_of(
        found,
        name=name,
        resumed_step=names.step_of(resumed_from) if resumed_from else None,
        now_s=now_s,
        disk_s=_disk_s(run_dir, now_s),
        youngest_s=_youngest_s(str(settings.get("checkpoint", "")), submission_context.cwd(run_dir)),
    )


def _disk_s(run_dir: str, now_s: float) -> float:
    """The time by the clock of the run folder's file system."""
    try:
        with tempfile.TemporaryFile(dir=run_dir) as file:
            file.write(b"1")
            file.flush()
            return os.fstat(file.fileno()).st_mtime
    except OSError:
        return now_s


def _youngest_s(pattern: str, cwd: str) -> float | None:
    """When the youngest checkpoint was written; None without one. Only the highest steps and the youngest
    folders are read.
    """
    found = find_all(pattern.splitlines(), cwd=cwd)
    by_step = sorted(found, key=lambda one: -1 if one.step is None else one.step)[-LOOKED_INTO:]
    by_age = sorted(found, key=lambda one: checkpoints.modified_s(one.path) or 0.0)[-LOOKED_INTO:]
    before_s, times = time.monotonic() + LIMIT_S, []
    for path in {one.path for one in (*by_step, *by_age)}:
        with contextlib.suppress(OSError, listing.DeadlinePassed):
            times += [fact.written_s for fact in listing.list_tree(path, before_s).files.values()]
    return max(times, default=None)
