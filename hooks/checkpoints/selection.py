"""Chooses the checkpoint that a start loads: finds, inspects as far as needed, chooses. (I/O)

The order is that of hooks/bundle/batch.sh: the highest step, then the youngest, then the last by name; those
without a step come last. The first one is taken that is complete, was not set aside (a start failed to load
it) and was not written by a diverged training; none is inspected after it. Nobody writes checkpoints at a
start, so an incomplete one is broken, however young it is.

A run that never had a complete checkpoint begins from nothing. But if there are checkpoints and none may be
loaded, the answer is `stuck`, unless the user allowed to discard the progress.
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
    """The user's patterns and marker, their working folder, the checkpoints set aside, and the divergences.
    `had`: the run had a complete checkpoint once; `began_s`: when it was first submitted (Unix seconds);
    `fresh`: it may begin from nothing in any case; `before_s`: the deadline (monotonic); `run_dir`: the run's
    folder, "" for none.
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
        """The absolute paths of the checkpoints set aside."""
        return frozenset(os.path.join(self.cwd, path) for path in self.aside)


class Selection(NamedTuple):
    """The checkpoint to load (None: none) and why; the rejected ones, newest first. `stuck`: why the run must
    not begin at all ("" if it may); `inspected`: all inspections, newest first.
    """

    chosen: Optional[Inspection]
    why: str
    passed: Sequence[tuple[str, str]]
    stuck: str
    inspected: Sequence[Inspection] = ()


def select(request: Request) -> Selection:
    """Choose a checkpoint. Never raises OSError."""
    inspected: list[Inspection] = []
    found = find(request.patterns, cwd=request.cwd, marker=request.marker)
    choice = choose(())
    # Checkpoints of one step together, the highest step first.
    for _, group in itertools.groupby(sorted(found, key=_step, reverse=True), _step):
        inspected += mark_diverged([_inspect(one, request, found) for one in group], request)
        choice = choose(inspected, aside=request.paths_aside)
        if choice.chosen:
            break
    stuck = "" if choice.chosen or request.fresh else _why_stuck(inspected, request)
    newest_first = sorted(inspected, key=newness, reverse=True)
    return Selection(choice.chosen, choice.why, choice.passed, stuck, newest_first)


def choose(inspected: Iterable[Inspection], *, aside: Collection[str] = ()) -> Choice:
    """The newest that may be loaded, and why no newer one. `aside`: paths that a start failed to load."""
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
    """The sort key; the highest is the newest."""
    return (_step(one.found), one.written_s, one.found.path)


def _step(found: Found) -> int:
    return -1 if found.step is None else found.step


def mark_diverged(inspected: Iterable[Inspection], request: Request) -> list[Inspection]:
    """The inspections, with complete ones of a diverged training in the state POISONED."""
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
    """Why a run without checkpoints must not begin from nothing; "" if it may. It must not if it had some and
    even their folder is gone, as without a mounted file system.
    """
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
    # Nobody writes between two starts, so `writing` is torn.
    return one._replace(state=TORN) if one.state == WRITING and one.size_bytes else one


def _folder(pattern: str, cwd: str) -> str:
    """The folder that a pattern looks into first."""
    path = os.path.join(cwd, os.path.expanduser(pattern)).rstrip("/")
    is_folder = os.path.isdir(path) and not glob.has_magic(path)
    while not is_folder and glob.has_magic(os.path.dirname(path)):
        path = os.path.dirname(path)
    return path if is_folder else os.path.dirname(path)


def _why_stuck(inspected: Sequence[Inspection], request: Request) -> str:
    """Why a run with these checkpoints must not begin from nothing; "" if it has none to lose."""
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
