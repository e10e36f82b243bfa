"""Laws of what an attempt leaves in its folder: claims, launch records, exit records. (I/O)"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from ftrun.supervisor.store import attempt_dir

FROZEN = Path(__file__).resolve().parents[2] / "frozen" / "v1" / "recovered" / "torn-checkpoint-0001"


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A run with three attempts that started, and a fourth that never did."""
    shutil.copytree(FROZEN, tmp_path / "run")
    (tmp_path / "run" / "attempts" / "4").mkdir()
    return tmp_path / "run"


def test_an_attempt_is_closed_once_and_its_later_launches_with_it(run_dir: Path) -> None:
    """The first free claim is taken; whoever asks again is told that it is closed."""
    (run_dir / "attempts" / "1" / "claim").symlink_to("hpc1.7.0.ftrun:llm-0001:aa:1")

    assert attempt_dir.close_attempt(str(run_dir), 1, 5) is None
    assert attempt_dir.close_attempt(str(run_dir), 1, 6) is None

    claims = attempt_dir.claims(str(run_dir), 1)
    assert [("7", False), ("", True)] == [(claim.job, claim.closed) for claim in claims]
    assert "closed.5" == claims[1].content


def test_an_attempt_that_never_started_is_closed_before_it_can(run_dir: Path) -> None:
    """Its very first claim is taken: a late job finds it and exits."""
    attempt_dir.close_attempt(str(run_dir), 4, 9)

    assert [(0, "closed.9")] == [(c.launch, c.content) for c in attempt_dir.claims(str(run_dir), 4)]


@pytest.mark.parametrize("tries", [[(1, 0), (2, 0), (3, 0)], [(3, 0), (4, 0)], [(3, 2)]])
def test_the_last_log_is_that_of_the_last_launch_that_began(
    run_dir: Path, tries: list[tuple[int, int]]
) -> None:
    """Where the last attempt was refused or never started, the run's last words stand in the log before it."""
    found = attempt_dir.latest_launch_record(str(run_dir), tries)

    assert found == attempt_dir.launch_record(str(run_dir), 3, 0)


def test_nothing_began_where_nothing_was_written(run_dir: Path) -> None:
    """A missing or half-written record is no record."""
    (run_dir / "attempts" / "4" / "exit.0").write_text("sig")

    assert attempt_dir.latest_launch_record(str(run_dir), [(4, 3)]) is None
    assert attempt_dir.exit_record(str(run_dir), 4, 0) is None
    assert attempt_dir.exit_record(str(run_dir), 9, 0) is None


def test_a_script_that_ended_was_not_held(run_dir: Path) -> None:
    """The checks summed up too late: the script had been started, and its own end counts."""
    place = run_dir / "attempts" / "4"
    finding = {"check": "edac", "fault": "hardware-other", "device": "", "message": "memory fails"}
    record = {"schema": 1, "launch": 0, "held": True, "nodes": 2, "bad": {"n1": finding}, "site": []}
    (place / "preflight.0").write_text(json.dumps(record))
    assert attempt_dir.prelaunch_hold(str(run_dir), 4, 0, ("n0", "n1")) is not None

    (place / "exit.0").write_text("code=3\nsignal=0\nended_s=100\n")
    assert attempt_dir.prelaunch_hold(str(run_dir), 4, 0, ("n0", "n1")) is None


def test_a_pipe_or_a_link_in_the_place_of_a_record_is_none(run_dir: Path) -> None:
    """What a job puts into its own folder costs the supervisor a look, and never a wait."""
    place = run_dir / "attempts" / "4"
    for name in ("exit.0", "launch.0", "lost.0", "preflight.0"):
        (place / name).unlink(missing_ok=True)
        os.mkfifo(place / name)
    (place / "exit.1").symlink_to("/etc/hostname")

    assert attempt_dir.exit_record(str(run_dir), 4, 0) is None
    assert attempt_dir.exit_record(str(run_dir), 4, 1) is None
    assert attempt_dir.launch_record(str(run_dir), 4, 0) is None
    assert attempt_dir.prelaunch_hold(str(run_dir), 4, 0, ("n0",)) is None
    assert attempt_dir.second_start_job(str(run_dir), 4, 0) == ""
