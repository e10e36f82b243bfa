"""Cache files: trusted only where nobody else can have written them, and never more than a few of a kind. (I/O)"""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from ftrun.supervisor.store import user_cache


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the cache; nothing is in it yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "ftrun"


def _name(number: int, kind: str = "signatures") -> str:
    return f"{kind}-{number:032x}.hs"


def _aged(path: Path, seconds: float) -> None:
    then = path.stat().st_mtime - seconds
    os.utime(path, (then, then))


def test_only_the_newest_of_a_kind_stay(folder: Path) -> None:
    """However many editions there were; those of another kind count for themselves."""
    user_cache.write_cached("catalog-25bc1247-00ff", b"other")
    for number in range(20):
        user_cache.write_cached(_name(number), b"%d" % number)
        _aged(folder / _name(number), 1000 - number)

    kept = {path.name for path in folder.iterdir()}

    assert {_name(number) for number in range(20 - user_cache.FILES_KEPT_MAX, 20)} | {
        "catalog-25bc1247-00ff"
    } == kept
    assert b"19" == user_cache.read_cached(_name(19))


def test_what_is_read_counts_as_new(folder: Path) -> None:
    """A file in use stays, whenever it was written."""
    user_cache.write_cached(_name(0), b"in use")
    _aged(folder / _name(0), 10 * 86_400)
    for number in range(1, user_cache.FILES_KEPT_MAX):
        user_cache.write_cached(_name(number), b"")
        _aged(folder / _name(number), 86_000)
    user_cache.read_cached(_name(0))

    user_cache.write_cached(_name(99), b"")

    assert b"in use" == user_cache.read_cached(_name(0))
    assert user_cache.read_cached(_name(1)) is None or user_cache.read_cached(_name(2)) is None


def test_nothing_foreign_is_dropped(folder: Path, tmp_path: Path) -> None:
    """Files of another form, links and folders stay, and so does what a link leads to."""
    user_cache.write_cached(_name(0), b"")
    (tmp_path / "mine").write_text("mine")
    (folder / _name(1)).symlink_to(tmp_path / "mine")
    (folder / _name(2)).mkdir()
    (folder / "signatures-notes.txt").write_text("mine")
    (folder / "README").write_text("mine")
    strange = {path.name for path in folder.iterdir()} - {_name(0)}
    for name in ("signatures-notes.txt", "README"):
        _aged(folder / name, 1e6)

    for number in range(100, 120):
        user_cache.write_cached(_name(number), b"")

    assert strange <= {path.name for path in folder.iterdir()}
    assert "mine" == (tmp_path / "mine").read_text()


def test_what_a_killed_writer_left_is_dropped_when_it_is_old(folder: Path) -> None:
    """A file that is being written stays."""
    user_cache.write_cached(_name(0), b"")
    for name in (".new-old", ".new-now"):
        (folder / name).write_bytes(b"half")
    _aged(folder / ".new-old", 7200)

    user_cache.write_cached(_name(1), b"")

    assert {_name(0), _name(1), ".new-now"} == {path.name for path in folder.iterdir()}


def test_readers_and_writers_at_once_see_whole_files_or_none(folder: Path) -> None:
    """Whatever is dropped meanwhile."""
    content = {_name(number): bytes([number]) * 200_000 for number in range(4 * user_cache.FILES_KEPT_MAX)}
    wrong: list[str] = []

    def write() -> None:
        for name, text in content.items():
            user_cache.write_cached(name, text)

    def read() -> None:
        for _ in range(3):
            wrong.extend(
                name for name, text in content.items() if user_cache.read_cached(name) not in {None, text}
            )

    threads = [threading.Thread(target=part) for part in (write, write, read, read)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert [] == wrong
    assert user_cache.FILES_KEPT_MAX >= len(list(folder.iterdir()))


def test_a_folder_of_others_is_neither_read_nor_cleared(folder: Path) -> None:
    """Where anybody may write, nothing is believed and nothing is changed."""
    for number in range(10):
        user_cache.write_cached(_name(number), b"")
    before = {path.name for path in folder.iterdir()}
    folder.chmod(0o777)

    user_cache.write_cached(_name(99), b"")

    assert before == {path.name for path in folder.iterdir()}
