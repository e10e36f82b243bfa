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
    from ftrun.supervisor.run_context import RunContext

__all__ = ["record_given_up", "record_stopped"]

TAIL_BYTES = 1 << 16


def record_stopped(ctx: RunContext, fields: Mapping[str, Any]) -> None:
    """Journal the end of a run that does not go on (`fields` as in run.stopped), its line in the log first."""
    _say(ctx, fields, paused=ctx.run.wish == "pause")
    ctx.record("run.stopped", **fields)


def record_given_up(ctx: RunContext, fields: Mapping[str, Any]) -> None:
    """The same of a paused run that does not come back."""
    _say(ctx, fields, paused=False)
    ctx.record("run.given-up", **fields)


def _say(ctx: RunContext, fields: Mapping[str, Any], *, paused: bool) -> None:
    ctx.services.prove()
    path = _write(ctx, fields, paused=paused)
    if path:
        ctx.record("final.line", path=path)


def _write(ctx: RunContext, fields: Mapping[str, Any], *, paused: bool) -> str:
    """The log that got the line; "" where none can be written or where the line stands already."""
    attempt, settings = ctx.attempt, ctx.settings
    nodes = (ctx.run.incidents[-1].nodes if ctx.run.incidents else ()) or ("-",)
    tries = [(one.number, one.launch.number) for one in ctx.run.attempts]
    launch = attempts.latest_launch(ctx.run_dir, tries)
    if launch is None or not launch.stdout.startswith("/") or launch.stdout.startswith("/dev/"):
        return ""
    what = "paused,exiting" if paused else "error,exiting"
    head = f"ftrun: {what} run={ctx.run.id} attempt={attempt.number}/{int(settings.get('retries', 20)) + 1} "
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
