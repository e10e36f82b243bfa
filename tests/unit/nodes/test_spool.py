"""Laws of the service's spool: whatever one user leaves there, another's request is seen. (I/O)"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ftrun.supervisor.nodes import spool
from ftrun.supervisor.nodes.drain_rules import DrainRequest


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A spool with its owner's folders."""
    spool.Spool(str(tmp_path / "spool")).close()
    return tmp_path / "spool"


def test_drafts_that_claim_to_be_young_are_in_nobodys_way(place: Path) -> None:
    """A user can set the time of a file: any number of drafts does not hide a request."""
    future_s = time.time() + 10 * 86_400
    for number in range(120):
        draft = place / f".{number}.tmp"
        draft.write_bytes(b"x")
        os.utime(draft, (future_s, future_s))
    (place / f"{'a' * 32}.req").write_bytes(b"signed")

    found = spool.Spool(str(place))
    seen = [one.id for one in found.look()[0]]

    assert "a" * 32 in seen
    assert len(list(place.glob(".*.tmp"))) <= spool.HALF_WRITTEN_MAX


def test_a_draft_has_an_hour_by_a_time_that_nobody_sets(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is being written stays; one that was given up goes, whatever time it bears."""
    draft = place / f".{'b' * 32}.tmp"
    draft.write_bytes(b"half")
    os.utime(draft, (1.0, 1.0))
    found = spool.Spool(str(place))
    assert ([], 0) == found.look()

    later_s = time.time() + 2 * spool.HALF_WRITTEN_S
    os.utime(draft, (later_s, later_s))
    monkeypatch.setattr(time, "time", lambda: later_s)
    assert ([], 1) == found.look()


@pytest.mark.skipif(os.geteuid() != 0, reason="files of two users are made by root")
def test_one_users_heap_is_in_nobodys_way(place: Path) -> None:
    """Requests, rubbish and drafts of one user, far more than a round once looked at: the other's request is seen at once and comes second."""
    heap, other = 1001, 1002
    for number in range(9000):
        name = (f"{number:032x}.req", f"rubbish-{number}", f".{number}.tmp")[number % 3]
        (place / name).write_bytes(b"x")
        os.chown(place / name, heap, heap)
    wanted = place / f"{'f' * 32}.req"
    wanted.write_bytes(b"signed")
    os.chown(wanted, other, other)

    found, removed = spool.Spool(str(place)).look()

    assert (heap, other) == (found[0].uid, found[1].uid)
    oldest = [f"{number:032x}" for number in range(0, 3 * spool.WAITING_MAX, 3)]
    assert oldest == [one.id for one in found if one.uid == heap]
    assert removed == 9000 - spool.WAITING_MAX - spool.HALF_WRITTEN_MAX
    assert len(os.listdir(place)) == spool.WAITING_MAX + spool.HALF_WRITTEN_MAX + 2


def test_without_munge_files_of_the_root_are_removed_unopened(tmp_path: Path) -> None:
    """Only a folder of a user's own says there who left a request, so a file beside these stops nobody."""
    made = spool.Spool(str(tmp_path / "spool"), unsigned=True)
    for name in (f"{'a' * 32}.req", f"{'b' * 32}.rep"):
        (tmp_path / "spool" / name).write_bytes(b"MUNGE:x")
    assert ([], 2) == made.look()
    assert os.listdir(tmp_path / "spool") == [spool.ANSWERS]


@pytest.mark.skipif(os.geteuid() != 0, reason="folders of two users are made by root")
def test_nobody_takes_another_users_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that bears another's name is out of the way after one round, whatever is in it, and goes by and by."""
    place, evil, user = tmp_path / "spool", 1001, 1002
    made = spool.Spool(str(place), unsigned=True)
    taken = place / f"u{user}"
    (taken / "deep").mkdir(parents=True)
    outside = tmp_path / "outside"
    outside.write_bytes(b"kept")
    (taken / "link").symlink_to(outside)
    for number in range(10):
        (taken / "deep" / str(number)).write_bytes(b"x")
    os.chown(taken, evil, evil)
    monkeypatch.setattr(spool, "REMOVED_MAX", 5)

    made.look()
    assert not taken.exists()
    taken.mkdir()
    (taken / f"{'c' * 32}.req").write_bytes(b"asked")
    for path in (taken, taken / f"{'c' * 32}.req"):
        os.chown(path, user, user)
    for _ in range(5):
        assert [("c" * 32, user)] == [(one.id, one.uid) for one in made.look()[0]]
    assert sorted(os.listdir(place)) == [spool.ANSWERS, f"u{user}"]
    assert outside.read_bytes() == b"kept"


@pytest.mark.skipif(os.geteuid() != 0, reason="root makes the folders and gives up its rights to list them")
def test_a_service_that_is_not_root_sees_unsigned_requests(tmp_path: Path) -> None:
    """The folder that a supervisor makes can be listed by the spool's owner; one that cannot is named."""
    place, owner, user = tmp_path / "spool", 1001, 1002
    for folder in [*tmp_path.parents, tmp_path]:
        if folder.stat().st_mode & 0o005 != 0o005:
            folder.chmod(folder.stat().st_mode | 0o055)

    def as_user(uid: int, do: Callable[[], object]) -> object:
        os.seteuid(uid)
        try:
            return do()
        finally:
            os.seteuid(0)

    spool.Spool(str(place)).close()
    for path in (place, place / spool.ANSWERS):
        os.chown(path, owner, owner)
    asked = DrainRequest("d" * 32, "c", "n0", "7", "llm-1", "hardware-gpu", "gpu.lost", 1000.0)
    as_user(user, lambda: spool.leave_request(str(place), asked, "auth/slurm", ""))
    assert as_user(owner, lambda: spool.unlisted_folders(str(place))) == []
    made = as_user(owner, lambda: spool.Spool(str(place), unsigned=True).look()[0])
    assert [one.id for one in made] == ["d" * 32]  # type: ignore[attr-defined]
    (place / f"u{user}").chmod(0o711)
    assert as_user(owner, lambda: spool.unlisted_folders(str(place))) == [f"u{user}"]
