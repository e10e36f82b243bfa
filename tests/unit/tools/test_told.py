"""What the caller has set for an ftrun of his own reaches no test."""

from __future__ import annotations

import os

import pytest

from tests.told import HIDDEN, hide, told


def test_no_variable_of_the_caller_reaches_a_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither his settings nor FTRUN_TEST_WORKERS: tests count what they start with. Tests can still ask for what is meant for them."""
    assert [] == [name for name in os.environ if name.startswith("FTRUN_")]
    monkeypatch.setenv(f"{HIDDEN}FTRUN_OLD", "before")  # and it is as it was after the test
    monkeypatch.setenv("FTRUN_OLD", "/old")
    hide()

    assert "FTRUN_OLD" not in os.environ
    assert ("/old", "usual") == (told("FTRUN_OLD"), told("FTRUN_ABSENT", "usual"))
