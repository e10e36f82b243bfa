"""`ftrun prune`: remove runs that ended long ago. (I/O)

A run is a candidate only if its journal can be read and says that the run is final, and if no request waits
for it; all other runs are kept and reported. Age and `keep` choose first; a size cap then removes the oldest
of the rest. A run is renamed to a hidden name before it is removed, so that no command sees half a run; the
next call removes the `$FTRUN_HOME/runs/.removing-*` of a crash.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Annotated

from ftrun.hooks.runtime.formats import parse_bytes, size_text
from ftrun.slurm.records import dataclass
from ftrun.supervisor.cli import common
from ftrun.supervisor.cli.options import Json, option
from ftrun.supervisor.model.errors import UnreadableRun, UserError
from ftrun.supervisor.store import journal
from ftrun.supervisor.store import run_dir as store_run_dir

_HIDDEN = ".removing-"
NO_LATE_JOB_AFTER_S = (
    900.0  # until then a submission without an answer may still make a job, which must be cancelled
)


@dataclass(frozen=True, slots=True)
class Rules:
    """What to remove: runs that ended more than `older_than_s` ago, then the oldest until the final runs take
    no more than `size_bytes` (None: no cap). The `keep` newest always stay.
    """

    older_than_s: float
    keep: int = 0
    size_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Candidate:
    """A final run that may be removed."""

    run: str
    path: str
    state: str
    ended_at_s: float
    size_bytes: int
    jobs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Kept:
    """A run that prune does not touch, and why."""

    run: str
    why: str


def list_candidates(home: str, now_s: float) -> tuple[list[Candidate], list[Kept]]:
    """The final runs of a home, newest first, and the runs that are not touched."""
    found = [_candidate_or_kept(run_dir, now_s) for run_dir in store_run_dir.run_dirs(home)]
    over = [one for one in found if isinstance(one, Candidate)]
    kept = [one for one in found if isinstance(one, Kept)]
    over.sort(key=lambda one: (one.ended_at_s, one.run), reverse=True)
    return over, kept


def _candidate_or_kept(run_dir: str, now_s: float) -> Candidate | Kept:
    name = os.path.basename(run_dir)
    try:
        run = journal.load_run(run_dir)
    except (UnreadableRun, OSError) as error:
        return Kept(name, f"its journal cannot be read: {error}")
    if not run.final:
        return Kept(name, f"it is {run.state.value}")
    if run.paused:
        return Kept(name, "it is paused")
    if _has_request(run_dir):
        return Kept(name, "a request waits for it")
    attempt = run.attempt
    if (
        attempt
        and attempt.submission in {"unknown", "intended"}
        and now_s - run.last_at_s < NO_LATE_JOB_AFTER_S
    ):
        return Kept(name, "a late job of it may still appear in Slurm")
    return Candidate(
        name, run_dir, run.state.value, run.last_at_s, _size(run_dir), (*run.job_ids, *run.companion_ids)
    )


def _has_request(run_dir: str) -> bool:
    try:
        return any(name.endswith(".json") for name in os.listdir(os.path.join(run_dir, "requests")))
    except FileNotFoundError:
        return False


def _size(path: str) -> int:
    """Bytes on disk (allocated, as du counts)."""
    total = 0
    for folder, folders, files in os.walk(path):
        for name in (*folders, *files):
            with contextlib.suppress(FileNotFoundError):
                total += os.lstat(os.path.join(folder, name)).st_blocks * 512
    return total


def choose(over: Sequence[Candidate], rules: Rules, now_s: float) -> list[Candidate]:
    """The runs to remove, oldest first; `over` is newest first. (pure)"""
    used = sum(one.size_bytes for one in over)
    gone: list[Candidate] = []
    for one in reversed(over[rules.keep :]):
        old = now_s - one.ended_at_s > rules.older_than_s
        if old or (rules.size_bytes is not None and used > rules.size_bytes):
            gone.append(one)
            used -= one.size_bytes
    return gone


def remove(home: str, one: Candidate) -> bool:
    """Remove a run and its index links. False: a request came, so the run stays. Raises OSError."""
    hidden = os.path.join(home, "runs", f"{_HIDDEN}{one.run}")
    os.rename(one.path, hidden)
    if _has_request(hidden):
        os.rename(hidden, one.path)
        return False
    for job in one.jobs:
        link = os.path.join(home, "index", job)
        with contextlib.suppress(OSError):
            if os.path.basename(os.readlink(link)) == one.run:  # Slurm may have reused the id
                os.unlink(link)
    shutil.rmtree(hidden)
    return True


def remove_leftovers(home: str) -> None:
    """Remove the hidden folders that a crash left behind. Raises OSError."""
    for path in _half_removed(home):
        shutil.rmtree(path)


def _half_removed(home: str) -> Iterator[str]:
    runs = os.path.join(home, "runs")
    with contextlib.suppress(FileNotFoundError):
        yield from (os.path.join(runs, name) for name in os.listdir(runs) if name.startswith(_HIDDEN))


DAY_S = 86_400.0


def prune(
    days: Annotated[
        float, option("--days", "Remove runs that ended more than this many days ago.", min=0)
    ] = 30.0,
    keep: Annotated[int, option("--keep", "Never remove the newest N runs.", "N", min=0)] = 0,
    size: Annotated[
        str,
        option(
            "--max-size",
            "Also remove the oldest runs until the rest take no more than this: 500M, 2G.",
            "SIZE",
        ),
    ] = "",
    dry_run: Annotated[bool, option("--dry-run", "Print what would be removed; remove nothing.")] = False,
    json: Json = False,
) -> int:
    """Remove runs that finished or stopped long ago, with their journals. Logs and checkpoints of the jobs
    stay.

    A run is never removed while it is open, while a request waits for it, or if its journal cannot be read.
    """
    home_dir = common.home()
    now = time.time()
    try:
        rules = Rules(days * DAY_S, keep, parse_bytes(size) if size else None)
    except ValueError:
        raise UserError(f"--max-size {size!r} is no size: write 500M or 2G") from None
    over, kept = list_candidates(home_dir, now)
    chosen = choose(over, rules, now)
    removed = chosen if dry_run else [one for one in chosen if _removed(home_dir, one)]
    if not dry_run:
        remove_leftovers(home_dir)
    freed = sum(one.size_bytes for one in removed)
    if json:
        facts = [asdict(one) for one in removed]
        common.print_json(
            {
                "dry_run": dry_run,
                "removed": facts,
                "freed_bytes": freed,
                "untouched": [asdict(one) for one in kept],
            }
        )
        return 0 if len(removed) == len(chosen) else 1
    if removed:
        rows = [
            [r.run, r.state, f"{(now - r.ended_at_s) / DAY_S:.0f} days ago", size_text(r.size_bytes)]
            for r in removed
        ]
        common.print_table(["RUN", "STATE", "ENDED", "SIZE"], rows)
    verb = "would be removed" if dry_run else "removed"
    print(
        f"{len(removed)} {'run' if len(removed) == 1 else 'runs'} {verb}, {size_text(freed)} freed; {len(over) - len(removed)} kept"
    )
    return 0 if len(removed) == len(chosen) else 1


def _removed(home_dir: str, one: Candidate) -> bool:
    try:
        if remove(home_dir, one):
            return True
        why = "a request for it has just come"
    except OSError as error:
        why = f"{error.filename}: {error.strerror}"
    print(f"ftrun: {one.run} was not removed: {why}", file=sys.stderr)
    return False
