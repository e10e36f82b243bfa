"""What a start's log says of divergence, and which of the run's checkpoints that spoils; noted by the supervisor. (I/O)"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ftrun.hooks.checkpoints import aftermath, look
from ftrun.hooks.checkpoints.find import find as find_all
from ftrun.hooks.checkpoints.poison import Poison
from ftrun.supervisor import checkpoints, context, divergence
from ftrun.supervisor.usable import Usable, find, leave

if TYPE_CHECKING:
    from ftrun.supervisor.divergence import Sign
    from ftrun.supervisor.keeper import Keeper
    from ftrun.supervisor.office import World

__all__ = ["note", "poison_of", "usable"]

LOOKED_INTO = 4
LIMIT_S = 10.0


def note(keeper: Keeper, world: World) -> Sign | None:
    """Journal that the training of the last start had diverged, once; its agent may have done so. Returns the sign, None where it was healthy."""
    report, attempt = keeper.memory.report, keeper.attempt
    if report is None or attempt.submission != "done" or not keeper.settings.get("checkpoint"):
        return None
    found = divergence.sign(report.evidence, report.health)
    if found is None:
        return None
    name = f"{attempt.number}.{attempt.launch}.{attempt.start}"
    if not any(one.name == name for one in keeper.run.poisoned):
        spoilt = poison_of(
            found,
            keeper.settings,
            keeper.run_dir,
            name=name,
            resumed_from=attempt.resume_from,
            now_s=world.now_s,
        )
        keeper.record("checkpoint.poisoned", **divergence.facts(found, spoilt))
        leave(keeper.run_dir, keeper.run.poisoned)
    return found


def poison_of(
    found: Sign, settings: Mapping[str, Any], run_dir: str, *, name: str, resumed_from: str, now_s: float
) -> Poison:
    """What a sign in the log of start `name` spoils, by the times of the file systems that the run's folder and its checkpoints are on. What is there is
    noted first, for what comes later (`aftermath`)."""
    found_now = find_all(str(settings.get("checkpoint", "")).splitlines(), cwd=context.cwd(run_dir))
    with contextlib.suppress(OSError):
        aftermath.saw(run_dir, name, [one.path for one in found_now])
    return divergence.poison_of(
        found,
        name=name,
        resumed_step=checkpoints.step_of(resumed_from) if resumed_from else None,
        now_s=now_s,
        disk_s=_disk_s(run_dir, now_s),
        youngest_s=_youngest_s(str(settings.get("checkpoint", "")), context.cwd(run_dir)),
    )


def _disk_s(run_dir: str, now_s: float) -> float:
    """The time by the file system of the run's folder."""
    try:
        with tempfile.TemporaryFile(dir=run_dir) as file:
            file.write(b"1")
            file.flush()
            return os.fstat(file.fileno()).st_mtime
    except OSError:
        return now_s


def _youngest_s(pattern: str, cwd: str) -> float | None:
    """When the youngest of the checkpoints was written; None where there is none. Of many only the highest steps and the youngest folders are looked into."""
    found = find_all(pattern.splitlines(), cwd=cwd)
    by_step = sorted(found, key=lambda one: -1 if one.step is None else one.step)[-LOOKED_INTO:]
    by_age = sorted(found, key=lambda one: checkpoints.written_s(one.path) or 0.0)[-LOOKED_INTO:]
    before_s, times = time.monotonic() + LIMIT_S, []
    for path in {one.path for one in (*by_step, *by_age)}:
        with contextlib.suppress(OSError, look.Late):
            times += [fact.written_s for fact in look.tree(path, before_s).files.values()]
    return max(times, default=None)


def usable(keeper: Keeper) -> Usable:
    """What a start would load now."""
    if keeper.attempt.submission != "done":
        return Usable()
    cwd = context.cwd(keeper.run_dir)
    return find(keeper.settings, keeper.run, cwd, run_dir=keeper.run_dir)
