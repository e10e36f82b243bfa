"""Laws of asking a sick machine: nothing is waited for without end, and what is not there is told. (I/O)"""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from ftrun.hooks.checks import disk_root
from ftrun.hooks.findings import BAD, DEGRADED, OK, UNKNOWN, Finding, worst
from ftrun.hooks.machine import Machine, NoAnswer


def test_a_command_that_hangs_is_left_behind() -> None:
    """A tool that waits for a dead device costs its limit, and no more."""
    began = time.monotonic()
    with pytest.raises(NoAnswer, match=r"sleep did not end within 0.3 s"):
        Machine().run(["sleep", "100"], 0.3)

    assert time.monotonic() - began < 20


def test_a_command_that_is_not_there_is_told() -> None:
    """No traceback: what is missing, in one line."""
    with pytest.raises(NoAnswer, match="no-such-tool is not installed"):
        Machine().run(["no-such-tool"])


def test_what_a_command_says_is_kept_whole() -> None:
    """Exit code and both streams."""
    assert (3, "a\n", "b\n") == Machine().run(["sh", "-c", "echo a; echo b >&2; exit 3"])


def test_a_file_that_hangs_is_left_behind(tmp_path: Path) -> None:
    """Reading from a dead mount never returns; a pipe that nobody writes to stands for it here."""
    os.mkfifo(tmp_path / "dead")
    (tmp_path / "alive").write_text("yes")
    machine = Machine(str(tmp_path))

    with pytest.raises(NoAnswer, match=r"/dead did not answer within 0.2 s"):
        machine.read("/dead", 0.2)
    assert "yes" == machine.read("/alive")
    assert machine.read("/nowhere") is None


def test_no_time_is_asked_for_beyond_the_check_s_own() -> None:
    """A check that has used its time gets none for one more question."""
    with pytest.raises(NoAnswer):
        Machine(deadline_s=time.monotonic() - 1).run(["sleep", "5"], 10)


def test_the_worst_finding_speaks() -> None:
    """Bad stands above degraded, degraded above ok; nothing found is ok."""
    found = [Finding("c", OK, ""), Finding("c", BAD, ""), Finding("c", DEGRADED, "")]

    assert (BAD, OK) == (worst(found), worst([]))


@pytest.mark.parametrize(
    ("room", "severity"),
    [
        (disk_root.Room(64 * 10**9, 20 * 10**9, 1000, 900), OK),
        (disk_root.Room(32 * 10**9, 20 * 10**9, 1000, 900), BAD),
        (disk_root.Room(64 * 10**9, 10**8, 1000, 900), DEGRADED),
        (disk_root.Room(64 * 10**9, 20 * 10**9, 1000, 3), DEGRADED),
        (disk_root.Room(64 * 10**9, 20 * 10**9, 0, 0), OK),
        (None, UNKNOWN),
    ],
)
def test_disk_size_root(room: disk_root.Room | None, severity: str) -> None:
    """More than 32 GB, with room and inodes left."""
    (found,) = disk_root.judge(room, disk_root.CHECK.thresholds)

    assert ("disk-size root", severity) == (found.check, found.severity)
