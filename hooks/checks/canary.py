"""`canary`: a small file can be written, made durable, read back and removed where the job writes. (I/O)

How it thinks. Only a write proves that one can write: quota, a full disk, a server that serves reads and hangs on commits, all look well
from afar. In each folder a file with a name of our own is made, 64 KiB are written, fsync'ed, read back and compared, then it
is removed; each folder by a child or a thread with a deadline. Different bytes are bad. What is full, over quota or forbidden is the folder's or the
user's state, the same from every node: degraded, and the message says so. A folder that is not there is a note.

Thresholds: `folders` (the runner's: the run's own, its checkpoints, its cache); `deadline_s` 8; `slow_s` 3, as a commit of 64 KiB takes
milliseconds on a healthy server and a second on a loaded one.

Checked against: real folders of this kernel (written, missing, forbidden); answers of every error number in a table; a folder that hangs is a pipe in the tests of the machine.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Mapping, Sequence
from typing import Any

from ftrun.hooks.findings import BAD, DEGRADED, NOTE, OK, SKIPPED, Check, Finding
from ftrun.hooks.machine import Machine
from ftrun.hooks.mounts import Touch, asked

__all__ = ["CHECK", "judge"]

NAME = "canary"
SIZE_BYTES = 64 * 1024
DIFFERENT = "different"
OF_THE_FOLDER = {errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.ENOTDIR}


def probe(machine: Machine, thresholds: Mapping[str, Any]) -> dict[str, Touch]:
    """What came of writing into each folder."""

    def question(folder: str) -> str:
        return _written(machine.path(folder))

    return asked(machine, thresholds["folders"], question, thresholds["deadline_s"])


def _written(folder: str) -> str:
    """Write, fsync, read back, remove; "different" where other bytes came back."""
    content = os.urandom(SIZE_BYTES)
    path = os.path.join(folder, f".ftrun-canary-{os.urandom(8).hex()}")
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        try:
            os.write(descriptor, content)
            os.fsync(descriptor)
            # What is still in memory would be read from there and prove nothing.
            with contextlib.suppress(OSError):
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)
        with open(path, "rb") as stream:
            same = stream.read() == content
    finally:
        os.unlink(path)
    return "" if same else DIFFERENT


def judge(touches: Mapping[str, Touch], thresholds: Mapping[str, Any]) -> Sequence[Finding]:
    """Bad for what hangs, fails or returns other bytes; degraded for what is slow, full or forbidden."""
    if not touches:
        return [Finding(NAME, SKIPPED, "no folder is named")]
    found = [one for folder, touch in touches.items() for one in _looked(folder, touch, thresholds)]
    if found:
        return found
    slowest = max(touch.took_s for touch in touches.values())
    told = f"{len(touches)} folder(s) can be written, the slowest in {slowest * 1000:.0f} ms"
    return [Finding(NAME, OK, told, value=round(slowest, 4), unit="s")]


def _looked(folder: str, touch: Touch, thresholds: Mapping[str, Any]) -> list[Finding]:
    if touch.hung:
        message = f"writing into {folder} hangs: not done within {touch.took_s:g} s"
        return [Finding(NAME, BAD, message, "storage", folder, value=touch.took_s, unit="s")]
    if touch.errno == errno.ENOENT:
        return [Finding(NAME, NOTE, f"{folder} is not there", device=folder)]
    if touch.errno:
        severity = DEGRADED if touch.errno in OF_THE_FOLDER else BAD
        return [
            Finding(
                NAME, severity, f"{folder} cannot be written: {touch.word}", "storage", folder, (touch.word,)
            )
        ]
    if touch.text == DIFFERENT:
        return [Finding(NAME, BAD, f"{folder} returned other bytes than were written", "storage", folder)]
    if touch.took_s > thresholds["slow_s"]:
        message = f"writing 64 KiB into {folder} took {touch.took_s:.1f} s"
        return [Finding(NAME, DEGRADED, message, "storage", folder, value=round(touch.took_s, 3), unit="s")]
    return []


CHECK = Check(
    name=NAME,
    title="A small file can be written, read back and removed where the job writes",
    tier="fast",
    fault="storage",
    needs=(),
    limit_s=10.0,
    thresholds={"folders": (), "deadline_s": 8.0, "slow_s": 3.0},
    probe=probe,
    judge=judge,
)
