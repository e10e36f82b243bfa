"""`ftrun-hook pick`: which checkpoint a start of the script is to load; called by batch.sh at each start. (I/O)

How it thinks. batch.sh has made its own choice by the names before, and keeps it where this here has no answer within its limit: no Python, a file system that
hangs, a mistake of ours. So the answer is complete or none: all of it goes out at once, and its last line says that it was the last. A path
with a line break cannot be told, and is not chosen here.

Printed, a line each: `from=` the checkpoint, as the user would write it; `use=` what to load in its place, be it a view where a shard was replaced;
`step=`; `root=` the folder to load the newest from; `why=`; `passed=` PATH: WHY for each that was passed over; `stuck=` why the run must not begin from nothing; `end=1`.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from typing import NamedTuple, Optional

from ftrun.hooks.checkpoints import diverged, resume_view
from ftrun.hooks.checkpoints.diverged_folder import noted_poisons
from ftrun.hooks.checkpoints.selection import Request, Selection, select, why_lost
from ftrun.hooks.checkpoints.shard_repair import select_repaired
from ftrun.hooks.errors import UsageError

__all__ = ["answer", "main"]


LIMIT_S = 8.0  # batch.sh waits for 10
PASSED_MAX = 20
USAGE = "pick --glob PATTERNS [--cwd DIR --marker NAME --skip PATHS --poison LINES --view DIR --run-dir DIR --limit S --had --fresh]"
FLAGS = ("had", "fresh")
WORDS = ("glob", "cwd", "marker", "skip", "poison", "view", "run-dir", "limit")


class Arguments(NamedTuple):
    """The command line: the question, where a view may be made ("" = nowhere)."""

    question: Request
    view: str


def main(arguments: Sequence[str]) -> int:
    """Print the answer. Raises UsageError."""
    asked = _parse(arguments)
    sys.stdout.write(answer(asked.question, asked.view))
    sys.stdout.flush()
    return 0


def answer(question: Request, at: str) -> str:
    """The lines to print; views are made in folder `at`, and none where it is ""."""
    picked, use = select(question), ""
    if at and picked.passed:
        picked, use = select_repaired(picked, question, os.path.join(at, resume_view.REPAIRED))
    lines = [("passed", f"{_as_written(path, question)}: {why}") for path, why in picked.passed[:PASSED_MAX]]
    if picked.chosen is None:
        lines += [("why", picked.why), ("stuck", why_lost(picked, question))]
    else:
        found = picked.chosen.found
        lines += [("from", _as_written(found.path, question)), ("why", picked.why)]
        lines += [("step", "" if found.step is None else str(found.step))]
        lines += [("use", use or _as_written(found.path, question))]
        lines += [("root", _root(picked, use, at))]
    chosen = picked.chosen.found.path if picked.chosen is not None else ""
    if "\n" in chosen + use:
        raise ValueError("a path with a line break cannot be told")
    return "".join(f"{key}={' '.join(text.splitlines())}\n" for key, text in [*lines, ("end", "1")])


def _root(picked: Selection, use: str, at: str) -> str:
    assert picked.chosen is not None
    found = picked.chosen.found._replace(path=use) if use else picked.chosen.found
    try:
        return (
            resume_view.resume_root(found, [path for path, _ in picked.passed], at)
            if at
            else os.path.dirname(found.path)
        )
    except OSError:  # no room for a link: whoever is told the checkpoint itself still loads it
        return os.path.dirname(found.path)


def _as_written(path: str, question: Request) -> str:
    """Relative where the user's patterns are, as batch.sh has always told it."""
    beside = question.cwd.rstrip("/") + "/"
    if path.startswith(beside) and not any(one.startswith(("/", "~")) for one in question.patterns):
        return path[len(beside) :]
    return path


def _parse(arguments: Sequence[str]) -> Arguments:
    told = dict.fromkeys(WORDS, "")
    given, words = set(), list(arguments)
    while words:
        name = words.pop(0).removeprefix("--")
        if name in FLAGS:
            given.add(name)
        elif name in told and words:
            told[name] = words.pop(0)
        else:
            raise UsageError(f"pick: {name} is not understood; usage: {USAGE}")
    if not told["glob"]:
        raise UsageError(f"pick: no pattern was given; usage: {USAGE}")
    try:
        limit_s = float(told["limit"] or LIMIT_S)
        poisons = tuple(
            dict.fromkeys((*diverged.from_lines(told["poison"]), *noted_poisons(told["run-dir"])))
        )
    except ValueError as error:
        raise UsageError(f"pick: {error}; usage: {USAGE}") from None
    question = Request(
        patterns=told["glob"].splitlines(),
        cwd=told["cwd"] or os.getcwd(),
        marker=told["marker"],
        aside=told["skip"].splitlines(),
        poisons=poisons,
        had="had" in given,
        began_s=_began_s(told["run-dir"]),
        fresh="fresh" in given,
        before_s=time.monotonic() + limit_s,
        run_dir=told["run-dir"],
    )
    return Arguments(question, told["view"])


def _began_s(run_dir: str) -> float:
    """When the run was submitted first; 0 where that cannot be read."""
    found: Optional[float] = None
    try:
        found = os.stat(os.path.join(run_dir, "submit", "context.json")).st_mtime if run_dir else None
    except OSError:
        found = None
    return found or 0.0
