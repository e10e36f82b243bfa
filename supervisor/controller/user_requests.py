"""Users' requests to a run: files in its `requests` folder, each recorded once and then removed. (I/O)

A request is a user's decision, so none is lost: a file that cannot be read just now stays. What is no request
at all (an editor's backup, a folder, a pipe) is recorded as unreadable once and never holds the run up. Only
known words reach the journal, since all state is folded from it.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
from collections.abc import Collection

from ftrun.supervisor.context.run_context import RunContext
from ftrun.supervisor.controller import finish
from ftrun.supervisor.model.states import State

WANTS = frozenset({"cancel", "stop", "pause", "clear", "resume"})
UNREADABLE = ("unreadable", "", False)
SIZE_MAX_BYTES = 64 * 1024
_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC  # a pipe must not block


def pending(run_dir: str, seen: Collection[str] = ()) -> list[str]:
    """The names of the requests that are not recorded yet, oldest first.

    None if the folder cannot be read.
    """
    try:
        names = os.listdir(os.path.join(run_dir, "requests"))
    except OSError:
        return []
    return sorted(name for name in names if name.endswith(".json") and name not in seen)


def take_requests(ctx: RunContext) -> None:
    """Record every request and remove it. Raises OSError (journal)."""
    for name in pending(ctx.run_dir):
        path = os.path.join(ctx.run_dir, "requests", name)
        if name not in ctx.run.requests_seen:
            asked = _read(path)
            if asked is None:
                continue
            want, by, halt = asked
            if want == "resume" and ctx.run.state is State.STOPPED and ctx.run.attempts:
                finish.resume_run(ctx)  # before it is recorded: a crash in between must not lose it
            if want in ("cancel", "stop") and ctx.run.paused:
                finish.give_up_paused_run(ctx, want, by)
            ctx.record("request.seen", name=name, want=want, by=by, **({"halt": True} if halt else {}))
        with contextlib.suppress(OSError):  # a folder stays, and is not read again
            os.unlink(path)


def _read(path: str) -> tuple[str, str, bool] | None:
    """(what is wanted, by whom, whether the conditions are in halt.json); None if the file is unreadable
    now.
    """
    try:
        fd = os.open(path, _FLAGS)
    except OSError as error:
        return UNREADABLE if error.errno in {errno.ELOOP, errno.ENXIO} else None
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return UNREADABLE
        text = os.read(fd, SIZE_MAX_BYTES)
    except OSError:
        return None
    finally:
        os.close(fd)
    try:
        request = json.loads(text)
    except (ValueError, RecursionError):
        return UNREADABLE
    want, by = (request.get("want"), request.get("by")) if isinstance(request, dict) else (None, None)
    if not isinstance(want, str) or want not in WANTS:
        return UNREADABLE
    return want, " ".join(by.split())[:64] if isinstance(by, str) else "", request.get("halt") is True
