"""Which job wrote a line, where several jobs write into one log. (pure)

A node that froze and thaws writes the last lines of its old job into a file that a later attempt, or a
stranger's job, writes too. Such a line is no evidence. Slurm's own lines name a job or node at fixed places;
a line that names another one there is another's. Elsewhere a name proves nothing: people print the ids of
earlier jobs, and a true error may name a file server.

Programs put their host's name in front of their lines, as the host calls itself, which need not be Slurm's
name for it. So such a name counts only if an earlier launch of the run had that node and this one does not.

srun prints much without a name ("Job step aborted"), or names a node that both jobs have. Its lines come in
bursts: an unbroken run of lines by srun, slurmstepd and ftrun. A job named in a burst has written all of
it, up to a line that is certainly ours.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import NamedTuple

from ftrun.slurm.client import nodeset
from ftrun.slurm.records import dataclass, replace

NCCL_PREFIX = re.compile(r"(?:^|\s)(?P<host>[A-Za-z][\w.-]*):\d+:\d+ \[\d+\] ")
SYSLOG_PREFIX = re.compile(
    r"^(?:<\d+>|[\w./-]{1,80}:)?(?:[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d|\d{4}-\d\d-\d\dT\S+"
    # Programs use this date format as well, so only the word "kernel" makes it a system log.
    r"|(?:\d{4}-\d\d-\d\d \S+|\[[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4}\])(?= [\w.-]+ kernel\b))"
    r" (?P<host>[\w.-]+) (?:kernel|[\w.-]+\[\d+\]|systemd|slurmd)\b"
)
# `n7: text`, as clush, pdsh and many scripts print it. Any word may stand there: only known nodes count.
LABEL = re.compile(r"(?P<host>[A-Za-z][\w.-]*): ")
_PID_PREFIX = re.compile(r"^(?:\d+: )?\[(?P<host>[A-Za-z][\w.-]*):\d+\]")
_SOURCE_PREFIX = re.compile(r"\b(?P<host>[A-Za-z][\w.-]*) \[\d+\]: \w+\.c:\d+")


def host_prefixes(text: str) -> list[str]:
    """The possible names of the host that printed `text`: the prefixes that programs and launchers use."""
    forms = (NCCL_PREFIX, SYSLOG_PREFIX, _PID_PREFIX, _SOURCE_PREFIX)
    found = [*(form.search(text) for form in forms), LABEL.match(text)]
    return [match["host"] for match in found if match]


LINE_CHARS = 400
"""Names further behind do not count."""

_WORDS = ("srun: ", "slurmstepd", "slurm_script", "*** JOB ", "*** STEP ")
_NEEDLES = tuple(word.encode() for word in (*_WORDS, "ftrun: "))
_LAUNCHER = re.compile(r"^.{0,80}?(?<![\w./-])(?:srun|slurmstepd(?:-(?P<node>[\w.-]+))?): ")
_FTRUN = "ftrun: "
_ENDED = re.compile(r"\*\*\* (?:JOB|STEP) (?P<job>\d+)\S* (?:STEPD TERMINATED )?ON (?P<nodes>\S+) ")
_SCRIPT = re.compile(r"/job0*(?P<job>\d+)(?:\.\d+)?/slurm_script\b")
_ID = re.compile(r"\b(?:Step|Job)I[dD]=(?P<job>\d+)(?:[_+]\d+\((?P<raw>\d+)\))?|\b[Jj]ob (?P<plain>\d+)\b")
_TASKS = re.compile(r"srun: error: (?P<nodes>[A-Za-z][\w.,\-\[\]]*): tasks? [\d\[]")
_NODE = re.compile(
    r"\b(?:Node failure on|failed on node|on host|[Pp]rolog hung on node) (?P<nodes>[A-Za-z][\w.,\-\[\]]*)"
)


@dataclass(frozen=True, slots=True)
class KnownOwners:
    """What tells a launch's lines from others'.

    `jobs` and `nodes` are all that it has, empty = unknown; `other_jobs` and `other_nodes` are those of the
    run's other launches. `several`: its job has parts with ids and nodes of their own, so an unlisted one may
    be its own all the same.
    """

    jobs: frozenset[str] = frozenset()
    nodes: frozenset[str] = frozenset()
    other_jobs: frozenset[str] = frozenset()
    other_nodes: frozenset[str] = frozenset()
    several: bool = False

    def having(self, jobs: Collection[str], nodes: Collection[str]) -> KnownOwners:
        """The same launch with these jobs and nodes, too: companions join and leave."""
        if self.jobs.issuperset(jobs) and self.nodes.issuperset(nodes):
            return self
        return replace(self, jobs=self.jobs.union(jobs), nodes=self.nodes.union(nodes))

    def of_job(self, job: str) -> LineOwner:
        """Whose a line is that names this job."""
        if job in self.jobs:
            return LineOwner.UNSAID if job in self.other_jobs else LineOwner.OURS
        known = bool(self.jobs) and not self.several
        return LineOwner.FOREIGN if known or job in self.other_jobs else LineOwner.UNSAID

    def of_node(self, node: str) -> LineOwner:
        """Whose a line is that names this node, by Slurm's name."""
        if node in self.nodes:
            return LineOwner.UNSAID if node in self.other_nodes else LineOwner.OURS
        known = bool(self.nodes) and not self.several
        return LineOwner.FOREIGN if known or node in self.other_nodes else LineOwner.UNSAID

    def of_host(self, host: str) -> LineOwner:
        """Whose a line is that has this host's name in front."""
        names = {host, host.split(".", 1)[0]}
        gone = bool(names & self.other_nodes) and not names & self.nodes
        return LineOwner.FOREIGN if gone else LineOwner.UNSAID


NO_OWNERS_KNOWN = KnownOwners()
"""Nothing is known: every line counts."""


class LineOwner(Enum):
    """Who wrote a line."""

    OURS = "ours"  # this launch, for certain
    FOREIGN = "another's"  # another job, or another launch
    UNSAID = "somebody's"  # the line does not say


def owner_of(text: str, ours: KnownOwners) -> LineOwner:
    """Who wrote this line, by what it says itself."""
    text = text[:LINE_CHARS]
    if text.startswith(_FTRUN):  # ftrun's lines name earlier jobs, too
        return LineOwner.UNSAID
    found: list[LineOwner] = []
    if any(word in text for word in _WORDS):
        found = [ours.of_job(job) for job in _jobs(text)]
        found += [ours.of_node(node) for node in _nodes(text)] if LineOwner.OURS not in found else []
    if not found and ours.other_nodes:
        found = [ours.of_host(host) for host in host_prefixes(text)]
    told = (one for one in (LineOwner.FOREIGN, LineOwner.OURS) if one in found)
    return next(told, LineOwner.UNSAID)


def _jobs(text: str) -> list[str]:
    """The jobs that Slurm names where it says whose line it is."""
    found = [match["job"] for match in (_ENDED.search(text), _SCRIPT.search(text)) if match]
    if not found and _LAUNCHER.search(text):
        found = [match["raw"] or match["job"] or match["plain"] for match in _ID.finditer(text)]
    return found


def _nodes(text: str) -> list[str]:
    """The nodes that Slurm names there. Slurm folds several into one list."""
    ended, launcher = _ENDED.search(text), _LAUNCHER.search(text)
    lists = [ended["nodes"] if ended else "", (launcher["node"] or "") if launcher else ""]
    if launcher:
        lists += [match["nodes"] for match in (_TASKS.search(text), _NODE.search(text)) if match]
    return [node for folded in lists for node in _unfolded(folded.rstrip(".,-"))]


def _unfolded(folded: str) -> Sequence[str]:
    try:
        return nodeset.expand(folded) if "[" in folded or "," in folded else [folded][: bool(folded)]
    except ValueError:  # cut off, or no list at all
        return ()


class BurstVerdict(NamedTuple):
    """The result of `Bursts.take`: the indices of lines by others, and whether the lines of the burst before
    them are others', too.
    """

    others: frozenset[int]
    before: bool


class Bursts:
    """The bursts of one file. It gets whole lines in order; how they are cut into pieces does not change the
    end result.
    """

    __slots__ = ("_another", "_offset", "begins", "ours")

    def __init__(self, ours: KnownOwners = NO_OWNERS_KNOWN) -> None:
        self.ours = ours
        self._offset = 0  # of the next byte
        self._another = False  # the burst under way names another job
        self.begins: int | None = None  # where the burst under way begins; None = no burst

    def begin_anew(self, offset_bytes: int) -> None:
        """The next bytes are at this offset and continue no burst."""
        self._offset, self._another, self.begins = offset_bytes, False, None

    def take(self, segments: bytes, places: Sequence[int], texts: Sequence[str]) -> BurstVerdict:
        """Judge the lines at `places` (offsets in `segments`, in order) with these `texts`."""
        if self.ours == NO_OWNERS_KNOWN:
            return BurstVerdict(frozenset(), before=False)
        told = [owner_of(text, self.ours) for text in texts]
        others = {at for at, one in enumerate(told) if one is LineOwner.FOREIGN}
        under_way, before = self.begins, False
        asked = under_way is not None or any(_speaks(text[:LINE_CHARS]) for text in texts)
        for begin, end, another in self._bursts(
            segments,
            _launchers(segments) if asked else _last_launchers(segments),
            dict(zip(places, told, strict=True)),
        ):
            if another:
                inside = range(bisect_left(places, begin), bisect_left(places, end))
                others |= {at for at in inside if told[at] is not LineOwner.OURS}
                before = before or (under_way is not None and self._offset + begin == under_way)
        self._offset += len(segments)
        return BurstVerdict(frozenset(others), before)

    def _bursts(
        self, segments: bytes, launchers: Iterable[tuple[int, int]], known: Mapping[int, LineOwner]
    ) -> Iterator[tuple[int, int, bool]]:
        """The bursts of these lines: (begin, end, whether it is another's). `known` are lines already judged.

        A burst that continues an earlier one begins in front of `segments`.
        """
        begin = self.begins - self._offset if self.begins is not None else None
        another, end = self._another, 0
        for line, after in launchers:
            if begin is None or segments[end:line].strip():
                if begin is not None:
                    yield begin, end, another
                begin, another = line, False
            one = known.get(line) or owner_of(_text(segments[line:after]), self.ours)
            end = after
            if one is LineOwner.OURS:
                yield begin, line, another
                begin, another = after, False
            another = another or one is LineOwner.FOREIGN
        if begin is not None:
            yield begin, end, another
        goes_on = begin is not None and not segments[end:].strip()
        self.begins = self._offset + begin if begin is not None and goes_on else None
        self._another = another and goes_on


def _launchers(segments: bytes) -> Iterator[tuple[int, int]]:
    """Begin and end of each line by Slurm or ftrun."""
    found: dict[int, int] = {}
    for needle in _NEEDLES:
        at = segments.find(needle)
        while at >= 0:
            begin, end = _line_around(segments, at)
            found[begin] = end
            at = segments.find(needle, end)
    return (
        (begin, found[begin]) for begin in sorted(found) if _speaks(_text(segments[begin : found[begin]]))
    )


def _last_launchers(segments: bytes) -> Iterator[tuple[int, int]]:
    """The same for the lines at the very end only. Where no hit needs judging, only a burst that may go on
    matters.
    """
    found: list[tuple[int, int]] = []
    end = len(segments)
    while (last := _last_byte(segments, end)) >= 0:
        begin, _ = _line_around(segments, last)
        if not _speaks(_text(segments[begin:end])):
            break
        found.append((begin, end))
        end = begin
    return reversed(found)


def _last_byte(segments: bytes, end: int) -> int:
    """The offset of the last non-blank byte before `end`; -1 for none."""
    last = end - 1
    while last >= 0 and segments[last : last + 1].isspace():
        last -= 1
    return last


def _line_around(segments: bytes, at: int) -> tuple[int, int]:
    """The begin of the line with the byte at `at`, and of the next line."""
    begin = segments.rfind(b"\n", 0, at) + 1
    begin = max(begin, segments.rfind(b"\r", begin, at) + 1)
    newline = segments.find(b"\n", at)
    end = len(segments) if newline < 0 else newline + 1
    carriage = segments.find(b"\r", at, end)
    return begin, end if carriage < 0 else carriage + 1


def _speaks(text: str) -> bool:
    """Whether Slurm or ftrun printed this."""
    if not any(word in text for word in _WORDS):
        return text.startswith(_FTRUN)
    return any(form.search(text) for form in (_LAUNCHER, _ENDED, _SCRIPT))


def _text(line: bytes) -> str:
    return line[: 4 * LINE_CHARS].decode("utf-8", "replace")[:LINE_CHARS]
