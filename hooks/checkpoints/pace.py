"""How fast this process reads checkpoints: as fast as it can, or as one that is in nobody's way. (I/O)

How it thinks. At a start somebody waits, so many files are read side by side. The deep level in the background is not waited for: it reads one file at a
time, no more bytes in a second than it was told, and what it has read leaves the page cache, which is the trainer's. Which of the two a process
does is settled before it begins, and for its whole life.
"""

from __future__ import annotations

import contextlib
import os
import time

__all__ = ["PIECE_BYTES", "THREADS", "read", "slow_down", "threads"]

THREADS = 32
PIECE_BYTES = 16 << 20


class _Pace:
    """This process's own. `due_s`: when the next piece may be read (time.monotonic)."""

    threads = THREADS
    piece_bytes = PIECE_BYTES
    rate_bytes_per_s = 0
    is_slow = False
    due_s = 0.0


def slow_down(rate_bytes_per_s: int) -> None:
    """From now on: one file at a time, at this rate (0: as quickly as that goes), and nothing is left in the page cache."""
    _Pace.threads, _Pace.is_slow = 1, True
    _Pace.rate_bytes_per_s = rate_bytes_per_s
    # Pieces of a tenth of a second: bytes come evenly, and not in bursts.
    _Pace.piece_bytes = max(1 << 16, min(PIECE_BYTES, rate_bytes_per_s // 10 or PIECE_BYTES))


def threads() -> int:
    """How many files may be looked at side by side."""
    return _Pace.threads


def read(number: int, size_bytes: int, offset: int) -> bytes:
    """One piece of an open file, of that size at most, when its time has come. Raises OSError."""
    if not _Pace.is_slow:
        return os.pread(number, min(size_bytes, PIECE_BYTES), offset)
    size_bytes = min(size_bytes, _Pace.piece_bytes)
    time.sleep(max(0.0, _Pace.due_s - time.monotonic()))
    piece = os.pread(number, size_bytes, offset)
    if _Pace.rate_bytes_per_s:
        _Pace.due_s = max(_Pace.due_s, time.monotonic()) + len(piece) / _Pace.rate_bytes_per_s
    with contextlib.suppress(OSError):  # a file system that has no cache to forget
        os.posix_fadvise(number, offset, len(piece), os.POSIX_FADV_DONTNEED)
    return piece
