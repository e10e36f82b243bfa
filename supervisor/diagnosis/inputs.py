"""All that was kept of one attempt, read from files: logs, kernel logs, device reports, recorders, Slurm's record. (I/O)

How it thinks. Every file is asked what it is (`readers`, `flight`), and becomes lines with a source; then the same scanner and
the same diagnosis as for a live log see them. A file that is damaged or of no known form is told, and costs nothing else. The dumps of the flight
recorder make sense together only, so they are judged together and stand in the report as one text.

What kind of text a file is, and its content as lines that the catalog knows.
How it thinks. Most of what belongs to a failed job is a log and is read line by line as it is. Four kinds are not: a kernel
log counts for more than a job's own words; a device report says in its headings what its lines are about, so each line gets
its headings in front; a torchrun error file is one JSON object around a traceback; and Slurm's record is no evidence but the verdict on how
the job ended. A file is taken for what its beginning looks like, never for what its name says.

Formats: nvidia-smi -q (docs.nvidia.com/deploy/nvidia-smi), dmesg(1), torch.distributed.elastic.multiprocessing.errors, scontrol(1), sacct(1).

What belongs to one job by its id: its logs, its record, its nodes, from ftrun's own run or from Slurm.
How it thinks. A run that ftrun looked after knows best which part of which file belongs to which launch. Of any other job
Slurm tells the files and the end; when the controller has forgotten it, accounting may still know. What can be found is
used, what cannot is said.
"""

from __future__ import annotations

import glob
import gzip
import io
import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from itertools import chain
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

from ftrun.slurm.client import node_states, nodeset, parse
from ftrun.slurm.client.cluster import JobDetails
from ftrun.slurm.client.errors import SlurmError
from ftrun.slurm.commands.accounting import accounted
from ftrun.slurm.commands.cluster import CommandCluster
from ftrun.slurm.records import dataclass, replace
from ftrun.supervisor.config.home import home_dir
from ftrun.supervisor.diagnosis import flight_recorder
from ftrun.supervisor.diagnosis.class_defaults import Ended
from ftrun.supervisor.diagnosis.node_findings import NodeFacts, gathered, number
from ftrun.supervisor.model.errors import UserError
from ftrun.supervisor.model.types import Source
from ftrun.supervisor.store import attempt_dir, node_reports
from ftrun.supervisor.store import run_dir as store_run_dir
from ftrun.supervisor.telemetry import log_watcher
from ftrun.supervisor.telemetry.line_owner import NOBODY_KNOWN, Ours
from ftrun.supervisor.telemetry.log_file import Book, LogFile
from ftrun.supervisor.telemetry.log_watcher import WatchReport, report_of
from ftrun.supervisor.telemetry.tail import READ_BYTES, LogPath, Piece

if TYPE_CHECKING:
    from ftrun.supervisor.model.types import Evidence
    from ftrun.supervisor.signatures.catalog import Catalog

__all__ = [
    "HEAD_BYTES",
    "Gathered",
    "JobFacts",
    "Kind",
    "Record",
    "attached",
    "error_lines",
    "gather",
    "headed",
    "is_attachment",
    "is_error_file",
    "kind_of",
    "named",
    "of_job",
    "read_node_reports",
    "record",
    "told_by",
]


HEAD_BYTES = 1 << 16
"""So much of a file is looked at to tell its kind."""

KERNEL_SHARE = 0.8
"""A file of which so many lines bear the kernel's stamp is a kernel log; a job's log may quote a few."""


class Kind(StrEnum):
    """What a file is."""

    LOG = "log"
    KERNEL = "kernel log"
    DEVICE = "device report"
    ERROR = "torchrun error file"
    RECORD = "Slurm's record"


@dataclass(frozen=True, slots=True)
class Record:
    """What Slurm says of one job and its nodes; `ended` is None where only nodes are told of, or the job still lives."""

    ended: Ended | None
    nodes: tuple[str, ...]


_KERNEL = re.compile(
    rb"^(?:<\d+>)?(?:\[ *\d+\.\d{6}\]"
    rb"|\[[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4}\]"
    rb"|(?:[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d|\d{4}-\d\d-\d\dT\S+) \S+ kernel:)"
)
_DEVICE = re.compile(
    rb"=+NVSMI LOG=+|^\| npu-smi |ROCm System Management Interface|^\| NVIDIA-SMI ", re.MULTILINE
)
_JOB = re.compile(rb"^\s*JobId=\d+ ", re.MULTILINE)
_NODE = re.compile(rb"^\s*NodeName=\S+ ", re.MULTILINE)


def kind_of(head: bytes) -> Kind:
    """The kind of a text whose first bytes (HEAD_BYTES or all) are `head`."""
    if is_error_file(head):
        return Kind.ERROR
    if _DEVICE.search(head[:4096]):
        return Kind.DEVICE
    start = head.lstrip()[:2048]
    first = start.split(b"\n", 1)[0].decode("utf-8", "replace")
    if _JOB.match(start) or _NODE.match(start) or _is_account_heading(first):
        return Kind.RECORD
    lines = [line for line in head.splitlines()[:400] if line.strip()]
    stamped = sum(1 for line in lines if _KERNEL.match(line))
    return Kind.KERNEL if lines and stamped >= KERNEL_SHARE * len(lines) else Kind.LOG


def is_error_file(head: bytes) -> bool:
    """Whether a file that begins with `head` is what torchrun's record of a failed worker looks like."""
    return head.lstrip()[:1] == b"{" and b'"message"' in head and b'"extraInfo"' in head


def headed(lines: Iterable[str]) -> Iterator[str]:
    """Lines of an indented report (nvidia-smi -q), each with its headings: `GPU 00000000:3B:00.0 > Remapped Rows > Pending : Yes`.

    One line out for each line in, so that line numbers stay.
    """
    above: list[tuple[int, str]] = []
    for line in lines:
        text = line.strip()
        depth = len(line) - len(line.lstrip())
        while above and above[-1][0] >= depth:
            above.pop()
        key, colon, value = (part.strip() for part in text.partition(" : "))
        told = f"{key} : {value}" if colon else text
        yield " > ".join([*(heading for _, heading in above), told]) if text else ""
        if text and not colon:
            above.append((depth, text))


def error_lines(text: str) -> tuple[str, ...]:
    """The traceback in a torchrun error file, or its message where there is none; () for a file of another form."""
    try:
        table = json.loads(text)
    except (ValueError, RecursionError):
        return ()
    message = table.get("message") if isinstance(table, Mapping) else None
    if not isinstance(message, Mapping):
        return tuple(str(message).splitlines()) if message else ()
    extra = message.get("extraInfo")
    stack = str(extra.get("py_callstack", "")) if isinstance(extra, Mapping) else ""
    told = str(message.get("message", ""))
    return tuple((stack or told).splitlines())


def record(text: str) -> Record:
    """What `scontrol show job`, `scontrol show node` or `sacct -P` printed; pieces of several may follow each other."""
    ended, nodes = _job(text) or _accounted(text) or (None, ())
    down = tuple(name for name, state in _node_states(text) if _is_down(state))
    if ended is not None and down:
        ours = tuple(name for name in down if not nodes or name in nodes)
        ended = replace(ended, nodes_down=ours)
    return Record(ended, nodes)


_PAIR = re.compile(r"(\d+):(\d+)")


def _job(text: str) -> tuple[Ended | None, tuple[str, ...]] | None:
    """The last job record in `text`: of a job that was asked for again and again the newest answer counts."""
    records = [part for part in re.split(r"(?:^|\n)\s*(?=JobId=\d)", text) if part.startswith("JobId=")]
    if not records:
        return None
    # A record may be printed over many indented lines.
    flat = " ".join(records[-1].split("\n\n", 1)[0].split())
    job_id = flat.removeprefix("JobId=").split(" ", 1)[0]
    details = parse.parse_details(flat, job_id)
    if details is None:
        return None
    return _end_of(details), details.nodes


def _end_of(details: JobDetails) -> Ended | None:
    """The end on a job record; None while the job lives."""
    if not details.state.ended:
        return None
    return Ended(
        state=details.state.value,
        reason=details.reason,
        exit_code=details.exit_code,
        exit_signal=details.exit_signal,
        derived_exit_code=details.derived_exit_code,
    )


def _accounted(text: str) -> tuple[Ended | None, tuple[str, ...]] | None:
    """The job's own row of `sacct -P`; its steps have a dot in their id."""
    lines = text.splitlines()
    at = next((number for number, line in enumerate(lines) if _is_account_heading(line)), None)
    if at is None:
        return None
    names = lines[at].split("|")
    rows = [dict(zip(names, line.split("|"), strict=False)) for line in lines[at + 1 :] if "|" in line]
    own = [row for row in rows if "." not in row.get("JobID", row.get("JobIDRaw", "."))]
    if not own:
        return None
    row = own[-1]
    state = parse.parse_state(row.get("State", ""))
    code, signal = _pair(row.get("ExitCode", ""))
    derived, _ = _pair(row.get("DerivedExitCode", ""))
    nodes = _expanded(row.get("NodeList", ""))
    if not state.ended:
        return None, nodes
    return Ended(state.value, row.get("Reason", ""), code, signal, derived), nodes


def _is_account_heading(line: str) -> bool:
    columns = line.strip().split("|")
    return "State" in columns and bool({"JobID", "JobIDRaw"} & set(columns))


def _node_states(text: str) -> Iterator[tuple[str, str]]:
    for part in re.split(r"(?:^|\n)\s*(?=NodeName=)", text):
        if part.startswith("NodeName="):
            state = re.search(r"\sState=(\S+)", part)
            yield part.removeprefix("NodeName=").split()[0], state[1] if state else ""


def _is_down(state: str) -> bool:
    base, flags = node_states.parse_node_state(state)
    return base in {"down", "error"} or "not_responding" in flags or "fail" in flags


def _pair(text: str) -> tuple[int, int]:
    found = _PAIR.match(text)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _expanded(names: str) -> tuple[str, ...]:
    try:
        return nodeset.expand(names) if names not in {"", "None assigned"} else ()
    except ValueError:
        return ()


WHOLE_BYTES_MAX = 64 * 1024 * 1024
"""Reports, error files and records are read whole; a larger one is read as a log."""

ATTACHMENT_HEAD_BYTES = 4096
"""A live run may have thousands of logs, and each is asked: little is read."""

STDIN = "<stdin>"
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_SOURCES = {Kind.KERNEL: Source.KERNEL, Kind.DEVICE: Source.COUNTER}


@dataclass(frozen=True, slots=True)
class Gathered:
    """What the files of one attempt tell: `report` of all lines, `record` of Slurm, `unread` a line for each file that could not be used."""

    report: WatchReport
    record: Record | None
    unread: tuple[str, ...]


def gather(
    logs: Sequence[str | LogPath],
    *,
    catalog: Catalog | None = None,
    stdin: bytes | None = None,
    ours: Ours = NOBODY_KNOWN,
) -> Gathered:
    """Read `logs` (.gz and .zst too) and `stdin` to their ends. What cannot be read is told in `unread`, never raised.

    A LogPath is read from where its launch's text begins to where a later launch's does; `ours` tells whose lines count.
    """
    reading = _Reading(Book(catalog, ours))
    if stdin is not None:
        reading.take(STDIN, io.BytesIO(stdin))
    for log in dict.fromkeys(log if isinstance(log, LogPath) else LogPath(log) for log in logs):
        path = log.path
        try:
            if _is_dump(path):
                reading.dumps.append(flight_recorder.read(Path(path)))
                reading.dump_paths.append(path)
                continue
            with _opened(path) as stream:
                reading.take(path, _up_to(stream, log.end_offset_bytes), log.start_offset_bytes)
        except flight_recorder.BadDump as error:
            reading.unread.append(str(error))
        except (OSError, EOFError, ValueError) as error:
            reading.unread.append(f"{path}: {getattr(error, 'strerror', None) or error}")
    reading.take_dumps()
    why = reading.unread[0] if reading.unread else ""
    return Gathered(report_of(reading.files, reading.book.seats, why), reading.record, tuple(reading.unread))


def is_attachment(path: str) -> bool:
    """Whether a file is no log to follow but something to read when all is over: a recorder's dump, or torchrun's error file."""
    try:
        with open(path, "rb") as stream:
            head = stream.read(ATTACHMENT_HEAD_BYTES)
    except OSError:
        return False
    return flight_recorder.looks_like_dump(head) or is_error_file(head)


def attached(paths: Sequence[str], *, catalog: Catalog | None = None) -> tuple[Evidence, ...]:
    """The evidence in those of `paths` that are attachments. Users write them, so it is a claim, whatever a file looks like by now."""
    found = [path for path in paths if is_attachment(path)]
    told = gather(found, catalog=catalog).report.evidence if found else ()
    return tuple(replace(one, source=Source.LOG) for one in told)


class _Reading:
    """The files of one attempt, as far as they have been read."""

    def __init__(self, book: Book) -> None:
        self.files: list[LogFile] = []
        self.unread: list[str] = []
        self.dumps: list[flight_recorder.Dump] = []
        self.dump_paths: list[str] = []
        self.record: Record | None = None
        self.book = book

    def take(self, name: str, stream: IO[bytes], start_offset_bytes: int = 0) -> None:
        """Read one file to its end, from `start_offset_bytes` on."""
        lines_before = _skip(stream, start_offset_bytes)
        head = stream.read(HEAD_BYTES)
        kind = kind_of(head)
        chunks = chain([head], _chunks(stream))
        if kind in {Kind.LOG, Kind.KERNEL}:
            start = start_offset_bytes, lines_before
            self._read(name, chunks, _SOURCES.get(kind, Source.LOG), start)
            return
        content = head + stream.read(WHOLE_BYTES_MAX)
        if len(content) > WHOLE_BYTES_MAX:
            self._read(name, chain([content], _chunks(stream)), Source.LOG)
            return
        text = content.decode("utf-8", "replace")
        if kind is Kind.RECORD:
            self.record = record(text)
            if (
                self.record.ended is None
            ):  # of nodes, or of a job that is not over: its words are all there is
                self._read(name, [content], Source.SLURM)
            return
        lines = headed(text.splitlines()) if kind is Kind.DEVICE else error_lines(text)
        self._read(name, ["\n".join(lines).encode()], _SOURCES.get(kind, Source.LOG))

    def take_dumps(self) -> None:
        """What the recorders say together."""
        lines = flight_recorder.findings(self.dumps)
        if lines:
            more = len(self.dump_paths) - 1
            name = self.dump_paths[0] + (f" and {more} more" if more else "")
            self._read(name, ["\n".join(lines).encode()], Source.LOG)

    def _read(
        self, name: str, chunks: Iterable[bytes], source: Source, start: tuple[int, int] = (0, 0)
    ) -> None:
        """Take in one text; `start` is the offset of its first byte in the file, and the lines in front of it."""
        file = LogFile(name, self.book, source=source)
        self.files.append(file)
        offset_bytes, lines_before = start
        try:
            for chunk in chunks:
                file.take(Piece(chunk, offset_bytes, 0), None, lines_before=lines_before)
                offset_bytes += len(chunk)
        finally:
            file.finish(None)  # what was read of a damaged file counts


class _Part(io.RawIOBase):
    """The first bytes of a file."""

    def __init__(self, stream: IO[bytes], size_bytes: int) -> None:
        self._stream = stream
        self._left = size_bytes

    def read(self, size: int = -1, /) -> bytes:
        """At most `size` bytes, all that is left where it is negative."""
        data = self._stream.read(self._left if size < 0 else min(size, self._left))
        self._left -= len(data)
        return data


def _up_to(stream: IO[bytes], end_offset_bytes: int | None) -> IO[bytes]:
    return stream if end_offset_bytes is None else cast("IO[bytes]", _Part(stream, end_offset_bytes))


def _skip(stream: IO[bytes], size_bytes: int) -> int:
    """Read over so many bytes; return the lines in them."""
    lines, left = 0, size_bytes
    while left > 0 and (chunk := stream.read(min(left, READ_BYTES))):
        lines += chunk.count(b"\n")
        left -= len(chunk)
    return lines


def _chunks(stream: IO[bytes]) -> Iterator[bytes]:
    while chunk := stream.read(READ_BYTES):
        yield chunk


def _is_dump(path: str) -> bool:
    with open(path, "rb") as stream:
        return flight_recorder.looks_like_dump(stream.read(ATTACHMENT_HEAD_BYTES))


@contextmanager
def _opened(path: str) -> Iterator[IO[bytes]]:
    """The content of a file, unpacked; raises OSError, EOFError or ValueError where it cannot be."""
    with open(path, "rb") as plain:
        magic = plain.read(4)
        plain.seek(0)
        if magic.startswith(_GZIP):
            with gzip.open(plain) as unpacked:
                yield cast("IO[bytes]", unpacked)
        elif magic == _ZSTD:
            import zstandard

            try:
                with zstandard.open(plain, "rb") as unpacked:
                    yield unpacked
            except zstandard.ZstdError as error:
                raise ValueError(str(error)) from None
        else:
            yield plain


def named(settings: Mapping[str, Any], base: str, since_s: float) -> list[str]:
    """The files that `--ft-log` names, relative to `base`, of those that were written since (Unix seconds)."""
    patterns = settings.get("log", [])
    patterns = [patterns] if isinstance(patterns, str) else list(patterns)
    found = [
        path for pattern in patterns if pattern for path in sorted(glob.glob(os.path.join(base, pattern)))
    ]
    return [path for path in found if _written_s(path) >= since_s - 1.0]


def told_by(paths: Sequence[str], catalog: Catalog, evidence: Sequence[Evidence]) -> tuple[Evidence, ...]:
    """What those of these files tell that are no logs, in order after `evidence`."""
    found = attached(paths, catalog=catalog)
    last = max((one.order for one in evidence), default=0)
    return tuple(replace(one, order=last + one.order) for one in found)


def _written_s(path: str) -> float:
    """When a file was written last; never, where it cannot be seen (a link that leads nowhere)."""
    try:
        return os.path.getmtime(path)
    except OSError:
        return float("-inf")


@dataclass(frozen=True, slots=True)
class JobFacts:
    """Where the logs of a job are, and what is known of its end; `notes` are words for a person."""

    logs: tuple[LogPath, ...]
    record: Record
    notes: tuple[str, ...] = ()
    ours: Ours = NOBODY_KNOWN  # by what its lines are told from those of other jobs in the same files


def of_job(job_id: str) -> JobFacts:
    """All that is known of a job. Raises UserError (one line) where neither ftrun nor Slurm knows it, or no log is left."""
    record, logs, notes = _of_slurm(job_id)
    own, ours = _of_run(job_id)
    if own:
        logs = own
    if record is None and not logs:
        told = notes[0] if notes else "neither Slurm nor its accounting knows it"
        raise UserError(f"job {job_id}: {told}; name its log file instead")
    readable = tuple(log for log in logs if os.access(log.path, os.R_OK))
    missing = [log.path for log in logs if log not in readable]
    notes += tuple(f"{path} cannot be read here" for path in missing)
    return JobFacts(readable, record or Record(None, ()), notes, ours)


def _of_run(job_id: str) -> tuple[tuple[LogPath, ...], Ours]:
    """The logs of the last launch that had this job id, as far as they are its own, and whose lines count; nothing where ftrun did not start it."""
    run_dir = store_run_dir.resolve(home_dir(), job_id)
    if run_dir is None:
        return (), NOBODY_KNOWN
    plain = job_id.split("_", 1)[0].split("+", 1)[0]
    for attempt in range(store_run_dir.latest_attempt(run_dir), 0, -1):
        for claim in reversed(attempt_dir.claims(run_dir, attempt)):
            launch = attempt_dir.launch_record(run_dir, attempt, claim.launch) if claim.job == plain else None
            if launch is not None:
                logs = log_watcher.of_launch(run_dir, attempt, claim.launch)
                return tuple(logs), log_watcher.ours(run_dir, attempt, claim.launch)
    return (), NOBODY_KNOWN


def _of_slurm(job_id: str) -> tuple[Record | None, tuple[LogPath, ...], tuple[str, ...]]:
    notes: tuple[str, ...] = ()
    cluster = CommandCluster(timeout_s=10.0)
    try:
        details = cluster.details(job_id)
        if details is not None:
            return _record(cluster, details), _logs(details), ()
    except SlurmError as error:
        notes = (f"Slurm does not answer ({error})",)
    text = accounted(job_id)
    if not text:
        return None, (), notes
    row = record(text)
    folder = re.search(r"\|(/[^|\n]*)\|", text)
    log = f"{folder[1]}/slurm-{job_id}.out" if folder else ""
    logs = (LogPath(log),) if log and os.path.isfile(log) else ()
    return row, logs, notes


def _record(cluster: CommandCluster, details: JobDetails) -> Record:
    ended = _end_of(details)
    if ended is None:
        return Record(None, details.nodes)
    rows = cluster.nodes(details.nodes) if details.nodes else {}
    lost = tuple(name for name, row in rows.items() if not row.responding)
    return Record(replace(ended, nodes_down=lost), details.nodes)


def _logs(details: JobDetails) -> tuple[LogPath, ...]:
    """Slurm leaves %N and %n in a name as they are; such a file is looked for by the node's name."""
    names = dict.fromkeys(name for name in (details.std_out, details.std_err) if name and name != "/dev/null")
    hosts = (details.batch_host, *details.nodes[:1])
    spelled = {name.replace("%N", host).replace("%n", "0") for name in names for host in hosts if host}
    return tuple(LogPath(name) for name in sorted(spelled or names))


def read_node_reports(
    run_dir: str,
    attempt: int,
    launch: int,
    nodes: Sequence[str],
    *,
    start: int = 1,
    by_ssh: Mapping[str, Mapping[str, object]] | None = None,
) -> NodeFacts:
    """What the nodes of one launch say of themselves; a report that cannot be read says nothing.

    `start` is the start of the script that is asked about: checks after an earlier one say nothing of it, since a node may have been mended
    or set aside. `by_ssh`: reports that ftrun itself fetched from nodes.
    """
    found = node_reports.left(run_dir, attempt, launch, nodes)
    found["after"] = {node: one for node, one in found["after"].items() if _start_of(one) >= start}
    return gathered(nodes, found, by_ssh=by_ssh or {})


def _start_of(report: object) -> float:
    """Which start a report came after; one that does not say so belongs to whatever start is asked about."""
    told = number(report.get("start")) if isinstance(report, Mapping) else None
    return told if told is not None else math.inf
