"""State that the hooks of a node keep between calls: reports, counters, start times of jobs, a log. (I/O)

This state is optional: with a full, read-only or missing folder comparisons are lost, and no job. A read
returns "nothing known" for anything that it cannot parse, and a write may fail silently. State from before a
reboot is ignored, since counters start anew. What every prolog reads and writes is plain lines of text: a job
waits while json is imported.
"""

from __future__ import annotations

import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Optional


LOG_BYTES_MAX = 1 << 20
LOGS = "hooks.log"
JOB_KEPT_S = 30 * 86_400.0


class StateDir:
    """The state folder `path`, created at the first write."""

    def __init__(self, path: str) -> None:
        self.path = path

    def lines(self, name: str) -> list[str]:
        """The lines stored under a name since boot; [] without any."""
        try:
            boot, *lines = self._text(name).splitlines()
        except (OSError, ValueError):
            return []
        return lines if boot == _boot() else []

    def keep(self, name: str, *lines: str) -> None:
        """Store lines atomically."""
        self._put(name, "\n".join((_boot(), *lines)) + "\n")

    def _text(self, name: str) -> str:
        with open(os.path.join(self.path, name), encoding="utf-8") as stream:
            return stream.read()

    def _put(self, name: str, text: str) -> None:
        path = os.path.join(self.path, name)
        draft = f"{path}.{os.getpid()}"
        try:
            os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
            with open(draft, "w", encoding="utf-8") as stream:
                stream.write(text)
            os.replace(draft, path)
        except OSError:
            return

    def read(self, name: str) -> dict[str, Any]:
        """The object stored under a name since boot; {} without one."""
        import json

        try:
            table = json.loads(self._text(name + ".json"))
        except (OSError, ValueError, RecursionError):
            return {}
        return table if isinstance(table, dict) and table.pop("boot", None) == _boot() else {}

    def write(self, name: str, kept: dict[str, Any]) -> None:
        """Store an object as JSON, with the boot id in it."""
        import json

        self._put(name + ".json", json.dumps({**kept, "boot": _boot()}) + "\n")

    def begin(self, job: str) -> None:
        """Record the start of a job on this node."""
        if job.isdigit():
            self.keep(f"jobs/{job}", f"{time.time():.3f}")

    def began_s(self, job: str) -> Optional[float]:
        """When a job began here (epoch seconds); None if no prolog recorded it."""
        return _number(self.lines(f"jobs/{job}")) if job.isdigit() else None

    def end(self, job: str) -> None:
        """Forget a job that has ended."""
        if job.isdigit():
            _remove(os.path.join(self.path, "jobs", job))

    def note_health(self, ill: list[str]) -> None:
        """Record the checks that the latest health check found bad."""
        self.keep("health", f"{time.time():.3f}", *ill)

    def health(self) -> tuple[Optional[float], list[str]]:
        """Time of the last health check (epoch seconds; None: never), and what it found bad."""
        lines = self.lines("health")
        return _number(lines), lines[1:]

    def forget_old(self) -> None:
        """Remove records of jobs whose epilog never ran."""
        folder = os.path.join(self.path, "jobs")
        try:
            paths = [os.path.join(folder, name) for name in os.listdir(folder)]
            old = [path for path in paths if time.time() - os.stat(path).st_mtime > JOB_KEPT_S]
        except OSError:
            return
        for path in old:
            _remove(path)

    def log(self, *lines: str) -> None:
        """Append lines to the hooks' log; a log that is too long is rotated, and one older log kept."""
        path = os.path.join(self.path, LOGS)
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        text = "".join(f"{stamp} {' '.join(line.split())}\n" for line in lines)
        try:
            os.makedirs(self.path, mode=0o755, exist_ok=True)
            if os.path.exists(path) and os.stat(path).st_size > LOG_BYTES_MAX:
                os.replace(path, path + ".1")
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            try:
                os.write(descriptor, text.encode("utf-8", "replace"))
            finally:
                os.close(descriptor)
        except OSError:
            return


def _number(lines: list[str]) -> Optional[float]:
    try:
        return float(lines[0])
    except (IndexError, ValueError):
        return None


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        return


def _boot() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as stream:
            return stream.read().strip()
    except OSError:
        return ""
