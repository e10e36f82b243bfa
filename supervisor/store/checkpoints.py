"""The newest complete checkpoint, by the rule that batch.sh applies on the node. (I/O)

Both sides apply one rule; tests/unit/bundle/test_batch_sh.py compares them. A candidate matches the glob,
is neither empty nor temporary by its name, has the marker where one is required, and is not set aside. The
highest step wins: the number behind step, iter or epoch in the base name, else the last number in the name
without its extension. Then the youngest wins, then the last by name.
"""

from __future__ import annotations

import glob as globbing
import os
from collections.abc import Iterable

from ftrun.hooks.checkpoints.names import is_temporary, step_of
from ftrun.supervisor.model.types import CheckpointState

OVERTAKEN_S = 1.0


def newest_checkpoint(
    pattern: str, *, marker: str = "", set_aside: tuple[str, ...] = (), cwd: str = "/"
) -> str:
    """The path of the newest complete checkpoint; "" where there is none (or no pattern)."""
    return max(
        complete_checkpoints(pattern, marker=marker, set_aside=set_aside, cwd=cwd), key=_rank, default=""
    )


def complete_checkpoints(
    pattern: str, *, marker: str = "", set_aside: tuple[str, ...] = (), cwd: str = "/"
) -> list[str]:
    """The paths of all complete checkpoints, in no order."""
    if not pattern:
        return []
    paths = globbing.glob(os.path.join(cwd, os.path.expanduser(pattern)))
    aside = {os.path.join(cwd, path) for path in set_aside}
    usable = [path.rstrip("/") for path in paths]
    return [p for p in usable if p not in aside and not is_temporary(p) and _complete(p, marker)]


def overtaken_checkpoint(
    newest: str, pattern: str, *, set_aside: tuple[str, ...] = (), cwd: str = "/"
) -> str:
    """The checkpoint before `newest`, if its last write lies `OVERTAKEN_S` before that of `newest`: the script
    has gone on to another one. "" if there is none. All times are the file system's.
    """
    found = complete_checkpoints(pattern, set_aside=set_aside, cwd=cwd)
    before = max((path for path in found if path != newest), key=_rank, default="")
    if not newest or not before or not is_newer(newest, before, 0.0):
        return ""
    then_s, now_s = _written_s(before), _written_s(newest)
    return before if then_s and now_s - then_s >= OVERTAKEN_S else ""


class CheckpointWatch:
    """For how long one process has seen the newest checkpoint of a launch unchanged."""

    def __init__(self) -> None:
        self._newest: tuple[str, str] | None = None  # path and stamp
        self._since_s = 0.0

    def look(
        self,
        path: str,
        pattern: str,
        *,
        marked: bool,
        set_aside: tuple[str, ...] = (),
        cwd: str,
        logged: int | None,
        mono_s: float,
    ) -> CheckpointState:
        """What is known of checkpoints now; `path` is the newest one."""
        stamp = content_stamp(path) if path else ""
        if self._newest != (path, stamp):
            self._newest, self._since_s = (path, stamp), mono_s
        before = "" if marked else overtaken_checkpoint(path, pattern, set_aside=set_aside, cwd=cwd)
        overtaken = CheckpointState(before, content_stamp(before), step_of(before)) if before else None
        step, quiet_s = step_of(path) if path else None, mono_s - self._since_s
        return CheckpointState(path, stamp, step, logged, quiet_s, marked=marked, overtaken=overtaken)


def _written_s(path: str) -> float:
    """When anything in it was written last; 0 where it is gone."""
    stamp = content_stamp(path)
    return int(stamp.partition(".")[0]) / 1e9 if stamp else 0.0


def is_newer(path: str, than: str, since_s: float) -> bool:
    """Whether a checkpoint is newer than another by the same rule. One that always has the same name is newer
    if it was written after `since_s` (Unix seconds, by the file system's clock). The other one need not exist
    any more.
    """
    if not path or path != than:
        return bool(path) and (not than or _rank(path) > _rank(than))
    try:
        return os.path.getmtime(path) > since_s
    except OSError:
        return False


def content_stamp(path: str) -> str:
    """What tells one writing of a checkpoint from the next; "" where it is gone."""
    try:
        entries = [path, *(entry.path for entry in os.scandir(path))] if os.path.isdir(path) else [path]
        facts = [os.stat(entry) for entry in entries]
    except OSError:
        return ""
    return f"{max(fact.st_mtime_ns for fact in facts)}.{sum(fact.st_size for fact in facts)}.{len(facts)}"


def unchanged_since_set_aside(set_aside: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """Of (path, its stamp when it was set aside) those paths that nobody wrote anew since."""
    return tuple(path for path, then in set_aside if not then or content_stamp(path) == then)


def modified_s(path: str) -> float | None:
    """When it was written last (Unix seconds, by the file system's clock); None where there is none."""
    try:
        return os.stat(path).st_mtime
    except OSError:
        return None


def _rank(path: str) -> tuple[int, int, str]:
    step = step_of(path)
    try:
        age = os.stat(path).st_mtime_ns
    except OSError:
        age = 0
    return (-1 if step is None else step, age, path)


def _complete(path: str, marker: str) -> bool:
    try:
        if os.path.isdir(path):
            if marker:
                return os.path.exists(os.path.join(path, marker)) or os.path.exists(path + marker)
            return bool(os.listdir(path))
        if marker and (path.endswith(marker) or not os.path.exists(path + marker)):
            return False
        return os.path.getsize(path) > 0
    except OSError:
        return False
