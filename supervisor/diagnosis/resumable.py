"""Which checkpoint a start of a run would load now, as seen from outside. (I/O)

The start itself runs `ftrun-hook pick` on its node. The supervisor and the agent ask the same code the same
question, so a torn checkpoint counts as no progress, and a run that could load nothing stops here instead of
waiting in a queue. With `checkpoint-verify` = rule, names alone decide on both sides.

Each divergence leaves two files in the run's folder. `diverged/NAME` holds what a job must know, so that a
job that Slurm itself restarts learns of it, too. The modification times of both are for the shell's rule,
which cannot parse times.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ftrun.hooks.checkpoints import diverged, names
from ftrun.hooks.checkpoints.model import EMPTY, TEMPORARY
from ftrun.supervisor.config import home
from ftrun.supervisor.diagnosis import checkpoint_blame
from ftrun.supervisor.diagnosis.checkpoint_blame import ResumedCheckpoint, ResumePoint
from ftrun.supervisor.store import checkpoints

if TYPE_CHECKING:
    from ftrun.hooks.checkpoints.diverged import Divergence
    from ftrun.supervisor.model.run import Run

__all__ = [
    "ResumePoint",
    "find_resume_point",
    "has_had_checkpoint",
    "newest_by_name",
    "restart_answer",
    "resumed_checkpoint",
    "write_divergence_files",
]

LIMIT_S = 10.0
NOT_ONE = "none of its checkpoints may be loaded"
NAMED_MAX = 8


def find_resume_point(
    settings: Mapping[str, Any],
    run: Run,
    cwd: str,
    *,
    more: Iterable[Divergence] = (),
    without: Sequence[str] = (),
    run_dir: str = "",
) -> ResumePoint:
    """The checkpoint that a start would load. `more`: divergences that are not yet in the run's journal.
    `without`: checkpoints to treat as set aside. `run_dir`: where the findings of the deep check are ("" =
    nowhere).
    """
    pattern = str(settings.get("checkpoint", ""))
    if not pattern:
        return ResumePoint()
    reasons = {os.path.join(cwd, path): why for path, why in _reasons(run).items()}
    if settings.get("checkpoint-verify") != "structure":
        path = newest_by_name(settings, run, cwd, more=more, without=without)
        fresh = bool(settings.get("checkpoint-fresh"))
        left = [] if path or fresh else checkpoints.complete_checkpoints(pattern, cwd=cwd)
        named = [(one, reasons.get(one, "")) for one in sorted(left, key=_step, reverse=True)]
        own = _own([checkpoints.modified_s(one) for one in left], run, run_dir)
        return ResumePoint(path, _named(NOT_ONE, named) if left else "", anew=not left, own=own)
    from ftrun.hooks.checkpoints.selection import Request, select

    picked = select(
        Request(
            patterns=pattern.splitlines(),
            cwd=cwd,
            marker=str(settings.get("checkpoint-marker", "")),
            aside=(*checkpoints.unchanged_since_set_aside(run.set_aside), *without),
            poisons=(*run.poisoned, *more),
            had=has_had_checkpoint(run),
            began_s=run.created_at_s,
            fresh=bool(settings.get("checkpoint-fresh")),
            before_s=time.monotonic() + LIMIT_S,
            run_dir=run_dir,
        )
    )
    if picked.chosen is not None:
        return ResumePoint(picked.chosen.found.path)
    if not picked.stuck:
        return ResumePoint(anew=True)
    passed = [(path, reasons.get(path, "") or why) for path, why in picked.passed]
    words = f"none of {len(picked.inspected)} checkpoints may be loaded"
    there = [one.written_s for one in picked.inspected if one.state not in (EMPTY, TEMPORARY)]
    return ResumePoint(stuck=_named(words, passed), own=_own(there, run, run_dir))


def resumed_checkpoint(
    settings: Mapping[str, Any], run: Run, path: str, incident: str, *, run_dir: str, cwd: str
) -> ResumedCheckpoint | None:
    """What is known of the checkpoint that a failed start resumed from; None where it had none."""
    if not path or not settings.get("checkpoint"):
        return None
    path = os.path.normpath(os.path.join(cwd, path))
    return ResumedCheckpoint(
        path,
        checkpoint_blame.earlier_failures(run, incident),
        find_resume_point(settings, run, cwd, without=[path], run_dir=run_dir),
        trained=run.best_step is not None or any(one.step is not None for one in run.incidents),
    )


def _reasons(run: Run) -> dict[str, str]:
    """Why each checkpoint was set aside, in the words of the start that failed."""
    told = (one.diagnosis.get("loading") or {} for one in run.incidents)
    return {one["path"]: f"a start failed: {one['text']}" for one in told if one.get("text")}


def _named(words: str, passed: Sequence[tuple[str, str]]) -> str:
    """`words` with the name and reason of each checkpoint, as many as a person reads."""
    said = [f"{os.path.basename(path)}: {why}" if why else os.path.basename(path) for path, why in passed]
    more = f"; and {len(said) - NAMED_MAX} more" if len(said) > NAMED_MAX else ""
    return f"{words}: {'; '.join(said[:NAMED_MAX])}{more}" if said else words


def _own(written_s: Iterable[float | None], run: Run, run_dir: str) -> bool:
    """Whether each was written after the run was submitted, by the file systems' clocks: then only this run's
    work is lost.
    """
    began_s = checkpoints.modified_s(os.path.join(run_dir, "submit", "context.json")) if run_dir else None
    began_s = run.created_at_s if began_s is None else began_s
    return all(at_s is None or at_s >= began_s for at_s in written_s)


def _step(path: str) -> int:
    step = names.step_of(path)
    return -1 if step is None else step


def newest_by_name(
    settings: Mapping[str, Any],
    run: Run,
    cwd: str,
    *,
    more: Iterable[Divergence] = (),
    without: Sequence[str] = (),
) -> str:
    """The newest checkpoint by names, markers and times alone, as batch.sh finds it without Python; "" =
    none.
    """
    pattern, marker = str(settings.get("checkpoint", "")), str(settings.get("checkpoint-marker", ""))
    aside, spoilt = (*checkpoints.unchanged_since_set_aside(run.set_aside), *without), (*run.poisoned, *more)
    if spoilt:
        known = checkpoints.complete_checkpoints(pattern, marker=marker, set_aside=aside, cwd=cwd)
        bad = (
            path
            for path in known
            if diverged.why_diverged(names.step_of(path), checkpoints.modified_s(path) or 0.0, spoilt)
        )
        aside = (*aside, *bad)
    return checkpoints.newest_checkpoint(pattern, marker=marker, set_aside=aside, cwd=cwd)


def has_had_checkpoint(run: Run) -> bool:
    """Whether the run has had a whole checkpoint, as far as is known."""
    resumed = any(
        one.launch.start.resume_from or any(start.resume_from for start in one.begun) for one in run.attempts
    )
    return bool(run.best_checkpoint) or resumed


def restart_answer(run_dir: str, run: Run) -> dict[str, Any]:
    """What the agent answers about the run's checkpoints for the next start in place; checkpoints that are
    set aside are passed separately. Raises OSError.
    """
    write_divergence_files(run_dir, run.poisoned)
    return {"poison": diverged.to_lines(run.poisoned).splitlines(), "had": has_had_checkpoint(run)}


def write_divergence_files(run_dir: str, spoilt: Iterable[Divergence]) -> None:
    """Write the files of each divergence; repeating it changes nothing. Raises OSError."""
    for one in spoilt:
        folder = os.path.join(run_dir, "diverged")
        os.makedirs(folder, mode=0o700, exist_ok=True)
        for name, at_s in ((one.name, one.until_s), (f"{one.name}.since", one.since_s)):
            if at_s is not None:
                path = os.path.join(folder, name)
                if not os.path.exists(path):
                    home.write_atomically(path, f"{diverged.to_lines([one])}\n".encode(), sync=False)
                os.utime(path, (at_s, at_s))
