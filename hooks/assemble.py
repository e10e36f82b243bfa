"""The files of all parts under one folder. (I/O)

How it thinks. Each file of a set lies in some part, safe on disk. A second name costs nothing; where the file system has no hard links the file is renamed, and whoever
comes too late for it finds it put together already. What is put together is never written into.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping

from ftrun.hooks import union
from ftrun.hooks.disk import Disk
from ftrun.hooks.staged import Publishing, Seal

__all__ = ["is_whole", "link", "put_together"]


def put_together(disk: Disk, to: Publishing, made: union.Union, parts: Mapping[str, Seal], data: str) -> str:
    """All files under one folder, by hard links where the file system has them. Returns the node whose part is not there, else ""."""
    folders = {os.path.dirname(data)}
    disk.make(os.path.dirname(data))
    for path, (one, node) in sorted(made.files.items()):
        target = f"{data}/{path}" if path else data
        source = to.incoming(node, union.generation(parts[node])) + (f"/{path}" if path else "")
        disk.make(os.path.dirname(target))
        folders |= {*_above(target, os.path.dirname(data))}
        try:
            link(disk, source, target)
        except FileNotFoundError:
            if not os.path.exists(target):
                return node
        if os.stat(target).st_size != one.size_bytes:
            return node
    for folder in sorted(folders):
        disk.settle(folder)
    return ""


def is_whole(made: union.Union, data: str) -> bool:
    """Whether all files are there: who judges what another one has taken away, or begins anew, judges nothing."""
    return all(os.path.exists(f"{data}/{path}" if path else data) for path in made.files)


def _above(path: str, top: str) -> Iterator[str]:
    folder = os.path.dirname(path)
    while len(folder) > len(top):
        yield folder
        folder = os.path.dirname(folder)


def link(disk: Disk, source: str, target: str) -> None:
    """A second name for a file, else another one. Raises OSError."""
    if os.path.exists(target):
        return
    try:
        disk.link(source, target)
    except FileExistsError:
        return
    except OSError as error:
        # Some file systems have no hard links, or none from folder to folder.
        if error.errno not in (errno.EPERM, errno.EXDEV, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK):
            raise
        disk.rename(source, target)
