"""Laws of the operator's spool: whatever one user leaves there, another's request is seen. (I/O)"""

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


def test_drafts_that_claim_to_be_young_are_in_nobodys_way(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user can set the time of a file: more drafts than names are looked at do not hide a request for ever."""
    monkeypatch.setattr(spool, "NAMES_MAX", 50)
    future_s = time.time() + 10 * 86_400
    for number in range(120):
        draft = place / f".{number}.tmp"
        draft.write_bytes(b"x")
        os.utime(draft, (future_s, future_s))
    (place / f"{'a' * 32}.req").write_bytes(b"signed")

    found = spool.Spool(str(place))
    seen = [one.id for _ in range(5) for one in found.look()[0]]

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
