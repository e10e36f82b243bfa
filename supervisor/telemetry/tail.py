"""Growing files, read as they grow: one bounded read per file and round. (I/O)

A descriptor stays open, and every round is one read that begins `MARK_BYTES` before the place reached. The
bytes read again must equal the bytes seen before. Equal and nothing more = idle, equal and more = growth,
fewer or different = the file was truncated, even if it has grown to its old size or beyond since. Names are
looked at less often (a name costs more than a read): every eighth quiet round, and whenever the caller asks
for a fresh open. A name that leads to another file means rotation: the old file is read to its end before the
new one.

On network file systems, size and content may be stale until a file is opened again, so a verdict asks for a
fresh open. Descriptors are limited, and children inherit the limit, so the limit is never raised; files
beyond half of it are opened for each look and closed again.
"""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterator, Sequence

from ftrun.slurm.records import dataclass

READ_BYTES = 4 * 1024 * 1024  # one file and round: a storming log cannot starve the others
ROUND_BYTES = 256 * 1024 * 1024  # all files of one round together: a round ends
GLANCE_BYTES = (
    64 * 1024
)  # the first read of a round: most files have less, and a large buffer costs its making
MARK_BYTES = 128  # read again each time; two logs that agree in so many bytes at one place are one log
NAME_ROUNDS = 8  # a quiet file's name is checked every so many rounds
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY


@dataclass(frozen=True, slots=True)
class LogPath:
    """A file to follow, and where this launch's text begins in it.

    `dev` and `ino` identify the file that the launch wrote to, as seen on its node; 0 = unknown. At
    `end_offset_bytes`, if known, the text of a later launch begins: nothing behind it is read, nor what the
    file holds after it was emptied or replaced. `rank` and `node` are those of the file's writer, where its
    name tells them.
    """

    path: str
    start_offset_bytes: int = 0
    dev: int = 0
    ino: int = 0
    end_offset_bytes: int | None = None
    rank: int | None = None
    node: str = ""


@dataclass(frozen=True, slots=True)
class Piece:
    """Some bytes of a file, in order. A higher `generation` means that the text begins anew (rotated,
    truncated).
    """

    data: bytes
    offset_bytes: int
    generation: int


class Descriptors:
    """How many files may stay open: half of what the process may have, for all tails. Not thread-safe."""

    def __init__(self, room: int | None = None, *, share: int = 2) -> None:
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        unlimited = soft == resource.RLIM_INFINITY
        self._room = room if room is not None else (1 << 20 if unlimited else soft // share)

    def take(self) -> bool:
        """Whether one more may stay open. If so, call `give` later."""
        if self._room <= 0:
            return False
        self._room -= 1
        return True

    def give(self) -> None:
        """One file is closed again."""
        self._room += 1


_SHARED = Descriptors()


class Tail:
    """One file. Errors of the file system are never raised: see `readable` and `why`.

    `more`: the last read stopped at its bound. `fresh`: it followed a fresh open.
    """

    __slots__ = (
        "_descriptors", "_fd", "_identity", "_mark", "_over", "_quiet", "_stays", "fresh", "generation", "log", "more",
        "offset_bytes", "readable", "why",
    )  # fmt: skip

    def __init__(self, log: LogPath, *, descriptors: Descriptors = _SHARED) -> None:
        self.log = log
        self._descriptors = descriptors
        self._stays = False  # the open file counts as one of the descriptors
        self._over = False  # the file's content is now a later launch's
        self.offset_bytes = 0
        self.generation = 0
        self.readable = False
        self.why = "not looked at yet"
        self.more = False
        self.fresh = False
        self._fd = -1
        self._identity: tuple[int, int] | None = None
        self._mark = b""
        self._quiet = 0

    def read(self, *, limit_bytes: int = READ_BYTES, fresh: bool = False) -> list[Piece]:
        """What is new, about `limit_bytes` at most: two pieces where a rotation lies between."""
        self.more = self.fresh = False
        pieces: list[Piece] = []
        try:
            if self._fd < 0 or fresh or self._quiet >= NAME_ROUNDS:
                self._look_at_name(pieces, limit_bytes, fresh=fresh)
            if self._fd >= 0 and not self.more:
                self._read_on(pieces, limit_bytes)
        except OSError as error:
            self._fail(error)
        if not self._stays:
            self.close()
        self._quiet = 0 if pieces else self._quiet + 1
        return pieces

    def close(self) -> None:
        """Give the descriptor back. A later read opens the name again and goes on from the same place."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        if self._stays:
            self._stays = False
            self._descriptors.give()

    def _fail(self, error: OSError) -> None:
        self.close()
        self.readable = False
        self.why = _reason(error, seen=self._identity is not None)

    def _look_at_name(self, pieces: list[Piece], limit_bytes: int, *, fresh: bool) -> None:
        """Open the name if it leads to another file than before, or if a fresh open is wanted."""
        self._quiet = 0
        try:
            if self._fd >= 0 and not fresh and _identity(os.stat(self.log.path)) == self._identity:
                return
            opened = os.open(self.log.path, _FLAGS)
        except OSError as error:
            if self._fd < 0:
                self._fail(error)
            # Else the name was removed while a writer goes on, and so does the reader.
            return
        try:
            found = os.fstat(opened)
            if self._identity is not None and self._identity != _identity(found) and self._fd >= 0:
                self._read_on(pieces, limit_bytes)
                if self.more:  # the old file first, to its end
                    os.close(opened)
                    self._quiet = NAME_ROUNDS
                    return
            self._adopt(opened, found)
        except OSError:
            os.close(opened)
            raise
        self.fresh = True

    def _adopt(self, opened: int, found: os.stat_result) -> None:
        """Go on in the file just opened: at the launch's first byte, at the place reached, or at 0 in another
        file.
        """
        if self._identity is None:
            self._mark = self._mark_at_start(opened, found)
        elif self._identity != _identity(found):
            self._begin_anew()
        self.close()
        self._fd = opened
        self._stays = self._descriptors.take()
        self._identity = _identity(found)

    def _mark_at_start(self, opened: int, found: os.stat_result) -> bytes:
        log = self.log
        # Each host numbers its devices itself: another inode proves another file only on the same device.
        replaced = log.ino not in {0, found.st_ino} and log.dev == found.st_dev
        if replaced or found.st_size < log.start_offset_bytes:
            self._over = log.end_offset_bytes is not None
            return b""  # truncated or replaced by this launch: all of it is this launch's text
        self.offset_bytes = log.start_offset_bytes
        size = min(MARK_BYTES, self.offset_bytes)
        return os.pread(opened, size, self.offset_bytes - size)

    def _begin_anew(self) -> None:
        self.offset_bytes = 0
        self.generation += 1
        self._mark = b""
        self._over = self.log.end_offset_bytes is not None

    def _read_on(self, pieces: list[Piece], limit_bytes: int) -> None:
        seen = len(self._mark)
        data = os.pread(self._fd, GLANCE_BYTES, self.offset_bytes - seen)
        if not data.startswith(self._mark):
            self._begin_anew()
            seen = 0
            data = os.pread(self._fd, GLANCE_BYTES, 0)
        self.readable, self.why = True, ""
        if self._over or len(data) == seen:
            return
        if len(data) == GLANCE_BYTES and limit_bytes > GLANCE_BYTES:
            data += os.pread(self._fd, limit_bytes - GLANCE_BYTES, self.offset_bytes - seen + GLANCE_BYTES)
        if self.log.end_offset_bytes is not None:
            data = data[: max(0, self.log.end_offset_bytes - self.offset_bytes) + seen]
            if len(data) == seen:
                return
        self.more = len(data) >= max(limit_bytes, GLANCE_BYTES)
        self._mark = data[-MARK_BYTES:]
        fresh = data[seen:]
        pieces.append(Piece(fresh, self.offset_bytes, self.generation))
        self.offset_bytes += len(fresh)


class Tails:
    """Many files, read in rounds. A round that reads too much stops; the next one continues there."""

    def __init__(self, logs: Sequence[LogPath]) -> None:
        self.tails = [Tail(log) for log in logs]
        self._first = 0

    def add(self, log: LogPath) -> None:
        """Read this file, too, from the next round on."""
        self.tails.append(Tail(log))

    def round(self, *, fresh: bool = False) -> Iterator[tuple[int, list[Piece]]]:
        """Yield (number of the file, what is new in it) for each file with news.

        A round that has read `ROUND_BYTES` skips the rest; the next one begins there.
        """
        count = len(self.tails)
        read_bytes = 0
        for turn in range(count):
            number = (self._first + turn) % count
            tail = self.tails[number]
            if read_bytes >= ROUND_BYTES:
                self._first = number
                self._skip(turn)
                return
            pieces = tail.read(fresh=fresh)
            if pieces:
                read_bytes += sum(len(piece.data) for piece in pieces)
                yield number, pieces

    def _skip(self, turn: int) -> None:
        count = len(self.tails)
        for later in range(count - turn):
            tail = self.tails[(self._first + later) % count]
            tail.more, tail.fresh = True, False

    @property
    def more(self) -> bool:
        """Whether the last round left text of some file unread."""
        return any(tail.more for tail in self.tails)

    def close(self) -> None:
        """Give all descriptors back."""
        for tail in self.tails:
            tail.close()


def _identity(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


def _reason(error: OSError, *, seen: bool) -> str:
    if error.errno in {errno.ENOENT, errno.ENOTDIR}:
        return "the file was removed" if seen else "there is no such file yet"
    if error.errno in {errno.EACCES, errno.EPERM}:
        return "permission denied"
    if error.errno in {errno.EISDIR, errno.ESPIPE}:
        return "not a regular file"
    return (error.strerror or str(error)).lower()
