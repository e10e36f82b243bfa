"""The last line of a run that stops: fixed, greppable, in the job's own log. (I/O)

It is written before the stop is journalled, and not again where it stands already: a supervisor that dies between the two
leaves one line, never none and never two.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ftrun.supervisor import attempts

if TYPE_CHECKING:
    from ftrun.supervisor.keeper import Keeper

__all__ = ["given_up", "stopped"]

TAIL_BYTES = 1 << 16


def stopped(keeper: Keeper, fields: Mapping[str, Any]) -> None:
    """Journal the end of a run that does not go on (`fields` as in run.stopped), its line in the log first."""
    _say(keeper, fields, paused=keeper.run.wish == "pause")
    keeper.record("run.stopped", **fields)


def given_up(keeper: Keeper, fields: Mapping[str, Any]) -> None:
    """The same of a paused run that does not come back."""
    _say(keeper, fields, paused=False)
    keeper.record("run.given-up", **fields)


def _say(keeper: Keeper, fields: Mapping[str, Any], *, paused: bool) -> None:
    keeper.office.prove()
    path = _write(keeper, fields, paused=paused)
    if path:
        keeper.record("final.line", path=path)


def _write(keeper: Keeper, fields: Mapping[str, Any], *, paused: bool) -> str:
    """The log that got the line; "" where none can be written or where the line stands already."""
    attempt, settings = keeper.attempt, keeper.settings
    nodes = (keeper.run.incidents[-1].nodes if keeper.run.incidents else ()) or ("-",)
    tries = [(one.number, one.launch.number) for one in keeper.run.attempts]
    launch = attempts.latest_launch(keeper.run_dir, tries)
    if launch is None or not launch.stdout.startswith("/") or launch.stdout.startswith("/dev/"):
        return ""
    what = "paused,exiting" if paused else "error,exiting"
    head = (
        f"ftrun: {what} run={keeper.run.id} attempt={attempt.number}/{int(settings.get('retries', 20)) + 1} "
    )
    line = f"{head}class={fields.get('class', '-')} node={','.join(nodes)} reason={' '.join(fields['reason'].split())}\n"
    try:
        fd = os.open(launch.stdout, os.O_RDWR | os.O_APPEND | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        found = os.fstat(fd)  # what stands under the name now may be a pipe, or another's file
        if not stat.S_ISREG(found.st_mode) or launch.stdout_ino not in {0, found.st_ino}:
            return ""
        tail = os.pread(fd, TAIL_BYTES, max(0, found.st_size - TAIL_BYTES))
        if head.encode() in tail:
            return ""
        os.write(
            fd, ("" if tail[-1:] in (b"", b"\n") else "\n").encode() + line.encode("utf-8", "surrogateescape")
        )
    except OSError:
        return ""
    finally:
        os.close(fd)
    return launch.stdout
