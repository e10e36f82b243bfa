"""The mounts of this node, and questions to many mounts at once. (I/O)

A hung mount blocks any process that touches it in the kernel, forever. So a child process touches each mount,
all in parallel, and the table of mounts is read from /proc, which never touches them. A question returns its
errno, since that distinguishes a stale handle from a dead server.

Format of /proc/mounts: fstab(5) and proc(5); blanks in a path are written as octal.
"""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any, Callable, NamedTuple, Optional, Union

from ftrun.hooks.runtime.host import Machine, NoAnswer

NETWORK_KINDS = frozenset([
    "9p", "afs", "beegfs", "ceph", "cifs", "fhgfs", "glusterfs", "gpfs", "lustre", "nfs", "nfs4", "ocfs2",
    "orangefs", "panfs", "pvfs2", "smb3", "smbfs", "virtiofs", "wekafs",
])  # fmt: skip
# Only FUSE types known to be remote: sandboxes and desktops mount many others.
NETWORK_FUSE = (
    "ceph", "curvefs", "dfuse", "gcsfuse", "glusterfs", "goofys", "juicefs", "JuiceFS", "mountpoint-s3", "rclone", "s3fs", "sshfs",
)  # fmt: skip


class Mount(NamedTuple):
    """One line of /proc/mounts: source, target, type of file system, and options."""

    source: str
    target: str
    kind: str
    options: tuple[str, ...]


class Touch(NamedTuple):
    """A touched path: seconds taken, errno (0 for none) or that it hung, and the answer."""

    took_s: float
    errno: int = 0
    hung: bool = False
    text: str = ""

    @property
    def word(self) -> str:
        """The error message with its errno name."""
        return f"{os.strerror(self.errno)} ({errno.errorcode.get(self.errno, self.errno)})"


def mounted(machine: Machine) -> tuple[Mount, ...]:
    """The mounts of this process, in order. Raises NoAnswer without /proc."""
    text = machine.peek("/proc/self/mounts") or machine.peek("/proc/mounts")
    if text is None:
        raise NoAnswer("/proc/mounts cannot be read")
    return parse_mounts(text)


def parse_mounts(text: str) -> tuple[Mount, ...]:
    """The mounts in a text in the format of /proc/mounts; truncated lines are skipped."""
    rows = [line.split(" ") for line in text.splitlines()]
    return tuple(
        Mount(_plain(row[0]), _plain(row[1]), row[2], tuple(row[3].split(",")))
        for row in rows
        if len(row) >= 4
    )


def _plain(word: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), word)


def is_network(mount: Mount) -> bool:
    """Whether the data come from another machine."""
    family, _, kind = mount.kind.partition(".")
    return mount.kind in NETWORK_KINDS or (family == "fuse" and kind.startswith(NETWORK_FUSE))


def mount_of(mounts: Sequence[Mount], path: str) -> Optional[Mount]:
    """The mount that a path lies on: the deepest one, and of several at the same target the last."""
    whole = os.path.normpath(path)
    over = [one for one in mounts if whole == one.target or whole.startswith(one.target.rstrip("/") + "/")]
    return max(reversed(over), key=lambda one: len(one.target)) if over else None


def paths_to_check(machine: Machine, thresholds: Mapping[str, Any]) -> list[str]:
    """The paths to check: those given, else every mounted network file system."""
    named = list(thresholds["paths"])
    return named or sorted({one.target for one in mounted(machine) if is_network(one)})


def ask_paths(
    machine: Machine, paths: Sequence[str], question: Callable[[str], str], limit_s: float
) -> dict[str, Touch]:
    """Ask a question of each path in parallel; an OSError is part of the answer."""
    answers = machine.ask_all({path: _timed(question, path) for path in paths}, limit_s)
    return {path: _touch(answer, limit_s) for path, answer in answers.items()}


def _timed(question: Callable[[str], str], path: str) -> Callable[[], bytes]:
    def told() -> bytes:
        began = time.monotonic()
        code, text = 0, ""
        try:
            text = question(path)
        except OSError as error:
            code = error.errno or errno.EIO
        return f"{time.monotonic() - began:.6f} {code} {text}".encode()

    return told


def _touch(answer: Union[bytes, NoAnswer, None], limit_s: float) -> Touch:
    if isinstance(answer, NoAnswer):
        return Touch(limit_s, hung=True)
    took, code, text = ([*(answer or b"").decode("utf-8", "replace").split(" ", 2), "", "", ""])[:3]
    return Touch(float(took or 0), int(code or errno.EIO), text=text)
