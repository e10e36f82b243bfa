"""Laws of reading what nodes left in an attempt's folder, and of what is put there for them to run. (I/O)"""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ftrun.supervisor.diagnosis.node_findings import NodeFacts, facts_from_reports
from ftrun.supervisor.nodes import from_runs
from ftrun.supervisor.store import node_reports, node_tools, run_dir

GPU = {"check": "gpu-check", "severity": "bad", "message": "m", "fault": "hardware-gpu", "device": "0"}


def _report(node: str = "n0", **more: Any) -> str:
    return json.dumps({"schema": 1, "kind": "watch", "node": node, "at_s": 1.0, "findings": [GPU], **more})


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """The folder of reports of attempt 1 of a run."""
    folder = Path(node_reports.folder(str(tmp_path), 1))
    folder.mkdir(parents=True)
    return folder


def _facts(tmp_path: Path, start: int = 1) -> NodeFacts:
    nodes = ("n0", "n1")
    return facts_from_reports(nodes, node_reports.read_reports(str(tmp_path), 1, 0, nodes, start=start))


def _found(tmp_path: Path, start: int = 1) -> list[str]:
    return [one.node for one in _facts(tmp_path, start).findings]


def test_checks_after_an_earlier_start_say_nothing_of_a_later_one(tmp_path: Path, place: Path) -> None:
    """A node may have been mended or set aside; the watch goes on over all starts, and so do its findings."""
    (place / "after.0.n0.json").write_text(_report(kind="after", start=1))
    assert [_found(tmp_path, start=number) for number in (1, 2)] == [["n0"], []]

    (place / "after.0.n0.json").write_text(_report(kind="after"))
    (place / "watch.0.n1.json").write_text(_report("n1"))
    assert _found(tmp_path, start=2) == ["n1", "n0"]


def test_only_reports_of_the_attempts_own_nodes_and_launch_are_read(tmp_path: Path, place: Path) -> None:
    """A file for another node, another launch or of another's name says nothing."""
    (place / "watch.0.n0.json").write_text(_report())
    (place / "watch.0.n1.json").write_text(_report("n0"))
    (place / "watch.0.stranger.json").write_text(_report("stranger"))
    (place / "watch.1.n1.json").write_text(_report("n1"))

    assert _found(tmp_path) == ["n0"]


def test_what_is_no_report_cannot_hold_up_its_reader(tmp_path: Path, place: Path) -> None:
    """A pipe, a link, a folder, garbage, depths without end and a file without end are passed over."""
    os.mkfifo(place / "preflight.0.n0.json")
    (place / "secret").write_text(_report())
    (place / "watch.0.n0.json").symlink_to(place / "secret")
    (place / "after.0.n0.json").mkdir()
    (place / "preflight.0.n1.json").write_text("[" * 100_000)
    (place / "watch.0.n1.json").write_bytes(b"\xff\xfe{")
    with open(place / "after.0.n1.json", "w") as stream:
        stream.truncate(node_reports.REPORT_BYTES_MAX * 100)

    assert _found(tmp_path) == []


@pytest.mark.parametrize("number", ["9" * 400, "-1e999", "NaN", "Infinity", "true", '"now"'])
def test_a_number_that_no_clock_shows_costs_its_own_field_only(
    tmp_path: Path, place: Path, number: str
) -> None:
    """Whatever stands there, the finding counts, and nothing fails: not the look at the run, not the ledger of all runs."""
    text = json.dumps({**json.loads(_report()), "at_s": "HERE"}).replace('"HERE"', number)
    (place / "after.0.n0.json").write_text(text)

    assert _found(tmp_path) == ["n0"]
    assert _facts(tmp_path).findings[0].at_s is None
    told = node_reports.read_reports(str(tmp_path), 1, 0, ("n0",))["after"]["n0"]
    run = SimpleNamespace(token="t", id="r")
    entries = from_runs.entries_of_report(run, 1, 0, told, node="n0", now_s=5.0)  # type: ignore[arg-type]
    assert [5.0] == [entry.at_s for entry in entries]


def test_a_folder_that_is_not_there_is_no_news(tmp_path: Path) -> None:
    """Most launches have no report: nothing is said, and nothing fails."""
    assert run_dir.folder_time_ns(node_reports.folder(str(tmp_path), 1)) == 0
    assert _found(tmp_path) == []


def test_a_new_report_changes_the_stamp(tmp_path: Path, place: Path) -> None:
    """One question tells whether there is anything to read."""
    before = run_dir.folder_time_ns(node_reports.folder(str(tmp_path), 1))
    draft = place / "draft"
    draft.write_text(_report())
    draft.rename(place / "watch.0.n0.json")

    assert run_dir.folder_time_ns(node_reports.folder(str(tmp_path), 1)) != before


def test_the_node_side_lies_behind_one_link(tmp_path: Path) -> None:
    """Jobs find the newest version by the link and keep the file that it led to; putting it there again changes nothing."""
    home = str(tmp_path)
    first = node_tools.install_node_tools(home)
    link = tmp_path / run_dir.TOOLS_LINK
    assert os.path.realpath(link) == os.path.realpath(first)

    link.unlink()
    link.symlink_to("ftrun-hook-of-yesterday.pyz")
    assert node_tools.install_node_tools(home) == first
    assert os.path.realpath(link) == os.path.realpath(first)
    there = {
        name for name in os.listdir(link.parent) if ".cpython-" not in name
    }  # what is compiled beside it, now or later
    assert there == {os.path.basename(first), link.name}
    assert run_dir.run_dirs(home) == []


def test_what_was_found_before_a_node_was_mended_is_kept_and_counts_no_more(
    tmp_path: Path, place: Path
) -> None:
    """All that the node itself said; what others said stays, and so does what it says from then on."""
    for name in ("watch.0.n0", "preflight.0.n0", "watch.0.n1"):
        (place / f"{name}.json").write_text(_report(name[-2:]))
    node_reports.set_aside_reports(str(tmp_path), 1, ("n0",), "2")
    assert _found(tmp_path) == ["n1"]
    assert sorted(path.name for path in place.iterdir()) == [
        "before-2.preflight.0.n0.json",
        "before-2.watch.0.n0.json",
        "watch.0.n1.json",
    ]

    (place / "watch.0.n0.json").write_text(_report())
    assert _found(tmp_path) == ["n0", "n1"]
