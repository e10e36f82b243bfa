"""Follows the journals of a user's runs, and hands what is new to the publishers. (I/O)

What was read is not read again: each journal is read on from where it was read last (`store.journal_tail`).
A run that ended `LEAVE_AFTER_S` ago is left; a line of `left.jsonl` says so, with what the publishers keep of
it, so that a later process does not read it at all. It is followed again once a person asks something of it.

One round takes `ROUND_S` at most, however many runs there are; the next round goes on with the others.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ftrun.slurm.records import dataclass
from ftrun.supervisor.config.home import write_atomically
from ftrun.supervisor.model.errors import UnreadableRun
from ftrun.supervisor.model.events import fold
from ftrun.supervisor.publish.publisher import FollowedRun, Kept, Publisher
from ftrun.supervisor.store import journal, run_dir
from ftrun.supervisor.store.journal_tail import Growth, JournalTail

ROUND_S = 2.0
LEAVE_AFTER_S = 900.0
BROKEN_FOR_S = 60.0  # how long a run is left alone after its journal could not be read
RETURNS_EVERY_S = 30.0  # how often it is asked whether a run that was left has come back
FOLDER, CURSOR, LEFT = "publish", "cursor.json", "left.jsonl"


@dataclass(slots=True)
class _Left:
    """A run that was left. `stamp`: of its requests then; `place`: of its line in LEFT."""

    stamp: int
    place: int


class Follower:
    """The runs of one home, and who is told of them. `clock`: monotonic seconds."""

    def __init__(
        self,
        home: str,
        publishers: Sequence[Publisher],
        *,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._home, self._publishers, self._clock, self._now = home, publishers, clock, now
        self._folder = os.path.join(home, FOLDER)
        self._cursor = _read_cursor(os.path.join(self._folder, CURSOR))
        self._all_is_history = self._cursor is None  # nothing was ever published here
        self._first_look = True
        self._saved = ""
        self._tails: dict[str, JournalTail] = {}
        self._runs: dict[str, FollowedRun] = {}
        self._grown_s: dict[str, float] = {}
        self._unreadable: dict[str, tuple[float, str]] = {}
        self._failed: dict[str, str] = {}  # publisher -> its last error
        self._asked_returns_s = float("-inf")
        self._left = self._read_left()

    def round(self) -> bool:
        """Tell the publishers what is new. False: time ran out before all runs were read."""
        until_s = self._clock() + ROUND_S
        done = True
        for run_id, folder in self._folders():
            if self._clock() > until_s:
                done = False
                break
            self._look_at(run_id, folder)
        if done:
            self._first_look = False
        for one in self._publishers:
            self._tell(one, "tick", self._now())
        return done

    def close(self) -> None:
        """Tell the publishers that this process ends."""
        for one in self._publishers:
            self._tell(one, "close", self._now())

    def save(self) -> None:
        """Note what was published. Raises OSError."""
        known = {run_id: tail.offsets for run_id, tail in self._tails.items() if run_id in self._runs}
        if self._first_look:  # runs that this process has not come to yet
            known = {**(self._cursor or {}), **known}
            if self._all_is_history:
                return
        text = json.dumps(known)
        if text != self._saved:
            write_atomically(os.path.join(self._folder, CURSOR), text.encode(), sync=False)
            self._saved = text

    def problems(self) -> dict[str, str]:
        """Publisher -> why it cannot publish."""
        found = {one.name: self._failed.get(one.name) or one.problem() for one in self._publishers}
        return {name: why for name, why in found.items() if why}

    def unreadable(self) -> dict[str, str]:
        """Run -> why its journal cannot be read."""
        return {run_id: why for run_id, (_, why) in self._unreadable.items()}

    # ------------------------------------------------------------------ which runs

    def _folders(self) -> Iterable[tuple[str, str]]:
        """Those that are followed, then those that are new, the youngest first."""
        runs = os.path.join(self._home, "runs")
        try:
            names = {name for name in os.listdir(runs) if not name.startswith(".")}
        except FileNotFoundError:
            names = set()
        except OSError:
            return []  # it cannot be seen: nothing is gone
        for run_id in [one for one in self._runs if one not in names]:
            self._leave(run_id)
        for run_id in [one for one in self._unreadable if one not in names]:
            del self._unreadable[run_id]
        if self._clock() - self._asked_returns_s >= RETURNS_EVERY_S:
            self._asked_returns_s = self._clock()
            for run_id in [one for one in self._left if one in names]:
                if run_dir.requests_time_ns(os.path.join(runs, run_id)) != self._left[run_id].stamp:
                    self._take_back(run_id)
        new = [one for one in names if one not in self._runs and one not in self._left]
        if len(new) > 1:
            new.sort(key=lambda one: run_dir.requests_time_ns(os.path.join(runs, one)), reverse=True)
        return [(one, os.path.join(runs, one)) for one in (*self._runs, *new)]

    def _look_at(self, run_id: str, folder: str) -> None:
        broken = self._unreadable.get(run_id)
        if broken is not None and self._clock() - broken[0] < BROKEN_FOR_S:
            return
        if run_id not in self._tails:
            self._tails[run_id] = JournalTail(folder, self._known_offsets(run_id))
        try:
            growth = self._tails[run_id].read_on()
            self._hand_over(run_id, folder, growth)
        except FileNotFoundError:
            self._tails.pop(run_id, None)  # `ftrun sbatch` has just begun it, or was refused and removed it
            return
        except (UnreadableRun, OSError, ValueError, LookupError, TypeError) as error:
            self._unreadable[run_id] = (self._clock(), f"{type(error).__name__}: {error}")
            self._tails.pop(run_id, None)
            return
        self._unreadable.pop(run_id, None)
        run = self._runs[run_id].run
        if growth.fresh or growth.again is not None:
            self._grown_s[run_id] = self._clock()
        quiet_s = self._clock() - self._grown_s[run_id]
        if run.final and (quiet_s > LEAVE_AFTER_S or self._now() - run.last_at_s > LEAVE_AFTER_S):
            self._leave(run_id)

    def _known_offsets(self, run_id: str) -> Mapping[str, int]:
        """Journal file -> bytes of it that were published."""
        known = (self._cursor or {}).get(run_id, {})
        return known if isinstance(known, dict) else {}

    def _hand_over(self, run_id: str, folder: str, growth: Growth) -> None:
        followed = self._runs.get(run_id)
        if growth.again is not None or followed is None:
            records = growth.again or []
            followed = self._runs[run_id] = FollowedRun(folder, fold(run_id, records))
            unseen = set() if self._all_is_history and self._first_look else set(map(id, growth.fresh))
            history = [record for record in records if id(record) not in unseen]
            events = [record for record in growth.fresh if id(record) in unseen]
            self._tell_all("on_history", followed, history)
        else:
            events = growth.fresh
            if events:
                followed.run = fold(run_id, events, onto=followed.run)
        if events:
            self._tell_all("on_events", followed, events)

    # ------------------------------------------------------------------ runs that are over

    def _leave(self, run_id: str) -> None:
        followed = self._runs.pop(run_id)
        stamp = run_dir.requests_time_ns(followed.dir)
        kept = {one.name: self._tell(one, "on_left", followed) or {} for one in self._publishers}
        line = {"run": run_id, "stamp": stamp, "kept": kept}
        self._tails.pop(run_id, None)
        self._grown_s.pop(run_id, None)
        with contextlib.suppress(OSError):  # full: a later process reads that run once more
            self._left[run_id] = _Left(stamp, _append(os.path.join(self._folder, LEFT), line))
            return
        self._left[run_id] = _Left(stamp, -1)

    def _take_back(self, run_id: str) -> None:
        left = self._left.pop(run_id)
        with contextlib.suppress(OSError, ValueError, KeyError), open(self._path_of_left(), "rb") as stream:
            stream.seek(max(left.place, 0))
            kept = journal.parse_record(stream.readline().rstrip(b"\n"))["kept"] if left.place >= 0 else {}
            for one in self._publishers:
                self._tell(one, "on_back", run_id, kept.get(one.name, {}))

    def _path_of_left(self) -> str:
        return os.path.join(self._folder, LEFT)

    def _read_left(self) -> dict[str, _Left]:
        """The runs that were left, as the last line of each says; publishers are told what they kept."""
        found: dict[str, tuple[_Left, Mapping[str, Kept]]] = {}
        place = 0
        with contextlib.suppress(FileNotFoundError), open(self._path_of_left(), "rb") as stream:
            for line in stream:
                with contextlib.suppress(ValueError, KeyError, TypeError):
                    told = journal.parse_record(line.rstrip(b"\n"))
                    found[str(told["run"])] = (_Left(int(told["stamp"]), place), dict(told["kept"]))
                place += len(line)
        for run_id, (_, kept) in found.items():
            for one in self._publishers:
                if kept.get(one.name):
                    self._tell(one, "on_kept", run_id, kept[one.name])
        return {run_id: left for run_id, (left, _) in found.items()}

    # ------------------------------------------------------------------ publishers

    def _tell_all(self, method: str, *arguments: Any) -> None:
        for one in self._publishers:
            self._tell(one, method, *arguments)

    def _tell(self, publisher: Publisher, method: str, *arguments: Any) -> Any:
        """Call one publisher so that its failure does not reach another."""
        try:
            answer = getattr(publisher, method)(*arguments)
        except Exception as error:  # noqa: BLE001 - a mistake in one must not silence the others
            why = f"{type(error).__name__}: {error}"
            if self._failed.get(publisher.name) != why:
                traceback.print_exc(file=sys.stderr)
            self._failed[publisher.name] = why
            return None
        if method == "tick":
            self._failed.pop(publisher.name, None)
        return answer


def _read_cursor(path: str) -> dict[str, Any] | None:
    content = run_dir.read_untrusted(path, 1 << 26)
    with contextlib.suppress(ValueError, RecursionError):
        known = json.loads(content or b"")
        if isinstance(known, dict):
            return known
    return None


def _append(path: str, line: dict[str, Any]) -> int:
    """Append a line; return where it begins, in bytes. Raises OSError."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        size_bytes = os.fstat(fd).st_size
        if size_bytes and os.pread(fd, 1, size_bytes - 1) != b"\n":
            size_bytes += os.write(fd, b"\n")  # behind what a crash or a full disk cut off
        journal.append_record(fd, line)
    finally:
        os.close(fd)
    return size_bytes
