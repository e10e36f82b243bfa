"""Laws of `--array`: which tasks there are, and what a part of them is told about the whole. (pure)"""

from __future__ import annotations

import pytest

from ftrun.supervisor.submission import array_spec

# As Slurm 22.05 tells them: count, max, min, step.
TOLD = [
    ("0-5%4", "6 5 0 1"),
    ("1,3,5-9:2", "5 9 1 2"),
    ("0-999", "1000 999 0 1"),
    ("0-9:3", "4 9 0 3"),
    ("7", "1 7 7 1"),
    ("2,4,8", "3 8 2 1"),
    ("3-3", "1 3 3 1"),
    ("5,1", "2 5 1 1"),
    ("0-7:2%1", "4 6 0 2"),
    ("0,10-20:5", "4 20 0 5"),
    ("0-4:2,10-20:5", "6 20 0 2"),
    ("1,1,1-2", "2 2 1 1"),
]


@pytest.mark.parametrize(("spec", "told"), TOLD, ids=[spec for spec, _ in TOLD])
def test_a_task_is_told_what_slurm_tells_it_of_the_whole(spec: str, told: str) -> None:
    """Count, highest, lowest and step are those of the array as it was asked for."""
    assert told == " ".join(array_spec.array_env(spec).values())


@pytest.mark.parametrize("spec", ["", "x", "5-1", "1-9:0", "1-", "-3", "1,,2", "0-99999999999"])
def test_what_slurm_would_refuse_has_no_tasks(spec: str) -> None:
    """Nothing is made up for a specification that nobody can read."""
    assert ((), {}) == (array_spec.array_tasks(spec), array_spec.array_env(spec))


def test_the_limit_stays_with_what_is_left() -> None:
    """A narrowed array runs as many at a time as the whole did."""
    assert "2,5%4" == array_spec.narrowed_array("0-5%4", (2, 5))
    assert "2" == array_spec.narrowed_array("0-5", (2,))
