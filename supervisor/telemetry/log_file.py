"""The bytes of one log in, its evidence and progress out. (I/O)

Only whole segments are scanned, so the size of the pieces changes nothing: reading a live log gives the same
evidence as reading the file afterwards. A last line without a newline is scanned when the file is quiet; if
the line goes on later, its hits are found again and keep their running numbers.

Storms are bounded: of one signature in one file, the first 20 and the last 5 lines are kept and the others
counted. A line by another job or another launch (`line_owner`) is no evidence. If a burst turns out to be
another's only later, its lines are taken back.

A line was survived (`progress_after`) if two steps higher than all before it are printed after it in the same
file: the first of them may have been under way on another rank.
"""

from __future__ import annotations

import copy
import re
import time
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from ftrun.slurm.records import dataclass, replace
from ftrun.supervisor.model.log_order import parse_timestamp
from ftrun.supervisor.model.types import Evidence, Role, Source
from ftrun.supervisor.signatures.catalog import Catalog, load
from ftrun.supervisor.signatures.scanner import SEGMENT_BYTES, Hit, Scanner
from ftrun.supervisor.telemetry.divergence import LossSummary
from ftrun.supervisor.telemetry.line_owner import NO_OWNERS_KNOWN, Bursts, KnownOwners
from ftrun.supervisor.telemetry.progress import Progress, ProgressReader
from ftrun.supervisor.telemetry.rank_map import RankMap
from ftrun.supervisor.telemetry.tail import Piece

KEPT_FIRST = 20
KEPT_LAST = 5
EVIDENCE_MAX = (
    20_000  # kept by all files of a launch; beyond, a further pair of file and signature keeps 1 + 1
)
_SEPARATOR = re.compile(rb"[\r\n]")


OUR_OWN = "ftrun: "
"""How a line begins that ftrun prints into a job's log."""


class Scanned(NamedTuple):
    """The hits that count, those in lines of other jobs, and whether the burst before them is to be taken
    back.
    """

    hits: list[Hit]
    others: list[Hit]
    taken_back: bool


class LogContext:
    """What the files of one launch share: the scanner, the running number, the bound, the rank map, and whose
    lines count.
    """

    def __init__(self, catalog: Catalog | None, ours: KnownOwners = NO_OWNERS_KNOWN) -> None:
        self.ours = ours
        self.kept = 0
        self.seats = RankMap()
        known = load() if catalog is None else catalog
        self._scanner = Scanner(known)
        self._of_seats = frozenset(one.id for one in known.signatures if one.role is Role.SEAT)
        self.scanned = self._scanner.position  # of the scanner's stream, at the last scan's begin
        self.lines = 0  # newlines in the last scan
        self._order = 0

    def scan(self, segments: bytes, bursts: Bursts) -> Scanned:
        """The hits in whole segments. Lines and offsets count in the scanner's stream, see `scanned`.

        Lines of other jobs do not count. Hits about seats (which rank runs where) go to the rank map and are
        no evidence. Nor is what ftrun itself prints into a job's log: it repeats others.
        """
        self.scanned = self._scanner.position
        hits = self._scanner.feed(segments) + self._scanner.flush()
        self.lines = self._scanner.position.lines - self.scanned.lines
        bursts.ours = self.ours
        places = [hit.offset_bytes - self.scanned.size_bytes for hit in hits]
        judged = bursts.take(segments, places, [hit.text for hit in hits])
        others = [hits[at] for at in sorted(judged.others)]
        hits = [hit for at, hit in enumerate(hits) if at not in judged.others]
        for hit in hits:
            if hit.captures:
                # In all other lines, an address is usually the other end's and not the writer's.
                own = hit.signature in self._of_seats
                told = {name: what for name, what in hit.captures.items() if own or name != "ip"}
                self.seats.note(hit.text, told)
        return Scanned(
            [hit for hit in hits if hit.signature not in self._of_seats and not hit.text.startswith(OUR_OWN)],
            [hit for hit in others if hit.signature not in self._of_seats],
            taken_back=judged.before,
        )

    def number(self) -> int:
        """The next running number."""
        self._order += 1
        return self._order


class _Mark(NamedTuple):
    """Where the progress reader was when it had read a line."""

    advances: int
    calm_lines: int
    step: int | None


@dataclass(frozen=True, slots=True)
class _Found:
    evidence: Evidence
    mark: _Mark


class _Kept:
    """The hits of one signature in one file: the first ones, the last ones, and their number."""

    __slots__ = ("_before", "_first", "_first_max", "_last", "_last_max", "_total")

    def __init__(self, first_max: int, last_max: int) -> None:
        self._first: list[_Found] = []
        self._first_max = first_max
        self._last: deque[_Found] = deque(maxlen=last_max)
        self._last_max = last_max
        self._total = 0
        self.remember()

    @property
    def size(self) -> int:
        """How many are kept."""
        return len(self._first) + len(self._last)

    def add(self, found: _Found) -> None:
        """Keep a hit, in place of an older one where there is no room."""
        self._total += 1
        (self._first if len(self._first) < self._first_max else self._last).append(found)

    def count(self) -> None:
        """Count a hit that later ones of the same batch would push out anyway."""
        self._total += 1

    def remember(self) -> None:
        """From now on, `take_back` can undo what is added."""
        self._before = [*self._first], self._last.copy(), self._total

    def take_back(self) -> list[Evidence]:
        """Undo what was added since `remember`; return what had been kept of it."""
        every = [*self._first, *self._last]
        self._first, self._last, self._total = self._before
        stays = {one.evidence.order for one in (*self._first, *self._last)}
        return [one.evidence for one in every if one.evidence.order not in stays]

    def evidence(self, provisional: Sequence[_Found], now: _Mark) -> list[Evidence]:
        """The kept hits as if `provisional` had been added. `now` is where the progress reader is."""
        every = [*self._first, *self._last, *provisional]
        if not every:  # all were taken back
            return []
        shown = every[: self._first_max] + every[self._first_max :][-self._last_max :]
        told = [
            replace(
                one.evidence,
                progress_after=now.advances > one.mark.advances + 1,
                calm_after=now.calm_lines > one.mark.calm_lines,
            )
            for one in shown
        ]
        told[-1] = replace(told[-1], count=1 + self._total + len(provisional) - len(shown))
        return told


class LogFile:
    """One file's evidence and progress. `take` gets its bytes in order, `rest` scans the unfinished line,
    `finish` ends the text.
    """

    def __init__(
        self,
        name: str,
        book: LogContext,
        *,
        source: Source = Source.LOG,
        rank: int | None = None,
        node: str = "",
    ) -> None:
        self.name = name
        self._rank, self._node = rank, node
        if rank is not None and node:
            book.seats.seat(rank, node)
        self.reader = ProgressReader()
        self.progress: Progress | None = None
        self.changed = False  # since the last call of `evidence`
        self._book = book
        self._source = source
        self._generation = -1
        self._offset = 0  # of the first pending byte
        self._line: int | None = 1  # of the first pending byte; None = nobody counted
        self._pending = b""
        self._read_to = 0  # where the progress reader is
        self._kept: dict[str, _Kept] = {}
        self._provisional: list[_Found] = []
        self._bursts = Bursts(book.ours)
        self._in_burst: set[str] = set()  # signatures found in the burst that is under way
        self.others: dict[
            str, Evidence
        ] = {}  # signature -> the first line of another job that it was found in
        self._numbers: dict[
            tuple[int, str], int
        ] = {}  # (offset, signature) -> running number of what was provisional
        self._rested = True
        self.losses = LossSummary()
        self._advances = 0  # as shown by `evidence`
        self._shown: tuple[Evidence, ...] = ()

    def take(
        self, piece: Piece, now_s: float | None, *, lines_before: int | None = 0, behind: bool = False
    ) -> set[int]:
        """Read on; return the running numbers of new evidence.

        `lines_before` is for the first piece of a generation: the number of lines in front of it, None =
        unknown. `behind`: the bytes are old, so no step times can be learnt from them.
        """
        new = self._begin(piece, lines_before, now_s) if piece.generation != self._generation else set()
        data = self._pending + piece.data if self._pending else piece.data
        whole = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        if len(data) - whole > SEGMENT_BYTES:  # an endless line: cut where the scanner cuts it
            whole += (len(data) - whole - 1) // SEGMENT_BYTES * SEGMENT_BYTES
        if whole:
            new |= self._confirm(data[:whole], piece, now_s, behind=behind)
        self._pending = data[whole:]
        self._read_steps(piece, piece.offset_bytes + len(piece.data), now_s, behind=behind)
        self._show(self.reader.progress, self.reader.advances, self.reader.losses.seen)
        self._rested = False
        return new

    @property
    def rested(self) -> bool:
        """Whether its last line was scanned as it is: until it grows, `rest` changes nothing."""
        return self._rested

    def rest(self, now_s: float | None) -> set[int]:
        """The file is quiet: scan its last line as it is. Return the running numbers of new evidence."""
        if self._rested:
            return set()
        self._rested = True
        progress, advances, losses = self.reader.at_rest()
        self._show(progress, advances, losses)
        if not self._pending:
            return set()
        known = set(self._numbers.values())
        # Half a name is another name: only a whole line decides about the burst in front of it.
        hits = self._book.scan(self._pending, copy.copy(self._bursts)).hits
        mark = _Mark(advances, losses.calm_lines, progress.step if progress is not None else None)
        self._provisional = [
            _Found(self._evidence(hit, now_s, self._number(hit), mark), mark) for hit in hits
        ]
        numbers = {one.evidence.order for one in self._provisional}
        self._numbers = {_key(one.evidence): one.evidence.order for one in self._provisional}
        self.changed = self.changed or bool(numbers)
        return numbers - known

    def finish(self, now_s: float | None) -> set[int]:
        """The text is over: its last line needs no newline."""
        self.reader.flush()
        new: set[int] = set()
        if self._pending:
            hits = self._scan(self._pending, now_s).hits
            new = self._keep(hits, [(at, self._mark()) for at in range(len(hits))], now_s)
            self._offset += len(self._pending)
            self._pending = b""
        self._show(self.reader.progress, self.reader.advances, self.reader.losses.seen)
        return new

    def evidence(self) -> tuple[Evidence, ...]:
        """The kept evidence, by running number."""
        if self.changed:
            self.changed = False
            now = _Mark(self._advances, self.losses.calm_lines, None)
            by_signature: dict[str, list[_Found]] = {signature: [] for signature in self._kept}
            for found in self._provisional:
                by_signature.setdefault(found.evidence.signature, []).append(found)
            told = [
                evidence
                for signature, found in by_signature.items()
                for evidence in (self._kept.get(signature) or self._room()).evidence(found, now)
            ]
            self._shown = tuple(sorted(told, key=lambda one: one.order))
        return self._shown

    def _begin(self, piece: Piece, lines_before: int | None, now_s: float | None) -> set[int]:
        """The text begins, or begins anew after a truncation or rotation. Earlier evidence stays."""
        new = self.finish(now_s) if self._generation >= 0 else set()
        self._generation = piece.generation
        self._offset = self._read_to = piece.offset_bytes
        self._bursts.begin_anew(piece.offset_bytes)
        self._in_burst = set()
        self._line = None if lines_before is None else lines_before + 1
        self.reader.begin_anew(piece.offset_bytes)
        return new

    def _scan(self, segments: bytes, now_s: float | None) -> Scanned:
        """Scan whole segments that begin at `_offset`, and take back what turns out to be another job's
        burst.
        """
        begins = self._bursts.begins
        found = self._book.scan(segments, self._bursts)
        if found.taken_back:
            for signature in self._in_burst:
                for evidence in self._kept[signature].take_back():
                    self.others.setdefault(signature, evidence)
            self.changed = True
        if found.taken_back or self._bursts.begins != begins:
            self._in_burst = set()
        for hit in found.others:
            if hit.signature not in self.others:
                self.others[hit.signature] = self._evidence(hit, now_s, 0, self._mark())
        return found

    def _confirm(self, segments: bytes, piece: Piece, now_s: float | None, *, behind: bool) -> set[int]:
        """Scan whole segments that begin at `_offset`, and keep their hits together with the steps up to
        each.
        """
        hits = self._scan(segments, now_s).hits
        marked: list[tuple[int, _Mark]] = []
        for at in self._worth_keeping(hits):
            begins = hits[at].offset_bytes - self._book.scanned.size_bytes
            ends = _SEPARATOR.search(segments, begins, begins + SEGMENT_BYTES + 1)
            end = ends.end() if ends is not None else begins + SEGMENT_BYTES
            self._read_steps(piece, self._offset + end, now_s, behind=behind)
            marked.append((at, self._mark()))
        new = self._keep(hits, marked, now_s)
        self._offset += len(segments)
        if self._line is not None:
            self._line += self._book.lines
        return new

    def _is_in_burst(self, hit: Hit) -> bool:
        """Whether the hit may have to be taken back."""
        return self._bursts.begins is not None and self._place(hit) >= self._bursts.begins

    def _worth_keeping(self, hits: Sequence[Hit]) -> list[int]:
        """The indices of the hits that will be kept; the rest of a storm is only counted."""
        by_signature: dict[tuple[str, bool], list[int]] = {}
        for at, hit in enumerate(hits):
            by_signature.setdefault((hit.signature, self._is_in_burst(hit)), []).append(at)
        few = KEPT_FIRST + KEPT_LAST
        return sorted(
            at for places in by_signature.values() for at in (*places[:few], *places[few:][-KEPT_LAST:])
        )

    def _keep(
        self, hits: Sequence[Hit], marked: Sequence[tuple[int, _Mark]], now_s: float | None
    ) -> set[int]:
        """Keep the hits at `marked` (index, mark), count the others; return the running numbers of the new
        ones.
        """
        marks = dict(marked)
        new: set[int] = set()
        for at, hit in enumerate(hits):
            known = (self._place(hit), hit.signature) in self._numbers
            number = self._number(hit)
            kept = self._kept.get(hit.signature)
            if kept is None:
                kept = self._kept[hit.signature] = self._room()
            if self._is_in_burst(hit) and hit.signature not in self._in_burst:
                self._in_burst.add(hit.signature)
                kept.remember()
            if at not in marks:
                kept.count()
                continue
            before = kept.size
            kept.add(_Found(self._evidence(hit, now_s, number, marks[at]), marks[at]))
            self._book.kept += kept.size - before
            if not known:
                new.add(number)
        self.changed = self.changed or bool(hits or self._provisional)
        self._provisional = []
        self._numbers = {}
        return new

    def _room(self) -> _Kept:
        full = self._book.kept >= EVIDENCE_MAX
        return _Kept(1, 1) if full else _Kept(KEPT_FIRST, KEPT_LAST)

    def _number(self, hit: Hit) -> int:
        """The running number that the hit had when its line was provisional, or the next one."""
        return self._numbers.get((self._place(hit), hit.signature)) or self._book.number()

    def _place(self, hit: Hit) -> int:
        """The hit's offset in the file: the last scan began at `_offset`."""
        return self._offset + hit.offset_bytes - self._book.scanned.size_bytes

    def _mark(self) -> _Mark:
        progress = self.reader.progress
        step = progress.step if progress is not None else None
        return _Mark(self.reader.advances, self.reader.losses.calm_lines, step)

    def _evidence(self, hit: Hit, now_s: float | None, number: int, mark: _Mark) -> Evidence:
        written = line_time_s(hit.text)
        return Evidence(
            source=self._source,
            signature=hit.signature,
            text=hit.text,
            file=self.name,
            line=0 if self._line is None else self._line + hit.line - self._book.scanned.lines - 1,
            offset_bytes=self._place(hit),
            order=number,
            at_s=now_s if written is None else written,
            captures=hit.captures,
            step=mark.step,
            file_rank=self._rank,
            file_node=self._node,
        )

    def _read_steps(self, piece: Piece, target: int, now_s: float | None, *, behind: bool) -> None:
        """Let the progress reader read up to `target`, an offset in the file."""
        if target <= self._read_to:
            return
        text = piece.data[self._read_to - piece.offset_bytes : target - piece.offset_bytes]
        self.reader.feed(text, 0.0 if now_s is None else now_s, behind=behind or now_s is None)
        self._read_to = target

    def _show(self, progress: Progress | None, advances: int, losses: LossSummary) -> None:
        self.progress = progress
        if (advances, losses.calm_lines) != (self._advances, self.losses.calm_lines):
            self._advances = advances
            self.changed = self.changed or bool(self._kept or self._provisional)
        self.losses = losses


def _key(evidence: Evidence) -> tuple[int, str]:
    return evidence.offset_bytes, evidence.signature


def line_time_s(text: str) -> float | None:
    """The Unix time of the first full date in the line, None without one. A date without a zone is local
    time.
    """
    found = parse_timestamp(text)
    if found is None or found[1]:
        return found[0] if found else None
    whole = int(found[0])
    return time.mktime((*time.gmtime(whole)[:8], -1)) + (found[0] - whole)
