"""Whether a name was taken by another process, on any file system. (I/O)

A claim is a name that one process alone can make. SFTP has no word for "it is there": on sshfs the loser of a race is told EPERM,
and only who comes later is told EEXIST. To `link` and `symlink` EPERM can also mean that the file system has no such links.
"""

from __future__ import annotations

import errno
import os


def is_taken(error: OSError, path: str) -> bool:
    """Whether making `path` failed with `error` because it is there by now."""
    return error.errno == errno.EEXIST or (error.errno == errno.EPERM and os.path.lexists(path))
