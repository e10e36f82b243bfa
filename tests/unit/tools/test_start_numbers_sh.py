"""batch.sh, under each POSIX shell: the number that a start is told, over launches and starts in place."""

from __future__ import annotations

import pytest

from tests.unit.bundle.test_batch_sh import Attempt, attempt

__all__ = ["attempt"]

TOLD = '#!/bin/sh\necho "$FTRUN_RESTART $FTRUN_START"\n'


@pytest.mark.parametrize(
    ("launch", "begun", "told"),
    [
        ("0", (), 4),
        ("1", ("0.1",), 5),
        ("2", ("0.1", "0.2", "0.3", "1.1"), 8),
        ("2", ("1.2", "1.2.tmp.77", "2.1", "2.2", "x.2"), 7),
        ("1", (), 5),  # the record of the launch before never came into being
    ],
)
def test_no_two_starts_of_a_run_have_the_same_number(
    attempt: Attempt, launch: str, begun: tuple[str, ...], told: int
) -> None:
    """Starts inside the allocation count also when Slurm has requeued the job since; four were made by earlier attempts."""
    attempt.values["restart"] = "4"
    attempt.env["SLURM_RESTART_COUNT"] = launch
    for name in begun:
        (attempt.place / f"begun.{name}").write_text("")

    assert (0, f"{told} 1\n", "") == attempt.run(TOLD)
