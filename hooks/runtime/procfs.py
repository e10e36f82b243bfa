"""Processes of this node from /proc: state, owner, environment, open files; our own priority. (I/O)

Reading the command line, maps or environment of a hung process may hang; `stat` and `status` do not. So a
child process reads environments: it announces each process first, and is abandoned when it does not come
back. A large node has thousands of processes, so `status` is read only of those that matter.

`open_for_writing` reads the links of /proc/PID/fd, which works for hung processes; for the few that point
below the folder /proc/PID/fdinfo tells whether the file is open for writing (`flags` as in open(2), in octal).
A process in another mount namespace may show the same path for another file: the device number differs.

Fields of /proc/PID/stat: proc(5). The name is in parentheses and may contain anything, so fields are counted
from the last parenthesis. Checked against: /proc of Linux 6.1.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Optional

from ftrun.hooks.runtime import start_processes
from ftrun.hooks.runtime.host import Machine

STAT_BYTES = 4096
GLANCE_S = 5.0
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
KERNEL_THREAD = 0x00200000  # PF_KTHREAD of the kernel's sched.h


class Process(NamedTuple):
    """One process: the letter of its state, CPU time in ticks, and its start time (ticks since boot: with the
    pid, its identity). `switches`: how often it gave up the processor, which a hung process cannot do;
    `parent`: the pid of the process that must reap it.
    """

    pid: int
    uid: int
    name: str
    state: str
    is_kernel: bool
    ticks: int
    began: int
    switches: int = 0
    parent: int = 0


def all_processes(machine: Machine) -> dict[int, Process]:
    """All processes by pid, without those that end meanwhile."""
    found = (with_status(machine, one) for one in quick_processes(machine).values())
    return {one.pid: one for one in found if one is not None}


def quick_processes(machine: Machine, *, first: bool = False) -> dict[int, Process]:
    """As `listed`, in a third of the time: `uid` is -1 and `switches` 0 until `known` fills them in. `first`:
    use the first listing that checks running in parallel share. Raises NoAnswer if listing takes too long.
    """

    def all_of_them() -> list[Process]:
        folder = machine.path("/proc")
        found = (_glanced(f"{folder}/{name}/stat", name) for name in machine.names("/proc") if name.isdigit())
        return [one for one in found if one is not None]

    rows = (
        machine.shared("processes", all_of_them, GLANCE_S, "the list of processes")
        if first
        else all_of_them()
    )
    return {row[0]: Process._make(row) for row in rows}


def quick_reread(machine: Machine, before: Iterable[Process]) -> dict[int, Process]:
    """The same processes a moment later, from `stat` only; those that ended meanwhile are left out."""
    folder = machine.path("/proc")
    found = (_glanced(f"{folder}/{one.pid}/stat", str(one.pid)) for one in before)
    return {one.pid: one for one in found if one is not None}


def with_status(machine: Machine, one: Process) -> Optional[Process]:
    """The same process with uid and switches; None if it has ended."""
    status = machine.peek(f"/proc/{one.pid}/status") or ""
    uid = re.search(r"^Uid:\s+(\d+)", status, re.MULTILINE)
    switches = re.search(r"^voluntary_ctxt_switches:\s+(\d+)", status, re.MULTILINE)
    if uid is None:
        return None
    return one._replace(uid=int(uid[1]), switches=int(switches[1]) if switches else 0)


def reread(machine: Machine, one: Process) -> Optional[Process]:
    """The process now, with uid and switches; None if it has ended or its pid was reused."""
    now = _process(machine, str(one.pid))
    return with_status(machine, now) if now is not None and now.began == one.began else None


def _process(machine: Machine, pid: str) -> Optional[Process]:
    return _glanced(machine.path(f"/proc/{pid}/stat"), pid)


def _glanced(path: str, pid: str) -> Optional[Process]:
    """Parsed from one read of one file: the file is short, and there are thousands."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            text = os.read(descriptor, STAT_BYTES)
        finally:
            os.close(descriptor)
    except OSError:
        return None
    head, _, tail = text.rpartition(b")")
    fields = tail.split(None, 20)
    if len(fields) < 20:
        return None
    is_kernel = bool(int(fields[6]) & KERNEL_THREAD)
    ticks = int(fields[11]) + int(fields[12])
    name = head.partition(b"(")[2].decode("utf-8", "replace")
    return Process(
        int(pid), -1, name, fields[0].decode(), is_kernel, ticks, int(fields[19]), 0, int(fields[1])
    )


READ_S = 1.0
HUNG_MAX = 8  # stop after so many processes whose environment cannot be read in time
ENVIRONMENT_BYTES_MAX = 1 << 20
NICE = 10  # a tenth of a core if all are busy
NICE_IDLE = 19
BEST_EFFORT, IDLE = (
    (2 << 13) | 7,
    3 << 13,
)  # the lowest priority of the best-effort class of ioprio_set(2), and the idle class


class Owner(NamedTuple):
    """A process's owner; `job`: "" outside Slurm's jobs, or a SLUID if not ours; `state`: /proc's letter."""

    pid: int
    uid: int
    job: str
    state: str
    name: str


def owner(machine: Machine, pid: int) -> Optional[Owner]:
    """The owner of a process; None if it is gone or hidden from this user."""
    status = machine.read(f"/proc/{pid}/status")
    if not status:
        return None
    own = start_processes.own_job(os.environ, machine.peek("/proc/self/cgroup") or "")
    return owner_from(pid, status, machine.read(f"/proc/{pid}/cgroup") or "", own)


def owner_from(
    pid: int, status: str, cgroup: str, own: start_processes.OwnJob = start_processes.NO_JOB
) -> Optional[Owner]:
    """The same, parsed from the text of both files; `own` is the caller's job."""
    uid = re.search(r"^Uid:\s+(\d+)", status, re.MULTILINE)
    if not uid:
        return None
    state = re.search(r"^State:\s+(\S)", status, re.MULTILINE)
    name = re.search(r"^Name:\s+(.*)$", status, re.MULTILINE)
    return Owner(
        pid,
        int(uid.group(1)),
        start_processes.job_and_step(cgroup, own)[0],
        state.group(1) if state else "",
        name.group(1) if name else "",
    )


def user_processes(root: str = "/proc", uid: Optional[int] = None) -> dict[int, start_processes.Process]:
    """The living processes of one user (default: ours) by pid, without kernel threads."""
    own = os.getuid() if uid is None else uid
    found = {}
    for name in os.listdir(root):
        if not name.isdigit():
            continue
        with contextlib.suppress(OSError, ValueError, IndexError):
            if os.stat(f"{root}/{name}").st_uid != own:
                continue
            with open(f"{root}/{name}/stat", encoding="utf-8", errors="replace") as stream:
                head, _, tail = stream.read().rpartition(")")
            word = tail.split()
            if int(word[6]) & KERNEL_THREAD or word[0] in "ZX":
                continue
            title, ticks = head.partition("(")[2], int(word[11]) + int(word[12])
            found[int(name)] = start_processes.Process(
                int(name), int(word[1]), int(word[2]), word[0], int(word[19]), title, ticks
            )
    return found


def environments(
    pids: Iterable[int], *, empty: bool = False, patience_s: float = READ_S
) -> Iterator[tuple[int, str, str]]:
    """Pid, environment and command line of each process; those that hang for `patience_s` are left out. Unless
    `empty`, so are those that may not be read or have no environment.
    """
    waiting, hung = list(pids), 0
    while waiting and hung < HUNG_MAX:
        done = 0
        for pid, text, words in _read_in_child(waiting, patience_s):
            done += 1
            if text or empty:
                yield pid, text, words
        hung += done < len(waiting)
        waiting = waiting[done + 1 :]  # the reader hangs on the process behind the last answer


def _read_in_child(pids: Sequence[int], patience_s: float) -> Iterator[tuple[int, str, str]]:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)  # else its write waits for ever once its parent was killed
        _answer(pids, writer)
    os.close(writer)
    told = b""
    try:
        while select.select([reader], [], [], patience_s)[0]:
            chunk = os.read(reader, 1 << 18)
            if not chunk:
                return
            *lines, told = (told + chunk).split(b"\n")
            for line in lines:
                yield tuple(json.loads(line))
    finally:
        os.close(reader)
        with contextlib.suppress(OSError):
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, os.WNOHANG)


def _answer(pids: Sequence[int], writer: int) -> None:
    """Runs in the child: a line for each process."""
    try:
        with os.fdopen(writer, "wb") as stream:
            for pid in pids:
                line = [pid, read_text(f"/proc/{pid}/environ"), read_text(f"/proc/{pid}/cmdline")]
                stream.write(json.dumps(line).encode() + b"\n")
                stream.flush()
    finally:
        os._exit(0)


def read_text(path: str) -> str:
    """The text of a small file, a MiB at most; "" if it cannot be read."""
    try:
        with open(path, "rb") as stream:
            return stream.read(ENVIRONMENT_BYTES_MAX).decode("utf-8", "replace")
    except OSError:
        return ""


def lower_priority(*, idle: bool = False) -> None:
    """Lower our priority: nice 10 for the processor, the lowest of the best-effort class for disks
    (ioprio_set(2)). Nice 19 would leave a hundredth of a core beside a trainer that keeps all cores busy, and
    staged checkpoints would never be published. `idle`: the very lowest of both, for work that no process
    waits for.
    """
    with contextlib.suppress(OSError):
        os.nice(NICE_IDLE if idle else NICE)
    numbers = {"x86_64": 251, "aarch64": 30, "ppc64le": 273}
    number = numbers.get(os.uname().machine)
    if number is not None:
        import ctypes

        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).syscall(number, 1, 0, IDLE if idle else BEST_EFFORT)  # this process


class Writer(NamedTuple):
    """A process by pid and start time (ticks since boot), which together are unique."""

    pid: int
    began: int


def open_for_writing(folder: str) -> dict[str, set[Writer]]:
    """File below `folder` -> this user's processes that may write it. Raises OSError for `folder`."""
    found: dict[str, set[Writer]] = {}
    device = os.stat(folder).st_dev
    own, below = os.getuid(), folder.rstrip("/") + "/"
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            if os.stat(f"/proc/{name}").st_uid != own:
                continue
            numbers = os.listdir(f"/proc/{name}/fd")
        except OSError:  # it has just ended
            continue
        for number in numbers:
            path = _written(name, number, below, device)
            if path:
                found.setdefault(path, set()).add(Writer(int(name), start_ticks(int(name))))
    return found


def _written(pid: str, number: str, below: str, device: int) -> str:
    """The file below a folder that a descriptor writes to; "" for any other, as in another container."""
    try:
        path = os.readlink(f"/proc/{pid}/fd/{number}")
        if not path.startswith(below) or path.endswith(" (deleted)"):
            return ""
        if os.stat(f"/proc/{pid}/fd/{number}").st_dev != device:
            return ""
        with open(f"/proc/{pid}/fdinfo/{number}", encoding="ascii") as stream:
            flags = next((line.split()[1] for line in stream if line.startswith("flags:")), "0")
    except OSError:
        return ""
    return path if int(flags, 8) & os.O_ACCMODE != os.O_RDONLY else ""


def start_ticks(pid: int) -> int:
    """The start time of a process in ticks since boot; 0 if it is gone."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stream:
            fields = stream.read(4096).rpartition(")")[2].split()
    except OSError:
        return 0
    return 0 if fields[0] in "ZX" else int(fields[19])


def is_alive(writer: Writer) -> bool:
    """Whether that very process still exists."""
    return writer.began != 0 and start_ticks(writer.pid) == writer.began


def pid_namespace() -> int:
    """The number of the pid namespace of a process; 0 if it cannot be read."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0
