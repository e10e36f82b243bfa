"""Writes a file that others may read into a folder that others may write to. (I/O)

The file appears whole, by rename. The folder is the site's: it is never made here. Somebody else may have put
a link in the place of the temporary file, so that one is always made anew.
"""

from __future__ import annotations

import contextlib
import os


def write_public(path: str, data: bytes) -> None:
    """Replace a file; all may read it. Raises OSError: missing or full folder, no right to write there."""
    temporary = f"{path}.{os.getpid()}.tmp"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(temporary)
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
            os.fchmod(fd, 0o644)  # whatever the umask
        finally:
            os.close(fd)
        os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
