"""Laws of the service's spool: whatever one user leaves there, another's request is seen. (I/O)"""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from ftrun.supervisor.nodes import spool


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
