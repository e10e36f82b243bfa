"""`ftrun-hook pick`: prints which checkpoint a start loads; called by batch.sh at each start. (I/O)

batch.sh has chosen by names already, and keeps its choice if this command does not answer within its limit:
no Python, a file system that hangs, a defect of ours. So the answer is printed at once, and ends with
`end=1`. A path with a line break cannot be printed, and is not chosen.

A line each: `from=` the checkpoint, as the user would write it; `use=` what to load instead, such as a view
with a repaired shard; `step=`; `root=` the folder to load the newest from; `why=`; `passed=` PATH: WHY for
each rejected one; `stuck=` why the run must not begin from nothing; `end=1`.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Sequence

from ftrun.hooks.checkpoints.diverged import from_lines
from ftrun.hooks.checkpoints.diverged_folder import noted_divergences
from ftrun.hooks.checkpoints.model import Found
from ftrun.hooks.checkpoints.resume_view import REPAIRED, resume_root
from ftrun.hooks.checkpoints.selection import Request, Selection, select, why_lost
from ftrun.hooks.checkpoints.shard_repair import select_repaired
from ftrun.hooks.runtime.host import UsageError

LIMIT_S = 8.0  # batch.sh waits for 10
PASSED_MAX = 20
USAGE = "pick --glob PATTERNS [--cwd DIR --marker NAME --skip PATHS --poison LINES --view DIR --run-dir DIR --limit S --had --fresh]"
FLAGS = ("had", "fresh")
WORDS = ("glob", "cwd", "marker", "skip", "poison", "view", "run-dir", "limit")


def main(arguments: Sequence[str]) -> int:
    """Print the answer. Raises UsageError."""
    sys.stdout.write(answer(*_parse(arguments)))
    sys.stdout.flush()
    return 0


def answer(request: Request, view: str) -> str:
    """The lines to print; views are made in the folder `view`, none if it is ""."""
    selection, use = select(request), ""
    if view and selection.passed:
        selection, use = select_repaired(selection, request, os.path.join(view, REPAIRED))
    lines = [
        ("passed", f"{_as_written(path, request)}: {why}") for path, why in selection.passed[:PASSED_MAX]
    ]
    if selection.chosen is None:
        lines += [("why", selection.why), ("stuck", why_lost(selection, request))]
    else:
        found = selection.chosen.found
        written = _as_written(found.path, request)
        if "\n" in found.path + use:
            raise ValueError("a path with a line break cannot be told")
        root = _root(found._replace(path=use or found.path), selection, view)
        step = "" if found.step is None else str(found.step)
        lines += [
            ("from", written),
            ("why", selection.why),
            ("step", step),
            ("use", use or written),
            ("root", root),
        ]
    return "".join(f"{key}={' '.join(text.splitlines())}\n" for key, text in [*lines, ("end", "1")])


def _root(found: Found, selection: Selection, view: str) -> str:
    if view:
        with contextlib.suppress(OSError):  # no room for a link; the checkpoint itself can still be loaded
            return resume_root(found, [path for path, _ in selection.passed], view)
    return os.path.dirname(found.path)


def _as_written(path: str, request: Request) -> str:
    """The path, relative if the user's patterns are, as batch.sh prints it."""
    beside = request.cwd.rstrip("/") + "/"
    if path.startswith(beside) and not any(one.startswith(("/", "~")) for one in request.patterns):
        return path[len(beside) :]
    return path


def _parse(arguments: Sequence[str]) -> tuple[Request, str]:
    """The request, and the folder for views ("": none). Raises UsageError."""
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
        poisons = (*from_lines(told["poison"]), *noted_divergences(told["run-dir"]))
    except ValueError as error:
        raise UsageError(f"pick: {error}; usage: {USAGE}") from None
    request = Request(
        patterns=told["glob"].splitlines(),
        cwd=told["cwd"] or os.getcwd(),
        marker=told["marker"],
        aside=told["skip"].splitlines(),
        poisons=tuple(dict.fromkeys(poisons)),
        had="had" in given,
        began_s=_began_s(told["run-dir"]),
        fresh="fresh" in given,
        before_s=time.monotonic() + limit_s,
        run_dir=told["run-dir"],
    )
    return request, told["view"]


def _began_s(run_dir: str) -> float:
    """When the run was first submitted; 0 if unknown."""
    try:
        return os.stat(os.path.join(run_dir, "submit", "context.json")).st_mtime if run_dir else 0.0
    except OSError:
        return 0.0
