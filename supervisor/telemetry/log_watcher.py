"""The logs of one launch: which parts of which files, and the evidence and progress in them. (I/O)

`LogWatcher` follows the logs of a live launch: it passes each new piece to that file's `LogFile` and merges
the results. `report_of` merges whole files; the evidence is the same, except for the times at which it was
seen. A log that cannot be read gives no evidence, and the report says so: the silence of an unreadable log
means nothing.

`launch_logs` and `start_logs` say which part of which file a launch, or one start of its script, wrote. A job
that Slurm starts again appends to the log of its last launch, and so does the next attempt where the user
names one file for all, and a script that is started again inside one launch. Each start recorded the log's
length when it began, so its text ends where a later one begins in the same file. A file that a later launch
emptied or replaced has nothing of the earlier one. Behind that place, a node of an earlier launch that froze
and thawed may still write; `line_owner` recognises its lines by their jobs and nodes.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Sequence
from dataclasses import field
from typing import cast

from ftrun.slurm.records import dataclass, replace
from ftrun.supervisor.model.types import Evidence
from ftrun.supervisor.signatures.catalog import Catalog
from ftrun.supervisor.store import attempt_dir
from ftrun.supervisor.store import run_dir as store_run_dir
from ftrun.supervisor.store.attempt_dir import LaunchRecord
from ftrun.supervisor.telemetry.divergence import LossHealth
from ftrun.supervisor.telemetry.line_owner import NO_OWNERS_KNOWN, KnownOwners
from ftrun.supervisor.telemetry.log_file import LogContext, LogFile
from ftrun.supervisor.telemetry.progress import Progress
from ftrun.supervisor.telemetry.rank_map import RankMap
from ftrun.supervisor.telemetry.step_logs import Place, find_step_logs
from ftrun.supervisor.telemetry.tail import READ_BYTES, LogPath, Piece, Tail, Tails

COUNTED_BYTES = (
    64 * 1024 * 1024
)  # lines in front of the launch's text are counted up to here; beyond, `line` is 0


@dataclass(frozen=True, slots=True)
class WatchReport:
    """All that is known after a poll. Times are by the caller's clock (`now_s`).

    `readable`: every log could be read at its last look; else `why_unreadable` names the first that could
    not. `behind`: more text is left than one poll reads. `seats`: the rank map by the lines.
    `last_fresh_open_s`: when all logs were last opened anew. `phase`: what the log with the steps, or else
    any other, announced last and is not over (`ProgressReader.phase`). `health`: what the losses in the log
    with the steps say. `others`: the first line of each kind by another job; these are no evidence.
    """

    evidence: tuple[Evidence, ...]
    new: tuple[Evidence, ...]
    progress: Progress | None
    median_step_s: float | None
    last_growth_s: float | None
    last_fresh_open_s: float | None
    readable: bool
    why_unreadable: str
    behind: bool = False
    seats: RankMap = field(default_factory=RankMap)
    phase: str = ""
    health: LossHealth = field(default_factory=LossHealth)
    others: tuple[Evidence, ...] = ()


class LogWatcher:
    """Follows the logs of one launch. If `-o` and `-e` name one file, it is followed once."""

    def __init__(
        self, paths: Sequence[LogPath], *, catalog: Catalog | None = None, ours: KnownOwners = NO_OWNERS_KNOWN
    ) -> None:
        self._tails = Tails([])
        self._book = LogContext(catalog, ours)
        self._files: list[LogFile] = []
        self.follow(paths)
        self._evidence: tuple[Evidence, ...] = ()
        self._last: WatchReport | None = None
        self._last_growth_s: float | None = None
        self._last_fresh_open_s: float | None = None
        self._steps_seen = 0
        self._others: dict[str, tuple[str, int]] = {}  # announced by files without the steps, and where
        self._over: set[tuple[str, tuple[str, int]]] = set()

    def admit(self, jobs: Collection[str], nodes: Collection[str]) -> None:
        """The launch now has these jobs and nodes, too. If nothing is known of the launch, that stays so."""
        if self._book.ours != NO_OWNERS_KNOWN:
            self._book.ours = self._book.ours.having(jobs, nodes)

    def follow(self, paths: Sequence[LogPath]) -> None:
        """Follow these logs, too, as far as they are not followed yet."""
        for log in _distinct([*(tail.log for tail in self._tails.tails), *paths])[len(self._files) :]:
            self._tails.add(log)
            self._files.append(LogFile(log.path, self._book, rank=log.rank, node=log.node))

    def poll(self, now_s: float, *, fresh: bool = False) -> WatchReport:
        """Read what is new. `fresh` opens every log anew, as a verdict on a network file system needs."""
        new: set[int] = set()
        grown: set[int] = set()
        for number, pieces in self._tails.round(fresh=fresh):
            grown.add(number)
            tail, file = self._tails.tails[number], self._files[number]
            for piece in pieces:
                before = _lines_before(tail, piece)
                new |= file.take(piece, now_s, lines_before=before, behind=tail.more)
        quiet = not grown and all(file.rested for file in self._files)
        for number, file in enumerate(self._files):
            if number not in grown and not self._tails.tails[number].more:
                new |= file.rest(now_s)
        if grown:
            self._last_growth_s = now_s
        if self._tails.tails and all(tail.fresh for tail in self._tails.tails):
            self._last_fresh_open_s = now_s
        blind = next((tail for tail in self._tails.tails if not tail.readable), None)
        why = "no log is known" if not self._files else f"{blind.log.path}: {blind.why}" if blind else ""
        self._last = replace(
            self._last if quiet and self._last is not None else self._report(),
            new=tuple(one for one in self._evidence if one.order in new) if new else (),
            last_growth_s=self._last_growth_s,
            last_fresh_open_s=self._last_fresh_open_s,
            readable=not why,
            why_unreadable=why,
            behind=self._tails.more,
        )
        return self._last

    def sizes(self) -> dict[str, int]:
        """Log -> how many bytes it is known to have: what was read, or more if the file shows more by now."""
        return {tail.log.path: max(tail.offset_bytes, file_size(tail.log.path)) for tail in self._tails.tails}

    def step_place(self) -> tuple[str, int] | None:
        """The log with the steps, and up to which byte it was read; None before the first step."""
        leading = _leading(self._files)
        if leading is None:
            return None
        tail = self._tails.tails[self._files.index(leading)]
        return tail.log.path, tail.offset_bytes

    def close(self) -> None:
        """Give the descriptors back."""
        self._tails.close()

    def _phase(self) -> str:
        """What the leading file announced; of any other file, what no step of a later poll has ended."""
        leading = _leading(self._files)
        steps_seen = sum(file.progress.steps_seen for file in self._files if file.progress is not None)
        stepped, self._steps_seen = steps_seen != self._steps_seen, steps_seen
        others = {file.name: file.reader.announced for file in self._files if file is not leading}
        if stepped:
            self._over |= {(name, told) for name, told in others.items() if self._others.get(name) == told}
        self._others = others
        going = (told[0] for name, told in others.items() if told[0] and (name, told) not in self._over)
        return (leading.reader.phase if leading is not None else "") or next(going, "")

    def _report(self) -> WatchReport:
        """What the texts say, without what a look at the files says."""
        if any(file.changed for file in self._files):
            self._evidence = _all_evidence(self._files)
        return replace(
            merge_reports(self._files, self._book.seats, evidence=self._evidence),
            median_step_s=_median_step_s(self._files),
            phase=self._phase(),
        )


def file_size(path: str) -> int:
    """The size of a file in bytes; 0 where it cannot be seen."""
    try:
        return os.path.getsize(path)
    except OSError:
        return 0


def merge_reports(
    files: Sequence[LogFile],
    seats: RankMap,
    why_unreadable: str = "",
    *,
    evidence: tuple[Evidence, ...] | None = None,
) -> WatchReport:
    """The merged report of `files` that were read to their ends; `evidence`: theirs, where it is known."""
    evidence = _all_evidence(files) if evidence is None else evidence
    return WatchReport(
        evidence=evidence,
        new=evidence,
        progress=_all_progress(files),
        median_step_s=None,
        last_growth_s=None,
        last_fresh_open_s=None,
        readable=not why_unreadable,
        why_unreadable=why_unreadable,
        seats=seats,
        health=_health(files),
        others=_others(files),
    )


def _distinct(paths: Sequence[LogPath]) -> list[LogPath]:
    found: dict[object, LogPath] = {}
    names: set[str] = set()
    for log in paths:
        key: object = (log.dev, log.ino) if log.ino else log.path
        if log.path not in names:
            found.setdefault(key, log)
        names.add(log.path)
    return list(found.values())


def _lines_before(tail: Tail, piece: Piece) -> int | None:
    """How many lines are in front of a file's first piece: 0 at its beginning, None where that is too far to
    count.
    """
    if piece.offset_bytes == 0:
        return 0
    if piece.generation > 0 or piece.offset_bytes != tail.log.start_offset_bytes:
        return None
    if piece.offset_bytes > COUNTED_BYTES:
        return None
    lines, left = 0, piece.offset_bytes
    try:
        with open(tail.log.path, "rb") as stream:
            while left > 0 and (chunk := stream.read(min(left, READ_BYTES))):
                lines += chunk.count(b"\n")
                left -= len(chunk)
    except OSError:
        return None
    return lines if left == 0 else None


def _all_evidence(files: Sequence[LogFile]) -> tuple[Evidence, ...]:
    return tuple(sorted((one for file in files for one in file.evidence()), key=lambda one: one.order))


def _others(files: Sequence[LogFile]) -> tuple[Evidence, ...]:
    return tuple(one for file in files for one in file.others.values())


def _leading(files: Sequence[LogFile]) -> LogFile | None:
    """The file to trust for steps: the strongest counter, then the highest step, then the first by name."""
    stepping = [
        file
        for file in sorted(files, key=lambda file: file.name)
        if file.progress is not None and file.progress.step is not None
    ]
    return max(
        stepping, key=lambda file: (file.reader.strength, cast("Progress", file.progress).step), default=None
    )


def _health(files: Sequence[LogFile]) -> LossHealth:
    """From the file with the steps; without one, from the first by name that has losses."""
    leading = _leading(files)
    if leading is None:
        known = (file.losses.health for file in sorted(files, key=lambda file: file.name))
        return next((health for health in known if health != LossHealth()), LossHealth())
    return leading.losses.health


def _all_progress(files: Sequence[LogFile]) -> Progress | None:
    """The merged progress: steps of the leading file, the furthest checkpoint, movement of all files."""
    files = sorted(files, key=lambda file: file.name)
    known = [file.progress for file in files if file.progress is not None]
    if not known:
        return None
    leading = _leading(files)
    progress = known[0] if leading is None else cast("Progress", leading.progress)
    saved = [one for one in known if one.checkpoint_step is not None or one.checkpoint_path]
    best = max(
        saved, key=lambda one: -1 if one.checkpoint_step is None else one.checkpoint_step, default=progress
    )
    losses = (one.loss for one in (progress, *known) if one.loss is not None)
    return replace(
        progress,
        loss=next(losses, None),
        checkpoint_step=best.checkpoint_step,
        checkpoint_path=best.checkpoint_path,
        steps_seen=sum(one.steps_seen for one in known),
    )


def _median_step_s(files: Sequence[LogFile]) -> float | None:
    leading = _leading(files)
    own = None if leading is None else leading.reader.median_step_s
    if own is not None:
        return own
    return next((one for file in files if (one := file.reader.median_step_s) is not None), None)


OTHERS_MAX = 64
"""How many attempts back the jobs and nodes of earlier launches count as another's. No node sleeps longer."""


def next_launch(run_dir: str, attempt: int, launch: int) -> LaunchRecord | None:
    """The record of the first launch after this one, in any attempt; None while there is none."""
    with contextlib.suppress(OSError):  # an unreadable folder shows no later launch
        for number in range(attempt, store_run_dir.latest_attempt_number(run_dir) + 1):
            found = attempt_dir.next_launch_record(run_dir, number, launch if number == attempt else -1)
            if found is not None:
                return found
    return None


def launch_logs(run_dir: str, attempt: int, launch: int) -> list[LogPath]:
    """The logs of the newest start of one launch; [] without a record, or where nothing of them is left."""
    record = attempt_dir.latest_start_record(run_dir, attempt, launch)
    if record is None:
        return []
    logs = recorded_logs(record, next_launch(run_dir, attempt, launch))
    return logs + find_step_logs(Place(run_dir, attempt, launch, record.start), record.nodes)


def start_logs(run_dir: str, attempt: int, launch: int, start: int) -> list[LogPath]:
    """The logs of one start inside a launch, from its first byte to its last; [] where they are unknown or
    gone.
    """
    first = start == 1
    record = attempt_dir.start_record(run_dir, attempt, launch, start)
    record = attempt_dir.launch_record(run_dir, attempt, launch) if record is None and first else record
    after = attempt_dir.start_record(run_dir, attempt, launch, start + 1) or next_launch(
        run_dir, attempt, launch
    )
    if record is None:
        return []
    return recorded_logs(record, after) + find_step_logs(Place(run_dir, attempt, launch, start), record.nodes)


def known_owners(run_dir: str, attempt: int, launch: int) -> KnownOwners:
    """The jobs and nodes of one launch and of the run's other launches; NOBODY_KNOWN without a record."""
    record = attempt_dir.launch_record(run_dir, attempt, launch)
    if record is None or not record.job:
        return NO_OWNERS_KNOWN
    others: list[LaunchRecord] = []
    latest = store_run_dir.latest_attempt_number(run_dir)
    for number in range(max(1, latest - OTHERS_MAX), latest + 1):
        found = attempt_dir.next_launch_record(run_dir, number, -1)
        while found is not None:
            others += [found] if (number, found.number) != (attempt, launch) else []
            found = attempt_dir.next_launch_record(run_dir, number, found.number)
    return KnownOwners(
        jobs=frozenset({record.job}),
        nodes=frozenset(record.nodes),
        other_jobs=frozenset(one.job for one in others if one.job),
        other_nodes=frozenset(node for one in others for node in one.nodes),
        several=record.several,
    )


def recorded_logs(record: LaunchRecord, after: LaunchRecord | None = None) -> list[LogPath]:
    """The logs in a launch record, up to where the launch `after` begins in the same files. (pure)"""
    out = LogPath(record.stdout, record.stdout_offset_bytes, record.stdout_dev, record.stdout_ino)
    err = LogPath(record.stderr, record.stderr_offset_bytes, record.stderr_dev, record.stderr_ino)
    logs = [out] if (out.dev, out.ino) == (err.dev, err.ino) else [out, err]
    logs = [log for log in logs if log.path.startswith("/")]
    return [log for log in (_ended(log, after) for log in logs) if log is not None]


def _ended(log: LogPath, after: LaunchRecord | None) -> LogPath | None:
    """`log` with its end; None where the later launch emptied or replaced the file.

    Inodes are compared without their devices, which each host numbers itself.
    """
    if after is None:
        return log
    streams = (
        (after.stdout, after.stdout_ino, after.stdout_offset_bytes),
        (after.stderr, after.stderr_ino, after.stderr_offset_bytes),
    )
    for path, ino, end_bytes in streams:
        if path != log.path or not ino or not log.ino:
            continue
        if ino != log.ino or end_bytes < log.start_offset_bytes:
            return None
        return LogPath(log.path, log.start_offset_bytes, log.dev, log.ino, end_bytes)
    return log
