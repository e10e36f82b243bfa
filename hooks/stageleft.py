"""Slurm's Epilog gives back the memory that a job's staged checkpoints still hold on this node. (I/O)

How it thinks. The Epilog is root, and the folders are a user's, who may put a link in the place of any of them at any moment. So a child becomes that user before it looks:
whatever it is led to, it takes away nothing that the user could not. It is left behind when it does not come back in time.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import stat
import time

from ftrun.hooks import keepbase

__all__ = ["clear"]

DEATH_S = 1.0  # a process that hangs in the kernel is left behind


def clear(stage_dir: str, uid: int, job: str, limit_s: float) -> list[str]:
    """Remove what jobs of this user that are gone left below `stage_dir`, that of `job` among them. Returns the names of the folders; nothing is raised."""
    above = f"{stage_dir.rstrip('/')}/ftrun-{uid}"
    try:
        fact = os.lstat(above)
    except OSError:
        return []
    if uid < 0 or not stat.S_ISDIR(fact.st_mode) or fact.st_uid != uid or os.geteuid() not in (0, uid):
        return []
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        _as_user(above, uid, fact.st_gid, job, writer)
    os.close(writer)
    told = b""
    try:
        while select.select([reader], [], [], max(0.0, limit_s))[0]:
            piece = os.read(reader, 1 << 16)
            if not piece:
                break
            told += piece
    finally:
        os.close(reader)
        with contextlib.suppress(OSError):
            os.kill(child, signal.SIGKILL)
            give_up_s = time.monotonic() + DEATH_S
            while os.waitpid(child, os.WNOHANG)[0] == 0 and time.monotonic() < give_up_s:
                time.sleep(0.01)
    return told.decode("utf-8", "replace").split()


def _as_user(above: str, uid: int, gid: int, job: str, writer: int) -> None:
    """The child's part: it never returns."""
    try:
        if os.geteuid() == 0:
            os.setgroups([])
            os.setgid(gid)
            os.setuid(uid)
        if os.getuid() == uid and os.geteuid() == uid:
            gone = keepbase.clear_dead(above, over=job)
            os.write(writer, " ".join(gone).encode("utf-8", "replace"))
    finally:
        os._exit(0)
