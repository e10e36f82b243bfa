"""The agent's child process that verifies checksums of the newest checkpoint while the run works. (I/O)

The agent is the one process of a run that exists on exactly one node for as long as the job runs. A
supervisor may sit on a login node, where nobody wants it to read hundreds of gigabytes. So the agent starts
the reader (`ftrun-hook verify-checkpoint`) with the first start and leaves it alone: the reader paces itself, ends with
the agent, and writes its results to the run's folder. The agent restarts it only where the set of skipped
checkpoints changes. A reader that cannot be started costs nothing but its results.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ftrun.hooks.runtime.ownership import RUNNER
from ftrun.hooks.runtime.parent import environment_for_helper
from ftrun.supervisor.agent.context import StartReader
from ftrun.supervisor.config.settings import text_of
from ftrun.supervisor.model.run import Run
from ftrun.supervisor.store import checkpoints, submission_context
from ftrun.supervisor.store import run_dir as store_run_dir


def start_reader(home: str, words: Sequence[str]) -> subprocess.Popen[bytes] | None:
    """Start the node tool `ftrun-hook` with these arguments as a child, with an environment that no rank has;
    None if the tool is not installed.
    """
    tool = os.path.join(home, store_run_dir.TOOLS_LINK)
    with contextlib.suppress(OSError):
        return subprocess.Popen(
            [sys.executable, "-IS", "-c", RUNNER, os.path.realpath(tool, strict=True), *words],
            env=environment_for_helper({"PATH": "/usr/bin:/bin"}),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
    return None


class ChecksumReader:
    """The reader of one launch. `begin` is None where no process may be started."""

    def __init__(
        self, home: str, run_dir: str, settings: Mapping[str, Any], begin: StartReader | None
    ) -> None:
        self._home, self._run_dir, self._settings = home, run_dir, settings
        self._begin = begin if text_of(settings, "checkpoint-checksum") == "auto" else None
        self._words: tuple[str, ...] = ()
        self._child: subprocess.Popen[bytes] | None = None

    def begun(self, run: Callable[[], Run]) -> None:
        """A start has begun: make the reader verify what the next start would load. `run` is called only if
        needed.
        """
        pattern = text_of(self._settings, "checkpoint")
        if not pattern or self._begin is None or self._settings.get("checkpoint-verify") == "name":
            return
        words = (
            "verify-checkpoint",
            *(
                "--run-dir",
                self._run_dir,
                "--cwd",
                submission_context.cwd(self._run_dir) or "/",
                "--glob",
                pattern,
            ),
            *("--marker", text_of(self._settings, "checkpoint-marker")),
            *("--skip", "\n".join(checkpoints.unchanged_since_set_aside(run().set_aside))),
            *("--rate", text_of(self._settings, "checkpoint-checksum-rate")),
        )
        if words != self._words or self._child is None or self._child.poll() is not None:
            self.close()
            self._words, self._child = words, self._begin(self._home, words)

    def close(self) -> None:
        """Kill the reader. Waits half a second at most."""
        if self._child is not None and self._child.poll() is None:
            self._child.kill()  # its own child ends with it
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._child.wait(timeout=0.5)
        self._child = None
