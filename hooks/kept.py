"""What the hooks of a node keep between their runs, in a folder of their own: reports, counters, when jobs began, a log. (I/O)

How it thinks. Nothing here is needed: a folder that is full, read-only or missing costs comparisons and never a job. So each reading
answers "nothing known" for whatever it cannot make out, and each writing may fail in silence. What was kept before a reboot is not
believed: counters begin anew.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from typing import Any, Optional

__all__ = ["Kept"]

LOG_BYTES_MAX = 1 << 20
LOGS = "hooks.log"
JOB_KEPT_S = 30 * 86_400.0


class Kept:
    """The folder `path`; it is made at the first writing."""

    def __init__(self, path: str) -> None:
        self.path = path

    def read(self, name: str) -> dict[str, Any]:
        """What was kept under a name since the node was started; {} for nothing."""
        try:
            with open(os.path.join(self.path, name + ".json"), encoding="utf-8") as stream:
                table = json.load(stream)
        except (OSError, ValueError):
            return {}
        if (
            not isinstance(table, dict)
            or table.get("boot") != _boot()
            or not isinstance(table.get("kept"), dict)
        ):
            return {}
        return dict(table["kept"])

    def write(self, name: str, kept: dict[str, Any]) -> None:
        """Keep an object; a reader sees the old one or the new one."""
        path = os.path.join(self.path, name + ".json")
        draft = f"{path}.{os.getpid()}"
        with contextlib.suppress(OSError):
            os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
            with open(draft, "w", encoding="utf-8") as stream:
                json.dump({"boot": _boot(), "kept": kept}, stream)
            os.replace(draft, path)

    def begin(self, job: str) -> None:
        """A job begins on this node."""
        if job.isdigit():
            self.write(f"jobs/{job}", {"at_s": round(time.time(), 3)})

    def began_s(self, job: str) -> Optional[float]:
        """When a job began here (seconds of the epoch); None where no prolog saw it."""
        at_s = self.read(f"jobs/{job}").get("at_s") if job.isdigit() else None
        return float(at_s) if isinstance(at_s, (int, float)) else None

    def end(self, job: str) -> None:
        """A job is over on this node."""
        if job.isdigit():
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(self.path, "jobs", job + ".json"))

    def forget_old(self) -> None:
        """Remove what was kept of jobs whose epilog never came."""
        folder = os.path.join(self.path, "jobs")
        with contextlib.suppress(OSError):
            for name in os.listdir(folder):
                path = os.path.join(folder, name)
                if time.time() - os.stat(path).st_mtime > JOB_KEPT_S:
                    os.unlink(path)

    def log(self, *lines: str) -> None:
        """Append lines to the log of the hooks; the one before is kept when it grows too long."""
        path = os.path.join(self.path, LOGS)
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        text = "".join(f"{stamp} {' '.join(line.split())}\n" for line in lines)
        with contextlib.suppress(OSError):
            os.makedirs(self.path, mode=0o755, exist_ok=True)
            with contextlib.suppress(OSError):
                if os.stat(path).st_size > LOG_BYTES_MAX:
                    os.replace(path, path + ".1")
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            try:
                os.write(descriptor, text.encode("utf-8", "replace"))
            finally:
                os.close(descriptor)


def _boot() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as stream:
            return stream.read().strip()
    except OSError:
        return ""
