"""Which checkpoint a start is to load: found, inspected as far as needed, chosen. (I/O)

The order is that of hooks/bundle/batch.sh: the highest step, then the youngest, then the last by name; one without a step comes
after all that have one. From there downwards the first is taken that is complete, was not set aside (a start failed to load it) and was
not written by a training that had diverged. A run may have hundreds of checkpoints, and the newest is good nearly always: so none is
inspected behind the first that may be loaded. At a start nobody writes checkpoints any more, so one that is not whole is broken, however
young it is. What is passed over is named with its reason.

Nothing to load is two things. A run that never had a whole checkpoint begins as it began the first time. But where there are
checkpoints and each of them was set aside, is poisoned or broken, beginning from nothing would throw away what was reached without a word:
then the answer is `stuck`, unless the user said that this is fine.
"""

from __future__ import annotations

import glob
import itertools
import os
import time
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple, Optional

from ftrun.hooks.checkpoints.diverged import POISONED, Divergence, why_diverged
from ftrun.hooks.checkpoints.diverged_folder import why_written_late
from ftrun.hooks.checkpoints.find import find
from ftrun.hooks.checkpoints.inspection import compared_with_siblings, inspect
from ftrun.hooks.checkpoints.model import COMPLETE, EMPTY, TEMPORARY, TORN, WRITING, Choice, Found, Inspection


class Request(NamedTuple):
    """What is asked: the user's patterns and marker, the folder that they start from, the checkpoints that starts failed to load, what diverged.

    `had`: the run had a whole checkpoint once; `began_s`: when it was submitted first (Unix seconds); `fresh`: it may begin from
    nothing whatever there is; `before_s`: when an answer is wanted (time.monotonic); `run_dir`: the run's folder, "" for none.
    """

    patterns: Sequence[str]
    cwd: str
    marker: str = ""
    aside: Collection[str] = ()
    poisons: Sequence[Divergence] = ()
    had: bool = False
    began_s: float = 0.0
    fresh: bool = False
    before_s: float = float("inf")
    run_dir: str = ""

    @property
    def paths_aside(self) -> frozenset[str]:
        """What was set aside, by absolute paths."""
        return frozenset(os.path.join(self.cwd, path) for path in self.aside)


class Selection(NamedTuple):
    """The answer: the checkpoint to load (None = none) and why; what was passed over, newest first; `stuck`: why the run cannot
    begin at all ("" = it can). `inspected` are all that were looked into, newest first."""

    chosen: Optional[Inspection]
    why: str
    passed: Sequence[tuple[str, str]]
    stuck: str
    inspected: Sequence[Inspection] = ()


def select(request: Request) -> Selection:
    """Choose. Never raises for what a file system does."""
    inspected: list[Inspection] = []
    found = find(request.patterns, cwd=request.cwd, marker=request.marker)
    choice = choose(())
    # Those of one step together, the highest first.
    for _, group in itertools.groupby(sorted(found, key=_step, reverse=True), _step):
        inspected += mark_diverged([_inspect(one, request, found) for one in group], request)
        choice = choose(inspected, aside=request.paths_aside)
        if choice.chosen:
            break
    stuck = "" if choice.chosen or request.fresh else _why_stuck(inspected, request)
    newest_first = sorted(inspected, key=newness, reverse=True)
    return Selection(choice.chosen, choice.why, choice.passed, stuck, newest_first)


def choose(inspected: Iterable[Inspection], *, aside: Collection[str] = ()) -> Choice:
    """Choose the newest that may be loaded; every newer one is named in `passed` with its reason. `aside`: paths that a start failed to load."""
    passed: list[tuple[str, str]] = []
    for one in sorted(inspected, key=newness, reverse=True):
        if one.found.path in aside:
            passed.append((one.found.path, "set aside: a start failed to load it"))
        elif one.state != COMPLETE:
            passed.append((one.found.path, f"{one.state}: {one.why}"))
        else:
            step = "" if one.found.step is None else f"step {one.found.step}, "
            why = f"the newest that may be loaded: {step}{one.state}: {one.why}"
            return Choice(one, why, tuple(passed))
    return Choice(None, "none of them may be loaded" if passed else "there is no checkpoint", tuple(passed))


def newness(one: Inspection) -> tuple[int, float, str]:
    """Its place in the order; the highest is the newest."""
    return (_step(one.found), one.written_s, one.found.path)


def _step(found: Found) -> int:
    return -1 if found.step is None else found.step


def mark_diverged(inspected: Iterable[Inspection], request: Request) -> list[Inspection]:
    """The same, with the complete ones that a diverged training wrote in the state POISONED."""
    marked = []
    for one in inspected:
        step, why = one.found.step, ""
        if one.state == COMPLETE:
            why = why_diverged(step, one.written_s, request.poisons) or why_written_late(
                one.found.path, step, one.written_s, request.poisons, request.run_dir
            )
        marked.append(one._replace(state=POISONED, why=why) if why else one)
    return marked


def why_lost(selection: Selection, request: Request) -> str:
    """Why a node must not begin from nothing though nothing is there: not even the folder of checkpoints that the run had is, as
    where a file system is not mounted; "" where it may."""
    if selection.inspected or selection.stuck or request.fresh or not request.had:
        return selection.stuck
    folders = [_folder(pattern, request.cwd) for pattern in request.patterns]
    if any(map(os.path.isdir, folders)):
        return ""
    return (
        f"the run had checkpoints, and {folders[0]} is not there: mount it, or make it to begin from nothing"
    )


def _inspect(found: Found, request: Request, others: Sequence[Found]) -> Inspection:
    now_s, before_s = time.time(), request.before_s
    one = inspect(found, marker=request.marker, now_s=now_s, before_s=before_s, run_dir=request.run_dir)
    one = compared_with_siblings(one, others, before_s=before_s, now_s=now_s)
    # Between two starts nobody writes: what would be `writing` otherwise is torn.
    return one._replace(state=TORN) if one.state == WRITING and one.size_bytes else one


def _folder(pattern: str, cwd: str) -> str:
    """The folder that a pattern looks into first."""
    path = os.path.join(cwd, os.path.expanduser(pattern)).rstrip("/")
    is_folder = os.path.isdir(path) and not glob.has_magic(path)
    while not is_folder and glob.has_magic(os.path.dirname(path)):
        path = os.path.dirname(path)
    return path if is_folder else os.path.dirname(path)


def _why_stuck(inspected: Sequence[Inspection], request: Request) -> str:
    """Why a run with these checkpoints must not begin from nothing; "" where there are none to lose."""
    aside = request.paths_aside
    lost = [
        one
        for one in inspected
        if one.state not in (EMPTY, TEMPORARY, WRITING)
        and (
            request.had
            or one.found.path in aside
            or one.state in (COMPLETE, POISONED)
            or one.written_s < request.began_s
        )
    ]
    if not lost and not (request.had and inspected):
        return ""
    first = max(lost or inspected, key=newness)
    why = "a start failed to load it" if first.found.path in aside else f"{first.state}: {first.why}"
    return f"none of {len(inspected)} checkpoints may be loaded; the newest is {first.found.path}: {why}"
