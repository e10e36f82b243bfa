"""Which part of which file a launch, or one start of its script, wrote, and by what its lines are told from others'. (I/O)

How it thinks. A job that Slurm starts again appends to the log of its last launch, and the next attempt to that of the last
one, where a person named one file for all; and so does a script that is started again inside one launch. Each start recorded how long its log
was when it began; so its own text ends where a later one begins in the same file. A file that a later launch emptied or replaced holds nothing of the earlier.
Behind that place a node of an earlier launch may write all the same, if it froze and thaws: `whose` tells its lines by the jobs and nodes in them.
"""

from __future__ import annotations

import contextlib

from ftrun.supervisor import attempts, store
from ftrun.supervisor.attempts import LaunchRecord
from ftrun.supervisor.tail import LogPath
from ftrun.supervisor.whose import NOBODY_KNOWN, Ours

__all__ = ["later", "of_launch", "of_record", "of_start", "ours"]

OTHERS_MAX = 64
"""So many attempts back, jobs and nodes of earlier launches are known as another's; no node sleeps longer."""


def later(run_dir: str, attempt: int, launch: int) -> LaunchRecord | None:
    """The record of the first launch after this one, be it of a later attempt; None while there is none."""
    with contextlib.suppress(OSError):  # a folder that cannot be read now tells of no later launch
        for number in range(attempt, store.latest_attempt(run_dir) + 1):
            found = attempts.launch_after(run_dir, number, launch if number == attempt else -1)
            if found is not None:
                return found
    return None


def of_launch(run_dir: str, attempt: int, launch: int) -> list[LogPath]:
    """The logs of the newest start of one launch; [] where it left no record, or nothing of them is left."""
    record = attempts.last_start(run_dir, attempt, launch)
    return of_record(record, later(run_dir, attempt, launch)) if record is not None else []


def of_start(run_dir: str, attempt: int, launch: int, start: int) -> list[LogPath]:
    """The logs of one start inside a launch, from its first byte to its last; [] where nothing of them is known or left."""
    first = start == 1
    record = attempts.start_record(run_dir, attempt, launch, start)
    record = attempts.launch_record(run_dir, attempt, launch) if record is None and first else record
    after = attempts.start_record(run_dir, attempt, launch, start + 1) or later(run_dir, attempt, launch)
    return of_record(record, after) if record is not None else []


def ours(run_dir: str, attempt: int, launch: int) -> Ours:
    """The jobs and nodes of one launch and those of the run's others; nothing where it left no record."""
    record = attempts.launch_record(run_dir, attempt, launch)
    if record is None or not record.job:
        return NOBODY_KNOWN
    others: list[LaunchRecord] = []
    latest = store.latest_attempt(run_dir)
    for number in range(max(1, latest - OTHERS_MAX), latest + 1):
        found = attempts.launch_after(run_dir, number, -1)
        while found is not None:
            others += [found] if (number, found.number) != (attempt, launch) else []
            found = attempts.launch_after(run_dir, number, found.number)
    return Ours(
        jobs=frozenset({record.job}),
        nodes=frozenset(record.nodes),
        other_jobs=frozenset(one.job for one in others if one.job),
        other_nodes=frozenset(node for one in others for node in one.nodes),
        several=record.several,
    )


def of_record(record: LaunchRecord, after: LaunchRecord | None = None) -> list[LogPath]:
    """The logs that a launch recorded, up to where the launch `after` it begins in the same files. (pure)"""
    out = LogPath(record.stdout, record.stdout_offset_bytes, record.stdout_dev, record.stdout_ino)
    err = LogPath(record.stderr, record.stderr_offset_bytes, record.stderr_dev, record.stderr_ino)
    logs = [out] if (out.dev, out.ino) == (err.dev, err.ino) else [out, err]
    logs = [log for log in logs if log.path.startswith("/")]
    return [log for log in (_ended(log, after) for log in logs) if log is not None]


def _ended(log: LogPath, after: LaunchRecord | None) -> LogPath | None:
    """`log` with its end; None where the later launch emptied or replaced the file. Inodes are compared without their devices,
    which each host numbers for itself."""
    if after is None:
        return log
    streams = (
        (after.stdout, after.stdout_ino, after.stdout_offset_bytes),
        (after.stderr, after.stderr_ino, after.stderr_offset_bytes),
    )
    for path, ino, end_bytes in streams:
        if path != log.path or not ino or not log.ino:
            continue
        if ino != log.ino or end_bytes < log.start_offset_bytes:
            return None
        return LogPath(log.path, log.start_offset_bytes, log.dev, log.ino, end_bytes)
    return log
