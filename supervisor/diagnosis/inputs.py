"""The facts of a finished attempt, read from files and from Slurm. (I/O)

`gather` reads logs, kernel logs, device reports, torchrun error files, flight recorder dumps and Slurm's
record. A file's beginning decides what it is, never its name. Each becomes lines with a source, and the same
scanner and rules as for a live log see them. A device report states the subject of its lines in headings, so
each line gets its headings in front. Flight recorder dumps make sense only together, so they become one text.
Slurm's record is no evidence but the verdict on the end. A damaged file or one of unknown form is reported,
and costs nothing else.

`of_job` finds all of that by a job id. For a run of ftrun, its records say which part of which file belongs
to which launch. For any other job, Slurm names the files and the end; when the controller has forgotten the
job, accounting may still know it.

Formats: nvidia-smi -q (docs.nvidia.com/deploy/nvidia-smi), dmesg(1),
torch.distributed.elastic.multiprocessing.errors, scontrol(1), sacct(1).
"""

from __future__ import annotations

import glob
import io
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from itertools import chain
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

from ftrun.slurm.client import nodeset, parse
from ftrun.slurm.client.cluster import JobDetails
from ftrun.slurm.client.errors import SlurmError
from ftrun.slurm.commands.accounting import accounted
from ftrun.slurm.commands.cluster import CommandCluster
from ftrun.slurm.records import dataclass, replace
from ftrun.supervisor.config.home import home_dir
from ftrun.supervisor.diagnosis import flight_recorder
from ftrun.supervisor.diagnosis.class_defaults import Ended
from ftrun.supervisor.diagnosis.log_text import opened_log
from ftrun.supervisor.model.errors import UserError
from ftrun.supervisor.model.types import Source
from ftrun.supervisor.store import attempt_dir
from ftrun.supervisor.store import run_dir as store_run_dir
from ftrun.supervisor.telemetry import log_watcher
from ftrun.supervisor.telemetry.line_owner import NO_OWNERS_KNOWN, KnownOwners
from ftrun.supervisor.telemetry.log_file import LogContext, LogFile
from ftrun.supervisor.telemetry.log_watcher import WatchReport, merge_reports
from ftrun.supervisor.telemetry.tail import READ_BYTES, LogPath, Piece

if TYPE_CHECKING:
    from ftrun.supervisor.model.types import Evidence
    from ftrun.supervisor.signatures.catalog import Catalog


HEAD_BYTES = 1 << 16
"""How much of a file decides its kind."""

KERNEL_SHARE = 0.8
"""A file is a kernel log if this share of its lines has the kernel's stamp. A job's log may quote a few."""


class FileKind(StrEnum):
    """What a file is."""

    LOG = "log"
    KERNEL = "kernel log"
    DEVICE = "device report"
    ERROR = "torchrun error file"
    RECORD = "Slurm's record"


@dataclass(frozen=True, slots=True)
class SlurmRecord:
    """What Slurm says of one job and its nodes. `ended` is None where the record has only nodes, or the job
    still lives.
    """

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


def file_kind(head: bytes) -> FileKind:
    """The kind of a text with these first bytes (HEAD_BYTES or all)."""
    if is_error_file(head):
        return FileKind.ERROR
    if _DEVICE.search(head[:4096]):
        return FileKind.DEVICE
    start = head.lstrip()[:2048]
    first = start.split(b"\n", 1)[0].decode("utf-8", "replace")
    if _JOB.match(start) or _NODE.match(start) or _is_account_heading(first):
        return FileKind.RECORD
    lines = [line for line in head.splitlines()[:400] if line.strip()]
    stamped = sum(1 for line in lines if _KERNEL.match(line))
    return FileKind.KERNEL if lines and stamped >= KERNEL_SHARE * len(lines) else FileKind.LOG


def is_error_file(head: bytes) -> bool:
    """Whether a file that begins with `head` looks like torchrun's record of a failed worker."""
    return head.lstrip()[:1] == b"{" and b'"message"' in head and b'"extraInfo"' in head


def with_headings(lines: Iterable[str]) -> Iterator[str]:
    """Lines of an indented report (nvidia-smi -q), each with its headings: `GPU 00000000:3B:00.0 > Remapped
    Rows > Pending : Yes`.

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


def torchrun_error_lines(text: str) -> tuple[str, ...]:
    """The traceback in a torchrun error file, or its message if it has none; () for another form."""
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


def parse_slurm_record(text: str) -> SlurmRecord:
    """What `scontrol show job`, `scontrol show node` or `sacct -P` printed; several outputs may follow each
    other.
    """
    ended, nodes = _job(text) or _accounted(text) or (None, ())
    down = tuple(name for name, state in _node_states(text) if _is_down(state))
    if ended is not None and down:
        ours = tuple(name for name in down if not nodes or name in nodes)
        ended = replace(ended, nodes_down=ours)
    return SlurmRecord(ended, nodes)


_PAIR = re.compile(r"(\d+):(\d+)")


def _job(text: str) -> tuple[Ended | None, tuple[str, ...]] | None:
    """The last job record in `text`: of repeated queries, the newest answer counts."""
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
    """The job's own row of `sacct -P`. The ids of its steps have a dot."""
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
    base, flags = parse.parse_node_state(state)
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
"""Reports, error files and records up to this size are read whole. A larger one is read as a log."""

ATTACHMENT_HEAD_BYTES = 4096
"""A live run may have thousands of logs, and each one is checked, so little is read."""

STDIN = "<stdin>"
_SOURCES = {FileKind.KERNEL: Source.KERNEL, FileKind.DEVICE: Source.COUNTER}


@dataclass(frozen=True, slots=True)
class AttemptFiles:
    """What the files of one attempt say. `report` covers all lines, `record` is Slurm's, `unread` has a line
    for each unusable file.
    """

    report: WatchReport
    record: SlurmRecord | None
    unread: tuple[str, ...]


def read_attempt_files(
    logs: Sequence[str | LogPath],
    *,
    catalog: Catalog | None = None,
    stdin: bytes | None = None,
    ours: KnownOwners = NO_OWNERS_KNOWN,
) -> AttemptFiles:
    """Read `logs` (.gz and .zst too) and `stdin` to their ends. Unreadable files go to `unread`; nothing is
    raised.

    A LogPath is read from where its launch's text begins to where a later launch's does. `ours` decides whose
    lines count.
    """
    reading = _Reading(LogContext(catalog, ours))
    if stdin is not None:
        reading.take(LogPath(STDIN), io.BytesIO(stdin))
    for log in dict.fromkeys(log if isinstance(log, LogPath) else LogPath(log) for log in logs):
        path = log.path
        try:
            if _is_dump(path):
                reading.dumps.append(flight_recorder.read_dump(Path(path)))
                reading.dump_paths.append(path)
                continue
            with opened_log(path) as stream:
                reading.take(log, _up_to(stream, log.end_offset_bytes))
        except flight_recorder.BadDump as error:
            reading.unread.append(str(error))
        except (OSError, EOFError, ValueError) as error:
            reading.unread.append(f"{path}: {getattr(error, 'strerror', None) or error}")
    reading.take_dumps()
    why = reading.unread[0] if reading.unread else ""
    return AttemptFiles(
        merge_reports(reading.files, reading.book.seats, why), reading.record, tuple(reading.unread)
    )


def is_attachment(path: str) -> bool:
    """Whether a file is no log to follow but is read when all is over: a flight recorder dump, or torchrun's
    error file.
    """
    head = _head(path)
    return flight_recorder.looks_like_dump(head) or is_error_file(head)


def _head(path: str) -> bytes:
    try:
        with open(path, "rb") as stream:
            return stream.read(ATTACHMENT_HEAD_BYTES)
    except OSError:
        return b""


def attachments_before(paths: Sequence[str], end_offsets: Mapping[str, int]) -> list[str]:
    """`paths` without error files that were not there yet when ftrun began to end the start."""
    return [one for one in paths if not end_offsets or one in end_offsets or not is_error_file(_head(one))]


def attachment_evidence(paths: Sequence[str], *, catalog: Catalog | None = None) -> tuple[Evidence, ...]:
    """The evidence in those of `paths` that are attachments. Users write them, so it is only a claim,
    whatever a file looks like.
    """
    found = [path for path in paths if is_attachment(path)]
    told = read_attempt_files(found, catalog=catalog).report.evidence if found else ()
    return tuple(replace(one, source=Source.LOG) for one in told)


class _Reading:
    """The files of one attempt, as far as they have been read."""

    def __init__(self, book: LogContext) -> None:
        self.files: list[LogFile] = []
        self.unread: list[str] = []
        self.dumps: list[flight_recorder.Dump] = []
        self.dump_paths: list[str] = []
        self.record: SlurmRecord | None = None
        self.book = book

    def take(self, log: LogPath, stream: IO[bytes]) -> None:
        """Read one file to its end, from where its text begins."""
        name = log.path
        lines_before = _skip(stream, log.start_offset_bytes)
        head = stream.read(HEAD_BYTES)
        kind = file_kind(head)
        chunks = chain([head], _chunks(stream))
        if kind in {FileKind.LOG, FileKind.KERNEL}:
            self._read(log, chunks, _SOURCES.get(kind, Source.LOG), lines_before)
            return
        content = head + stream.read(WHOLE_BYTES_MAX)
        if len(content) > WHOLE_BYTES_MAX:
            self._read(LogPath(name), chain([content], _chunks(stream)), Source.LOG)
            return
        text = content.decode("utf-8", "replace")
        if kind is FileKind.RECORD:
            self.record = parse_slurm_record(text)
            if self.record.ended is None:  # a record of nodes, or of a live job: its text is all there is
                self._read(LogPath(name), [content], Source.SLURM)
            return
        lines = with_headings(text.splitlines()) if kind is FileKind.DEVICE else torchrun_error_lines(text)
        self._read(LogPath(name), ["\n".join(lines).encode()], _SOURCES.get(kind, Source.LOG))

    def take_dumps(self) -> None:
        """Read what the recorders say together."""
        lines = flight_recorder.blocked_collectives(self.dumps)
        if lines:
            more = len(self.dump_paths) - 1
            name = self.dump_paths[0] + (f" and {more} more" if more else "")
            self._read(LogPath(name), ["\n".join(lines).encode()], Source.LOG)

    def _read(self, log: LogPath, chunks: Iterable[bytes], source: Source, lines_before: int = 0) -> None:
        """Scan one text; `lines_before` stand before its first byte in the file."""
        file = LogFile(log.path, self.book, source=source, rank=log.rank, node=log.node)
        self.files.append(file)
        offset_bytes = log.start_offset_bytes
        try:
            for chunk in chunks:
                file.take(Piece(chunk, offset_bytes, 0), None, lines_before=lines_before)
                offset_bytes += len(chunk)
        finally:
            file.finish(None)  # the readable part of a damaged file counts


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
    """Skip so many bytes and return the number of lines in them."""
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


def find_extra_logs(settings: Mapping[str, Any], base: str, since_s: float) -> list[str]:
    """The files that `--ft-log` names, relative to `base`, and that were written since (Unix seconds)."""
    patterns = settings.get("log", [])
    patterns = [patterns] if isinstance(patterns, str) else list(patterns)
    found = [
        path for pattern in patterns if pattern for path in sorted(glob.glob(os.path.join(base, pattern)))
    ]
    return [path for path in found if _written_s(path) >= since_s - 1.0]


def extra_log_sizes(settings: Mapping[str, Any], base: str) -> dict[str, int]:
    """The files that `--ft-log` names, relative to `base`, with their sizes in bytes; {} for none."""
    if not settings.get("log"):
        return {}
    return {path: log_watcher.file_size(path) for path in find_extra_logs(settings, base, float("-inf"))}


def extra_evidence(
    paths: Sequence[str], catalog: Catalog, evidence: Sequence[Evidence]
) -> tuple[Evidence, ...]:
    """The evidence of those of these files that are no logs, in order after `evidence`."""
    found = attachment_evidence(paths, catalog=catalog)
    last = max((one.order for one in evidence), default=0)
    return tuple(replace(one, order=last + one.order) for one in found)


def _written_s(path: str) -> float:
    """When a file was last written; -inf where it cannot be seen (a dangling link)."""
    try:
        return os.path.getmtime(path)
    except OSError:
        return float("-inf")


@dataclass(frozen=True, slots=True)
class JobFacts:
    """A job's logs and what is known of its end. `notes` are for a person."""

    logs: tuple[LogPath, ...]
    record: SlurmRecord
    notes: tuple[str, ...] = ()
    ours: KnownOwners = NO_OWNERS_KNOWN  # tells its lines from those of other jobs in the same files


def find_job_facts(job_id: str) -> JobFacts:
    """All that is known of a job. Raises UserError (one line) where neither ftrun nor Slurm knows it, or no
    log is left.
    """
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
    return JobFacts(readable, record or SlurmRecord(None, ()), notes, ours)


def _of_run(job_id: str) -> tuple[tuple[LogPath, ...], KnownOwners]:
    """The logs of the last launch with this job id, and whose lines count; nothing where ftrun did not start
    it.
    """
    run_dir = store_run_dir.find_run(home_dir(), job_id)
    if run_dir is None:
        return (), NO_OWNERS_KNOWN
    plain = job_id.split("_", 1)[0].split("+", 1)[0]
    for attempt in range(store_run_dir.latest_attempt_number(run_dir), 0, -1):
        for claim in reversed(attempt_dir.claims(run_dir, attempt)):
            launch = attempt_dir.launch_record(run_dir, attempt, claim.launch) if claim.job == plain else None
            if launch is not None:
                logs = log_watcher.launch_logs(run_dir, attempt, claim.launch)
                return tuple(logs), log_watcher.known_owners(run_dir, attempt, claim.launch)
    return (), NO_OWNERS_KNOWN


def _of_slurm(job_id: str) -> tuple[SlurmRecord | None, tuple[LogPath, ...], tuple[str, ...]]:
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
    row = parse_slurm_record(text)
    folder = re.search(r"\|(/[^|\n]*)\|", text)
    log = f"{folder[1]}/slurm-{job_id}.out" if folder else ""
    logs = (LogPath(log),) if log and os.path.isfile(log) else ()
    return row, logs, notes


def _record(cluster: CommandCluster, details: JobDetails) -> SlurmRecord:
    ended = _end_of(details)
    if ended is None:
        return SlurmRecord(None, details.nodes)
    rows = cluster.nodes(details.nodes) if details.nodes else {}
    lost = tuple(name for name, row in rows.items() if not row.responding)
    return SlurmRecord(replace(ended, nodes_down=lost), details.nodes)


def _logs(details: JobDetails) -> tuple[LogPath, ...]:
    """Slurm leaves %N and %n in a log's name. Such a file is looked for by the node's name."""
    names = dict.fromkeys(name for name in (details.std_out, details.std_err) if name and name != "/dev/null")
    hosts = (details.batch_host, *details.nodes[:1])
    spelled = {name.replace("%N", host).replace("%n", "0") for name in names for host in hosts if host}
    return tuple(LogPath(name) for name in sorted(spelled or names))
