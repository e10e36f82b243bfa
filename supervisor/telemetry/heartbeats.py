"""The heartbeats of one start, as its ranks write them into a shared folder. (I/O)

Each rank has one file of one line, written in place (`hooks.beat`). An unreadable or half-written file costs
that look only. No clock of a node is compared with ours: a beat is as old as the time since its count was
seen to move.

A rank that stands still reports where its stack is and what it has used. Once every rank has reported anew,
that is a sample. Together with the one before, it shows whether any rank moved, what all wait in, and whether
anything was used (`Stacks`, `Activity`). If one rank reports nothing, there is no sample, since nobody knows
what it does.

One look reads at most `READ_MAX` files, in turn, so that it stays short with thousands of ranks.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from typing import Any

from ftrun.slurm.records import dataclass
from ftrun.supervisor.telemetry import node_silence, stack_samples
from ftrun.supervisor.telemetry.liveness import Activity, Rank, Stacks
from ftrun.supervisor.telemetry.stack_samples import BUSY_BYTES_S, BUSY_SHARE
from ftrun.supervisor.telemetry.straggler import Sample

LINE_BYTES_MAX = 4096
READ_MAX = 256
LIST_EVERY_S = 5.0
OTHERS_MAX = 16


@dataclass(frozen=True, slots=True)
class StillRank:
    """What a rank reports while it stands still. `at_s`: the rank's own monotonic clock; `top`: its innermost
    frames.
    """

    at_s: float
    stack: str
    top: str
    cpu_s: float
    io_bytes: int
    stuck: bool


@dataclass(frozen=True, slots=True)
class Beat:
    """One rank's line. `told_s`: the time of the last call, by the node's clock (Unix seconds); own_s, own_n:
    see `hooks.beat`.
    """

    rank: int
    pid: int
    host: str
    step: int | None
    phase: str
    n: int
    told_s: float
    stack_signal: int
    own_s: float
    own_n: int
    still: StillRank | None


@dataclass(frozen=True, slots=True)
class Pulse:
    """The result of a look at all beats. `stacks` and `activity` are set at the looks that complete a sample,
    else None.

    `readable`: files that were there before could be read; otherwise the ranks' silence means nothing.
    """

    ranks: tuple[Rank, ...] = ()
    stacks: Stacks | None = None
    activity: Activity | None = None
    readable: bool = True


def parse_beat(line: bytes) -> Beat | None:
    """The beat in a line; None where the line is not whole."""
    try:
        told: dict[str, Any] = json.loads(line)
        still = told.get("still")
        return Beat(
            rank=int(told["rank"]),
            pid=int(told["pid"]),
            host=str(told["host"]),
            step=None if told["step"] is None else int(told["step"]),
            phase=str(told["phase"]),
            n=int(told["n"]),
            told_s=float(told["t"]),
            stack_signal=int(told["stack_signal"]),
            own_s=float(told["own_s"]),
            own_n=int(told["own_n"]),
            still=None if still is None else _still(still),
        )
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return None


def _still(told: dict[str, Any]) -> StillRank:
    return StillRank(
        at_s=float(told["at"]),
        stack=str(told["stack"]),
        top=str(told["top"]),
        cpu_s=float(told["cpu_s"]),
        io_bytes=int(told["io_bytes"]),
        stuck=bool(told["stuck"]),
    )


class BeatReader:
    """Reads one start's folder, look by look. The folder may not exist yet, or never."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._names: list[str] = []
        self._listed_s: float | None = None
        self._next = 0
        self._beats: dict[int, Beat] = {}
        self._moved_s: dict[int, float] = {}
        self._written_s: dict[int, float] = {}
        self._lives: dict[int, int] = {}  # the sum of a rank's counts before its last restart
        self._sample: dict[int, StillRank] = {}
        self._taken = 0

    @property
    def beats(self) -> tuple[Beat, ...]:
        """The last beat of each rank, by rank."""
        return tuple(self._beats[rank] for rank in sorted(self._beats))

    @property
    def count(self) -> int:
        """How many beats were read so far; it moves with the ranks."""
        return sum(self._lives[rank] + beat.n for rank, beat in self._beats.items())

    def poll(self, now_s: float) -> Pulse:
        """Read what is due. `now_s`: the caller's monotonic clock."""
        if self._listed_s is None or now_s - self._listed_s >= LIST_EVERY_S:
            self._listed_s = now_s
            self._names = _ranks_in(self._folder) or self._names
        read, gone = 0, 0
        for name in self._due():
            found = self._read(name, now_s)
            read, gone = read + found, gone + (not found)
        stacks, activity = self._complete()
        ranks = tuple(
            Rank(
                one.rank,
                one.host,
                one.step,
                self._lives[one.rank] + one.n,
                one.phase,
                self._moved_s[one.rank],
            )
            for one in self.beats
        )
        return Pulse(ranks, stacks, activity, readable=bool(read) or not gone)

    def unwritten_s(self, nodes: Iterable[str], now_s: float) -> dict[str, float]:
        """For how long all ranks of each of these nodes have written nothing, though ranks elsewhere have. Nodes
        without such ranks are left out. Reads some files of both anew.
        """
        if not self._beats:
            return {}
        ranks: dict[str, list[int]] = {}
        for rank, beat in self._beats.items():
            ranks.setdefault(beat.host.partition(".")[0], []).append(rank)
        names = {node.partition(".")[0]: node for node in nodes}
        others = [rank for host, there in ranks.items() if host not in names for rank in there[:1]]
        for rank in (*others[:OTHERS_MAX], *(rank for host in names for rank in ranks.get(host, ()))):
            self._read(str(rank), now_s)
        since_s = now_s - node_silence.unwritten_limit_s(len(self._beats))
        if not any(self._written_s[rank] > since_s for rank in others):
            return {}
        return {
            names[host]: now_s - max(self._written_s[rank] for rank in there)
            for host, there in ranks.items()
            if host in names and not any(self._beats[rank].phase == "done" for rank in there)
        }

    def overdue_nodes(self, now_s: float) -> bool:
        """Whether ranks of some hosts have missed their time to write, and others have not. Reads nothing."""
        if len(self._beats) > READ_MAX:  # they are not read often enough to tell
            return False
        limit_s = node_silence.unwritten_limit_s(len(self._beats))
        last_s: dict[str, float] = {}
        for rank, beat in self._beats.items():
            if beat.phase != "done":
                last_s[beat.host] = max(last_s.get(beat.host, 0.0), self._written_s[rank])
        late = sum(now_s - at_s >= limit_s for at_s in last_s.values())
        return 0 < late < len(last_s)

    def samples(self) -> tuple[Sample, ...]:
        """The own time so far of each rank that measures it, for the straggler search."""
        return tuple(Sample(one.rank, one.host, one.own_s, one.own_n) for one in self.beats if one.own_n)

    def _due(self) -> Iterable[str]:
        count = min(READ_MAX, len(self._names))
        due = [self._names[(self._next + place) % len(self._names)] for place in range(count)]
        self._next = (self._next + count) % max(1, len(self._names))
        return due

    def _read(self, name: str, now_s: float) -> bool:
        """Read the file of a rank; False if it cannot be read."""
        line = _line(os.path.join(self._folder, name))
        beat = parse_beat(line or b"")
        if beat is not None and str(beat.rank) == name:
            self._take(beat, now_s)
        return line is not None

    def _take(self, beat: Beat, now_s: float) -> None:
        before = self._beats.get(beat.rank)
        if beat != before:
            self._written_s[beat.rank] = now_s
        if before is None or (before.n, before.pid) != (beat.n, beat.pid):
            self._moved_s[beat.rank] = now_s
        lives = self._lives.setdefault(beat.rank, 0)
        if before is not None and beat.n < before.n:  # another process, or the same one by exec
            self._lives[beat.rank] = lives + before.n
        self._beats[beat.rank] = beat

    def _complete(self) -> tuple[Stacks | None, Activity | None]:
        """A sample, once all ranks have reported anew where they stand."""
        live = {rank: beat.still for rank, beat in self._beats.items() if beat.phase != "done"}
        now = {rank: still for rank, still in live.items() if still is not None}
        if not now or len(now) < len(live) or len(self._beats) < len(self._names):
            self._sample = {}
            return None, None
        before = self._sample
        if any(rank in before and before[rank].at_s == one.at_s for rank, one in now.items()):
            return None, None
        self._sample = now
        if before.keys() != now.keys():
            return None, None
        self._taken += 1
        tops = {rank: one.top for rank, one in now.items()}
        elsewhere = stack_samples.ranks_elsewhere(tops)
        stacks = Stacks(
            taken=self._taken,
            moved=any(before[rank].stack != one.stack for rank, one in now.items()),
            waiting=stack_samples.common_wait(tops),
            elsewhere=elsewhere,
            peers=stack_samples.COLLECTIVE if elsewhere else "",
            ranks=len(now),
        )
        return stacks, _activity(before, now)


def _activity(before: dict[int, StillRank], now: dict[int, StillRank]) -> Activity:
    """A rank that waits in a collective may spin: its processor says nothing about those it waits for."""
    cpu = io = False
    for rank, one in now.items():
        passed_s = max(0.1, one.at_s - before[rank].at_s)
        waits = stack_samples.wait_kind(one.top) == stack_samples.COLLECTIVE
        cpu = cpu or (not waits and one.cpu_s - before[rank].cpu_s > BUSY_SHARE * passed_s)
        io = io or one.stuck or one.io_bytes - before[rank].io_bytes > BUSY_BYTES_S * passed_s
    return Activity(cpu=cpu, io=io, stuck=any(one.stuck for one in now.values()))


def _ranks_in(folder: str) -> list[str]:
    try:
        return sorted((name for name in os.listdir(folder) if name.isdigit()), key=int)
    except OSError:
        return []


def _line(path: str) -> bytes | None:
    try:
        with open(path, "rb") as stream:
            return stream.read(LINE_BYTES_MAX)
    except OSError:
        return None
