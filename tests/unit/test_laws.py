"""The rules that outrank every feature, each as a history in which ftrun once broke it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ftrun.supervisor import journal


@pytest.fixture
def folder(tmp_path: Path) -> str:
    """A run's folder with an empty journal."""
    (tmp_path / "journal").mkdir()
    return str(tmp_path)


def test_a_holder_that_comes_too_late_takes_no_record_back(folder: str) -> None:
    """P8: what a paused holder believed before it lost the lease cuts nothing that the next holder built upon."""
    first = journal.Journal.open_first(folder)
    first.append("run.created", token="t")
    believed_by_the_paused = journal.believed_lengths(folder)
    first.append("attempt.opened", attempt=1)
    first.append("submit.done", attempt=1, job="7")
    leader = journal.Journal.open_epoch(
        folder, epoch=6, writer="b", believed=journal.believed_lengths(folder)
    )
    leader.append("job.started", attempt=1, job="7", nodes=["n1"])
    before = [record["kind"] for record in journal.read_run(folder)]

    late = journal.Journal.open_epoch(folder, epoch=5, writer="a", believed=believed_by_the_paused)
    late.append("warned", message="late")

    assert [record["kind"] for record in journal.read_run(folder)] == before


def test_a_full_disk_costs_no_descriptor_and_no_file(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """P8: a journal that cannot be opened is tried again for as long as the disk is full, and nothing piles up."""

    def full(fd: int, record: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(journal, "append_record", full)
    open_files = len(os.listdir("/proc/self/fd"))

    for _ in range(3):
        with pytest.raises(OSError, match="No space"):
            journal.Journal.open_epoch(folder, epoch=2, writer="a", believed={})

    assert len(os.listdir("/proc/self/fd")) == open_files
    assert os.listdir(os.path.join(folder, "journal")) == []
