"""Follow the output of one run: the end of its newest start first, then what is new, over its starts. (I/O)"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from ftrun.hooks.runtime.formats import plain
from ftrun.supervisor.model.run import Run
from ftrun.supervisor.reports import view_run
from ftrun.supervisor.store import attempt_dir
from ftrun.supervisor.telemetry import log_watcher

FILES_FOLLOWED = 8
TAIL_BYTES = 16 * 1024
LOOK_BYTES = 256 * 1024
LINE_MAX = 2000

_CODES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\))")


class LogFollower:
    """The new lines of a run's logs, those of its newest start."""

    def __init__(self, run_dir: str) -> None:
        self._run_dir = run_dir
        self._start = (0, 0, 0)
        self._reached: dict[str, int] = {}
        self._rest: dict[str, bytes] = {}
        self._last = ""

    def new_lines(self, run: Run) -> Iterator[str]:
        """What was written since the last call; of a start that is new, a line that names it."""
        attempt = run.attempt
        launches = attempt_dir.launch_numbers(self._run_dir, attempt.number) if attempt is not None else []
        if attempt is None or not launches:
            return
        starts = attempt_dir.start_numbers(self._run_dir, attempt.number, launches[-1])
        start = (attempt.number, launches[-1], starts[-1] if starts else 1)
        logs = [one for one in log_watcher.start_logs(self._run_dir, *start) if os.path.isfile(one.path)]
        if start != self._start:
            record = attempt_dir.start_record(self._run_dir, *start) or attempt_dir.launch_record(
                self._run_dir, *start[:2]
            )
            if record is None:
                return
            self._start, self._reached, self._rest, self._last = start, {}, {}, ""
            yield f"----- {plain(view_run.start_text(start, record))} -----"
        for log in logs[:FILES_FOLLOWED]:
            for line in self._of_file(log.path, log.start_offset_bytes):
                if len(logs) > 1 and self._last != log.path:
                    yield f"--- {plain(log.path)} ---"
                self._last = log.path
                yield line

    def _of_file(self, path: str, begin_bytes: int) -> Iterator[str]:
        try:
            with open(path, "rb") as stream:
                size = stream.seek(0, 2)
                reached = self._reached.get(path)
                if reached is None or reached > size:
                    reached = max(begin_bytes if begin_bytes <= size else 0, size - TAIL_BYTES)
                    self._rest.pop(path, None)
                elif size - reached > LOOK_BYTES:
                    reached = size - LOOK_BYTES
                    self._rest.pop(path, None)
                    yield "(more was written than is shown)"
                stream.seek(reached)
                content = stream.read(LOOK_BYTES)
        except OSError:
            return
        self._reached[path] = reached + len(content)
        *whole, rest = (self._rest.get(path, b"") + content).split(b"\n")
        self._rest[path] = rest[-LINE_MAX:]
        yield from map(shown_line, whole)


def shown_line(line: bytes) -> str:
    """A line of a log for a screen: without a terminal's codes, of a progress bar the last state."""
    text = _CODES.sub("", line.decode("utf-8", "replace").rstrip("\r"))
    return plain(text.rpartition("\r")[2].expandtabs(4)[:LINE_MAX])
