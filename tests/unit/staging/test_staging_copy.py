"""Laws of a copy to another file system: the same bytes and their sum whichever way they go, or an error; small in memory, and never faster than it may be."""

from __future__ import annotations

import errno
import hashlib
import os
import threading
import time
from pathlib import Path

import pytest

from ftrun.hooks.staging import copy
from ftrun.hooks.staging.copy import ALIGNED, CHUNK_BYTES, LARGE_BYTES, WORTH_BYTES, Changed, Ways

PAST, THROUGH = {True: 2e9, False: 1e9}, {True: 1e9, False: 2e9}
SIZES = (0, 1, ALIGNED, CHUNK_BYTES - 1, CHUNK_BYTES + 1, LARGE_BYTES, LARGE_BYTES + ALIGNED + 7)


def known(brought: dict[bool, float], folder: Path) -> Ways:
    """What copies to this folder have brought before."""
    ways = Ways()
    ways.brought = {(folder.stat().st_dev, is_direct): rate for is_direct, rate in brought.items()}
    return ways


def copied(source: Path, target: Path, pace: copy.Pace = lambda _: None) -> str:
    fact = source.stat()
    return copy.copy(str(source), str(target), fact.st_size, fact.st_mtime_ns, pace)


@pytest.mark.parametrize("brought", [PAST, THROUGH], ids=["past the page cache", "through it"])
def test_the_same_bytes_arrive_with_their_sum(
    brought: dict[bool, float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the size, aligned or not, and whichever way; and what was in the file before is gone."""
    monkeypatch.setattr(copy, "WAYS", known(brought, tmp_path))
    monkeypatch.setattr(copy, "WINDOW_BYTES", 2 << 20)
    monkeypatch.setattr(copy, "SYNC_BYTES", 4 << 20)
    source, target = tmp_path / "source", tmp_path / "target"
    for size in SIZES:
        content = os.urandom(size)
        source.write_bytes(content)
        seen: list[int] = []
        fact = source.stat()
        assert copied(source, target, seen.append) == hashlib.sha256(content).hexdigest()
        assert target.read_bytes() == content
        assert sum(seen) == size
        summed = copy.digest(str(source), size, fact.st_mtime_ns, lambda _: None)
        assert summed == hashlib.sha256(content).hexdigest()


def test_a_source_that_changes_meanwhile_is_no_copy(tmp_path: Path) -> None:
    """Its size and its time are those that were sealed, also in the end."""
    source = tmp_path / "source"
    source.write_bytes(b"x" * (2 * CHUNK_BYTES))

    def meddle(_: int) -> None:
        os.utime(source, ns=(1, 1))

    with pytest.raises(Changed, match="source changed"):
        copied(source, tmp_path / "target", meddle)


def test_a_disk_that_is_full_says_so_and_leaves_no_thread(tmp_path: Path) -> None:
    """The error of the thread that writes is raised by the copy; one that is ended leaves nothing running either."""
    source = tmp_path / "source"
    source.write_bytes(b"x" * (LARGE_BYTES + 1))
    before = threading.active_count()
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        copied(source, Path("/dev/full"))

    def end(_: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        copied(source, tmp_path / "target", end)
    assert threading.active_count() == before


def test_a_copy_takes_little_memory(tmp_path: Path) -> None:
    """However large the file is."""
    source = tmp_path / "source"
    with source.open("wb") as stream:
        stream.truncate(48 << 20)
    seen = [_resident_bytes()]
    copied(source, tmp_path / "target", lambda _: seen.append(_resident_bytes()))
    assert max(seen) - seen[0] < 24 << 20


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_a_copy_takes_one_core_at_most(tmp_path: Path) -> None:
    """What all threads of the process use meanwhile is waited for."""
    source = tmp_path / "source"
    source.write_bytes(b"x" * (8 << 20))
    over = threading.Event()

    def burn() -> None:
        while not over.is_set():
            hashlib.sha256(b"x" * (1 << 20)).digest()

    other = threading.Thread(target=burn)
    began_s, used_s = time.monotonic(), time.process_time()
    other.start()
    copied(source, tmp_path / "target", lambda _: over.set() if time.process_time() - used_s > 0.2 else None)
    took_s = time.monotonic() - began_s
    over.set()
    other.join()
    assert time.process_time() - used_s <= took_s + 0.1


def test_each_way_is_tried_and_the_better_one_taken() -> None:
    """Past the page cache first, since it costs the trainer least; through it only where that brings a good deal more, and as long as it does."""
    ways, size = Ways(), WORTH_BYTES
    assert not ways.is_direct(1, LARGE_BYTES - 1)
    assert ways.is_direct(1, size)
    ways.note(1, True, size, 1.0)
    assert not ways.is_direct(1, size)
    assert ways.is_direct(1, size - 1)  # what is small says nothing, and is no trial
    ways.note(1, False, size, 0.9)
    assert ways.is_direct(1, size)
    ways.note(1, False, size, 0.5)
    assert not ways.is_direct(1, size)
    ways.note(1, False, size, 2.0)
    assert ways.is_direct(1, size)
    assert ways.is_direct(2, size)  # another file system


def test_one_that_cannot_be_written_past_the_page_cache_is_not_tried_again() -> None:
    """Its first copy went through the page cache, and so do all others."""
    ways = Ways()
    ways.note(1, False, WORTH_BYTES, 1.0)
    assert not ways.is_direct(1, WORTH_BYTES)
