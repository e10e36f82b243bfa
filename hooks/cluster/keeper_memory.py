"""What the keeper of a host knows from one time to the next: when it started what, in this boot. (I/O)"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterable

from ftrun.hooks.cluster.place import write_file

FIRST_WAIT_S = 60.0
LONGEST_WAIT_S = 3600.0
STABLE_S = 600.0
"""A daemon that lives so long after a start is no longer one that dies again and again."""


class Memory:
    """keep/state.json; what an earlier boot wrote is forgotten."""

    def __init__(self, folder: str) -> None:
        self._path = os.path.join(folder, "keep", "state.json")
        self.now_s = time.clock_gettime(time.CLOCK_BOOTTIME)
        boot = _boot()
        try:
            with open(self._path, encoding="utf-8") as stream:
                known = json.load(stream)
        except (OSError, ValueError):
            known = {}
        if known.get("boot") != boot:
            known = {"was_off": bool(known)}
        self._boot = boot
        self.starts: dict[str, list[float]] = known.get("starts", {})
        self._was_off = bool(known.get("was_off"))
        self._lived: list[str] = known.get("lived", [])
        self.times: dict[str, float] = known.get("times", {"asked": self.now_s, "touched": -1e9})

    def save(self) -> None:
        """Write it; on a full disk it is forgotten, and a daemon is started again at once."""
        known = {"boot": self._boot, "was_off": self._was_off, "lived": self._lived}
        text = json.dumps({**known, "starts": self.starts, "times": self.times})
        with contextlib.suppress(OSError):
            write_file(self._path, text.encode(), 0o600)

    def was_off(self, name: str) -> bool:
        """Whether a daemon is dead because the host was off: it was not seen alive since the boot."""
        return self._was_off and name not in self._lived

    def note_start(self, name: str) -> None:
        """A daemon is being started now."""
        self.starts.setdefault(name, []).append(self.now_s)

    def note_living(self, names: Iterable[str]) -> None:
        """These daemons live now: forget the starts of those that have lived long enough since."""
        for name in names:
            if name not in self._lived:
                self._lived.append(name)
            if name in self.starts and self.now_s - self.starts[name][-1] > STABLE_S:
                del self.starts[name]

    def wait_s(self, name: str) -> float:
        """How long a start of this daemon has to wait; 0 for not."""
        starts = self.starts.get(name, [])
        if len(starts) < 2:
            return 0.0
        wait_s: float = min(FIRST_WAIT_S * 2 ** (len(starts) - 2), LONGEST_WAIT_S)
        return max(0.0, starts[-1] + wait_s - self.now_s)

    def is_time(self, what: str, every_s: float) -> bool:
        """Whether this was not done for so long; it counts as done now."""
        if self.now_s - self.times.get(what, 0.0) < every_s:
            return False
        self.times[what] = self.now_s
        return True


def _boot() -> str:
    """What is another one after each boot of this host, or of the container that it is."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as stream:
        boot = stream.read().strip()
    with open("/proc/1/stat", encoding="utf-8", errors="replace") as stream:
        return f"{boot}/{stream.read().rpartition(')')[2].split()[19]}"
