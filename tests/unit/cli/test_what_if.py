"""Laws of `ftrun explain --what-if`: the path that a fault would take, from settings alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ftrun.supervisor.cli import main


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder and a home without any settings."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("FTRUN_SITE_CONFIG", str(tmp_path / "none.toml"))
    monkeypatch.setenv("FTRUN_HOME", str(tmp_path / "home"))


def told(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    assert main(["explain", "--what-if", *words, "--json"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    return json.loads(line)


def test_a_class_and_a_signature_have_a_path(capsys: pytest.CaptureFixture[str]) -> None:
    """The rungs in their order, with the conditions; a signature says which class it is of."""
    found = told(capsys, "network", "--ft", "spares=2")
    assert [row["rung"] for row in found["path"]] == [
        "step",
        "swap",
        "companion",
        "rank",
        "shrink",
        "resubmit",
        "stop",
    ]
    found = told(capsys, "nvidia-xid-79", "--ft", "spares=1", "--ft", "policy=nvidia-xid-79.budget-swap=2")
    assert (found["class"], found["signature"]) == ("hardware-gpu", "nvidia-xid-79")
    assert "budget 2 for nvidia-xid-79" in next(row["when"] for row in found["path"] if row["rung"] == "swap")


def test_the_settings_of_the_place_count(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As they would for a submission from here."""
    (tmp_path / "ftrun.toml").write_text('spares = 1\n[policy.network]\nrecover = ["swap", "resubmit"]\n')
    found = told(capsys, "network")
    assert [row["rung"] for row in found["path"]] == [
        "swap",
        "rank",
        "step",
        "companion",
        "shrink",
        "resubmit",
        "stop",
    ]
    assert all(row["when"].startswith("never") for row in found["path"][1:5])


def test_people_get_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    """One row a rung."""
    assert main(["explain", "--what-if", "user-code"]) == 0
    assert capsys.readouterr().out.splitlines()[1].split()[0] == "stop"


def test_the_example_in_the_documents_is_what_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """A page shows every rung that there is, by the present defaults."""
    page = (Path(__file__).resolve().parents[3] / "docs" / "ladder.md").read_text()
    shown = page.partition("    $ ftrun explain --what-if network --ft spares=2\n")[2].partition("\n\n")[0]

    assert main(["explain", "--what-if", "network", "--ft", "spares=2"]) == 0
    assert [line.strip() for line in capsys.readouterr().out.splitlines()] == [
        line.strip() for line in shown.splitlines()
    ]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--what-if", "netwrk"), "did you mean network?"),
        (("--what-if", "network", "--ft", "recover=stepp,resubmit"), "did you mean 'step'?"),
        (("--what-if", "network", "--ft", "spare=1"), "did you mean 'spares'?"),
        (("--what-if", "network", "--ft", "spares"), "KEY=VALUE"),
        (("--what-if", "network", "nobody-0001"), "nobody-0001"),
        (("--what-if", "network", "some-0001", "--ft", "spares=1"), "not both"),
        ((), "a run is wanted"),
        (("--ft", "spares=1"), "a run is wanted"),
    ],
)
def test_wrong_questions_are_answered_in_one_line(
    words: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """And with exit 2, or 1 where there is no such run."""
    assert main(["explain", *words]) in (1, 2)
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1
