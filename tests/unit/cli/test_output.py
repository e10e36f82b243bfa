"""What commands print. (I/O)"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import pytest

from ftrun.supervisor.cli import common


class Colour(Enum):
    RED = "red"


@dataclass(frozen=True)
class Fact:
    colour: Colour
    nodes: frozenset[str]
    where: Path


def test_json_is_one_line_of_plain_values(capsys: pytest.CaptureFixture[str]) -> None:
    """Records, enums, sets and paths print as JSON, sets in order, everything on one line."""
    common.print_json([Fact(Colour.RED, frozenset({"n2", "n1"}), Path("/a"))])

    printed = capsys.readouterr().out
    assert 1 == printed.count("\n")
    assert [{"colour": "red", "nodes": ["n1", "n2"], "where": "/a"}] == json.loads(printed)


def test_an_unknown_value_is_refused() -> None:
    """What has no JSON is our mistake and is not printed as something else."""
    with pytest.raises(TypeError, match="object"):
        common.print_json(object())


def test_a_table_in_a_pipe_is_plain(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a terminal every row is one line with whole values."""
    common.print_table(["RUN", "WHY"], [["llm-1", "x" * 300], ["llm-22", None]])

    header, first, second = capsys.readouterr().out.splitlines()
    assert "RUN     WHY" == header
    assert "llm-1   " + "x" * 300 == first
    assert "llm-22  -" == second


def test_a_table_on_a_terminal_keeps_node_sets(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Brackets in a value are text, not markup."""
    monkeypatch.setattr(common, "is_terminal", lambda: True)
    common.console.cache_clear()
    common.print_table(["NODES"], [["gpu[1-4]"]])
    common.console.cache_clear()

    assert "gpu[1-4]" in capsys.readouterr().out
