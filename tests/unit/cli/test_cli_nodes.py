"""Laws of `ftrun nodes`, with Slurm away: what the ledger alone can tell, and what a person may say. (I/O)"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from ftrun.supervisor.cli import main
from ftrun.supervisor.model.node_entry import NodeEntry
from ftrun.supervisor.nodes import ledger

DAY = 86_400.0


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A ledger with one bad node and four that failed together; no Slurm."""
    monkeypatch.setenv("FTRUN_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("FTRUN_SITE_CONFIG", str(tmp_path / "none.toml"))
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "none.conf"))
    now_s = time.time()
    one = [_fault("gpu1", now_s - n * DAY, n, device="0000:3b:00") for n in (2, 1)]
    many = [_fault(f"gpu{n}", now_s - DAY, n, signature="ib-link-down") for n in (5, 6, 7, 8)]
    (tmp_path / "home").mkdir(mode=0o700)
    assert ledger.append_entries(str(tmp_path / "home"), *one, *many)
    return str(tmp_path / "home")


def _fault(node: str, at_s: float, number: int, **changes: Any) -> NodeEntry:
    detail = {"incident": "1.0", "attempt_nodes": 8, "strike": True, "title": "it fell [red]off[/red]"}
    told: dict[str, Any] = {"signature": "nvidia-xid-79", "fault": "hardware-gpu", "detail": detail} | changes
    return NodeEntry(at_s, "incident", (node,), id=f"i{node}{number}", run=f"r-{number:04d}", **told)


def _json(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    assert 0 == main(["nodes", *words, "--json"])
    (line,) = capsys.readouterr().out.splitlines()
    return json.loads(line)


def test_the_table_tells_strikes_quarantine_and_what_was_common(
    home: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two strikes keep gpu1 away for two days; the four have none, and a line says why. Slurm's silence is said on stderr."""
    assert 0 == main(["nodes"])
    printed = capsys.readouterr()

    (row,) = [line for line in printed.out.splitlines() if line.startswith("gpu1")]
    assert "nvidia-xid-79" in row
    assert (
        "ib-link-down on 4 nodes within minutes: held to be the job's or the cluster's fault" in printed.out
    )
    assert 1 == printed.err.count("Slurm does not answer")


def test_the_facts_are_the_same_as_json(home: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A row for each node of which something is known, in one object on one line."""
    facts = _json(capsys)
    rows = {row["node"]: row for row in facts["nodes"]}

    assert ["gpu1", "gpu5", "gpu6", "gpu7", "gpu8"] == list(rows)
    assert (2, True) == (rows["gpu1"]["strikes"], rows["gpu1"]["quarantined"])
    assert (0, False, "") == (rows["gpu5"]["strikes"], rows["gpu5"]["quarantined"], rows["gpu5"]["slurm"])
    assert facts["slurm_unseen"]
    assert [["gpu5", "gpu6", "gpu7", "gpu8"]] == [cause["nodes"] for cause in facts["together"]]


def test_a_person_excludes_and_releases(home: str, capsys: pytest.CaptureFixture[str]) -> None:
    """By lists, for a time, with a reason; a release takes strikes back, too. Who it was is kept."""
    told = _json(capsys, "exclude", "gpu[20-21]", "gpu1", "--for", "2d", "--reason", "rattles")
    assert ["gpu20", "gpu21", "gpu1"] == told["excluded"]
    assert abs(told["until"] - time.time() - 2 * DAY) < 3600
    facts = _json(capsys, "show", "gpu20")
    assert (True, "rattles") == (facts["quarantined"], facts["why"])
    assert facts["history"][0]["detail"]["by"]

    assert ["gpu1"] == _json(capsys, "release", "gpu1")["released"]
    facts = _json(capsys, "show", "gpu1")
    assert (False, 0, 2) == (facts["quarantined"], facts["strikes"], facts["strikes_taken_back"])
    assert ["incident", "incident", "excluded", "released"] == [entry["what"] for entry in facts["history"]]


def test_show_tells_the_story_of_a_node(home: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Strikes, device, history, oldest first; brackets in a title are no markup."""
    assert 0 == main(["nodes", "show", "gpu1"])
    printed = capsys.readouterr().out

    assert "2 strikes open" in printed
    assert "0000:3b:00" in printed
    assert "it fell [red]off[/red]" in printed
    assert 0 == main(["nodes", "show", "gpu5"])
    assert "not counted as a fault of this node" in capsys.readouterr().out


def test_lemons_have_a_score_with_its_signals(home: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Two failures of wide jobs in two runs are five points: near to a lemon, and shown when all are asked for."""
    assert [] == _json(capsys, "lemons")["nodes"]
    (row,) = _json(capsys, "lemons", "--all")["nodes"]

    assert ("gpu1", 5.0, False, 2) == (row["node"], row["score"], row["lemon"], row["runs"])
    assert 2 == row["signals"]["multi_node_fails"]
    assert 0 == main(["nodes", "lemons", "--all"])
    assert "MULTI NODE FAILS" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words",
    [
        ["show"],
        ["exclude"],
        ["exclude", "gpu1", "--for", "soon"],
        ["exclude", "gpu[1-"],
        ["exclude", "gpu1", "--for", "0s"],
        ["exclude", ""],
        ["show", ""],
        ["show", "gpu[1-2]"],
        ["release"],
        ["shwo", "gpu1"],
    ],
    ids=" ".join,
)
def test_wrong_usage_is_one_line(home: str, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Exit 2, and nothing is written."""
    before = ledger.read_entries(home)

    assert 2 == main(["nodes", *words])
    assert "Traceback" not in capsys.readouterr().err
    assert before == ledger.read_entries(home)


def test_an_empty_home_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is known, and nothing is made."""
    monkeypatch.setenv("FTRUN_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "none.conf"))

    assert 0 == main(["nodes"])
    assert "no node has a history yet" in capsys.readouterr().out
    assert not (tmp_path / "home").exists()


def test_a_ledger_that_cannot_be_written_is_said_so(home: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit 1, with the folder."""
    folder = Path(ledger.ledger_dir(home))
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    folder.write_text("in the way")

    assert 1 == main(["nodes", "exclude", "gpu1"])
    assert f"the ledger cannot be written: {folder}" in capsys.readouterr().err


def test_the_arithmetic_of_failures_that_follow_a_node_is_shown(
    home: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the table, of one node, and as JSON: counts, the chance, and among how many nodes."""
    begin_s = time.time() - DAY
    words = ("b c d e b d c a " * 5).split()
    starts = [
        NodeEntry(
            begin_s + 600 * number,
            "ended",
            (f"gpu-{word}",),
            id=f"s{number}",
            run=f"r{number}",
            detail={"result": "failed" if word == "a" else "passed", "work": "train@mainx1"},
        )
        for number, word in enumerate(words)
    ]
    assert ledger.append_entries(home, *starts)

    assert main(["nodes"]) == 0
    printed = capsys.readouterr().out
    (row,) = [line for line in printed.splitlines() if line.startswith("gpu-a")]
    assert "failures follow it" in row
    assert "avoided: 5 of 5 starts on gpu-a failed for no known cause, 0 of 35 of the same work" in printed
    assert "among 5 nodes" in printed
    assert main(["nodes", "show", "gpu-a"]) == 0
    assert "by chance 1 in" in capsys.readouterr().out
    found = _json(capsys, "show", "gpu-a")
    assert found["quarantined"]
    assert found["association"]["excluded"]
    assert found["association"]["chance_corrected"] == pytest.approx(5 * found["association"]["chance"])
    assert _json(capsys, "show", "gpu1")["association"] is None
