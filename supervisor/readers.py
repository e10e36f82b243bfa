"""What kind of text a file is, and its content as lines that the catalog knows. (pure)

How it thinks. Most of what belongs to a failed job is a log and is read line by line as it is. Four kinds are not: a kernel
log counts for more than a job's own words; a device report says in its headings what its lines are about, so each line gets
its headings in front; a torchrun error file is one JSON object around a traceback; and Slurm's record is no evidence but the verdict on how
the job ended. A file is taken for what its beginning looks like, never for what its name says.

Formats: nvidia-smi -q (docs.nvidia.com/deploy/nvidia-smi), dmesg(1), torch.distributed.elastic.multiprocessing.errors, scontrol(1), sacct(1).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum

from ftrun.slurm.client import node_states, nodeset, parse
from ftrun.slurm.records import dataclass
from ftrun.supervisor.verdicts import Ended

__all__ = ["HEAD_BYTES", "Kind", "Record", "error_lines", "headed", "is_error_file", "kind_of", "record"]

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
        ended = Ended(**{**{name: getattr(ended, name) for name in _ENDED}, "nodes_down": ours})
    return Record(ended, nodes)


_ENDED = ("state", "reason", "exit_code", "exit_signal", "derived_exit_code")
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
    if not details.state.ended:
        return None, details.nodes
    ended = Ended(
        state=details.state.value,
        reason=details.reason,
        exit_code=details.exit_code,
        exit_signal=details.exit_signal,
        derived_exit_code=details.derived_exit_code,
    )
    return ended, details.nodes


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
