"""What a start of a run would load now, seen from outside, and what it must not. (I/O)

How it thinks. The start itself asks `ftrun-hook pick` on its node; the supervisor and the agent ask the same judge with the same question, so that a torn checkpoint is
no progress, and so that a run which could load nothing stops here and does not wait in a queue for it. With `checkpoint-judge` = rule the names decide on both sides.

Each divergence leaves two files in the run's folder: `diverged/NAME` says what a job is told of it, so that a job which Slurm itself starts again hears of
it, too; and the times of both are for the shell's own rule, which cannot read times.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ftrun.hooks.checkpoints import poison
from ftrun.slurm.records import dataclass
from ftrun.supervisor import checkpoints, store

if TYPE_CHECKING:
    from ftrun.hooks.checkpoints.poison import Poison
    from ftrun.supervisor.events import Run

__all__ = ["Usable", "answer", "by_rule", "find", "had", "leave", "told"]

LIMIT_S = 10.0
NOT_ONE = "none of its checkpoints may be loaded"


@dataclass(frozen=True, slots=True)
class Usable:
    """The checkpoint that a start would load ("" = none), and why it could not begin at all ("" = it could). `anew`: it would begin from nothing,
    since there is nothing, or since its user allows it."""

    path: str = ""
    stuck: str = ""
    anew: bool = False

    @property
    def back(self) -> str:
        """Where a run that goes back would be, in words; "" where it cannot."""
        return self.path or ("its beginning" if self.anew else "")


def find(
    settings: Mapping[str, Any], run: Run, cwd: str, *, more: Iterable[Poison] = (), run_dir: str = ""
) -> Usable:
    """Look. `more`: divergences that the run's journal does not have yet; `run_dir`: where the deep level's findings are ("" = nowhere)."""
    pattern = str(settings.get("checkpoint", ""))
    if not pattern:
        return Usable()
    if settings.get("checkpoint-judge") != "quick":
        path, fresh = by_rule(settings, run, cwd, more=more), bool(settings.get("checkpoint-fresh"))
        left = not path and not fresh and checkpoints.complete(pattern, cwd=cwd)
        return Usable(path, NOT_ONE if left else "", anew=not left)
    from ftrun.hooks.checkpoints.picking import Question, pick

    picked = pick(
        Question(
            patterns=pattern.splitlines(),
            cwd=cwd,
            marker=str(settings.get("checkpoint-marker", "")),
            aside=checkpoints.still_aside(run.set_aside),
            poisons=(*run.poisoned, *more),
            had=had(run),
            began_s=run.created_at_s,
            fresh=bool(settings.get("checkpoint-fresh")),
            before_s=time.monotonic() + LIMIT_S,
            run_dir=run_dir,
        )
    )
    if picked.judged is not None:
        return Usable(picked.judged.found.path)
    return Usable(stuck=picked.stuck, anew=not picked.stuck)


def by_rule(settings: Mapping[str, Any], run: Run, cwd: str, *, more: Iterable[Poison] = ()) -> str:
    """The newest by names, markers and times alone, as batch.sh finds it without Python; "" = none."""
    pattern, marker = str(settings.get("checkpoint", "")), str(settings.get("checkpoint-marker", ""))
    aside, spoilt = checkpoints.still_aside(run.set_aside), (*run.poisoned, *more)
    if spoilt:
        known = checkpoints.complete(pattern, marker=marker, set_aside=aside, cwd=cwd)
        bad = (
            path
            for path in known
            if poison.against(checkpoints.step_of(path), checkpoints.written_s(path) or 0.0, spoilt)
        )
        aside = (*aside, *bad)
    return checkpoints.newest(pattern, marker=marker, set_aside=aside, cwd=cwd)


def had(run: Run) -> bool:
    """The run has had a whole checkpoint, as far as is known."""
    resumed = any(one.resume_from or any(start.resume_from for start in one.begun) for one in run.attempts)
    return bool(run.best_checkpoint) or resumed


def told(run_dir: str, run: Run) -> dict[str, Any]:
    """What `submit.request_for` says of the run's checkpoints to the next attempt. Raises OSError."""
    leave(run_dir, run.poisoned)
    return {
        "set_aside": checkpoints.still_aside(run.set_aside),
        "poisoned": run.poisoned,
        "had": had(run),
    }


def answer(run_dir: str, run: Run) -> dict[str, Any]:
    """The same for the next start in place, as the agent's answer says it; what is set aside is told there apart. Raises OSError."""
    leave(run_dir, run.poisoned)
    return {"poison": poison.lines(run.poisoned).splitlines(), "had": had(run)}


def leave(run_dir: str, spoilt: Iterable[Poison]) -> None:
    """The files of each divergence, again and again the same. Raises OSError."""
    for one in spoilt:
        folder = os.path.join(run_dir, "diverged")
        os.makedirs(folder, mode=0o700, exist_ok=True)
        for name, at_s in ((one.name, one.until_s), (f"{one.name}.since", one.since_s)):
            if at_s is not None:
                path = os.path.join(folder, name)
                if not os.path.exists(path):
                    store.write_atomically(path, f"{poison.lines([one])}\n".encode(), sync=False)
                os.utime(path, (at_s, at_s))
