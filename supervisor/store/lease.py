"""Leader election: one supervisor for each `$FTRUN_HOME`, on whatever host. (I/O)

Protocol P8:

- No two clocks are compared. The lease is a counter that its holder increments; a challenger watches the
  counter by its own monotonic clock and takes over after it has seen no change for `term_s`.
- `lease/epoch-<n>` is a symlink, created exclusively, with the writer's name as its content: the highest
  one leads. Taking over means creating the next one; two challengers cannot both succeed.
- Only the holder writes `lease/counter-<n>`. Readers open it afresh at each look, because network file
  systems answer a stat from their cache.
- The holder stops acting after `term_s / 2` without a confirmed renewal, measured by the boot-time clock,
  which goes on while the machine sleeps or the process is stopped. Before each effect it looks for a higher
  epoch.
- The newest earlier holder that may still live is the `rival`: what it writes from now on must not count.
- A challenger does not wait for a holder on its own machine whose process is provably gone (same boot, same
  pid namespace, no such process). That is proof, not a comparison of clocks.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
import time
from pathlib import Path
from typing import Protocol

from ftrun.hooks.runtime.ownership import is_taken
from ftrun.slurm.records import dataclass
from ftrun.supervisor.config import home as config_home
from ftrun.supervisor.store import run_dir

_EPOCH = re.compile(r"epoch-(\d{6,})$")
_EPOCHS_KEPT_MAX = 20


class LeaseLost(Exception):
    """Somebody else leads now, or we could not prove that we still do: act no more."""


class Clock(Protocol):
    """Where time comes from; the simulation brings its own."""

    def now_s(self) -> float:
        """Unix seconds: for people and for expiry, never for order."""

    def mono_s(self) -> float:
        """Seconds that never jump and go on while the machine sleeps."""

    def sleep(self, seconds: float) -> None:
        """Wait."""


class SystemClock:
    """The machine's clocks."""

    def now_s(self) -> float:
        """Unix seconds."""
        return time.time()

    def mono_s(self) -> float:
        """CLOCK_BOOTTIME, which counts sleep."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)


@dataclass(frozen=True, slots=True)
class Holder:
    """What the lease folder says: who leads and how far the counter is. epoch 0 = nobody ever did."""

    epoch: int
    writer: str
    counter: str  # "" before the first beat; "released" after a clean end


def read_holder(home: str) -> Holder:
    """Read the lease afresh. Raises OSError where the folder cannot be read (other than not existing)."""
    folder = os.path.join(home, "lease")
    epoch, writer = _leader(folder)
    if not epoch:
        return Holder(0, "", "")
    try:
        with open(f"{folder}/counter-{epoch:06d}", encoding="ascii", errors="replace") as stream:
            counter = stream.read()
    except FileNotFoundError:
        counter = ""
    return Holder(epoch, writer, counter)


def _leader(folder: str) -> tuple[int, str]:
    """The highest epoch and the name of its writer; (0, "") where nobody ever led."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return 0, ""
    epoch = max((int(m[1]) for m in map(_EPOCH.match, names) if m), default=0)
    return epoch, os.readlink(f"{folder}/epoch-{epoch:06d}") if epoch else ""


class Lease:
    """The right to act for one home: `acquire` until True, `renew` often, `confirm` before each effect."""

    def __init__(self, home: str, clock: Clock, *, term_s: float = 20.0, writer: str | None = None) -> None:
        self.home = home
        self.term_s = term_s
        self.writer = writer or run_dir.process_identity()
        self.epoch = 0
        self.rival = 0  # the newest earlier epoch whose holder may still wake up; 0 = none
        self._clock = clock
        self._folder = Path(home) / "lease"
        self._count = 0
        self._lock = threading.Lock()  # the renewal runs beside the loop
        self._renewed_s: float | None = None
        self._seen: tuple[Holder, float] | None = None  # what a challenger saw and since when

    @property
    def held(self) -> bool:
        """We took an epoch and have not noticed its loss."""
        return self.epoch > 0

    def acquire(self) -> bool:
        """Look once and, if the holder is gone, try once to take over. Call again until it returns True.
        Raises OSError where the home is gone or the lease cannot be written; then it is not held.
        """
        holder = read_holder(self.home)
        now = self._clock.mono_s()
        gone = (
            holder.counter == "released"
            or run_dir.provably_dead(holder.writer)
            or holder.writer == self.writer
        )
        if holder.epoch and not gone:
            if self._seen is None or self._seen[0] != holder:
                self._seen = (holder, now)
                return False
            if now - self._seen[1] < self.term_s:
                return False
        with contextlib.suppress(FileExistsError):
            self._folder.mkdir(mode=0o700)  # not its parents: a home that was removed is not made again
        link = os.path.join(self._folder, f"epoch-{holder.epoch + 1:06d}")
        try:
            os.symlink(self.writer, link)
        except OSError as error:
            if not is_taken(error, link):
                raise
            self._seen = None
            return False
        self.epoch = holder.epoch + 1
        self._renewed_s = now
        try:
            self._beat()
        except OSError:  # disk full: each try leaves an epoch
            self._forget_old()
            self.epoch = 0
            raise
        self.rival = self._living_rival()
        self._forget_old()
        return True

    def renew(self) -> None:
        """Increment the counter and make sure that we still lead. Raises LeaseLost."""
        with self._lock:
            self._confirm()
            started = self._clock.mono_s()  # taken before the write: a slow write must not lengthen the lease
            self._beat()
            self._renewed_s = started

    def confirm(self) -> None:
        """Prove, by reading, that we may act now. Raises LeaseLost."""
        with self._lock:
            self._confirm()

    def _confirm(self) -> None:
        if not self.epoch or self._renewed_s is None:
            raise LeaseLost("the lease was never taken, or its renewal failed for too long")
        if self._clock.mono_s() - self._renewed_s > self.term_s / 2:
            epoch, self.epoch = self.epoch, 0
            raise LeaseLost(f"epoch {epoch} was not renewed for more than {self.term_s / 2:g} s")
        try:
            epoch, writer = _leader(str(self._folder))
        except OSError as error:
            raise LeaseLost(f"the lease cannot be read: {error}") from error
        if (epoch, writer) != (self.epoch, self.writer):
            self.epoch = 0
            raise LeaseLost(f"{writer or 'somebody'} leads now (epoch {epoch})")

    def release(self) -> None:
        """Let the next one take over at once. Safe to call when the lease is lost."""
        if not self.epoch:
            return
        with contextlib.suppress(OSError, LeaseLost):
            self.confirm()
            self._write_counter("released")
        self.epoch = 0

    def _beat(self) -> None:
        self._count += 1
        self._write_counter(str(self._count))

    def _write_counter(self, text: str) -> None:
        config_home.write_atomically(f"{self._folder}/counter-{self.epoch:06d}", text.encode(), sync=False)

    def _living_rival(self) -> int:
        """The newest earlier epoch whose holder may live: it neither released it nor is provably dead."""
        for epoch in range(self.epoch - 1, max(0, self.epoch - _EPOCHS_KEPT_MAX), -1):
            with contextlib.suppress(FileNotFoundError):
                writer = os.readlink(self._folder / f"epoch-{epoch:06d}")
                counter = self._folder / f"counter-{epoch:06d}"
                released = counter.exists() and counter.read_text() == "released"
                if writer != self.writer and not released and not run_dir.provably_dead(writer):
                    return epoch
        return 0

    def _forget_old(self) -> None:
        """Drop epochs far in the past. The newest ones stay: their numbers must never be given out again."""
        for name in os.listdir(self._folder):
            number = name.rpartition("-")[2]
            if number.isdigit() and int(number) <= self.epoch - _EPOCHS_KEPT_MAX:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(self._folder / name)
