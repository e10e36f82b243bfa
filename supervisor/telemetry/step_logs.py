"""The logs that steps write besides the job's own: `srun -o log_%t.txt`, `srun ... >log`, torchrun's folder. (I/O)

The srun in front of Slurm's notes each call in the attempt's folder before it becomes Slurm's srun: where its
output goes, how its tasks are spread, and how many bytes stood in the files before (srun adds to them, as the
job's open mode says). Where a job has no such srun, the supervisor writes the same lines from Slurm's records
of the steps; they name the file of the first task, and those of the others are found by its name.

A file whose name says so has a rank, a node, or both. A rank is on a node where the step's tasks can be spread
in one way only.

    attempts/<n>/outputs.<launch>.<start>         one line a call, fields separated by TAB: see `Call`
    attempts/<n>/outputs.<launch>.<start>.<pid>   the sizes of the files, where they are too many for one line
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field

from ftrun.slurm.client.cluster import StepFiles
from ftrun.slurm.records import dataclass, replace
from ftrun.supervisor.store import attempt_dir
from ftrun.supervisor.store import run_dir as store_run_dir
from ftrun.supervisor.telemetry.tail import LogPath

FILES_MAX = 4096
"""How many files of one start are read: those of the lowest ranks."""

_NOTES_BYTES_MAX = 8 << 20
_SKEW_S = 1.0  # the clock of a file server may be behind
_TORCHRUN = "*/attempt_*/[0-9]*/std{out,err}.log"
_NUMBER = r"\d+"
_FIELD = re.compile(r"%(?P<width>\d*)(?P<letter>.)", re.DOTALL)
_ZEROS = re.compile(r"(?<!\d)0+(?!\d)")


@dataclass(frozen=True, slots=True)
class Call:
    """One call of srun that writes besides the job's log. Paths are absolute.

    `nodes` is how many it asked for (0 = unknown), `names` those that it named, `each` how many tasks each
    node has (0 = not known for certain). `patterns` are those of -o and -e, `files` plain names, `base` is
    torchrun's folder. `sizes`: file -> bytes that stood in it before. `tasks` > 0: the patterns are the names
    of the first task's files, of so many.
    """

    at_s: float
    job: str
    title: str = ""
    nodes: int = 0
    names: tuple[str, ...] = ()
    each: int = 0
    patterns: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    base: str = ""
    sizes: Mapping[str, int] = field(default_factory=dict)
    tasks: int = 0


@dataclass(frozen=True, slots=True)
class Place:
    """One start of a run's script."""

    run_dir: str
    attempt: int
    launch: int
    start: int

    @property
    def notes(self) -> str:
        """The file with the calls of this start."""
        folder = store_run_dir.attempt_dir(self.run_dir, self.attempt)
        return os.path.join(folder, f"outputs.{self.launch}.{self.start}")


class StepLogs:
    """The files that the steps of one start write. `nodes` are those of the start, in Slurm's order."""

    def __init__(self, place: Place, nodes: Sequence[str]) -> None:
        self._place, self._nodes = place, tuple(nodes)
        self._known: dict[str, LogPath] = {}

    def find(self) -> list[LogPath]:
        """The files that there are now; one that was seen once stays. A look that finds no call costs one
        `open`.
        """
        for call in read_calls(self._place):
            if len(self._known) >= FILES_MAX:
                break
            for log in _files_of(call, self._nodes):
                if log.path not in self._known and _is_written_by(call, log):
                    self._known[log.path] = replace(log, start_offset_bytes=call.sizes.get(log.path, 0))
        return list(self._known.values())[:FILES_MAX]


def find_step_logs(place: Place, nodes: Sequence[str]) -> list[LogPath]:
    """The files of the steps of one start, each up to where a later start began to write into it."""
    found = StepLogs(place, nodes).find()
    if not found:
        return found
    later = [call for other in _later(place) for call in read_calls(other)]
    return [log for log in (_ended(log, later, nodes) for log in found) if log is not None]


def read_calls(place: Place) -> list[Call]:
    """The calls of srun in one start, oldest first, each pair of patterns once; [] without any."""
    text = store_run_dir.read_untrusted(place.notes, _NOTES_BYTES_MAX)
    if text is None:
        return []
    found: dict[object, Call] = {}
    for line in text.decode("utf-8", "surrogateescape").splitlines():
        call = _parsed(line.split("\t"), place)
        if call is not None:
            found.setdefault((call.patterns, call.files, call.base, call.title), call)
    return list(found.values())


def note_steps(
    place: Place, job: str, steps: Sequence[StepFiles], since_s: float, sizes: Mapping[str, int]
) -> None:
    """Add what Slurm's records say of the steps of a start where `read_calls` finds it. `since_s`: when the
    start began; `sizes`: what the files of the start before held at its end. Raises OSError.
    """
    lines = []
    for one in steps:
        told = [
            f"{since_s:.0f}",
            "",
            job,
            "",
            "0",
            ",".join(one.nodes),
            "",
            *(*one.files, "")[:2],
            "",
            "",
            "",
        ]
        lines.append([*told, f"tasks {one.tasks}", *(f"{size} {path}" for path, size in sizes.items())])
    text = "".join("\t".join(line) + "\n" for line in lines if "\n" not in "".join(line))
    with open(place.notes, "ab", opener=_private) as notes:
        notes.write(text.encode("utf-8", "surrogateescape"))


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


def _parsed(fields: Sequence[str], place: Place) -> Call | None:
    """One line; None for what is none. A relative name would be one of this process's folder."""
    if len(fields) < 12:
        return None
    at, pid, job, title, nodes, names, each, out, err, own, own_err, base = fields[:12]
    sizes = list(fields[12:])
    if not sizes and pid.isdigit():
        more = store_run_dir.read_untrusted(f"{place.notes}.{pid}", _NOTES_BYTES_MAX)
        sizes = (more or b"").decode("utf-8", "surrogateescape").rstrip("\n").split("\t")
    known = {
        path: attempt_dir.parse_int(size) for size, sep, path in (one.partition(" ") for one in sizes) if sep
    }
    return Call(
        at_s=float(attempt_dir.parse_int(at)),
        job=job,
        title=title,
        nodes=attempt_dir.parse_int(nodes),
        names=tuple(name for name in names.split(",") if name),
        each=attempt_dir.parse_int(each),
        patterns=tuple(dict.fromkeys(one for one in (out, err) if one.startswith("/"))),
        files=tuple(dict.fromkeys(one for one in (own, own_err) if one.startswith("/"))),
        base=base if base.startswith("/") else "",
        sizes={path: size for path, size in known.items() if path.startswith("/")},
        tasks=next((attempt_dir.parse_int(one[6:]) for one in sizes if one.startswith("tasks ")), 0),
    )


# ---------------------------------------------------------------------- from a pattern to files


def _files_of(call: Call, nodes: Sequence[str]) -> Iterator[LogPath]:
    """The files of one call that are there, in the order of their ranks."""
    on = call.names or (tuple(nodes) if call.nodes in (0, len(nodes)) else ())
    for pattern in call.patterns:
        names, form = _expanded(call, pattern, on) if not call.tasks else _of_first_task(call, pattern)
        found = [
            (match, path)
            for path in glob.iglob(names)
            if (match := form.fullmatch(path)) and os.path.isfile(path)
        ]
        yield from sorted((_seated(match, path, call, on) for match, path in found), key=_by_rank)
    for path in call.files:
        yield LogPath(path)
    if call.base:
        for stream in ("out", "err"):
            wanted = _TORCHRUN.replace("{out,err}", stream)
            yield from map(LogPath, sorted(glob.iglob(os.path.join(glob.escape(call.base), wanted))))


def _expanded(call: Call, pattern: str, nodes: Sequence[str]) -> tuple[str, re.Pattern[str]]:
    """What Slurm makes of a file name pattern: a glob for its names, and a form that they all have. (pure)"""
    plain, _, rest = pattern.partition("\\")  # behind a backslash, Slurm expands nothing
    names, form, seen = "", "", set[str]()
    at = 0
    for match in _FIELD.finditer(plain):
        before, letter = plain[at : match.start()], match["letter"]
        at = match.end()
        text, shape = _field(letter, match["width"], call, nodes)
        if letter in "tnN" and letter not in seen:
            seen.add(letter)
            shape = f"(?P<{letter}>{shape})"
        names += glob.escape(before) + (text if "*" in text else glob.escape(text))
        form += re.escape(before) + shape
    tail = plain[at:] + rest
    return names + glob.escape(tail), re.compile(form + re.escape(tail), re.DOTALL)


def _field(letter: str, width: str, call: Call, nodes: Sequence[str]) -> tuple[str, str]:
    """(text or glob, regular expression) of one `%` field. (pure)"""
    if letter in "jA" and call.job.isdigit():
        text = call.job.zfill(min(int(width or 0), 10))
        return text, re.escape(text)
    if letter == "J" and call.job.isdigit():
        return f"{call.job}.*", rf"{call.job}\.{_NUMBER}"
    if letter == "x" and call.title:
        return call.title, re.escape(call.title)
    if letter == "N":
        short = [re.escape(name.split(".", 1)[0]) for name in nodes]
        return "*", "|".join(short) or r"[\w-]+"
    if letter in "tnsjAab":
        return "*", _NUMBER
    if letter in "ux":
        return "*", r"[^/]*"
    return ("%", "%") if letter == "%" else (f"%{width}{letter}", re.escape(f"%{width}{letter}"))


def _of_first_task(call: Call, path: str) -> tuple[str, re.Pattern[str]]:
    """The names of all tasks' files by that of task 0, which is all that Slurm keeps: each zero in it may be
    the task's number; the first of them is taken for it. (pure)
    """
    folder, _, name = path.rpartition("/")
    if call.tasks < 2 or not _ZEROS.search(name):
        return glob.escape(path), re.compile(re.escape(path))
    form, names, at = re.escape(folder + "/"), glob.escape(folder + "/"), 0
    for number, match in enumerate(_ZEROS.finditer(name)):
        between, at = name[at : match.start()], match.end()
        form += re.escape(between) + (rf"(?P<t>{_NUMBER})" if not number else _NUMBER)
        names += glob.escape(between) + "*"
    return names + glob.escape(name[at:]), re.compile(form + re.escape(name[at:]))


def _seated(match: re.Match[str], path: str, call: Call, nodes: Sequence[str]) -> LogPath:
    """The file with the rank and the node that its name tells. (pure)"""
    told = match.groupdict()
    rank = int(told["t"]) if told.get("t") else None
    node = next((name for name in nodes if name.split(".", 1)[0] == told.get("N")), "")
    number = int(told["n"]) if told.get("n") else None
    if number is None and rank is not None:
        each = call.each or (1 if call.tasks and call.tasks == len(nodes) else 0)
        number = rank // each if each else None
    if not node and number is not None and number < len(nodes):
        node = nodes[number]
    return LogPath(path, rank=rank, node=node)


def _by_rank(log: LogPath) -> tuple[int, str]:
    return (log.rank if log.rank is not None else FILES_MAX, log.path)


def _is_written_by(call: Call, log: LogPath) -> bool:
    """Whether the file has been written since the call, or was noted as one that is added to."""
    if log.path in call.sizes:
        return True
    try:
        return os.path.getmtime(log.path) >= call.at_s - _SKEW_S
    except OSError:
        return False


# ---------------------------------------------------------------------- where a later start begins


def _later(place: Place) -> Iterator[Place]:
    """The starts after this one that have calls."""
    for attempt in range(place.attempt, store_run_dir.latest_attempt_number(place.run_dir) + 1):
        folder = store_run_dir.attempt_dir(place.run_dir, attempt)
        names = [name.split(".") for name in os.listdir(folder) if name.startswith("outputs.")]
        starts = sorted((int(a), int(b)) for _, a, b, *rest in names if not rest and (a + b).isdigit())
        for launch, start in starts:
            if (attempt, launch, start) > (place.attempt, place.launch, place.start):
                yield replace(place, attempt=attempt, launch=launch, start=start)


def _ended(log: LogPath, later: Sequence[Call], nodes: Sequence[str]) -> LogPath | None:
    """`log` up to where the first later call that writes into it begins; None where that call emptied it."""
    for call in later:
        if log.path in call.sizes:
            size = call.sizes[log.path]
            return replace(log, end_offset_bytes=size) if size >= log.start_offset_bytes else None
        if log.path in call.files or any(
            _expanded(call, one, nodes)[1].fullmatch(log.path) for one in call.patterns
        ):
            return None
    return log
