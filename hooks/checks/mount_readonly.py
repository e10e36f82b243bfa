"""`mount-readonly`: no file system that should be written has turned read-only. (I/O)

How it thinks. A kernel that meets an error on a local disk turns its file system read-only where it was told so (`errors=remount-ro`,
ext4's usual option), and jobs die of it at their next write. Now `ro` beside that option means that this has happened; for other mounts only
the site or the job knows that they are written, so those count which `writable` names. Shared file systems that are mounted read-only on
purpose are nobody's business.

Thresholds: `writable`, paths that must be writable: each is looked up in the table of mounts, none is touched.
Options as in mount(8) and ext4(5); `shutdown` and `emergency_ro` are what newer kernels add after a forced shutdown.

Checked against: tables of mounts in the format of proc(5) as Linux 6.1 prints them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ftrun.hooks.findings import BAD, OK, Check, Finding
from ftrun.hooks.machine import Machine
from ftrun.hooks.mounts import Mount, holder, table

__all__ = ["CHECK", "judge"]

NAME = "mount-readonly"
SHUT = {"shutdown", "emergency_ro"}


def probe(machine: Machine, _thresholds: Mapping[str, Any]) -> tuple[Mount, ...]:
    """The table of mounts."""
    return table(machine)


def judge(mounts: Sequence[Mount], thresholds: Mapping[str, Any]) -> Sequence[Finding]:
    """Bad for each mount that is read-only after an error or under a path that must be written."""
    found = {}
    for one in mounts:
        options = set(one.options)
        if SHUT & options or ("ro" in options and "errors=remount-ro" in options):
            found[one.target] = _finding(one, f"{one.target} was made read-only by the kernel after an error")
    for path in thresholds["writable"]:
        under = holder(mounts, path)
        if under is not None and "ro" in under.options and under.target not in found:
            message = f"{path} must be writable, and {under.target} is mounted read-only"
            found[under.target] = _finding(under, message)
    return list(found.values()) or [Finding(NAME, OK, "no file system has turned read-only")]


def _finding(mount: Mount, message: str) -> Finding:
    line = f"{mount.source} {mount.target} {mount.kind} {','.join(mount.options)}"
    return Finding(NAME, BAD, message, "storage", mount.target, (line,))


CHECK = Check(
    name=NAME,
    title="No file system that should be written has turned read-only",
    tier="fast",
    fault="storage",
    needs=(),
    limit_s=3.0,
    thresholds={"writable": ()},
    probe=probe,
    judge=judge,
)
