"""Growing files, on a real file system: nothing is read twice, nothing is lost that was there to read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ftrun.supervisor.telemetry import tail as telemetry_tail
from ftrun.supervisor.telemetry.tail import MARK_BYTES, NAME_ROUNDS, Descriptors, LogPath, Piece, Tail, Tails


def text(pieces: list[Piece]) -> bytes:
    return b"".join(piece.data for piece in pieces)


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


def until_news(tail: Tail) -> list[Piece]:
    """What the first read with news returns, as a patient poller would see it."""
    for _ in range(NAME_ROUNDS + 2):
        if pieces := tail.read():
            return pieces
    return []


def test_a_file_is_read_as_it_grows(tmp_path: Path) -> None:
    """Every byte comes once, with its offset; a quiet file gives nothing."""
    path = tmp_path / "log"
    path.write_bytes(b"one\n")
    tail = Tail(LogPath(str(path)))

    assert [Piece(b"one\n", 0, 0)] == tail.read()
    assert [] == tail.read()
    append(path, b"two")
    assert [Piece(b"two", 4, 0)] == tail.read()
    append(path, b"\n" * MARK_BYTES)
    assert [Piece(b"\n" * MARK_BYTES, 7, 0)] == tail.read()


def test_a_missing_file_says_so_and_is_read_once_it_is_there(tmp_path: Path) -> None:
    """A log that does not exist yet is no error: it is not readable yet."""
    path = tmp_path / "later"
    tail = Tail(LogPath(str(path)))

    assert [] == tail.read()
    assert (False, "there is no such file yet") == (tail.readable, tail.why)
    path.write_bytes(b"here")
    assert b"here" == text(tail.read())
    assert (True, "") == (tail.readable, tail.why)


@pytest.mark.parametrize("kind", ["folder", "pipe"])
def test_what_is_no_file_is_told_and_never_waited_for(tmp_path: Path, kind: str) -> None:
    """A folder or a pipe in place of a log is refused at once."""
    path = tmp_path / kind
    path.mkdir() if kind == "folder" else os.mkfifo(path)
    tail = Tail(LogPath(str(path)))

    assert [] == tail.read()
    assert (False, "not a regular file") == (tail.readable, tail.why)


def test_the_text_of_earlier_attempts_is_not_read(tmp_path: Path) -> None:
    """An appended log begins at its start offset."""
    path = tmp_path / "log"
    path.write_bytes(b"old text\nnew\n")

    assert [Piece(b"new\n", 9, 0)] == Tail(LogPath(str(path), 9)).read()


def test_a_log_shorter_than_its_start_offset_begins_at_0(tmp_path: Path) -> None:
    """A launch that truncated its log has no older text in front of its own."""
    path = tmp_path / "log"
    path.write_bytes(b"new\n")

    assert [Piece(b"new\n", 0, 0)] == Tail(LogPath(str(path), 9)).read()


def test_a_replaced_log_begins_at_0(tmp_path: Path) -> None:
    """Another inode on the same device is another file; on another device the inode says nothing."""
    path = tmp_path / "log"
    path.write_bytes(b"0123456789")
    found = path.stat()
    elsewhere = LogPath(str(path), 4, dev=found.st_dev, ino=found.st_ino + 1)
    from_a_node = LogPath(str(path), 4, dev=found.st_dev + 1, ino=found.st_ino + 1)

    assert b"0123456789" == text(Tail(elsewhere).read())
    assert b"456789" == text(Tail(from_a_node).read())


@pytest.mark.parametrize("grown", [b"", b"b", b"b" * 999, b"b" * 1000, b"b" * 5000])
def test_a_truncated_log_is_read_anew_whatever_it_has_grown_to(tmp_path: Path, grown: bytes) -> None:
    """Shorter, of the same size or longer: the bytes before the place reached are others, so the text is new."""
    path = tmp_path / "log"
    path.write_bytes(b"a" * 1000)
    tail = Tail(LogPath(str(path)))
    tail.read()
    path.write_bytes(grown)

    pieces = tail.read()
    assert grown == text(pieces)
    assert 1 == tail.generation
    assert all((piece.offset_bytes, piece.generation) == (0, 1) for piece in pieces)


@pytest.mark.parametrize("fresh", [False, True])
def test_a_rotated_log_is_read_to_its_end_before_the_new_one(tmp_path: Path, fresh: bool) -> None:
    """Nothing that was written before a rotation is lost, and the new file begins at 0."""
    path = tmp_path / "log"
    path.write_bytes(b"one\n")
    tail = Tail(LogPath(str(path)))
    tail.read()
    path.rename(tmp_path / "log.1")
    append(tmp_path / "log.1", b"two\n")
    path.write_bytes(b"three\n")

    found = tail.read(fresh=True) if fresh else until_news(tail) + until_news(tail)
    assert [Piece(b"two\n", 4, 0), Piece(b"three\n", 0, 1)] == found


def test_a_log_moved_away_is_followed(tmp_path: Path) -> None:
    """A job goes on writing into a file that a person moved; so its text is read on, though a fresh open fails."""
    path = tmp_path / "log"
    path.write_bytes(b"one\n")
    tail = Tail(LogPath(str(path)))
    tail.read()
    path.rename(tmp_path / "moved")
    append(tmp_path / "moved", b"two\n")

    assert b"two\n" == text(tail.read(fresh=True))
    assert (True, False) == (tail.readable, tail.fresh)


def test_a_long_rotated_log_is_not_cut_short(tmp_path: Path) -> None:
    """The bound of one read holds across a rotation: the old file goes on in the next rounds."""
    path = tmp_path / "log"
    path.write_bytes(b"x")
    tail = Tail(LogPath(str(path)))
    tail.read()
    append(path, b"old" * 100_000)
    path.rename(tmp_path / "log.1")
    path.write_bytes(b"new")
    read = b""
    for _ in range(12):
        read += text(tail.read(limit_bytes=100_000, fresh=True))

    assert b"old" * 100_000 + b"new" == read


def test_one_read_is_bounded_and_says_that_more_is_waiting(tmp_path: Path) -> None:
    """A storming log gives its bytes in portions."""
    path = tmp_path / "log"
    path.write_bytes(b"0123456789" * 50_000)
    tail = Tail(LogPath(str(path)))
    portions = []
    while pieces := tail.read(limit_bytes=150_000):
        portions.append((len(text(pieces)), tail.more))

    assert 500_000 == sum(size for size, _ in portions)
    assert all(size <= 150_000 for size, _ in portions)
    assert [True, True, True, False] == [more for _, more in portions]


def test_without_descriptors_files_are_still_read(tmp_path: Path) -> None:
    """A file that gets no descriptor of its own is opened for each look, and none stays open."""
    path = tmp_path / "log"
    path.write_bytes(b"one\n")
    tail = Tail(LogPath(str(path)), descriptors=Descriptors(0))
    before = len(os.listdir("/proc/self/fd"))

    assert b"one\n" == text(tail.read())
    append(path, b"two\n")
    assert [Piece(b"two\n", 4, 0)] == tail.read()
    assert [] == tail.read()
    assert before == len(os.listdir("/proc/self/fd"))


def test_descriptors_come_back(tmp_path: Path) -> None:
    """Closing, rotation and fresh opens give back what they took."""
    path = tmp_path / "log"
    path.write_bytes(b"one\n")
    room = Descriptors(1)
    tail = Tail(LogPath(str(path)), descriptors=room)
    for _ in range(5):
        tail.read(fresh=True)
        path.unlink()
        path.write_bytes(b"again\n")
    assert not room.take()
    tail.close()

    assert room.take()
    assert not room.take()


def test_a_round_reads_every_file_and_no_more_than_its_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When a round has read enough it ends; the next one begins where it stopped, so nobody starves."""
    monkeypatch.setattr(telemetry_tail, "ROUND_BYTES", 1000)
    logs = [tmp_path / str(number) for number in range(5)]
    for log in logs:
        log.write_bytes(b"x" * 600)
    tails = Tails([LogPath(str(log)) for log in logs])

    assert [0, 1] == [number for number, _ in tails.round()]
    assert tails.more
    append(logs[0], b"x" * 600)
    assert [2, 3] == [number for number, _ in tails.round()]
    assert [4, 0] == [number for number, _ in tails.round()]
    assert [] == [number for number, _ in tails.round()]
    assert not tails.more
    tails.close()


writes = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.binary(min_size=1, max_size=300)),
        st.tuples(st.just("read"), st.booleans()),
        st.tuples(st.just("close"), st.none()),
    ),
    max_size=30,
)


@settings(max_examples=150, deadline=None)
@given(writes=writes, room=st.integers(0, 1))
def test_however_a_file_is_read_its_bytes_come_once_and_in_order(
    tmp_path_factory: pytest.TempPathFactory, writes: list[tuple[str, object]], room: int
) -> None:
    """Reads, fresh opens and closed descriptors between writes change nothing in what is read."""
    path = tmp_path_factory.mktemp("tail") / "log"
    path.touch()
    tail = Tail(LogPath(str(path)), descriptors=Descriptors(room))
    pieces: list[Piece] = []
    for kind, value in writes:
        if kind == "append":
            assert isinstance(value, bytes)
            append(path, value)
        elif kind == "read":
            pieces += tail.read(fresh=bool(value))
        else:
            tail.close()
    pieces += tail.read()
    tail.close()

    assert path.read_bytes() == text(pieces)
    assert all(piece.generation == 0 for piece in pieces)
    offset = 0
    for piece in pieces:
        assert offset == piece.offset_bytes
        offset += len(piece.data)
