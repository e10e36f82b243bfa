"""Laws of what a job's log says of its nodes before the script. (I/O)"""

from __future__ import annotations

from pathlib import Path

import pytest

from ftrun.hooks.main import main
from ftrun.hooks.runtime import node_report
from ftrun.hooks.runtime.finding import BAD, DEGRADED, OK, SKIPPED, Finding

NODES = ("n0", "n1", "n2")


def _reported(folder: Path, *findings: Finding, **of_node: Finding) -> None:
    for node in NODES:
        rows = [
            {**one._asdict(), "evidence": []}
            for one in (*findings, *(of_node[name] for name in of_node if name == node))
        ]
        node_report.write_report(
            str(folder), 0, {"schema": 1, "kind": "preflight", "node": node, "findings": rows}
        )


def test_each_of_the_six_items_is_told_with_its_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By name, and where it is not the same everywhere with the nodes; items that nobody ran are left out."""
    _reported(
        tmp_path / "nodes",
        Finding("dns", OK, "3 hosts"),
        Finding("disk-size root", OK, "480.1 GB"),
        Finding("disk-size cache", SKIPPED, "the site names no cache"),
        Finding("ulimit", DEGRADED, "open_files is 1024, not above 1000000", "config", "open_files"),
        Finding("swap", OK, "none"),
        n1=Finding("disk-size shm", OK, "64 GB"),
        n2=Finding("disk-size shm", BAD, "0.1 GB: it must be larger than 1 GB", "storage", "/dev/shm"),
    )
    assert 69 == main(["preflight", "--verdict", "--folder", str(tmp_path / "nodes"), "--nodes", "3"])

    assert [
        "ftrun: preflight: dns: ok",
        "ftrun: preflight: disk-size root: ok",
        "ftrun: preflight: disk-size shm: bad on n2, 1 of 2 nodes",
        "ftrun: preflight: disk-size cache: skipped",
        "ftrun: preflight: ulimit: degraded",
        "ftrun: preflight: n2: disk-size shm: 0.1 GB: it must be larger than 1 GB",
        "ftrun: preflight: the script is not started here",
    ] == capsys.readouterr().err.splitlines()
