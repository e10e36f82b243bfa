"""Laws of the release matrix: what it counts, what it prints, and when it says no."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.matrix.__main__ import Row, counted, table
from tests.matrix.root import RootError


def test_a_suite_is_well_where_something_passed_and_nothing_failed() -> None:
    """A suite of which nothing ran is no proof."""
    assert Row("22.05", "drills", 3, 0, 1, 2.0, "log").well
    assert not Row("22.05", "drills", 3, 1, 0, 2.0, "log").well
    assert not Row("22.05", "drills", 0, 0, 4, 2.0, "log").well
    assert not Row("22.05", "drills", 3, 0, 0, 2.0, "log", "took longer than 9 s").well


def test_the_table_names_release_suite_and_what_failed() -> None:
    """One line each, with the reason where the suite could not tell."""
    lines = table(
        [
            Row("22.05", "drills", 3, 0, 1, 2.4, "l"),
            Row("26.05", "environment", 0, 1, 0, 9.0, "l", "no network"),
        ]
    )
    assert lines.splitlines()[2:] == [
        "| 22.05 | drills | 3 | 0 | 1 | 2 | ok |",
        "| 26.05 | environment | 0 | 1 | 0 | 9 | **no network** |",
    ]


def test_a_report_is_counted_and_a_missing_one_told(tmp_path: Path) -> None:
    """Errors of fixtures count as failures."""
    report = tmp_path / "matrix.xml"
    report.write_text('<testsuites><testsuite tests="9" failures="1" errors="2" skipped="3" /></testsuites>')
    assert counted(report) == (3, 3, 3)
    with pytest.raises(RootError, match="no report"):
        counted(tmp_path / "absent.xml")
