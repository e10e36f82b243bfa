"""Processes of this node: whose they are, what environment they have, and which priority ours take. (I/O)

A process that hangs in the kernel may hold whoever reads its environment. So a child reads, says which one it
begins with, and is left behind when it does not come back.

Checked against: /proc of Linux 6.1; the cgroup paths of Slurm 22.05 and later, `.../job_<id>/step_<id>/...`
in both hierarchies.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, Optional

from ftrun.hooks.starts import Process

if TYPE_CHECKING:
    from ftrun.hooks.machine import Machine

__all__ = ["Owner", "come_last", "environments", "listed", "owner", "owner_from"]

READ_S = 1.0
HUNG_MAX = 8  # processes whose environment does not answer, after which no more are asked
KERNEL_THREAD = 0x00200000  # PF_KTHREAD of the kernel's sched.h
ENVIRONMENT_BYTES_MAX = 1 << 20
NICE = 10  # a tenth of a core where all are busy
NICE_IDLE = 19
BEST_EFFORT, IDLE = (
    (2 << 13) | 7,
    3 << 13,
)  # the last place of the one class of ioprio_set(2), and the other class


class Owner(NamedTuple):
    """`job` is "" for a process that no Slurm job holds; `state` is the letter of /proc (R, S, D, Z ...)."""

    pid: int
    uid: int
    job: str
    state: str
    name: str


def owner(machine: Machine, pid: int) -> Optional[Owner]:
    """Who owns a process; None where it is gone or hidden from this user."""
    status = machine.read(f"/proc/{pid}/status")
    return owner_from(pid, status, machine.read(f"/proc/{pid}/cgroup") or "") if status else None


def owner_from(pid: int, status: str, cgroup: str) -> Optional[Owner]:
    """The same from the text of both files."""
    uid = re.search(r"^Uid:\s+(\d+)", status, re.MULTILINE)
    if not uid:
        return None
    state = re.search(r"^State:\s+(\S)", status, re.MULTILINE)
    name = re.search(r"^Name:\s+(.*)$", status, re.MULTILINE)
    job = re.search(r"/job_(\d+)", cgroup)
    return Owner(
        pid,
        int(uid.group(1)),
        job.group(1) if job else "",
        state.group(1) if state else "",
        name.group(1) if name else "",
    )


def listed(root: str = "/proc", uid: Optional[int] = None) -> dict[int, Process]:
    """The living processes of one user (default: ours) by pid, threads of the kernel left out."""
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
            found[int(name)] = Process(
                int(name), int(word[1]), int(word[2]), word[0], int(word[19]), title, ticks
            )
    return found


def environments(pids: Iterable[int], *, empty: bool = False) -> Iterator[tuple[int, str, str]]:
    """pid, environment, command line of each; one that hangs is left out.

    So is, unless `empty`, one that may not be read or has no environment.
    """
    waiting, hung = list(pids), 0
    while waiting and hung < HUNG_MAX:
        done = 0
        for pid, text, words in _read_in_child(waiting):
            done += 1
            if text or empty:
                yield pid, text, words
        hung += done < len(waiting)
        waiting = waiting[done + 1 :]  # the one behind the last answer holds its reader


def _read_in_child(pids: Sequence[int]) -> Iterator[tuple[int, str, str]]:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        _answer(pids, writer)
    os.close(writer)
    told = b""
    try:
        while select.select([reader], [], [], READ_S)[0]:
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
    """The child's part: a line for each process."""
    try:
        with os.fdopen(writer, "wb") as stream:
            for pid in pids:
                line = [pid, _text(f"/proc/{pid}/environ"), _text(f"/proc/{pid}/cmdline")]
                stream.write(json.dumps(line).encode() + b"\n")
                stream.flush()
    finally:
        os._exit(0)


def _text(path: str) -> str:
    try:
        with open(path, "rb") as stream:
            return stream.read(ENVIRONMENT_BYTES_MAX).decode("utf-8", "replace")
    except OSError:
        return ""


def come_last(*, idle: bool = False) -> None:
    """A low priority for the processor, and the lowest for disks (ioprio_set(2)).

    Not the very lowest: beside a trainer that keeps all cores busy that would be a hundredth of one, and what
    is staged would never get out. `idle`: the very lowest of both, for what nobody waits for.
    """
    with contextlib.suppress(OSError):
        os.nice(NICE_IDLE if idle else NICE)
    numbers = {"x86_64": 251, "aarch64": 30, "ppc64le": 273}
    number = numbers.get(os.uname().machine)
    if number is not None:
        import ctypes

        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).syscall(number, 1, 0, IDLE if idle else BEST_EFFORT)  # this process
