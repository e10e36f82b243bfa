"""Laws of closing: an attempt belongs to its first claimant, and a closed one is started by nobody. (I/O)"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ftrun.supervisor.store import attempt_dir


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A run with one attempt that nobody claimed."""
    (tmp_path / "attempts" / "1").mkdir(parents=True)
    return tmp_path


def claim(run_dir: Path, launch: int, content: str) -> None:
    os.symlink(content, run_dir / "attempts" / "1" / (f"claim.{launch}" if launch else "claim"))


def test_an_attempt_that_nobody_started_is_closed_for_good(run_dir: Path) -> None:
    """A late job finds the claim taken; closing again changes nothing."""
    assert attempt_dir.close_attempt(str(run_dir), 1, 4, started=False) is None
    assert attempt_dir.close_attempt(str(run_dir), 1, 5) is None
    assert (attempt_dir.Claim(0, "closed.4"),) == attempt_dir.claims(str(run_dir), 1)


def test_a_job_that_was_there_first_is_told_and_nothing_is_closed(run_dir: Path) -> None:
    """A submission that counted as lost had started: it must not be closed behind its back."""
    claim(run_dir, 0, "c.77.0.t:1")
    taken = attempt_dir.close_attempt(str(run_dir), 1, 4, started=False)

    assert taken is not None
    assert "77" == taken.job
    assert 1 == len(attempt_dir.claims(str(run_dir), 1))


def test_a_started_attempt_is_closed_for_its_next_launch(run_dir: Path) -> None:
    """Its launch is over; what Slurm may start again under the same id finds the attempt closed."""
    claim(run_dir, 0, "c.77.0.t:1")
    claim(run_dir, 1, "c.77.1.t:1")

    assert attempt_dir.close_attempt(str(run_dir), 1, 4) is None
    assert [False, False, True] == [c.closed for c in attempt_dir.claims(str(run_dir), 1)]


def test_a_job_that_claimed_a_later_launch_was_there_first_too(run_dir: Path) -> None:
    """Its first launch was lost before it claimed anything: the second one trains."""
    claim(run_dir, 1, "c.77.1.t:1")
    taken = attempt_dir.close_attempt(str(run_dir), 1, 4, started=False)

    assert taken == attempt_dir.Claim(1, "c.77.1.t:1")
    assert 1 == len(attempt_dir.claims(str(run_dir), 1))


def test_a_job_that_claims_while_its_attempt_is_closed_is_told(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It claims another launch than the one that is closed, so neither finds its name taken: who wrote looks once more."""
    symlink = os.symlink

    def meanwhile(content: str, path: str) -> None:
        symlink(content, path)
        if content.startswith("closed."):
            claim(run_dir, 1, "c.77.1.t:1")

    monkeypatch.setattr(os, "symlink", meanwhile)
    taken = attempt_dir.close_attempt(str(run_dir), 1, 4, started=False)

    assert taken is not None
    assert "77" == taken.job


def test_the_holder_of_an_attempt_is_the_job_that_began(run_dir: Path) -> None:
    """P4: whichever launch it claimed; of two that claimed at once, the one with a record of its launch; of two without one, none."""

    def holder() -> attempt_dir.Claim | None:
        return attempt_dir.claim_holder(str(run_dir), 1)

    assert holder() is None
    claim(run_dir, 1, "c.77.1.t:1")
    assert holder() == attempt_dir.Claim(1, "c.77.1.t:1")
    claim(run_dir, 0, "c.78.0.t:1")
    assert holder() is None
    (run_dir / "attempts" / "1" / "launch.0").write_text("job=78\n")
    assert holder() == attempt_dir.Claim(0, "c.78.0.t:1")


def test_the_owner_of_a_launch_is_who_claimed_it(run_dir: Path) -> None:
    """A token may hold dots; a closed claim has no job; an unclaimed launch has no owner."""
    claim(run_dir, 0, "cluster.12.0.ftrun:a.b-0001:1:1")
    claim(run_dir, 1, "closed.3")
    found = [attempt_dir.claim_of_launch(str(run_dir), 1, launch) for launch in range(3)]

    assert ["12", "", None] == [one.job if one else None for one in found]
