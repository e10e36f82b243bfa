"""A few thousand hostile inputs in each test run; `make fuzz` tries a million."""

from __future__ import annotations

from pathlib import Path

import pytest

from ftrun.hooks.cluster import claim
from tests.fuzz.__main__ import attacked

INPUTS = 3000


def test_nothing_that_others_write_makes_a_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A value, or one line: of reports, requests, nodes.json, journals, claims, answers of hosts, and Slurm's records."""
    monkeypatch.setattr(claim, "PATH", str(tmp_path / "claim"))
    result = attacked(INPUTS, 23, str(tmp_path))
    assert result.failures == []
    assert result.inputs.total() == INPUTS
