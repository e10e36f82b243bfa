"""Who of this user has files below a folder open for writing. (I/O)

How it thinks. The links of /proc/PID/fd can be read of a process that hangs, and cost a microsecond each. Of the few that point below the folder the flags
tell whether the file was opened to be written: /proc/PID/fdinfo, whose `flags` are those of open(2), in octal (proc(5)). A process in another mount
namespace may show the same path for a file elsewhere: the device tells them apart. Raises nothing but for the folder itself.
"""

from __future__ import annotations

import os
from typing import NamedTuple

__all__ = ["Writer", "began", "is_alive", "space", "writers"]


class Writer(NamedTuple):
    """A process by its number and when it began (ticks since boot), which together nobody else has."""

    pid: int
    began: int


def writers(folder: str) -> dict[str, set[Writer]]:
    """Path of a file below `folder` -> the processes of this user that have it open for writing."""
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
                found.setdefault(path, set()).add(Writer(int(name), began(int(name))))
    return found


def _written(pid: str, number: str, below: str, device: int) -> str:
    """The file below a folder that a descriptor writes to; "" for any other, as for one of this name that another container sees."""
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


def began(pid: int) -> int:
    """When a process began, in ticks since boot; 0 where it is gone."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stream:
            fields = stream.read(4096).rpartition(")")[2].split()
    except OSError:
        return 0
    return 0 if fields[0] in "ZX" else int(fields[19])


def is_alive(writer: Writer) -> bool:
    """Whether that very process is still there."""
    return writer.began != 0 and began(writer.pid) == writer.began


def space() -> int:
    """The number of the namespace that this process's number belongs to; 0 where it cannot be told."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0
