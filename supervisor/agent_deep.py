"""The agent's child that reads the newest checkpoint to its end while the run runs (`ftrun-hook deepen`). (I/O)

How it thinks. The agent is the one process of a run that is certain to be on one node only, as long as the job runs; a supervisor may sit on a login node, where nobody wants
hundreds of gigabytes to be read. So it begins the reader with the first start and forgets it: the reader looks after itself, ends with the agent, and what it found lies
in the run's folder. Only where starts set other checkpoints aside is it begun anew. A reader that cannot be begun costs nothing but its findings.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ftrun.hooks.ownership import RUNNER
from ftrun.supervisor import checkpoints, context, store
from ftrun.supervisor.run_types import Run

__all__ = ["Begin", "Deep", "begin"]

Begin = Callable[[str, Sequence[str]], "subprocess.Popen[bytes] | None"]
"""As `begin`: ($FTRUN_HOME, the words behind `ftrun-hook`) -> the process."""


def begin(home: str, words: Sequence[str]) -> subprocess.Popen[bytes] | None:
    """Start the node side of ftrun beside us, with an environment that no rank has; None where it is not there."""
    tool = os.path.join(home, store.TOOLS_LINK)
    with contextlib.suppress(OSError):
        return subprocess.Popen(
            [sys.executable, "-IS", "-c", RUNNER, os.path.realpath(tool, strict=True), *words],
            env={"PATH": "/usr/bin:/bin"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
    return None


class Deep:
    """The reader of one launch. `begin` is None where no process may be started."""

    def __init__(self, home: str, run_dir: str, settings: Mapping[str, Any], begin: Begin | None) -> None:
        self._home, self._run_dir, self._settings = home, run_dir, settings
        self._begin = begin if settings.get("checkpoint-deep", "auto") == "auto" else None
        self._words: tuple[str, ...] = ()
        self._child: subprocess.Popen[bytes] | None = None

    def begun(self, run: Callable[[], Run]) -> None:
        """A start has begun: see that the reader reads what the next one would take. `run`: the run now, asked only where that matters."""
        pattern = str(self._settings.get("checkpoint", ""))
        if not pattern or self._begin is None or self._settings.get("checkpoint-judge") == "rule":
            return
        words = (
            "deepen",
            *("--run-dir", self._run_dir, "--cwd", context.cwd(self._run_dir) or "/", "--glob", pattern),
            *("--marker", str(self._settings.get("checkpoint-marker", ""))),
            *("--skip", "\n".join(checkpoints.still_aside(run().set_aside))),
            *("--rate", str(self._settings.get("checkpoint-deep-rate", "200M"))),
        )
        if words != self._words or self._child is None or self._child.poll() is not None:
            self.close()
            self._words, self._child = words, self._begin(self._home, words)

    def close(self) -> None:
        """End the reader, and wait for nothing but a process that can be ended."""
        if self._child is not None and self._child.poll() is None:
            self._child.kill()  # its own child dies with it
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._child.wait(timeout=0.5)
        self._child = None
