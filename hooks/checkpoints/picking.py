"""Which checkpoint a start is to load: found, judged as far as needed, chosen. (I/O)

How it thinks. A run may have hundreds of checkpoints, and the newest is good nearly always: so they are judged from the highest step
downwards, and no further than to the first that may be loaded. At a start nobody writes checkpoints any more, so one that is not whole is broken, however
young it is. What is passed over is named with its reason.

Nothing to load is two things. A run that never had a whole checkpoint begins as it began the first time. But where there are
checkpoints and each of them was set aside, is poisoned or broken, beginning from nothing would throw away what was reached without a word: then the
answer is `stuck`, unless the user said that this is fine.
"""

from __future__ import annotations

import glob
import os
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple, Optional

from ftrun.hooks.checkpoints import poison
from ftrun.hooks.checkpoints.aftermath import SEEN, against_late
from ftrun.hooks.checkpoints.choose import choose, rank
from ftrun.hooks.checkpoints.find import find
from ftrun.hooks.checkpoints.judge import judge
from ftrun.hooks.checkpoints.model import COMPLETE, EMPTY, TEMPORARY, TORN, WRITING, Found, Judged
from ftrun.hooks.checkpoints.poison import POISONED, Poison
from ftrun.hooks.checkpoints.siblings import compared

__all__ = ["Picked", "Question", "lost", "noted", "pick", "poisoned"]

LINE_BYTES_MAX = 4096


class Question(NamedTuple):
    """What is asked: the user's patterns and marker, the folder that they start from, the checkpoints that starts failed to load, what diverged.

    `had`: the run had a whole checkpoint once; `began_s`: when it was submitted first (Unix seconds); `fresh`: it may begin from
    nothing whatever there is; `before_s`: when an answer is wanted (time.monotonic); `run_dir`: the run's folder, "" for none.
    """

    patterns: Sequence[str]
    cwd: str
    marker: str = ""
    aside: Collection[str] = ()
    poisons: Sequence[Poison] = ()
    had: bool = False
    began_s: float = 0.0
    fresh: bool = False
    before_s: float = float("inf")
    run_dir: str = ""


class Picked(NamedTuple):
    """The answer: the checkpoint to load (None = none) and why; what was passed over, newest first; `stuck`: why the run cannot
    begin at all ("" = it can). `judged` are all that were looked into, newest first."""

    judged: Optional[Judged]
    why: str
    passed: Sequence[tuple[str, str]]
    stuck: str
    looked: Sequence[Judged] = ()


def pick(question: Question) -> Picked:
    """Choose. Never raises for what a file system does."""
    aside = {os.path.join(question.cwd, path) for path in question.aside}
    looked: list[Judged] = []
    found = find(question.patterns, cwd=question.cwd, marker=question.marker)
    for group in _groups(found):
        seen = poisoned([_settled(_judged(one, question, found)) for one in group], question)
        looked += seen
        if choose(seen, aside=aside).judged is not None:
            break
    choice = choose(looked, aside=aside)
    stuck = "" if choice.judged or question.fresh else _stuck(looked, aside, question)
    return Picked(choice.judged, choice.why, choice.passed, stuck, sorted(looked, key=rank, reverse=True))


def poisoned(judged: Iterable[Judged], question: Question) -> list[Judged]:
    """The same, with those that a diverged training wrote in the state POISONED."""
    told = []
    for one in poison.marked(judged, question.poisons):
        found = one.found
        why = (
            against_late(found.path, found.step, one.written_s, question.poisons, question.run_dir)
            if one.state == COMPLETE
            else ""
        )
        told.append(one._replace(state=POISONED, why=why) if why else one)
    return told


def lost(picked: Picked, question: Question) -> str:
    """Why a node must not begin from nothing though nothing is there: not even the folder of checkpoints that the run had is, as
    where a file system is not mounted; "" where it may."""
    if picked.looked or picked.stuck or question.fresh or not question.had:
        return picked.stuck
    folders = [_folder(pattern, question.cwd) for pattern in question.patterns]
    if any(os.path.isdir(folder) for folder in folders):
        return ""
    return (
        f"the run had checkpoints, and {folders[0]} is not there: mount it, or make it to begin from nothing"
    )


def noted(run_dir: str) -> tuple[Poison, ...]:
    """The divergences that stand in the run's folder: a job that Slurm starts again by itself has no newer word."""
    folder = os.path.join(run_dir, "diverged")
    try:
        names = sorted(os.listdir(folder)) if run_dir else []
    except OSError:
        return ()
    return tuple(
        one
        for name in names
        if not name.endswith((".since", SEEN))
        for one in _noted(os.path.join(folder, name))
    )


def _noted(path: str) -> tuple[Poison, ...]:
    try:
        with open(path, encoding="utf-8") as stream:
            return poison.parsed(stream.read(LINE_BYTES_MAX))
    except (OSError, ValueError):
        return ()


def _judged(found: Found, question: Question, others: Sequence[Found]) -> Judged:
    now_s, before_s = time.time(), question.before_s
    one = judge(found, marker=question.marker, now_s=now_s, before_s=before_s, run_dir=question.run_dir)
    return compared(one, others, before_s=before_s, now_s=now_s)


def _settled(one: Judged) -> Judged:
    """Between two starts nobody writes: what would be `writing` otherwise is torn."""
    return one._replace(state=TORN) if one.state == WRITING and one.size_bytes else one


def _folder(pattern: str, cwd: str) -> str:
    """The folder that a pattern looks into first."""
    path = os.path.join(cwd, os.path.expanduser(pattern)).rstrip("/")
    while glob.has_magic(path):
        path = os.path.dirname(path)
        if not glob.has_magic(path):
            return path
    return path if os.path.isdir(path) else os.path.dirname(path)


def _groups(found: Sequence[Found]) -> Iterator[list[Found]]:
    """By step, the highest first; those without a step come last, together."""
    steps = sorted({-1 if one.step is None else one.step for one in found}, reverse=True)
    for step in steps:
        yield [one for one in found if (-1 if one.step is None else one.step) == step]


def _stuck(looked: Sequence[Judged], aside: Collection[str], question: Question) -> str:
    """Why a run with these checkpoints must not begin from nothing; "" where there are none to lose."""
    there = [one for one in looked if one.state not in (EMPTY, TEMPORARY, WRITING)]
    lost = [
        one
        for one in there
        if one.found.path in aside
        or one.state in (COMPLETE, POISONED)
        or question.had
        or one.written_s < question.began_s
    ]
    if not lost and not (question.had and looked):
        return ""
    first = max(lost or looked, key=rank)
    why = "a start failed to load it" if first.found.path in aside else f"{first.state}: {first.why}"
    return f"none of {len(looked)} checkpoints may be loaded; the newest is {first.found.path}: {why}"
