"""The files through which batch.sh and the agent talk, in a folder on the node. (I/O)

batch.sh is a shell script and the parent of the agent. So each message is a small file of `key=value` lines,
written atomically and numbered by the start that it concerns. The first answer wins: if the watchdog and the
agent both answer, the second one sees that an answer exists. The folder is never on a shared file system, so
nothing here blocks.

The srun shim sets FTRUN_SHIM. An srun below the script without that variable bypassed the shim (a full path,
or a login shell that resets PATH) and would start ranks on excluded nodes. `around` finds such a process in
/proc. It reads only the script's descendants, so its cost grows with the script's own processes. The shim too
is called srun, but it is a shell until it executes Slurm's srun; `around` therefore compares the executable,
not the name.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from ftrun.hooks.runtime.ownership import is_taken
from ftrun.slurm.client import nodeset
from ftrun.slurm.commands.spanning import Span
from ftrun.slurm.records import dataclass
from ftrun.supervisor.store import attempt_dir, run_dir
from ftrun.supervisor.store.attempt_dir import LaunchRecord

_CALLS_MAX_BYTES = 1 << 16

_PROCESSES_MAX = 4096


@dataclass(frozen=True, slots=True)
class Started:
    """One start of the script: process group, nodes, token, and where its output begins."""

    number: int
    pid: int
    nodes: tuple[str, ...]
    token: str
    launch: LaunchRecord


@dataclass(frozen=True, slots=True)
class ResumeView:
    """The staged checkpoint for the next start: a folder of links on each node, the checkpoint it represents,
    its step (None = not in the name).
    """

    view: str
    path: str
    step: int | None

    @property
    def lines(self) -> tuple[str, ...]:
        """The lines for batch.sh; none if a path cannot be written on one line."""
        told = (f"view={self.view}", f"from={self.path}", f"step={'' if self.step is None else self.step}")
        return () if "\n" in "".join(told) else told


@dataclass(frozen=True, slots=True)
class StartEnd:
    """How a start ended: exit code, signal (0 = none)."""

    code: int
    signal: int

    @property
    def failed(self) -> bool:
        """The exit code or the signal is not 0."""
        return bool(self.code or self.signal)


class BatchChannel:
    """The agent's side of the channel."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self._beats = 0

    def started(self, number: int) -> Started | None:
        """Start `number`; None while it has not begun."""
        values = attempt_dir.read_key_values(self._path("started", number))
        return parse_started(values, number) if values is not None else None

    def over(self, number: int) -> StartEnd | None:
        """The end of start `number`; None while the script runs."""
        values = attempt_dir.read_key_values(self._path("over", number))
        return (
            StartEnd(attempt_dir.parse_int(values.get("code")), attempt_dir.parse_int(values.get("signal")))
            if values is not None
            else None
        )

    def answer(
        self,
        number: int,
        nodes: Sequence[str] = (),
        *,
        spans: Sequence[Span] = (),
        fault: str = "",
        why: str = "",
        skip: Sequence[str] = (),
        poison: Sequence[str] = (),
        had: bool = False,
        fresh: bool = False,
        resume: ResumeView | None = None,
        checked: bool = False,
    ) -> bool:
        """Say what comes after start `number`: the script again on `nodes`, in this order, or the end of the
        job if there are none.

        `spans` are the parts of `nodes` that belong to companions, `fault` is the class of the fault, `why` says
        it in words for the job's log, `skip` are checkpoints that must not be loaded, `poison` the lines about checkpoints of a diverged training.
        `had`: the run has had a checkpoint; `fresh`: it may begin from nothing; `resume`: the staged set to
        load from node memory; `checked`: the nodes need no further check before the job ends. False if the
        start was answered before. Raises OSError.
        """
        lines = (
            ["end", *(["checked=1"] if checked else [])]
            if not nodes
            else [
                "again",
                f"nodes={','.join(nodes)}",
                f"fault={fault}",
                *([f"why={' '.join(why.split())}"] if why else []),
            ]
        )
        if nodes:
            lines += [f"span={span.job}:{nodeset.fold(span.nodes)}" for span in spans]
            lines += [f"skip={path}" for path in skip if "\n" not in path]
            lines += [
                *(f"poison={line}" for line in poison),
                *(["had=1"] if had else []),
                *(["fresh=1"] if fresh else []),
            ]
            lines += [*resume.lines] if resume is not None else []
        target = self._path("next", number)
        temporary = f"{target}.{os.getpid()}.{os.urandom(4).hex()}.tmp"
        text = "".join(f"{line}\n" for line in lines).encode("utf-8", "surrogateescape")
        with open(temporary, "wb") as stream:
            stream.write(text)
        try:
            os.link(temporary, target)
        except OSError as error:
            if not is_taken(error, target):
                raise
            return False
        finally:
            os.unlink(temporary)
        return True

    def ending(self, number: int) -> None:
        """Announce that the agent ends start `number`: batch.sh then asks even if the script exits 0. Raises
        OSError.
        """
        with open(self._path("ending", number), "w", encoding="ascii"):
            pass

    def asked(self, number: int) -> bool:
        """batch.sh waits for the answer about start `number`, or did."""
        over = self.over(number)
        return over is not None and (over.failed or os.path.exists(self._path("ending", number)))

    def answered(self, number: int) -> bool:
        """An answer exists."""
        return os.path.exists(self._path("next", number))

    def beat(self) -> None:
        """Write the heartbeat for batch.sh. Raises OSError."""
        self._beats += 1
        write_counter(os.path.join(self.folder, "pulse"), self._beats)

    def no_span(self, number: int) -> str:
        """Why an srun call in start `number` cannot span several jobs; "" if all of them can."""
        found = run_dir.read_untrusted(self._path("nospan", number), _CALLS_MAX_BYTES)
        lines = (found or b"").decode("utf-8", "replace").splitlines()
        return next((line.strip() for line in lines if line.strip()), "")

    def calls(self, number: int) -> tuple[int, ...]:
        """The processes that called srun through the shim in start `number`."""
        found = run_dir.read_untrusted(self._path("calls", number), _CALLS_MAX_BYTES)
        lines = (found or b"").decode("utf-8", "replace").splitlines()
        words = (line.split(None, 2) for line in lines)
        return tuple(int(fields[1]) for fields in words if len(fields) > 1 and fields[1].isdigit())

    def _path(self, what: str, number: int) -> str:
        return os.path.join(self.folder, f"{what}.{number}")


def write_counter(path: str, number: int) -> None:
    """Write a heartbeat: a counter that its readers see move. Raises OSError."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        os.pwrite(descriptor, f"{number:020d}\n".encode(), 0)
    finally:
        os.close(descriptor)


def parse_started(values: Mapping[str, str], number: int) -> Started:
    """Parse the record of a start. (pure)"""
    launch = attempt_dir.parse_launch(values, number)
    return Started(
        number, attempt_dir.parse_int(values.get("pid")), launch.nodes, values.get("token", ""), launch
    )


def unshimmed_srun(script_pid: int, job: str, proc: str = "/proc") -> int:
    """The first srun of this job below the script that bypassed the shim; 0 for none."""
    for pid in descendants(script_pid, proc):
        if executable_name(pid, proc) != "srun":
            continue
        told = _environment(pid, proc)
        if told.get(b"SLURM_JOB_ID", job.encode()) != job.encode() or b"FTRUN_SHIM" in told or not told:
            continue
        return pid
    return 0


def running_sruns(script_pid: int, job: str, proc: str = "/proc") -> list[int]:
    """The sruns of this job at or below the script."""
    below = descendants(script_pid, proc) if script_pid > 1 else []
    ours = [pid for pid in below if executable_name(pid, proc) == "srun"]
    return [pid for pid in ours if _environment(pid, proc).get(b"SLURM_JOB_ID") == job.encode()]


def descendants(pid: int, proc: str = "/proc") -> list[int]:
    """A process and its descendants, as far as they are visible."""
    found: list[int] = []
    queue = [pid]
    while queue and len(found) < _PROCESSES_MAX:
        one = queue.pop()
        found.append(one)
        try:
            threads = os.listdir(f"{proc}/{one}/task")
        except OSError:
            continue
        for thread in threads:
            children = _read(f"{proc}/{one}/task/{thread}/children")
            queue += [int(word) for word in children.split()]
    return found


def executable_name(pid: int, proc: str = "/proc") -> str:
    """The base name of the executable of a process; "" if the process is gone."""
    try:
        return os.path.basename(os.readlink(f"{proc}/{pid}/exe"))
    except OSError:
        return ""


def _environment(pid: int, proc: str) -> dict[bytes, bytes]:
    pairs = (word.partition(b"=") for word in _read(f"{proc}/{pid}/environ").split(b"\0"))
    return {key: value for key, sep, value in pairs if sep}


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as stream:
            return stream.read(1 << 20)
    except OSError:
        return b""
