"""Which runs that are over may go, and how they are removed. (I/O)

How it thinks. A run is a candidate only when its journal can be read, says that the run is final, and holds no request that
somebody left for it; anything else is kept and named. What is kept by number or age is kept; a size cap then removes the
oldest of what is left over. A run is first renamed to a hidden name, so that no command meets half a run, and then removed;
`$FTRUN_HOME/runs/.removing-*` that a crash left behind is removed the next time.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator, Sequence

from ftrun.slurm.records import dataclass
from ftrun.supervisor import events, journal, store
from ftrun.supervisor.lifecycle import IllegalEvent

__all__ = ["Candidate", "Kept", "Rules", "choose", "remove", "survey", "sweep"]

_HIDDEN = ".removing-"
SETTLED_AFTER_S = (
    900.0  # a run whose submission had no answer may still get a late job that must be cancelled
)


@dataclass(frozen=True, slots=True)
class Rules:
    """What goes: runs that ended more than `older_than_s` ago, then the oldest until all that are over take no more than
    `size_bytes` (None = no cap). The `keep` newest never go."""

    older_than_s: float
    keep: int = 0
    size_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Candidate:
    """A run that is over."""

    run: str
    path: str
    state: str
    ended_at_s: float
    size_bytes: int
    jobs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Kept:
    """A run that prune never touches, and why."""

    run: str
    why: str


def survey(home: str, now_s: float) -> tuple[list[Candidate], list[Kept]]:
    """Every run of a home: those that are over, newest first, and those that are not touched."""
    found = [_look(run_dir, now_s) for run_dir in store.run_dirs(home)]
    over = [one for one in found if isinstance(one, Candidate)]
    kept = [one for one in found if isinstance(one, Kept)]
    over.sort(key=lambda one: (one.ended_at_s, one.run), reverse=True)
    return over, kept


def _look(run_dir: str, now_s: float) -> Candidate | Kept:
    name = os.path.basename(run_dir)
    try:
        run = events.fold(name, journal.read_run(run_dir))
    except (journal.JournalDamaged, journal.JournalTooNew, IllegalEvent, events.BadRecord, OSError) as error:
        return Kept(name, f"its journal cannot be read: {error}")
    if not run.final:
        return Kept(name, f"it is {run.state.value}")
    if run.paused:
        return Kept(name, "it is paused")
    if _asked(run_dir):
        return Kept(name, "somebody left a request for it")
    attempt = run.attempt
    if attempt and attempt.submission in {"unknown", "intended"} and now_s - run.last_at_s < SETTLED_AFTER_S:
        return Kept(name, "a late job of it may still appear")
    return Candidate(
        name, run_dir, run.state.value, run.last_at_s, _size(run_dir), (*run.job_ids, *run.companion_ids)
    )


def _asked(run_dir: str) -> bool:
    """Somebody wants something of the run that no supervisor has taken up yet."""
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
    """What goes, oldest first. `over` is newest first. (pure)"""
    used = sum(one.size_bytes for one in over)
    gone: list[Candidate] = []
    for one in reversed(over[rules.keep :]):
        old = now_s - one.ended_at_s > rules.older_than_s
        if old or (rules.size_bytes is not None and used > rules.size_bytes):
            gone.append(one)
            used -= one.size_bytes
    return gone


def remove(home: str, one: Candidate) -> bool:
    """Remove a run and the index links of its jobs. False: a request came in the last moment, the run stays. Raises OSError."""
    hidden = os.path.join(home, "runs", f"{_HIDDEN}{one.run}")
    os.rename(one.path, hidden)
    if _asked(hidden):
        os.rename(hidden, one.path)
        return False
    for job in one.jobs:
        link = os.path.join(home, "index", job)
        with contextlib.suppress(OSError):
            if os.path.basename(os.readlink(link)) == one.run:  # the id may have been given out again
                os.unlink(link)
    shutil.rmtree(hidden)
    return True


def sweep(home: str) -> None:
    """Remove what a crash left half removed. Raises OSError."""
    for path in _half_removed(home):
        shutil.rmtree(path)


def _half_removed(home: str) -> Iterator[str]:
    runs = os.path.join(home, "runs")
    with contextlib.suppress(FileNotFoundError):
        yield from (os.path.join(runs, name) for name in os.listdir(runs) if name.startswith(_HIDDEN))
