"""When the newest checkpoint of each live run was written. (I/O)

The folders are the users', on file systems that may not answer, so a thread looks at them and nobody waits
for it.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping

from ftrun.supervisor.config.settings import text_of
from ftrun.supervisor.model.run import Run
from ftrun.supervisor.model.states import State
from ftrun.supervisor.publish.publisher import FollowedRun
from ftrun.supervisor.store import checkpoints, submission_context

EVERY_S = 120.0
_LIVE = (State.RUNNING, State.SUSPECT)


class CheckpointAges:
    """`written_s`: run -> Unix seconds, of the live runs that have a checkpoint."""

    def __init__(self) -> None:
        self.written_s: Mapping[str, float] = {}
        self._looked_s = float("-inf")
        self._thread: threading.Thread | None = None

    def look(self, runs: Mapping[str, FollowedRun], mono_s: float) -> None:
        """Begin to look where it is due."""
        if mono_s - self._looked_s < EVERY_S or (self._thread is not None and self._thread.is_alive()):
            return
        self._looked_s = mono_s
        wanted = {run_id: (one.dir, one.run) for run_id, one in runs.items() if one.run.state in _LIVE}
        self._thread = threading.Thread(target=self.look_now, args=(wanted,), daemon=True)
        self._thread.start()

    def look_now(self, wanted: Mapping[str, tuple[str, Run]]) -> None:
        """Look at these, however long it takes."""
        found: dict[str, float] = {}
        for run_id, (folder, run) in wanted.items():
            with contextlib.suppress(OSError, ValueError, LookupError):
                pattern = text_of(run.settings, "checkpoint")
                if pattern:
                    marker = text_of(run.settings, "checkpoint-marker")
                    cwd = submission_context.cwd(folder)
                    newest = checkpoints.newest_checkpoint(pattern, marker=marker, cwd=cwd)
                    written_s = checkpoints.modified_s(newest) if newest else None
                    if written_s is not None:
                        found[run_id] = written_s
        self.written_s = found
