"""Who called srun without the shim, by /proc of the batch node. (I/O)

How it thinks. What went through the shim bears FTRUN_SHIM; an srun below the script that does not went around it (a full path, a login
shell that sets PATH anew), and would start on nodes that were set aside. Only the script's own descendants are looked at, so a look costs as many
reads as the script has processes here. The shim itself is called srun as well, but is a shell until it becomes Slurm's: what a process runs tells
the two apart, not its name.
"""

from __future__ import annotations

import os

__all__ = ["around", "below", "runs"]

_PROCESSES_MAX = 4096


def around(script_pid: int, job: str, proc: str = "/proc") -> int:
    """The first srun of this job below the script that did not come through the shim; 0 for none."""
    for pid in below(script_pid, proc):
        if runs(pid, proc) != "srun":
            continue
        told = _environment(pid, proc)
        if told.get(b"SLURM_JOB_ID", job.encode()) != job.encode() or b"FTRUN_SHIM" in told or not told:
            continue
        return pid
    return 0


def below(pid: int, proc: str = "/proc") -> list[int]:
    """A process and all that descend from it, as far as they can be seen."""
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


def runs(pid: int, proc: str = "/proc") -> str:
    """The base name of the program that a process runs; "" where it is gone."""
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
